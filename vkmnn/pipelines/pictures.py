"""Images from files, bytes, arrays and PIL, as 8-bit RGB."""

from __future__ import annotations

import struct
import threading
import warnings
import zlib
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.extras import need
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.pipelines.arrays import Array

if TYPE_CHECKING:
    from PIL import Image

_BAD = (
    *(OSError, SyntaxError, ValueError, EOFError, KeyError, IndexError, TypeError),
    *(AttributeError, MemoryError, OverflowError, RuntimeError, struct.error, zlib.error),
)
"""Exceptions that PIL raises for damaged or hostile files."""
_ANIMATED = ("GIF", "PNG", "WEBP", "TIFF", "AVIF")
"""Formats whose further frames are other images; those of MPO show the same one."""
_WIDE = ("I;16", "I;16B", "I;16L", "I;16N")
_ORIENTATION = 0x0112
"""The EXIF tag."""


class _Quiet:
    """No warnings about large images and odd metadata while any thread reads an image.

    `warnings.catch_warnings` alone restores the filters of another thread, and may leave all
    warnings off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caught = warnings.catch_warnings()
        self._readers = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._readers:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self._caught.__exit__(None, None, None)


_QUIET = _Quiet()


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image as a network's input and as the background of results.

    Attributes:
        pixels: uint8 [height, width, 3], RGB.
        name: its file's name, or "".
    """

    pixels: Array
    name: str = ""

    @property
    def height(self) -> int:
        """Rows."""
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.pixels.shape[1])

    def image(self) -> Image.Image:
        """Return it as a PIL image."""
        made: Image.Image = pil().fromarray(self.pixels)
        return made


def pil() -> Any:
    """Return PIL's module Image.

    Raises:
        MissingExtraError: pillow is not installed.
    """
    return need("PIL.Image", "reading images", "images")


def read_picture(source: Any) -> Picture:
    """Read an image.

    Args:
        source: a path, bytes, a file object, a PIL image, or an array: [height, width] or [height,
            width, 1, 3 or 4] of uint8, uint16, or floats from 0 to 1.

    Raises:
        InvalidInputError: the file does not exist, is damaged, has several frames, or is not an
            image.
        MissingExtraError: pillow is not installed.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, str | Path):
        return _from_file(Path(source), str(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return Picture(_decoded(BytesIO(bytes(source)), "the image"))
    if hasattr(source, "read"):
        return Picture(_decoded(source, "the image"), str(getattr(source, "name", "")))
    if hasattr(source, "getbands"):
        return Picture(_pixels(source, "the image"), Path(getattr(source, "filename", "")).name)
    if hasattr(source, "__array__"):
        return Picture(_from_array(np.asarray(source)))
    raise InvalidInputError(
        f"{type(source).__name__} is not an image",
        hint="pass a path, bytes, a PIL image or an array [height, width, 3] of uint8",
    )


def _from_file(path: Path, text: str) -> Picture:
    if "://" in text:
        raise InvalidInputError(
            f"'{text}' is a URL; images are not downloaded",
            hint="download the image first",
        )
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise InvalidInputError(f"'{text}' {what}", hint="give the path of an image")
        return Picture(_decoded(path, f"'{path}'"), path.name)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"'{text}' cannot be read: {error}") from error


def _decoded(source: Any, what: str) -> Array:
    try:
        with _QUIET, pil().open(source) as image:
            return _pixels(image, what)
    except VkmnnError:
        raise
    except Exception as error:
        if not isinstance(error, _BAD) and "Bomb" not in type(error).__name__:
            raise
        unknown = type(error).__name__ == "UnidentifiedImageError"
        reason = "its format is not known" if unknown else str(error).split("\n")[0]
        raise InvalidInputError(
            f"{what} cannot be read as an image: {reason}",
            hint="check that it is a complete image",
        ) from error


def _pixels(image: Any, what: str) -> Array:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format in _ANIMATED:
        raise InvalidInputError(
            f"{what} has {frames} frames",
            hint="use pipeline.stream(path), or pass one of its frames",
        )
    try:
        return rgb_of(image)
    except _BAD as error:
        raise InvalidInputError(
            f"{what} cannot be read as an image: {error}",
            hint="check that it is a complete image",
        ) from error


def rgb_of(image: Any) -> Array:
    """Return a PIL image as uint8 [height, width, 3], in its EXIF orientation."""
    image.load()
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = need("PIL.ImageOps", "reading images", "images").exif_transpose(image) or image
    if image.mode in _WIDE or image.mode in ("I", "F"):
        return _from_array(np.asarray(image))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.ascontiguousarray(np.asarray(image if image.mode == "RGB" else image.convert("RGB")))


def opaque(image: Any) -> Any:
    """Return a PIL image without transparency: over white."""
    if image.mode != "RGBA":
        return image
    made = pil().new("RGB", image.size, (255, 255, 255))
    made.paste(image, mask=image.getchannel("A"))
    return made


def _from_array(array: Array) -> Array:
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)  # torchvision's tensors
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise InvalidInputError(
            f"an array of shape {list(array.shape)} is not an image",
            hint="pass [height, width, 3]; for several, a list of them",
        )
    values = _eight_bits(array[:, :, : min(array.shape[2], 3)])
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def _eight_bits(array: Array) -> Array:
    """Return values of another type scaled to 0 to 255."""
    kind, values = array.dtype.kind, array
    if array.dtype == np.uint8:
        return array
    if kind == "b":
        return (array * 255).astype(np.uint8)
    if kind == "f":
        low, high = float(np.min(values)), float(np.max(values))
        if not (low >= 0 and high <= 1):
            raise InvalidInputError(
                f"float images must have values from 0 to 1, not from {low:.6g} to {high:.6g}",
                hint="scale it to 0 to 1, or pass uint8",
            )
        return np.rint(values.astype(np.float64) * 255).astype(np.uint8)
    if kind not in "iu" or int(values.min()) < 0 or int(values.max()) > 65535:
        raise InvalidInputError(
            f"an image of {array.dtype} has values from 0 to 255, or to 65535 with 16 bits",
            hint="pass uint8",
        )
    if array.dtype != np.uint16 and int(values.max()) <= 255:
        return values.astype(np.uint8)
    return np.rint(values.astype(np.float64) / 257).astype(np.uint8)
