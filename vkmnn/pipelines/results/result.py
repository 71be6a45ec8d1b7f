"""The base class of results, and writers for the files they are saved to."""

from __future__ import annotations

import json
import os
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from vkmnn.base.extras import need
from vkmnn.base.media import PICTURES, SOUNDS
from vkmnn.base.whole_files import replacing
from vkmnn.errors import InvalidInputError, plural
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import Picture, opaque, pil

if TYPE_CHECKING:
    from PIL import Image

T_co = TypeVar("T_co", covariant=True)


class Result(Generic[T_co]):
    """The result of a pipeline for one input: a sequence of items.

    Args:
        items: labels, boxes, lines of text …
        picture: the input, if it is an image.

    Attributes:
        columns: names of the columns of `rows`.
        suffix: default suffix of the result's file, if it has no image.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    suffix: ClassVar[str] = ".json"

    def __init__(self, items: Sequence[T_co], picture: Picture | None = None) -> None:
        self.items = list(items)
        self.picture = picture

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self.items)

    def __iter__(self) -> Iterator[T_co]:
        """Yield the items."""
        return iter(self.items)

    def __getitem__(self, index: int) -> T_co:
        """Return an item."""
        return self.items[index]

    def __repr__(self) -> str:
        """Return the number of items and the first of them."""
        shown = ", ".join(map(str, self.items[:3])) + (", …" if len(self) > 3 else "")
        return f"<{type(self).__name__}: {plural(len(self), 'item')}{shown and f': {shown}'}>"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the items as rows of a table."""
        return [(str(item),) for item in self.items]

    def to_dict(self) -> Any:
        """Return JSON-compatible values: lists, dictionaries, numbers, strings."""
        return [_plain(item) for item in self.items]

    def to_json(self, indent: int | None = 2) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def arrays(self) -> dict[str, Array]:
        """Return it as arrays by name, for numpy.savez."""
        return {}

    def text(self) -> str:
        """Return it as text."""
        return "\n".join("\t".join(row) for row in self.rows())

    def subtitles(self, suffix: str) -> str:
        """Return it as subtitles; raises ValueError if it has no times."""
        raise ValueError(f"{type(self).__name__} has no times for '{suffix}'")

    def sound(self) -> tuple[Array, int]:
        """Return its samples and their rate; raises ValueError if it is no sound."""
        raise ValueError(f"{type(self).__name__} is no sound")

    def draw(self) -> Image.Image:
        """Return the image with the items drawn on it.

        Raises:
            InvalidInputError: the result has no image.
        """
        raise InvalidInputError(f"{type(self).__name__} cannot be drawn", hint="save it as .json")

    def save(self, path: str | Path) -> Path:
        """Save the result by suffix: an image, .json, .npz, .txt; .wav; .srt or .vtt.

        Returns:
            The path.

        Raises:
            InvalidInputError: the suffix does not fit the result, or the file cannot be written.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidInputError(
                f"a result is saved to a path, not {type(path).__name__}", hint="save('out.json')"
            )
        target = Path(path)
        write = saver_of(target)
        try:
            write(self, target)
        except (OSError, ValueError, KeyError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InvalidInputError(
                f"'{target}' cannot be written: {reason}", hint="check the folder and the suffix"
            ) from error
        return target


def _plain(item: Any) -> Any:
    return item.to_dict() if hasattr(item, "to_dict") else item


_OPAQUE = ("JPEG", "BMP", "PPM")
"""Image formats without transparency."""


def _save_picture(result: Result[Any], path: Path) -> None:
    image = result.draw()
    kind = image_format(path)
    if kind in _OPAQUE:
        image = opaque(image)
    with replacing(path) as file:
        image.save(file, format=kind)


def image_format(path: Path) -> str:
    """Return PIL's name of the format of a suffix; raises KeyError for unknown suffixes."""
    return str(pil().registered_extensions()[path.suffix.lower()])


def _save_json(result: Result[Any], path: Path) -> None:
    with replacing(path) as file:
        file.write((result.to_json() + "\n").encode())


def _save_text(result: Result[Any], path: Path) -> None:
    with replacing(path) as file:
        file.write((result.text() + "\n").encode())


def _save_arrays(result: Result[Any], path: Path) -> None:
    arrays = result.arrays()
    if not arrays:
        raise ValueError(f"{type(result).__name__} has no arrays")
    with replacing(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _save_subtitles(result: Result[Any], path: Path) -> None:
    made = result.subtitles(path.suffix.lower())
    with replacing(path) as file:
        file.write(made.encode())


def _save_sound(result: Result[Any], path: Path) -> None:
    samples, rate = result.sound()
    whole = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2")
    if path.suffix.lower() != ".wav":
        soundfile = need("soundfile", f"writing '{path.name}'", "audio")
        kind = path.suffix.lower().removeprefix(".").upper()
        kind, subtype = ("OGG", "OPUS") if kind == "OPUS" else (kind, None)
        try:
            with replacing(path) as file:
                soundfile.write(file, whole, rate, format=kind, subtype=subtype)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        return
    with replacing(path) as file, wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(rate)
        made.writeframes(whole.tobytes())


Saver = Callable[[Result[Any], Path], None]

SAVERS: Mapping[str, Saver] = {
    **dict.fromkeys(PICTURES, _save_picture),
    **dict.fromkeys(SOUNDS, _save_sound),
    ".json": _save_json,
    ".npz": _save_arrays,
    ".txt": _save_text,
    **dict.fromkeys((".srt", ".vtt"), _save_subtitles),
}
"""Writers of results by file suffix."""


def saver_of(path: Path) -> Saver:
    """Return the writer for files of a suffix.

    Raises:
        InvalidInputError: there is no writer for the suffix.
    """
    found = SAVERS.get(path.suffix.lower())
    if found is None:
        raise InvalidInputError(
            f"results are not saved as '{path.suffix or path.name}'",
            hint="end the name in .png, .jpg, .json, .npz or .txt; .srt or .vtt for transcripts; "
            ".wav for speech",
        )
    return found
