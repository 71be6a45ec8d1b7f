"""MNN.cv's filters: blurs, derivatives, morphology and pyramids."""

from __future__ import annotations

from math import cos, exp, pi, sin
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.cv.images import image_var, like, pair_of, pixels_of
from vkmnn.mnn.expr.layers import resize as resized
from vkmnn.mnn.expr.types import NCHW
from vkmnn.mnn.expr.values import to_var
from vkmnn.mnn.expr.var import Var

_BORDER = CONSTANTS["BORDER_DEFAULT"]
_MODES: dict[int, Any] = {0: "constant", 1: "reflect", 2: "symmetric"}
_LARGEST_KERNEL = 31


def _framed(pixels: Array, high: int, wide: int, border: int) -> Array:
    """Return floats with a border, so that windows of a size lie around each pixel."""
    if border not in _MODES:
        raise ArgumentError(f"there is no border type {border}", hint="use BORDER_REFLECT")
    if min(high, wide) < 1:
        raise ArgumentError(f"a kernel has no size of {wide} x {high}")
    rows, columns = (high - 1) // 2, (wide - 1) // 2
    widths = ((rows, high - 1 - rows), (columns, wide - 1 - columns), (0, 0))
    return np.pad(pixels.astype(np.float32), widths, _MODES[border])


def _filtered(pixels: Array, kernel: Array, delta: float, border: int) -> Array:
    """Return the correlation with a kernel, in floats."""
    high, wide = kernel.shape
    framed = _framed(pixels, high, wide, border)
    total = np.full(pixels.shape, delta, np.float64)
    for row, column in np.argwhere(kernel).tolist():
        part = framed[row : row + pixels.shape[0], column : column + pixels.shape[1]]
        total += part * np.float64(kernel[row, column])
    return total.astype(np.float32)


def _kernel(value: Any) -> Array:
    array = to_var(value).read()
    array = array.reshape(1, -1) if array.ndim < 2 else array
    if array.ndim != 2:
        raise ArgumentError(f"a kernel has shape [height, width], not {array.shape}")
    return array


def filter2D(
    src: Any, ddepth: int, kernel: Any, delta: float = 0.0, borderType: int = _BORDER
) -> Var:
    """Return the correlation of an image with a kernel, plus `delta`; `ddepth` is ignored."""
    pixels = pixels_of(src)
    return like(_filtered(pixels, _kernel(kernel), delta, borderType), pixels)


def sepFilter2D(
    src: Any,
    ddepth: int,
    kx: Any,
    ky: Any,
    delta: float = 0.0,
    borderType: int = _BORDER,
) -> Var:
    """Return the correlation of an image with one kernel along x and one along y."""
    pixels = pixels_of(src)
    return like(_separated(pixels, _kernel(kx), _kernel(ky), delta, borderType), pixels)


def _separated(pixels: Array, kx: Array, ky: Array, delta: float, border: int) -> Array:
    middle = _filtered(pixels, kx.reshape(1, -1), 0.0, border)
    return _filtered(middle, ky.reshape(-1, 1), delta, border)


def blur(src: Any, ksize: Any, borderType: int = _BORDER) -> Var:
    """Return the means of an image's windows, of a width and height."""
    return boxFilter(src, -1, ksize, True, borderType)


def boxFilter(
    src: Any, ddepth: int, ksize: Any, normalize: bool = True, borderType: int = _BORDER
) -> Var:
    """Return the means, or the sums, of an image's windows."""
    pixels = pixels_of(src)
    return like(_boxed(pixels, ksize, normalize, borderType), pixels)


def _boxed(pixels: Array, ksize: Any, normalize: bool, border: int) -> Array:
    wide, high = pair_of(ksize, "ksize")
    share = 1 / (wide * high) if normalize and wide * high > 0 else 1.0
    row, column = np.ones((1, max(wide, 0))), np.ones((1, max(high, 0)))
    return np.asarray(_separated(pixels, row, column, 0.0, border) * np.float32(share))


