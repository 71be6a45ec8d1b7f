"""MNN.cv's conversions of colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.images import bytes_of, image_var
from vkmnn.mnn.expr.values import integer, to_var
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.pixels import converted, from_planes

_PAIRS = (
    *("BGR2BGRA", "BGRA2BGR", "BGR2RGBA", "RGBA2BGR", "BGR2RGB", "BGRA2RGBA", "BGR2GRAY"),
    *("RGB2GRAY", "GRAY2BGR", "GRAY2BGRA", "BGRA2GRAY", "RGBA2GRAY", "BGR2BGR565", "RGB2BGR565"),
    *("BGR2BGR555", "RGB2BGR555", "BGR2XYZ", "RGB2XYZ", "BGR2YCrCb", "RGB2YCrCb", "BGR2HSV"),
    *("RGB2HSV", "BGR2HSV_FULL", "RGB2HSV_FULL", "BGR2YUV", "RGB2YUV"),
)
_CODES = {CONSTANTS[f"COLOR_{name}"]: tuple(name.split("2", 1)) for name in _PAIRS}
_PLANES = {
    CONSTANTS[f"COLOR_YUV2{target}_{kind}"]: (f"YUV_{kind}", target)
    for kind in ("NV21", "NV12")
    for target in ("RGB", "BGR", "RGBA", "BGRA")
}


def formats_of(code: Any) -> tuple[str, str]:
    """Return the formats that a code of MNN.cv's converts between.

    Raises:
        ArgumentError: MNN has no such conversion.
    """
    found = _CODES.get(integer(code, "code"))
    if found is None:
        raise ArgumentError(
            f"MNN.cv does not convert colours by code {code}",
            hint="convert to RGB, BGR, RGBA, BGRA, GRAY, HSV, YUV, YCrCb, XYZ, BGR555 or BGR565",
        )
    return found[0], found[1]


def cvtColor(src: Any, code: int, dstCn: int = 0) -> Var:
    """Return an image in another format.

    Args:
        src: uint8 [height, width, channels].
        code: one of MNN.cv.COLOR_*; see `cvtColorTwoPlane` for YUV_NV21 and YUV_NV12.
        dstCn: ignored.

    Raises:
        ArgumentError: MNN has no such conversion, or the image other channels.
    """
    if code in _PLANES:
        return _joined(src, code)
    source, target = formats_of(code)
    return image_var(converted(bytes_of(src), source, target))


def _joined(src: Any, code: int) -> Var:
    """Convert an image whose second plane follows the first one, in rows of the same width."""
    planes = bytes_of(src)[..., 0]
    height = planes.shape[0] * 2 // 3
    return cvtColorTwoPlane(planes[:height], planes[height:].reshape(-1), code)


def cvtColorTwoPlane(src1: Any, src2: Any, code: int) -> Var:
    """Return an image for its luminance and its colours.

    Args:
        src1: uint8 [height, width].
        src2: uint8, half as many: pairs of V and U (NV21), or of U and V (NV12).
        code: one of MNN.cv.COLOR_YUV2*_NV21 and COLOR_YUV2*_NV12.

    Raises:
        ArgumentError: another code, or planes of sizes that do not suit.
    """
    if code not in _PLANES:
        raise ArgumentError(f"cvtColorTwoPlane does not convert by code {code}")
    luminance = np.asarray(to_var(src1).read())
    if luminance.ndim < 2:
        raise ArgumentError(f"luminance has shape [height, width], not {luminance.shape}")
    height, width = luminance.shape[0], luminance.shape[1]
    luminance = luminance.reshape(height, width).astype(np.uint8)
    colours = to_var(src2).read().reshape(-1).astype(np.uint8)
    if height % 2 or width % 2 or colours.size != height * width // 2:
        raise ArgumentError(f"{colours.size} colours do not suit {height} x {width} pixels")
    pairs = colours.reshape(height // 2, width // 2, 2)
    return image_var(from_planes(luminance, pairs, *_PLANES[code]))
