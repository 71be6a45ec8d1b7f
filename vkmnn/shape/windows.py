"""Sliding windows: padding and output sizes of convolution, transposed convolution and pooling.

Formulas are those of the newest ONNX Conv, ConvTranspose and MaxPool/AveragePool (opset 22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from vkmnn.base.records import dataclass
from vkmnn.errors import ShapeError
from vkmnn.ir import Dim
from vkmnn.ir.ops import (
    ConvolutionAttrs,
    DeconvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    PoolingAttrs,
    QuantizedConvolutionAttrs,
)
from vkmnn.shape.symbolic.dims import DimAlgebra

Direct = ConvolutionAttrs | DynamicQuantizeConvolutionAttrs | QuantizedConvolutionAttrs
"""Attributes of convolutions that are not transposed."""

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """A resolved sliding window; each tuple has one entry per spatial axis.

    kernel, strides and dilations as in ONNX; `begins` and `ends` are the pads in elements; `output`
    is the output's spatial shape. Pads of a transposed convolution may be negative at the end:
    those output elements get no product.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def pads(self) -> tuple[int, ...]:
        """Return the padding: all begins, then all ends."""
        return self.begins + self.ends


def _per_axis(
    values: Sequence[int], count: int, default: int, minimum: int, what: str
) -> list[int]:
    filled = list(values) or [default] * count
    if len(filled) != count:
        raise ShapeError(f"{what} {tuple(values)} must have {count} entries")
    if filled and min(filled) < minimum:
        raise ShapeError(f"{what} {tuple(values)} must be at least {minimum}")
    return filled


def _extents(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]


