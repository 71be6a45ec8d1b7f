"""MNN.cv's images in files and in memory, by pillow."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.colors import cvtColor
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.images import image_var, pixels_of, to_plain
from vkmnn.mnn.expr.values import cast
from vkmnn.mnn.expr.var import Var

_COLOR, _GRAY, _FLOATS = (
    CONSTANTS[f"IMREAD_{name}"] for name in ("COLOR", "GRAYSCALE", "ANYDEPTH")
)
_QUALITY = 1  # cv2.IMWRITE_JPEG_QUALITY
_WRITERS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "bmp": "BMP"}
_BAD = (OSError, ValueError, SyntaxError, EOFError, RuntimeError, OverflowError, MemoryError)


def _pil() -> Any:
    return need("PIL.Image", "reading images", "images")


def _decoded(source: Any, what: str, flag: int) -> Var:
    if flag not in (_COLOR, _GRAY, _FLOATS):
        raise ArgumentError(f"there is no way {flag} to read an image", hint="use cv.IMREAD_COLOR")
    pil = _pil()
    try:
        with pil.open(source) as image:
            rgb: Array = np.asarray(image.convert("RGB"))
    except VkmnnError:
        raise
    except _BAD as error:
        raise InvalidInputError(f"{what} cannot be read as an image: {error}") from error
    except Exception as error:
        if "Bomb" not in type(error).__name__:
            raise
        raise InvalidInputError(f"{what} has too many pixels: {error}") from error
    if flag == _FLOATS:
        return image_var(rgb.astype(np.float32))
    name = "COLOR_RGB2BGR" if flag == _COLOR else "COLOR_RGB2GRAY"
    return cvtColor(image_var(rgb), CONSTANTS[name])


def imread(filename: str | Path, flag: int = _COLOR) -> Var:
    """Return a file's image: BGR, gray, or RGB of floats, by `flag`.

    Raises:
        InvalidInputError: the file does not exist, or is no image.
        MissingExtraError: pillow is not installed.
    """
    path = Path(filename)
    if not path.is_file():
        raise InvalidInputError(f"'{filename}' is not a file")
    return _decoded(path, f"'{filename}'", flag)


def imdecode(buf: Any, flag: int = _COLOR) -> Var:
    """Return the image in the bytes of a file; see `imread`."""
    data = to_plain(buf)
    if not isinstance(data, bytes | bytearray | memoryview):
        data = np.asarray(data, np.uint8).tobytes()
    return _decoded(BytesIO(bytes(data)), "the image", flag)


def _extension(name: str | Path) -> str:
    return str(name).rpartition(".")[2].lower()


def haveImageReader(filename: str | Path) -> bool:
    """Tell whether a file is an image that can be read."""
    try:
        with _pil().open(filename):
            return True
    except _BAD:
        return False


def haveImageWriter(filename: str | Path) -> bool:
    """Tell whether images can be written to a file of this name."""
    return _extension(filename) in _WRITERS


def _encoded(name: str | Path, img: Any, params: Sequence[int]) -> bytes:
    kind = _WRITERS.get(_extension(name))
    if kind is None:
        raise ArgumentError(f"images are not written as '{name}'", hint="use .jpg, .png or .bmp")
    pixels = pixels_of(cast(img, _uint8()))
    if pixels.shape[-1] not in (1, 3):
        raise ArgumentError(f"an image of {pixels.shape[-1]} channels cannot be written")
    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., ::-1]
    given = dict(zip(params[::2], params[1::2], strict=False))
    options = {"quality": given.get(_QUALITY, 95)} if kind == "JPEG" else {}
    target = BytesIO()
    _pil().fromarray(np.ascontiguousarray(plain)).save(target, kind, **options)
    return target.getvalue()


def _uint8() -> Any:
    return np.dtype(np.uint8)


def imwrite(filename: str | Path, img: Any, params: Sequence[int] = ()) -> bool:
    """Write an image, BGR or gray, to a .jpg, .png or .bmp file.

    Args:
        filename: the file.
        img: [height, width, 3 or 1]; other types are cut off to 8 bits.
        params: pairs of a key and its value: 1, and the quality of a JPEG file.

    Raises:
        ArgumentError: the name has another ending, or the image other channels.
        MissingExtraError: pillow is not installed.
    """
    data = _encoded(filename, img, params)
    try:
        Path(filename).write_bytes(data)
    except OSError as error:
        raise InvalidInputError(f"'{filename}' cannot be written: {error}") from error
    return True


def imencode(ext: str, img: Any, params: Sequence[int] = ()) -> tuple[bool, list[int]]:
    """Return True, and the bytes of a file with an image; see `imwrite`."""
    return True, list(_encoded(ext, img, params))
