"""Frames of videos, cameras and animated images."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.extras import need
from vkmnn.base.media import FILMS, PICTURES, has_suffix
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.pictures import Picture, opaque, pil, read_picture, rgb_of

if TYPE_CHECKING:
    from typing_extensions import Self

_BITS = 8_000_000
"""Bit rate of written videos, in bits per second."""
_CAMERAS = {"linux": ("/dev/video{}", "v4l2"), "darwin": ("{}", "avfoundation"),
            "win32": ("video={}", "dshow")}  # fmt: skip
"""Device file and format of cameras, by platform."""


def frames_of(source: Any) -> Iterator[Picture]:
    """Yield the frames of a video, a camera, an animated image or an iterable of images.

    Raises:
        InvalidInputError: it cannot be read.
        MissingExtraError: the required package is not installed.
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
            hint="pass a video's path, a camera's number, or an iterable of images",
        )


def is_animated(path: Path) -> bool:
    """Return whether an image has several frames; False if it cannot be read."""
    if path.suffix.lower() not in (".gif", ".png", ".webp"):
        return False
    try:
        with pil().open(path) as image:
            return int(getattr(image, "n_frames", 1)) > 1
    except (OSError, EOFError, SyntaxError, ValueError):
        return False


def _animated(path: Path) -> Iterator[Picture]:
    try:
        with pil().open(path) as image:
            for number in range(getattr(image, "n_frames", 1)):
                image.seek(number)
                yield Picture(rgb_of(image.copy()), f"{path.stem}-{number:05d}")
    except (OSError, EOFError, SyntaxError, ValueError) as error:
        raise InvalidInputError(f"'{path}' cannot be read as an image: {error}") from error


def _film(source: str | Path | int) -> Iterator[Picture]:
    av: Any = need("av", "reading videos and cameras", "video")
    text, kind = str(source), None
    if isinstance(source, int):
        place, kind = _CAMERAS.get(sys.platform, _CAMERAS["linux"])
        text = place.format(source)
    elif not Path(text).exists():
        raise InvalidInputError(f"no such file: '{text}'", hint="give the path of a video")
    try:
        with av.open(text, format=kind) as container:
            if not container.streams.video:
                raise InvalidInputError(f"'{text}' has no images")
            for number, frame in enumerate(container.decode(video=0)):
                pixels = frame.to_ndarray(format="rgb24")
                yield Picture(pixels, f"{Path(text).stem}-{number:05d}")
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"'{text}' cannot be read as a video: {error}", hint="check that it is a complete video"
        ) from error


class FilmWriter:
    """Writer of videos.

    Args:
        path: the video file.
        like: the source; if it is a video, its frame rate is used.
    """

    def __init__(self, path: Path, like: str | Path) -> None:
        self._av: Any = need("av", "writing videos", "video")
        self._path = path
        try:
            self._container = self._av.open(str(path), "w")
        except (self._av.FFmpegError, OSError, ValueError) as error:
            raise InvalidInputError(f"'{path}' cannot be written: {error}") from error
        self._rate = _rate_of(self._av, like)
        self._stream: Any = None

    def add(self, image: Any) -> None:
        """Append an image; all have the size of the first, with even numbers of pixels.

        Transparent pixels become white.
        """
        image = opaque(image)
        if self._stream is None:
            self._stream = self._container.add_stream("mpeg4", rate=self._rate)
            self._stream.width, self._stream.height = (side + side % 2 for side in image.size)
            self._stream.pix_fmt, self._stream.bit_rate = "yuv420p", _BITS
        size = self._stream.width, self._stream.height
        frame = self._av.VideoFrame.from_image(image.resize(size) if image.size != size else image)
        self._container.mux(self._stream.encode(frame))

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Finish the video."""
        if self._stream is not None:
            self._container.mux(self._stream.encode())
        self._container.close()


def _rate_of(av: Any, film: str | Path) -> Any:
    """Return the frames per second; 25 if unknown."""
    if not has_suffix(film, FILMS):
        return 25
    with av.open(str(film)) as container:
        return container.streams.video[0].average_rate or 25