def conv_padding(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    auto_pad: str = "NOTSET",
) -> tuple[int, ...]:
    """Return the explicit padding (begins, then ends) of a convolution or pooling.

    NOTSET gives `pads` (empty = none); VALID none; SAME_UPPER and SAME_LOWER pad so that the output
    has ceil(size / stride) elements, the odd one at the end or at the beginning.

    Raises:
        ShapeError: a length or value is impossible, or `auto_pad` is unknown.
    """
    count = len(spatial)
    kernel = _per_axis(kernel, count, 1, 1, "kernel")
    strides = _per_axis(strides, count, 1, 1, "strides")
    dilations = _per_axis(dilations, count, 1, 1, "dilations")
    if auto_pad == "NOTSET":
        return tuple(_per_axis(pads, 2 * count, 0, 0, "pads"))
    if auto_pad == "VALID":
        return (0,) * (2 * count)
    if auto_pad not in AUTO_PADS:
        raise ShapeError(f"auto_pad '{auto_pad}' is not one of {', '.join(AUTO_PADS)}")
    totals = [
        max((-(-size // stride) - 1) * stride + extent - size, 0)
        for size, stride, extent in zip(spatial, strides, _extents(kernel, dilations), strict=True)
    ]
    small = [total // 2 for total in totals]
    large = [total - total // 2 for total in totals]
    return tuple(small + large if auto_pad == "SAME_UPPER" else large + small)


def conv_output_size(size: int, extent: int, stride: int, begin: int, end: int) -> int:
    """Return the output size along one axis; `extent` is the dilated kernel's.

    An empty axis gives an empty output.

    Raises:
        ShapeError: the kernel is larger than the padded input.
    """
    room = size + begin + end - extent
    if room < 0 and size:
        raise _too_large(extent, size + begin + end)
    return room // stride + 1 if room >= 0 else 0


def pool_output_size(
    size: int, extent: int, stride: int, begin: int, end: int, *, ceil_mode: bool = False
) -> int:
    """Return the output size along one axis.

    `extent` is the dilated kernel's. With `ceil_mode` a last partial window counts, unless it would
    start in the right padding (ONNX MaxPool 22). A kernel that sticks out of the padded input by
    less than a stride has one window: ONNX's shape inference and onnxruntime round to zero here.
    An empty axis gives an empty output.

    Raises:
        ShapeError: the kernel sticks out so far that the formula gives a negative size.
    """
    room = size + begin + end - extent
    if size == 0 and room < 0:
        return 0
    windows = -(-room // stride) + 1 if ceil_mode or room < 0 else room // stride + 1
    if windows < 0:
        raise _too_large(extent, size + begin + end)
    late = ceil_mode and windows > 0 and (windows - 1) * stride >= size + begin
    return windows - 1 if late else windows


def _too_large(extent: int, padded: int) -> ShapeError:
    return ShapeError(f"a kernel of {extent} elements is larger than the padded input of {padded}")


def _resolve(
    spatial: Sequence[int],
    kernel: Sequence[int],
    slides: tuple[Sequence[int], Sequence[int], Sequence[int], str],
    output_size: Callable[[int, int, int, int, int], int],
) -> Window:
    """Return a window of the strides, dilations, pads and automatic padding `slides`."""
    count = len(spatial)
    if not kernel:
        raise ShapeError("the kernel has no axes")
    pads = conv_padding(spatial, kernel, *slides)
    strides = _per_axis(slides[0], count, 1, 1, "strides")
    dilations = _per_axis(slides[1], count, 1, 1, "dilations")
    output = tuple(
        output_size(size, extent, strides[i], pads[i], pads[i + count])
        for i, (size, extent) in enumerate(zip(spatial, _extents(kernel, dilations), strict=True))
    )
    return Window(
        tuple(kernel), tuple(strides), tuple(dilations), pads[:count], pads[count:], output
    )


def conv_window(attrs: Direct, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return the window of a convolution of `spatial` by weights with spatial shape `kernel`.

    Raises:
        ShapeError: attributes contradict the shapes.
    """
    if attrs.kernel and tuple(attrs.kernel) != tuple(kernel):
        raise ShapeError(f"attribute kernel {attrs.kernel} is not the weight's {tuple(kernel)}")
    slides = tuple(attrs.strides), tuple(attrs.dilations), tuple(attrs.pads)
    return _conv_window(tuple(spatial), tuple(kernel), *slides, attrs.auto_pad)


@lru_cache(maxsize=1024)
def _conv_window(
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
    auto_pad: str,
) -> Window:
    """Return the window; cached, as layers share it and ask twice."""
    return _resolve(spatial, kernel, (strides, dilations, pads, auto_pad), conv_output_size)


def pool_window(attrs: PoolingAttrs, spatial: Sequence[int]) -> Window:
    """Return the window of a pooling over `spatial`; a global one covers all of it.

    Raises:
        ShapeError: attributes contradict the shape.
    """
    if attrs.is_global:
        ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
        return Window(tuple(spatial), ones, ones, zeros, zeros, ones)
    # ceil(size / stride) and VALID's formula leave nothing for ceil_mode to round.
    ceil_mode = attrs.ceil_mode and attrs.auto_pad == "NOTSET"
    output_size = partial(pool_output_size, ceil_mode=ceil_mode)
    slides = attrs.strides, attrs.dilations, attrs.pads, attrs.auto_pad
    return _resolve(spatial, attrs.kernel, slides, output_size)


def deconv_window(
    attrs: DeconvolutionAttrs, spatial: Sequence[int], kernel: Sequence[int]
) -> Window:
    """Return the window of a transposed convolution of `spatial` (ONNX ConvTranspose 22).

    `output_shape`, or SAME padding, decides the output's size and the pads follow; pads are never
    negative at the beginning.

    Raises:
        ShapeError: attributes contradict the shapes.
    """
    count = len(spatial)
    if not kernel:
        raise ShapeError("the kernel has no axes")
    if attrs.kernel and tuple(attrs.kernel) != tuple(kernel):
        raise ShapeError(f"attribute kernel {attrs.kernel} is not the weight's {tuple(kernel)}")
    if attrs.auto_pad not in AUTO_PADS:
        raise ShapeError(f"auto_pad '{attrs.auto_pad}' is not one of {', '.join(AUTO_PADS)}")
    kernel = _per_axis(kernel, count, 1, 1, "kernel")
    strides = _per_axis(attrs.strides, count, 1, 1, "strides")
    dilations = _per_axis(attrs.dilations, count, 1, 1, "dilations")
    extra = _per_axis(attrs.output_padding, count, 0, 0, "output_padding")
    explicit = (
        _per_axis(attrs.pads, 2 * count, 0, 0, "pads")
        if attrs.auto_pad == "NOTSET"
        else [0] * (2 * count)
    )
    wanted: list[int] | None = None
    if attrs.output_shape:
        wanted = _per_axis(attrs.output_shape, count, 0, 0, "output_shape")
    elif attrs.auto_pad.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(spatial, strides, strict=True)]
    begins, ends, output = [], [], []
    for i, extent in enumerate(_extents(kernel, dilations)):
        full = strides[i] * (spatial[i] - 1) + extent
        if wanted is not None:
            total = full + extra[i] - wanted[i]
            half = max(total, 0) // 2
            rest = max(total, 0) - half
            begin = half if attrs.auto_pad == "SAME_UPPER" else rest
            size = wanted[i]
        else:
            begin = explicit[i]
            size = full + extra[i] - begin - explicit[i + count]
            if spatial[i] == 0:
                size = max(size, 0)
        begins.append(begin)
        ends.append(full - begin - size)
        output.append(size)
    if any(size < 0 for size in output):
        raise ShapeError(f"pads {attrs.pads} leave an output of {output}")
    return Window(
        tuple(kernel),
        tuple(strides),
        tuple(dilations),
        tuple(begins),
        tuple(ends),
        tuple(output),
    )


# --- sizes known only by name --------------------------------------------------------------------


def named_windows(
    attrs: Direct | PoolingAttrs,
    kernel: Sequence[int],
    spatial: Sequence[Dim],
    algebra: DimAlgebra,
    *,
    ceil_mode: bool = False,
) -> tuple[Dim, ...]:
    """Return how many windows fit: floor((size + pads - extent) / stride) + 1.

    An unknown kernel (empty) gives unknown sizes. With `ceil_mode` the quotient is rounded up; an
    axis whose last window could then start in the end padding is unknown.
    """
    count = len(spatial)
    if len(kernel) != count:
        return (None,) * count
    strides = _per_axis(attrs.strides, count, 1, 1, "strides")
    extents = _extents(kernel, _per_axis(attrs.dilations, count, 1, 1, "dilations"))
    pads = _per_axis(attrs.pads if attrs.auto_pad == "NOTSET" else (), 2 * count, 0, 0, "pads")
    sizes: list[Dim] = []
    for axis, (size, extent, stride) in enumerate(zip(spatial, extents, strides, strict=True)):
        if attrs.auto_pad.startswith("SAME"):
            sizes.append(algebra.floor_divide(algebra.add(size, stride - 1), stride))
            continue
        if ceil_mode and pads[axis + count] + stride > extent:
            sizes.append(None)
            continue
        spare = stride - 1 if ceil_mode else 0
        room = algebra.add(size, pads[axis] + pads[axis + count] - extent + spare)
        sizes.append(algebra.add(algebra.floor_divide(room, stride), 1))
    return tuple(sizes)


def named_deconv_windows(
    attrs: DeconvolutionAttrs, kernel: Sequence[int], spatial: Sequence[Dim], algebra: DimAlgebra
) -> tuple[Dim, ...]:
    """Return the output sizes of `deconv_window`; an unknown kernel (empty) may leave them open."""
    count = len(spatial)
    if attrs.output_shape:
        return tuple(attrs.output_shape)
    strides = _per_axis(attrs.strides, count, 1, 1, "strides")
    if attrs.auto_pad.startswith("SAME"):
        return tuple(map(algebra.multiply, spatial, strides))
    if len(kernel) != count:
        return (None,) * count
    extents = _extents(kernel, _per_axis(attrs.dilations, count, 1, 1, "dilations"))
    pads = _per_axis(attrs.pads if attrs.auto_pad == "NOTSET" else (), 2 * count, 0, 0, "pads")
    extra = _per_axis(attrs.output_padding, count, 0, 0, "output_padding")
    sizes: list[Dim] = []
    for axis, (size, extent, stride) in enumerate(zip(spatial, extents, strides, strict=True)):
        fixed = extent - stride + extra[axis] - pads[axis] - pads[axis + count]
        sizes.append(algebra.add(algebra.multiply(size, stride), fixed))
    return tuple(sizes)
