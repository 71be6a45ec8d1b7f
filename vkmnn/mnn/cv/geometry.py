"""MNN.cv's transformations of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.colors import formats_of
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.images import bytes_of, floats_of, image_var, like, pair_of, pixels_of, to_plain
from vkmnn.mnn.expr.values import integer, to_var
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.matrix import CVMatrix
from vkmnn.mnn.pixels import converted
from vkmnn.mnn.sampling import BILINEAR, NEAREST, transformed

_LINEAR = CONSTANTS["INTER_LINEAR"]
_INVERSE = CONSTANTS["WARP_INVERSE_MAP"]


def _finished(made: Array, code: Any, mean: Sequence[float], norm: Sequence[float]) -> Var:
    """Return an image in another format, and as normalised floats, if wanted."""
    if code is not None and integer(code, "code") >= 0:
        made = converted(made, *formats_of(code))
    if not len(mean) and not len(norm):
        return image_var(made)
    channels = made.shape[-1]
    shift, factor = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    shift[: len(mean)] = list(mean)[:channels]
    factor[: len(norm)] = list(norm)[:channels]
    return image_var((made.astype(np.float32) - shift) * factor)


def resize(
    src: Any,
    dsize: Any = None,
    fx: float | None = None,
    fy: float | None = None,
    interpolation: int = _LINEAR,
    code: int | None = None,
    mean: Sequence[float] = (),
    norm: Sequence[float] = (),
) -> Var:
    """Return an image of another size; in another format, as normalised floats if wanted.

    Args:
        src: uint8 [height, width, channels].
        dsize: width and height; (0, 0) or None for multiples of the image's.
        fx: multiple of the width.
        fy: multiple of the height.
        interpolation: INTER_NEAREST, INTER_LINEAR or INTER_CUBIC; others are as NEAREST.
        code: one of MNN.cv.COLOR_*, or -1 for none.
        mean: is subtracted from each channel, with floats as the result.
        norm: each channel is multiplied by it, with floats as the result.

    Raises:
        ArgumentError: there is neither a size nor a multiple.
    """
    pixels = bytes_of(src)
    height, width = pixels.shape[:2]
    wide, high = (0, 0) if dsize is None else pair_of(dsize, "dsize")
    if not wide and not high:
        if not fx or not fy:
            raise ArgumentError("resize needs dsize, or fx and fy")
        wide, high = int(width * fx), int(height * fy)
    if wide < 1 or high < 1:
        raise ArgumentError(f"an image has no size of {wide} x {high}")
    x, y = np.float32(width) / np.float32(wide), np.float32(height) / np.float32(high)
    matrix = np.array([[x, 0, 0.5 * (x - 1)], [0, y, 0.5 * (y - 1)], [0, 0, 1]], np.float64)
    return _finished(transformed(pixels, matrix, (high, wide), interpolation), code, mean, norm)


def warpAffine(
    src: Any,
    M: CVMatrix,
    dsize: Any,
    flag: int = _LINEAR,
    borderMode: int = CONSTANTS["BORDER_CONSTANT"],
    borderValue: int = 0,
    code: int | None = None,
    mean: Sequence[float] = (),
    norm: Sequence[float] = (),
) -> Var:
    """Return an image transformed by a matrix; see `resize` for the last arguments.

    Args:
        src: uint8 [height, width, channels].
        M: maps the image's points to those of the result.
        dsize: width and height.
        flag: INTER_NEAREST, INTER_LINEAR, INTER_CUBIC, or WARP_INVERSE_MAP: the matrix maps the
            result's points to the image's.
        borderMode: BORDER_CONSTANT, or 1 for the nearest pixel.
        borderValue: what lies outside the image.
        code: another format.
        mean: is subtracted from each channel.
        norm: each channel is multiplied by it.

    Raises:
        ArgumentError: the matrix cannot be inverted; an unknown mode.
    """
    if borderMode not in (0, 1):
        raise ArgumentError(f"there is no border mode {borderMode}", hint="use BORDER_CONSTANT")
    pixels = bytes_of(src)
    wide, high = pair_of(dsize, "dsize")
    matrix = _matrix(M)
    if flag != _INVERSE:
        try:
            matrix = np.linalg.inv(matrix)
        except np.linalg.LinAlgError as error:
            raise ArgumentError("the matrix cannot be inverted") from error
    outside = int(borderValue) if borderMode == 0 else None
    filter = flag if 0 <= flag < 3 else BILINEAR
    return _finished(transformed(pixels, matrix, (high, wide), filter, outside), code, mean, norm)


def warpPerspective(
    src: Any,
    M: CVMatrix,
    dsize: Any,
    flag: int = _LINEAR,
    borderMode: int = CONSTANTS["BORDER_CONSTANT"],
    borderValue: int = 0,
) -> Var:
    """Return an image transformed by a projection; see `warpAffine`."""
    return warpAffine(src, M, dsize, flag, borderMode, borderValue)


def _matrix(given: Any) -> Array:
    if isinstance(given, CVMatrix):
        return given._values
    values = np.asarray(to_plain(given), np.float64)
    if values.shape not in ((2, 3), (3, 3)):
        raise ArgumentError("the transformation is an MNN.CVMatrix, or an array of 2 x 3 or 3 x 3")
    return np.concatenate([values, [[0.0, 0.0, 1.0]]])[:3] if len(values) == 2 else values


def _mapping(src: Any, dst: Any, count: int) -> CVMatrix:
    source, target = floats_of(src)[: 2 * count], floats_of(dst)[: 2 * count]
    if len(source) != 2 * count or len(target) != 2 * count:
        raise ArgumentError(f"the transformation is of {count} points to {count} others")
    made = CVMatrix()
    made.setPolyToPoly(source, target)
    return made


def getAffineTransform(src: Any, dst: Any) -> CVMatrix:
    """Return the affine map of three points onto three others, given as x, y, x, y and so on."""
    return _mapping(src, dst, 3)


def getPerspectiveTransform(src: Any, dst: Any) -> CVMatrix:
    """Return the projection of four points onto four others, given as x, y, x, y and so on."""
    return _mapping(src, dst, 4)


def getRotationMatrix2D(center: Any, angle: float, scale: float) -> CVMatrix:
    """Return the rotation about a point, counterclockwise by degrees, and a scaling about it."""
    x, y = floats_of(center)
    made = CVMatrix()
    made.setRotate(-float(angle), x, y)
    made.postScale(float(scale), float(scale), x, y)
    return made


def invertAffineTransform(m: CVMatrix) -> CVMatrix:
    """Return the inverse of a transformation."""
    made = CVMatrix._of(_matrix(m).copy())
    made.invert()
    return made


def getRectSubPix(image: Any, patchSize: Any, center: Any) -> Var:
    """Return a rectangle of an image, of a width and height, about a point."""
    wide, high = pair_of(patchSize, "patchSize")
    x, y = floats_of(center)
    matrix = CVMatrix()
    matrix.setTranslate(x - (wide - 1) // 2, y - (high - 1) // 2)
    return warpAffine(image, matrix, (wide, high), _INVERSE)


def convertMaps(map1: Any, map2: Any, dstmap1type: int = 0, interpolation: int = _LINEAR) -> Any:
    """Return the maps: MNN has one form of them."""
    return map1, map2


def remap(
    src: Any,
    map1: Any,
    map2: Any,
    interpolation: int,
    borderMode: int = 0,
    borderValue: int = 0,
) -> Var:
    """Return an image whose pixels are the source's at the points of two maps.

    Args:
        src: [height, width, channels].
        map1: x of each pixel.
        map2: y of each pixel.
        interpolation: INTER_NEAREST or INTER_LINEAR.
        borderMode: ignored: the source's surroundings are 0.
        borderValue: ignored.
    """
    pixels = pixels_of(src)
    x, y = (to_var(one).read().astype(np.float64) for one in (map1, map2))
    if x.shape != y.shape or x.ndim != 2:
        raise ArgumentError("the two maps have one shape [height, width]")
    if interpolation == NEAREST:
        made = _at(pixels, np.floor(x + 0.5), np.floor(y + 0.5))
    else:
        left, top = np.floor(x), np.floor(y)
        along, down = (x - left)[..., None], (y - top)[..., None]
        upper = _at(pixels, left, top) * (1 - along) + _at(pixels, left + 1, top) * along
        lower = _at(pixels, left, top + 1) * (1 - along) + _at(pixels, left + 1, top + 1) * along
        made = upper * (1 - down) + lower * down
    return like(made, pixels, flat=False)


def _at(pixels: Array, x: Array, y: Array) -> Array:
    height, width = pixels.shape[:2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    rows, columns = np.where(inside, y, 0).astype(int), np.where(inside, x, 0).astype(int)
    return np.where(inside[..., None], pixels[rows, columns].astype(np.float64), 0.0)


def flip(src: Any, flipCode: int) -> Var:
    """Return an image upside down (0), mirrored (1), or both (-1)."""
    pixels = pixels_of(src)
    axes = (0, 1) if flipCode < 0 else (0,) if flipCode == 0 else (1,)
    return image_var(np.flip(pixels, axes))


def rotate(src: Any, rotateMode: int) -> Var:
    """Return an image turned by MNN.cv.ROTATE_90_CLOCKWISE, _180 or _90_COUNTERCLOCKWISE."""
    turns = {0: -1, 1: 2, 2: 1}.get(integer(rotateMode, "rotateMode"), 0)
    return image_var(np.rot90(pixels_of(src), turns))


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(convertMaps, flip, getAffineTransform, getPerspectiveTransform, getRectSubPix),
        *(getRotationMatrix2D, invertAffineTransform, remap, resize, rotate, warpAffine),
        warpPerspective,
    )
}
