"""MNN.cv's arithmetic on images: thresholds, masks, channels, histograms, equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.filters import GaussianBlur, boxFilter
from vkmnn.mnn.cv.images import image_var
from vkmnn.mnn.expr.elementwise import FUNCTIONS as ELEMENTWISE
from vkmnn.mnn.expr.selection import select
from vkmnn.mnn.expr.types import NHWC, dtype
from vkmnn.mnn.expr.values import cast, cast_array, clone, result, to_var, zeros_like
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.numpy.shaping import concatenate, expand_dims
from vkmnn.mnn.numpy.shaping import stack as stacked

# Kind of threshold -> the result for x, where x exceeds the threshold, the threshold and maximum.
_THRESHOLDS: dict[int, Any] = {
    CONSTANTS["THRESH_BINARY"]: lambda x, above, limit, most: np.where(above, most, 0),
    CONSTANTS["THRESH_BINARY_INV"]: lambda x, above, limit, most: np.where(above, 0, most),
    CONSTANTS["THRESH_TRUNC"]: lambda x, above, limit, most: np.where(above, limit, x),
    CONSTANTS["THRESH_TOZERO"]: lambda x, above, limit, most: np.where(above, x, 0),
    CONSTANTS["THRESH_TOZERO_INV"]: lambda x, above, limit, most: np.where(above, 0, x),
}


def threshold(
    src: Any, thresh: float, maxval: float, type: int = CONSTANTS["THRESH_BINARY"]
) -> Var:
    """Return an image by a threshold: two values, or pixels cut off; see MNN.cv.THRESH_*."""
    function = _THRESHOLDS.get(type)
    if function is None:
        raise ArgumentError(
            f"there is no threshold of type {type}", hint="use THRESH_BINARY, _TRUNC or _TOZERO"
        )
    x = to_var(src)

    def compute(pixels: Array) -> Any:
        wide = pixels.astype(np.float32)
        limit, most = np.float32(thresh), np.float32(maxval)
        return cast_array(function(wide, wide > limit, limit, most), pixels.dtype)

    return result("Threshold", compute, x)


def adaptiveThreshold(
    src: Any, maxValue: float, adaptiveMethod: int, thresholdType: int, blockSize: int, C: float
) -> Var:
    """Return an image by the mean of the pixels around each, minus C, as threshold.

    Args:
        src: [height, width, 1].
        maxValue: what pixels above it become, or those that are not (THRESH_BINARY_INV).
        adaptiveMethod: the mean, or a Gaussian one: MNN.cv.ADAPTIVE_THRESH_*.
        thresholdType: THRESH_BINARY or THRESH_BINARY_INV.
        blockSize: the size of the windows.
        C: is subtracted from the means.
    """
    x = to_var(src)
    pixels = x.read()
    wide = Var(pixels.astype(np.float32), NHWC)
    size = (blockSize, blockSize)
    mean = boxFilter(wide, -1, size) if adaptiveMethod == 0 else GaussianBlur(wide, size, 0.0)
    limit = mean.read().reshape(pixels.shape) - np.float32(C)
    above = pixels > limit if thresholdType == 0 else pixels <= limit
    made = np.where(above, np.float32(min(max(maxValue, 0), 255)), np.float32(0))
    return Var(cast_array(made, pixels.dtype), x.data_format)


def blendLinear(src1: Any, src2: Any, weight1: Any, weight2: Any) -> Var:
    """Return the mean of two images, weighted pixel by pixel."""
    first = to_var(src1)
    kind = first.read().dtype
    given = [to_var(one, dtype.float) for one in (first, src2, weight1, weight2)]

    def compute(a: Array, b: Array, v: Array, w: Array) -> Any:
        return cast_array((a * v + b * w) / (v + w + np.float32(1e-5)), kind)

    return result("Blend", compute, *given)


def copyTo(src: Any, mask: Any = None, dst: Any = None) -> Var:
    """Return a copy of an image; where a mask is 0, of another one, or 0."""
    x = to_var(src)
    if mask is None:
        return clone(x, True)
    chosen = to_var(mask)
    if x.ndim > chosen.ndim:
        chosen = expand_dims(chosen, -1)
    if chosen.shape[:2] != x.shape[:2]:
        raise ArgumentError(f"a mask of {chosen.shape} does not suit an image of {x.shape}")
    return cast(select(chosen, x, zeros_like(x) if dst is None else to_var(dst)), x.dtype)


def _bitwise(name: str) -> Any:
    def call(src1: Any, src2: Any, dst: Any = None, mask: Any = None) -> Var:
        first = to_var(src1)
        made = ELEMENTWISE[name](cast(first, dtype.int), cast(src2, dtype.int))
        return cast(copyTo(made, mask, dst), first.dtype)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return the {name} of two images; see `copyTo` for `dst` and `mask`."
    return call


def hconcat(src: Any) -> Var:
    """Return images side by side."""
    return concatenate(list(src), 1)


def vconcat(src: Any) -> Var:
    """Return images one below the other."""
    return concatenate(list(src), 0)


def mean(src: Any, mask: Any = None) -> Var:
    """Return the mean of each channel, four at least; of the pixels where a mask is not 0."""
    pixels = to_var(src).read().astype(np.float32)
    rows = pixels.reshape(pixels.shape[0] * pixels.shape[1], -1)
    if mask is not None:
        rows = rows[to_var(mask).read().reshape(-1) != 0]
    found = rows.mean(0) if len(rows) else np.zeros(rows.shape[1])
    return image_var(np.pad(found, (0, max(4 - found.size, 0))).astype(np.float32))


def normalize(
    src: Any,
    dst: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    norm_type: int | None = None,
    dtype: Any = None,
    mask: Any = None,
) -> Var:
    """Return an image divided by a norm of it, or spread over a range.

    Args:
        src: the image.
        dst: ignored, as `dtype` and `mask`: the result has the image's type.
        alpha: one end of the range, for NORM_MINMAX.
        beta: the other end.
        norm_type: MNN.cv.NORM_INF, NORM_L1, NORM_L2 or NORM_MINMAX.
        dtype: ignored.
        mask: ignored.
    """
    x = to_var(src)

    def compute(pixels: Array) -> Any:
        made = _normal(pixels.astype(np.float32), norm_type, alpha, beta)
        if pixels.dtype == np.uint8:
            made = np.clip(np.floor(made + 0.5), 0, 255)
        return cast_array(made, pixels.dtype)

    return result("Normalize", compute, x)


def _normal(x: Array, kind: int | None, alpha: Any, beta: Any) -> Array:
    if kind == CONSTANTS["NORM_INF"]:
        return np.asarray(x / x.max())
    if kind == CONSTANTS["NORM_L1"]:
        return np.asarray(x / x.sum())
    if kind == CONSTANTS["NORM_L2"]:
        return np.asarray(x / np.sqrt(np.square(x).sum()))
    if kind != CONSTANTS["NORM_MINMAX"] or alpha is None or beta is None:
        raise ArgumentError(f"there is no norm {kind}", hint="use NORM_MINMAX with alpha and beta")
    low, high = min(alpha, beta), max(alpha, beta)
    return np.asarray((x - x.min()) * np.float32((high - low) / (x.max() - x.min())) + low)


def merge(mv: Sequence[Any]) -> Var:
    """Return images of one channel as the channels of one."""
    parts = [to_var(one) for one in mv]
    if not parts:
        raise ArgumentError("merge takes at least one image")
    ndim = parts[0].ndim
    if ndim > 3:
        return stacked(parts, -1)
    if ndim < 3:
        parts = [expand_dims(one, [1, 2] if ndim == 1 else [2]) for one in parts]
    return concatenate(parts, 2)


def split(m: Any) -> Any:
    """Return the channels of an image."""
    x = to_var(m)
    if x.ndim == 3:
        return [
            Var(np.ascontiguousarray(one), x.data_format) for one in np.moveaxis(x.read(), 2, 0)
        ]
    return (expand_dims(x, 1) if x.ndim == 1 else x,)


def addWeighted(src1: Any, alpha: float, src2: Any, beta: float, gamma: float) -> Var:
    """Return the weighted sum of two images, plus a number."""
    first = to_var(src1)
    kind = first.read().dtype

    def compute(a: Array, b: Array) -> Any:
        total = a * np.float32(alpha) + b * np.float32(beta) + np.float32(gamma)
        return cast_array(total, kind)

    return result("Eltwise", compute, to_var(first, dtype.float), to_var(src2, dtype.float))


def calcHist(
    imgs: Sequence[Any],
    channels: Sequence[int],
    mask: Any,
    histSize: Sequence[int],
    ranges: Sequence[float],
    accumulate: bool = False,
) -> Var:
    """Return how many pixels of a channel lie in the equal parts of a range.

    Args:
        imgs: the image.
        channels: the channel; negative for all.
        mask: ignored.
        histSize: how many parts.
        ranges: the range, whose upper end belongs to the last part.
        accumulate: ignored.
    """
    x = to_var(imgs[0])
    pixels = x.read()
    part = pixels if channels[0] < 0 else pixels[..., channels[0]]
    low, high = int(ranges[0]), int(ranges[1])
    return image_var(np.histogram(part, histSize[0], (low, high))[0].astype(np.float32))


def solve(src1: Any, src2: Any, method: int = CONSTANTS["DECOMP_LU"]) -> tuple[bool, Var]:
    """Return whether equations have one solution, and the solution.

    Raises:
        ArgumentError: the matrix is not square, or the shapes do not suit.
    """
    matrix, right = (to_var(one, dtype.float).read() for one in (src1, src2))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(right) != len(matrix):
        raise ArgumentError(f"{matrix.shape} and {right.shape} are no system of equations")
    try:
        found = np.linalg.solve(matrix.astype(np.float64), right.astype(np.float64))
    except np.linalg.LinAlgError:
        return False, Var(np.zeros(right.shape, np.float32))
    return True, Var(found.astype(np.float32))


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(adaptiveThreshold, addWeighted, blendLinear, calcHist, copyTo, hconcat, mean, merge),
        *(normalize, solve, split, threshold, vconcat),
    )
}
FUNCTIONS.update({name: _bitwise(name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")})