def sqrBoxFilter(
    src: Any, ddepth: int, ksize: Any, normalize: bool = True, borderType: int = _BORDER
) -> Var:
    """Return the means, or the sums, of the squares in an image's windows, as floats."""
    squares = np.square(pixels_of(src).astype(np.float32))
    return like(_boxed(squares, ksize, normalize, borderType), squares)


def getGaussianKernel(ksize: int, sigma: float) -> Var:
    """Return a Gaussian kernel [1, ksize]; a deviation of 0 or less suits the size."""
    return image_var(_gaussian(ksize, sigma))


# Kernels without a deviation, by half their size.
_SMALL = (
    (1.0,),
    (0.25, 0.5, 0.25),
    (0.0625, 0.25, 0.375, 0.25, 0.0625),
    (0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125),
)


def _gaussian(size: int, sigma: float) -> Array:
    if size < 1:
        raise ArgumentError(f"a kernel has no size of {size}")
    if sigma <= 0 and size % 2 and size // 2 < len(_SMALL):
        return np.array([_SMALL[size // 2]], np.float32)
    deviation = sigma if sigma > 0 else 0.15 * size + 0.35
    places = np.arange(size) - (size - 1) / 2
    values = np.exp(-0.5 * np.square(places / deviation))
    return np.asarray(values / values.sum(), np.float32)[None]


def GaussianBlur(
    src: Any, ksize: Any, sigmaX: float, sigmaY: float = 0.0, borderType: int = _BORDER
) -> Var:
    """Return an image blurred by a Gaussian kernel of a width and height."""
    wide, high = pair_of(ksize, "ksize")
    pixels = pixels_of(src)
    kernels = _gaussian(wide, sigmaX), _gaussian(high, sigmaY or sigmaX)
    return like(_separated(pixels, *kernels, 0.0, borderType), pixels)


def _derivative(order: int, size: int) -> Array:
    """Return the coefficients of a smoothed derivative."""
    kernel = np.ones(1)
    for _ in range(size - order - 1):
        kernel = np.convolve(kernel, [1, 1])
    for _ in range(order):
        kernel = np.convolve(kernel, [-1, 1])
    return kernel.astype(np.float32)


_SCHARR = (np.array([3, 10, 3], np.float32), np.array([-1, 0, 1], np.float32))


def _derivatives(dx: int, dy: int, ksize: int, normalize: bool) -> list[Array]:
    if min(dx, dy) < 0 or dx + dy < 1:
        raise ArgumentError(f"there is no derivative of orders {dx} and {dy}")
    if ksize <= 0:
        if dx + dy != 1:
            raise ArgumentError("Scharr's derivative is of first order along one axis")
        scale = 32 if normalize else 1
        return [_SCHARR[order] / (scale if order else 1) for order in (dx, dy)]
    if ksize % 2 == 0 or ksize > _LARGEST_KERNEL:
        raise ArgumentError(f"a kernel is odd and at most {_LARGEST_KERNEL}, not {ksize}")
    size = max(ksize, 3)
    if max(dx, dy) >= size:
        raise ArgumentError(f"a kernel of {size} has no derivative of orders {dx} and {dy}")
    kernels = [_derivative(order, size) for order in (dx, dy)]
    scales = [2.0 ** -(size - order - 1) if normalize else 1.0 for order in (dx, dy)]
    return [kernel * np.float32(scale) for kernel, scale in zip(kernels, scales, strict=True)]


def getDerivKernels(dx: int, dy: int, ksize: int, normalize: bool = False) -> tuple[Var, Var]:
    """Return the kernels along x and y of derivatives; Scharr's for a size of -1."""
    first, second = _derivatives(dx, dy, ksize, normalize)
    return image_var(first[None]), image_var(second[None])


def Sobel(
    src: Any,
    ddepth: int,
    dx: int,
    dy: int,
    ksize: int = 3,
    scale: float = 1.0,
    delta: float = 0.0,
    borderType: int = _BORDER,
) -> Var:
    """Return derivatives of an image, of orders `dx` and `dy`; `ddepth` is ignored."""
    pixels = pixels_of(src)
    first, second = _derivatives(dx, dy, ksize, False)
    made = _separated(pixels, first * np.float32(scale), second, delta, borderType)
    return like(made, pixels)


def Scharr(
    src: Any,
    ddepth: int,
    dx: int,
    dy: int,
    scale: float = 1.0,
    delta: float = 0.0,
    borderType: int = _BORDER,
) -> Var:
    """Return the first derivative of an image by Scharr's kernel."""
    return Sobel(src, ddepth, dx, dy, -1, scale, delta, borderType)


def spatialGradient(src: Any, ksize: int = 3, borderType: int = _BORDER) -> tuple[Var, Var]:
    """Return the first derivatives of an image along x and y."""
    return (
        Sobel(src, -1, 1, 0, ksize, borderType=borderType),
        Sobel(src, -1, 0, 1, ksize, borderType=borderType),
    )


_LAPLACE = {
    1: ((0, 1, 0), (1, -4, 1), (0, 1, 0)),
    3: ((2, 0, 2), (0, -8, 0), (2, 0, 2)),
}


def Laplacian(
    src: Any,
    ddepth: int,
    ksize: int = 1,
    scale: float = 1.0,
    delta: float = 0.0,
    borderType: int = _BORDER,
) -> Var:
    """Return the Laplacian of an image, by a kernel of size 1 or 3."""
    if ksize not in _LAPLACE:
        raise ArgumentError(f"Laplacian takes a kernel of size 1 or 3, not {ksize}")
    kernel = np.array(_LAPLACE[ksize], np.float32) * np.float32(scale)
    return filter2D(src, ddepth, kernel, delta, borderType)


def getGaborKernel(
    ksize: Any, sigma: float, theta: float, lambd: float, gamma: float, psi: float = pi / 2
) -> Var:
    """Return the kernel of a Gabor filter: a wave under a Gaussian.

    Args:
        ksize: width and height.
        sigma: the Gaussian's deviation.
        theta: direction of the wave.
        lambd: its length.
        gamma: the Gaussian's width over its height.
        psi: the wave's phase.
    """
    c, s = cos(theta), sin(theta)
    sizes = pair_of(ksize, "ksize")
    reach = (
        max(abs(3 * sigma * c), abs(3 * sigma / gamma * s)),
        max(abs(3 * sigma * s), abs(3 * sigma / gamma * c)),
    )
    x, y = (size // 2 if size > 0 else round(far) for size, far in zip(sizes, reach, strict=True))
    row, column = np.mgrid[y : -y - 1 : -1, x : -x - 1 : -1].astype(np.float64)
    along, across = column * c + row * s, -column * s + row * c
    hill = np.exp(-0.5 * (np.square(along) + np.square(across * gamma)) / sigma**2)
    return image_var((hill * np.cos(2 * pi * along / lambd + psi)).astype(np.float32))


def getStructuringElement(shape: int, ksize: Any) -> Var:
    """Return a mask of a width and height: a rectangle (0), a cross (1) or an ellipse (2)."""
    wide, high = pair_of(ksize, "ksize")
    if min(wide, high) < 1:
        raise ArgumentError(f"a structuring element has no size of {wide} x {high}")
    mask = np.zeros((high, wide), np.uint8)
    middle, centre = high // 2, wide // 2
    if shape == 0:
        mask[:] = 1
    elif shape == 1:
        mask[middle], mask[:, centre] = 1, 1
    else:
        for row in range(high):
            height = middle**2 - (row - middle) ** 2
            if height >= 0:
                half = int(centre * np.sqrt(height / middle**2)) if middle else 0
                mask[row, max(centre - half, 0) : centre + half + 1] = 1
    return image_var(mask)


def _windows(src: Any, kernel: Any, border: int) -> tuple[Array, Array]:
    """Return an image, and the windows around its pixels; those of the kernel's size alone."""
    pixels = pixels_of(src)
    high, wide = to_var(kernel).shape[:2]
    framed = _framed(pixels, high, wide, border)
    return pixels, sliding_window_view(framed, (high, wide), (0, 1))


def dilate(src: Any, kernel: Any, iterations: int = 1, borderType: int = 0) -> Var:
    """Return the maxima of an image's windows, as large as the kernel.

    As in MNN, the kernel's elements and the iterations have no effect.
    """
    pixels, windows = _windows(src, kernel, borderType)
    return like(windows.max((-2, -1)), pixels)


def erode(src: Any, kernel: Any, iterations: int = 1, borderType: int = 0) -> Var:
    """Return the minima of an image's windows, as large as the kernel; see `dilate`."""
    pixels, windows = _windows(src, kernel, _BORDER)
    return like(windows.min((-2, -1)), pixels)


def bilateralFilter(
    src: Any, d: int, sigmaColor: float, sigmaSpace: float, borderType: int = _BORDER
) -> Var:
    """Return means of the pixels around each that are near it and of similar colour."""
    pixels = pixels_of(src)
    radius = max(round(sigmaSpace * 1.5) if d <= 0 else d // 2, 1)
    framed = _framed(pixels, 2 * radius + 1, 2 * radius + 1, _BORDER)
    centre = pixels.astype(np.float32)
    total = np.zeros(pixels.shape, np.float64)
    weights = np.zeros((*pixels.shape[:2], 1))
    for down in range(-radius, radius + 1):
        for along in range(-radius, radius + 1):
            square = down * down + along * along
            if square > radius * radius:
                continue
            rows, columns = radius + down, radius + along
            part = framed[rows : rows + len(pixels), columns : columns + pixels.shape[1]]
            distance = np.abs(part - centre).sum(-1, keepdims=True)
            near = exp(-0.5 * square / sigmaSpace**2)
            weight = near * np.exp(-0.5 * np.square(distance / sigmaColor))
            total += part * weight
            weights += weight
    return like(np.floor(total / weights + 0.5), pixels, flat=False)


def _pyramid(pixels: Array, border: int) -> Array:
    row = np.array([[0.0625, 0.25, 0.375, 0.25, 0.0625]], np.float32)
    return _separated(pixels, row, row, 0.0, border)


def _scaled(pixels: Array, factor: float) -> Array:
    planes = Var(np.ascontiguousarray(np.moveaxis(pixels, -1, 0))[None], NCHW)
    return np.moveaxis(resized(planes, factor, factor).read()[0], 0, -1)


def pyrDown(src: Any, dstsize: Any = None, borderType: int = _BORDER) -> Var:
    """Return an image blurred and halved; `dstsize` is ignored."""
    pixels = pixels_of(src)
    blurred = like(_pyramid(pixels, borderType), pixels, flat=False).read()
    return like(_scaled(blurred.astype(np.float32), 0.5), pixels)


def pyrUp(src: Any, dstsize: Any = None, borderType: int = _BORDER) -> Var:
    """Return an image doubled and blurred; `dstsize` is ignored."""
    pixels = pixels_of(src)
    return like(_pyramid(_scaled(pixels.astype(np.float32), 2.0), borderType), pixels)


FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(GaussianBlur, Laplacian, Scharr, Sobel, bilateralFilter, blur, boxFilter, dilate),
        *(erode, filter2D, getDerivKernels, getGaborKernel, getGaussianKernel),
        *(getStructuringElement, pyrDown, pyrUp, sepFilter2D, spatialGradient, sqrBoxFilter),
    )
}
