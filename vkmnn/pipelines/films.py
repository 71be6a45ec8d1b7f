"""Frames of films, cameras and animated pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.media import PICTURES, has_suffix
from vkmnn.pipelines.pictures import Picture, pil, read_picture, rgb_of

_CAMERAS = {"linux": ("/dev/video{}", "v4l2"), "darwin": ("{}", "avfoundation"),
            "win32": ("video={}", "dshow")}  # fmt: skip
"""File and format of a camera, by platform."""


def frames_of(source: Any) -> Iterator[Picture]:
    """Yield the frames of a film, a camera, an animated picture or an iterable of pictures.

    Raises:
        InvalidInputError: it cannot be read.
        MissingExtraError: the package for it is not installed.
    """
    if isinstance(source, str | Path) and has_suffix(source, PICTURES):
        yield from _animated(Path(source))
    elif isinstance(source, str | Path | int) and not isinstance(source, bool):
        yield from _film(source)
    elif isinstance(source, Iterable) and not isinstance(source, bytes):
        yield from map(read_picture, source)
    else:
        raise InvalidInputError(
            f"{type(source).__name__} has no frames",
            hint="pass a film's path, a camera's number, or an iterable of pictures",
        )


def _animated(path: Path) -> Iterator[Picture]:
    try:
        with pil().open(path) as image:
            for number in range(getattr(image, "n_frames", 1)):
                image.seek(number)
                yield Picture(rgb_of(image.copy()), f"{path.stem}-{number:05d}")
    except (OSError, EOFError, SyntaxError, ValueError) as error:
        raise InvalidInputError(f"'{path}' cannot be read as a picture: {error}") from error


def _film(source: str | Path | int) -> Iterator[Picture]:
    av: Any = need("av", "reading films and cameras", "video")
    text, kind = str(source), None
    if isinstance(source, int):
        place, kind = _CAMERAS.get(sys.platform, _CAMERAS["linux"])
        text = place.format(source)
    elif not Path(text).exists():
        raise InvalidInputError(f"no such file: '{text}'", hint="give the path of a film")
    try:
        with av.open(text, format=kind) as container:
            if not container.streams.video:
                raise InvalidInputError(f"'{text}' has no pictures")
            for number, frame in enumerate(container.decode(video=0)):
                pixels = frame.to_ndarray(format="rgb24")
                yield Picture(pixels, f"{Path(text).stem}-{number:05d}")
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"'{text}' cannot be read as a film: {error}", hint="check that it is a film, and whole"
        ) from error
