"""Axes of convolutions, poolings and image sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vkmnn.errors import ShapeError
from vkmnn.ir import Op, OpAttrs
from vkmnn.ir.ops import DeconvolutionAttrs, InterpAttrs, PoolingAttrs
from vkmnn.shape.axes.loops import (
    Known,
    Loop,
    Numbering,
    Shape,
    Window,
    axes_of,
    mixed,
    parallel,
    reduction,
    sliding,
)
from vkmnn.shape.resizing import resize_axes
from vkmnn.shape.windows import Direct, conv_window, deconv_window, pool_window
from vkmnn.shape.windows import Window as Windows

_CHANNELS = 1


def _static(shape: Shape) -> tuple[int, ...]:
    """Return a shape whose sizes are all known; raises ShapeError."""
    sizes = tuple(dim for dim in shape if isinstance(dim, int))
    if len(sizes) != len(shape):
        raise ShapeError("sizes are not known")
    return sizes


def _windows(windows: Windows, spatial: Sequence[int], *, spread: bool = False) -> list[Window]:
    numbers = zip(
        spatial,
        windows.kernel,
        windows.strides,
        windows.dilations,
        windows.begins,
        windows.ends,
        strict=True,
    )
    return [
        Window(size, kernel, stride, dilation, begin, end, spread)
        for size, kernel, stride, dilation, begin, end in numbers
    ]


def _pads_of(windows: Windows, window: Window, axis: int, begin: int, end: int) -> tuple[int, ...]:
    """Return the padding of an op on results `begin` to `end` of a spatial axis."""
    begins, ends = list(windows.begins), list(windows.ends)
    begins[axis], ends[axis] = window.part(begin, end)[1]
    return (*begins, *ends)


def _slides(
    attrs: Direct | PoolingAttrs, windows: Windows, spatial: Sequence[int], reads: Sequence[bool]
) -> list[Loop]:
    """Return a loop for each spatial axis; `reads` lists the inputs with these axes."""

    def part_of(axis: int, window: Window) -> Callable[[int, int], OpAttrs]:
        def part(begin: int, end: int) -> OpAttrs:
            pads = _pads_of(windows, window, axis, begin, end)
            return replace(attrs, pads=pads, auto_pad="NOTSET")

        return part

    return [
        sliding(
            windows.output[axis],
            [axis + 2 if read else None for read in reads],
            axis + 2,
            window,
            part_of(axis, window),
        )
        for axis, window in enumerate(_windows(windows, spatial))
    ]


def _groups(attrs: Direct | DeconvolutionAttrs, reads: Sequence[int | None]) -> Loop:
    """Return the loop over groups of channels."""

    def part(begin: int, end: int) -> OpAttrs:
        return replace(attrs, group=end - begin)

    return parallel(attrs.group, reads, _CHANNELS, attrs=part)


_FACTOR = frozenset({4})


@axes_of("Convolution", "QuantizedConvolution", "DynamicQuantizeConvolution")
def _convolution(op: Op[Direct], known: Known) -> list[Loop]:
    """Output channels or groups, input channels, images, and rows through windows."""
    attrs, x, w = op.attrs, _static(known.shape()), _static(known.shape(1))
    if attrs.group > 1:
        loops = [_groups(attrs, [1, 0, 0, 1, 0])]
    else:
        loops = [
            parallel(w[0], [None, 0, 0, 1, 0], 1, broadcast=_FACTOR),
            reduction("SUM", x[1], [1, 1]),
        ]
    loops.append(parallel(x[0], [0, None, None, 0], 0))
    windows = conv_window(attrs, x[2:], w[2:])
    return loops + _slides(attrs, windows, x[2:], (True, False, False, True))


@axes_of("Deconvolution")
def _deconvolution(op: Op[DeconvolutionAttrs], known: Known) -> list[Loop]:
    """Output channels or groups, input channels, images, and rows of the result."""
    attrs, x, w = op.attrs, _static(known.shape()), _static(known.shape(1))
    if attrs.group > 1:
        loops = [_groups(attrs, [1, 0, 0])]
    else:
        loops = [parallel(w[1], [None, 1, 0], 1), reduction("SUM", x[1], [1, 0])]
    loops.append(parallel(x[0], [0], 0))
    windows = deconv_window(attrs, x[2:], w[2:])

    def part_of(axis: int, window: Window) -> Callable[[int, int], OpAttrs]:
        def part(begin: int, end: int) -> OpAttrs:
            pads = _pads_of(windows, window, axis, begin, end)
            # Elements at the end without products are negative pads, which attributes cannot
            # express.
            added = tuple(max(-pad, 0) for pad in pads[len(pads) // 2 :])
            return replace(
                attrs,
                pads=tuple(max(pad, 0) for pad in pads),
                output_padding=added,
                output_shape=(),
                auto_pad="NOTSET",
            )

        return part

    return loops + [
        sliding(windows.output[axis], [axis + 2], axis + 2, window, part_of(axis, window))
        for axis, window in enumerate(_windows(windows, x[2:], spread=True))
    ]


@axes_of("Pooling")
def _pooling(op: Op[PoolingAttrs], known: Known) -> list[Loop]:
    """Images, channels and rows; none if results are positions in the whole tensor."""
    attrs, x = op.attrs, _static(known.shape())
    if len(op.outputs) > 1:
        raise ShapeError("results are positions in the whole tensor")
    loops = [parallel(x[axis], [axis], axis) for axis in (0, 1)]
    # ceil_mode adds elements beyond the pads; only an average that counts pads distinguishes the
    # two.
    if attrs.is_global or (attrs.ceil_mode and attrs.count_include_pad):
        return loops + [mixed(size, [axis]) for axis, size in enumerate(x) if axis > 1]
    return loops + _slides(attrs, pool_window(attrs, x[2:]), x[2:], (True,))


@axes_of("GridSample")
def _grid_sample(op: Op, known: Known) -> list[Loop]:
    """Channels, images, and sample points."""
    x, grid = known.shape(), known.shape(1)
    return [
        parallel(x[1], [1], 1),
        parallel(x[0], [0, 0], 0),
        *(parallel(grid[axis - 1], [None, axis - 1], axis) for axis in range(2, len(grid))),
        *(mixed(x[axis], [axis]) for axis in range(2, len(x))),
    ]


@axes_of("RoiAlign", "RoiPool")
def _regions(op: Op, known: Known) -> list[Loop]:
    """Channels and regions; a region may be anywhere in any image."""
    x, regions = known.shape(), known.shape(1)
    return [
        parallel(x[1], [1], 1),
        parallel(regions[0], [None, 0, 0], 0),
        *(mixed(x[axis], [axis]) for axis in (0, 2, 3)),
    ]


@axes_of("DeformColumns")
def _deform_columns(op: Op, known: Known) -> list[Loop]:
    """Images; rows and columns of a result are one axis."""
    x = known.shape()
    return [parallel(x[0], [0, 0, 0], 0), *(mixed(x[axis], [axis]) for axis in (2, 3))]


@axes_of("Col2Im")
def _col2im(op: Op, known: Known) -> list[Loop]:
    x = known.shape()
    return [parallel(x[0], [0], 0), mixed(x[2], [2])]


_RESIZED: dict[str | int, Numbering] = {
    "axes": Numbering.AXES,
    1: Numbering.PER_AXIS,
    2: Numbering.PER_AXIS,
    3: Numbering.SIZES,
}


@axes_of("Interp", numbering=_RESIZED)
def _interp(op: Op[InterpAttrs], known: Known) -> list[Loop]:
    """Axes that keep their size."""
    attrs, x = op.attrs, known.shape()
    free = attrs.keep_aspect_ratio_policy == "stretch"
    if free and attrs.coordinate_mode != "tf_crop_and_resize":
        try:
            kept = [axis.is_identity for axis in resize_axes(op, _static(x), known.values)]
        except ShapeError:
            kept = [False] * len(x)
    else:
        kept = [False] * len(x)
    return [
        (parallel if same else mixed)(size, [axis], axis)
        for axis, (size, same) in enumerate(zip(x, kept, strict=True))
    ]
