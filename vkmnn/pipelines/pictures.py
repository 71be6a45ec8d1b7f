"""Pictures from files, bytes, arrays and PIL, as RGB of 8 bits."""

from __future__ import annotations

import struct
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
"""What PIL raises for files that are damaged or hostile."""
_ANIMATED = ("GIF", "PNG", "WEBP", "TIFF", "AVIF")
"""Formats whose further frames are another picture; those of MPO show the same."""
_WIDE = ("I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture as a network's input and as the background of results.

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
        """Return it as PIL has pictures."""
        made: Image.Image = pil().fromarray(self.pixels)
        return made


def pil() -> Any:
    """Return PIL's module Image.

    Raises:
        MissingExtraError: pillow is not installed.
    """
    return need("PIL.Image", "reading pictures", "images")


def read_picture(source: Any) -> Picture:
    """Read a picture.

    Args:
        source: a path, bytes, a file, an image of PIL, or an array: [height, width] or [height,
            width, 1, 3 or 4] of uint8 or uint16, or of floats from 0 to 1.

    Raises:
        InvalidInputError: there is no such file, it is damaged, has several frames, or is not a
            picture.
        MissingExtraError: pillow is not installed.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, str | Path):
        return _from_file(Path(source), str(source))
    if isinstance(source, bytes | bytearray | memoryview):
        return Picture(_decoded(BytesIO(bytes(source)), "the picture"))
    if hasattr(source, "read"):
        return Picture(_decoded(source, "the picture"), str(getattr(source, "name", "")))
    if hasattr(source, "getbands"):
        return Picture(_pixels(source, "the picture"), Path(getattr(source, "filename", "")).name)
    if hasattr(source, "__array__"):
        return Picture(_from_array(np.asarray(source)))
    raise InvalidInputError(
        f"{type(source).__name__} is not a picture",
        hint="pass a path, bytes, a PIL image or an array [height, width, 3] of uint8",
    )


def _from_file(path: Path, text: str) -> Picture:
    if "://" in text:
        raise InvalidInputError(
            f"'{text}' is an address, and nothing is downloaded",
            hint="download the picture first",
        )
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise InvalidInputError(f"'{text}' {what}", hint="give the path of a picture")
        return Picture(_decoded(path, f"'{path}'"), path.name)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"'{text}' cannot be read: {error}") from error


def _decoded(source: Any, what: str) -> Array:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large pictures and odd metadata are no news
            with pil().open(source) as image:
                return _pixels(image, what)
    except VkmnnError:
        raise
    except Exception as error:
        if not isinstance(error, _BAD) and "Bomb" not in type(error).__name__:
            raise
        reason = str(error).split("\n")[0]
        raise InvalidInputError(
            f"{what} cannot be read as a picture: {reason}",
            hint="check that it is a picture, and whole",
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
            f"{what} cannot be read as a picture: {error}",
            hint="check that it is a picture, and whole",
        ) from error


def rgb_of(image: Any) -> Array:
    """Return an image of PIL as uint8 [height, width, 3], turned as its EXIF data say."""
    turned = need("PIL.ImageOps", "reading pictures", "images").exif_transpose(image)
    image = image if turned is None else turned
    if image.mode in _WIDE or image.mode in ("I", "F"):
        return _from_array(np.asarray(image))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.ascontiguousarray(np.asarray(image.convert("RGB")))


def _from_array(array: Array) -> Array:
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)  # tensors of torchvision
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise InvalidInputError(
            f"an array of shape {list(array.shape)} is not a picture",
            hint="pass [height, width, 3]; for several, a list of them",
        )
    values = _eight_bits(array[:, :, : min(array.shape[2], 3)])
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def _eight_bits(array: Array) -> Array:
    """Return values of another type in 0 to 255."""
    kind, values = array.dtype.kind, array
    if array.dtype == np.uint8:
        return array
    if kind == "b":
        return (array * 255).astype(np.uint8)
    if kind == "f":
        low, high = float(np.min(values)), float(np.max(values))
        if not (low >= 0 and high <= 1):
            raise InvalidInputError(
                f"a picture of floats has values from 0 to 1, not from {low:.6g} to {high:.6g}",
                hint="divide by the largest, or pass uint8",
            )
        return np.rint(values.astype(np.float64) * 255).astype(np.uint8)
    if kind not in "iu" or int(values.min()) < 0 or int(values.max()) > 65535:
        raise InvalidInputError(
            f"a picture of {array.dtype} has values from 0 to 255, or to 65535 with 16 bits",
            hint="pass uint8",
        )
    if array.dtype != np.uint16 and int(values.max()) <= 255:
        return values.astype(np.uint8)
    return np.rint(values.astype(np.float64) / 257).astype(np.uint8)
