"""Along what the ops of the vocabulary can be cut, one rule per family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import row_major
from vkmnn.ir import Array, Op, OpAttrs, View
from vkmnn.ir.ops import (
    ArgReduceAttrs,
    AxisAttrs,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    DynamicQuantizeMatMulAttrs,
    GatherNBitsAttrs,
    GatherNDAttrs,
    GroupNormAttrs,
    ImageToTensorAttrs,
    InterpAttrs,
    LayerNormAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    NormedMatMulAttrs,
    PoolingAttrs,
    QuantizedMatMulAttrs,
    RecurrentAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    StridedAttentionAttrs,
    StridedBinaryAttrs,
    TopKAttrs,
)
from vkmnn.shape.reduction import reduction_axes
from vkmnn.shape.resizing import resize_axes
from vkmnn.shape.windows import Direct, Window, conv_window, deconv_window, pool_window
from vkmnn.vulkan.cuts import CUTS, Cut, Operands, Part, Piece, Span, along, cut_along
from vkmnn.vulkan.indexing import operands

Outputs = Sequence[Tensor]


def _given(inputs: Operands, index: int) -> Tensor:
    tensor = inputs[index]
    assert tensor is not None  # an op has an execution only with all that it requires
    return tensor


def _every_axis(
    op: Op, inputs: Operands, outputs: Outputs, axes: Sequence[int], whole: Sequence[int] = ()
) -> list[Cut]:
    """Cut along axes that all tensors share, except for the inputs numbered in `whole`."""
    cuts = []
    for axis in axes:
        reads = [None if number in whole else axis for number in range(len(inputs))]
        cuts.append(cut_along(op, inputs, outputs, reads, axis))
    return cuts


@CUTS.register("UnaryOp", "BinaryOp", "Elementwise", "Select", "Cast")
def _elementwise(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Any axis of the result; operands that are broadcast along it stay whole, and views do."""
    if isinstance(op.attrs, StridedBinaryAttrs):
        return []
    rank = len(outputs[0].shape)
    cuts = []
    for axis, size in enumerate(outputs[0].shape):
        reads = []
        for tensor in operands(inputs):
            own = axis - rank + len(tensor.shape)
            reads.append(own if own >= 0 and tensor.shape[own] == size else None)
        cuts.append(cut_along(op, inputs, outputs, reads, axis))
    return cuts


@CUTS.register("Rotary")
def _rotary(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Any axis but the columns."""
    return _elementwise(op, inputs, outputs)[:3]


@CUTS.register("Scale")
def _scale(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    cuts = _every_axis(op, inputs, outputs, range(len(outputs[0].shape)), (1, 2))
    cuts[1] = cut_along(op, inputs, outputs, [1, 0, 0], 1)
    return cuts


@CUTS.register("ImageToTensor")
def _images(op: Op[ImageToTensorAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Images, then rows and columns."""
    single, moved = op.attrs.single, op.attrs.channels_last
    axes = [axis for axis in range(len(outputs[0].shape)) if axis != 1 and (axis or not single)]
    return [
        cut_along(op, inputs, outputs, [axis - single - (moved and axis > 0)], axis)
        for axis in axes
    ]


def _windowed(
    window: Window, spatial: Sequence[int], axis: int, begin: int, end: int
) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return what the results from `begin` to `end` of a spatial axis read, and their pads."""
    low = begin * window.strides[axis] - window.begins[axis]
    reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1
    high = (end - 1) * window.strides[axis] - window.begins[axis] + reach
    first = min(max(low, 0), spatial[axis])
    last = max(min(high, spatial[axis]), first)
    begins, ends = list(window.begins), list(window.ends)
    begins[axis], ends[axis] = first - low, high - last
    return (first, last), (*begins, *ends)


def _blind(window: Window, axis: int) -> bool:
    """Return whether some windows may see nothing but pads."""
    reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1
    return max(window.begins[axis], window.ends[axis]) >= reach


def _groups(
    op: Op[ConvolutionAttrs] | Op[DeconvolutionAttrs],
    inputs: Operands,
    outputs: Outputs,
    group: int,
    weight_reads: Sequence[int | None],
) -> Cut:
    """Cut along whole groups of channels, and whole blocks of them where that is possible."""

    def attrs(begin: int, end: int) -> OpAttrs:
        return replace(op.attrs, group=end - begin)

    width = gcd(_given(inputs, 0).shape[1] // group, outputs[0].shape[1] // group)
    reads = [1, *weight_reads]
    unit = 4 // gcd(4, width)
    return cut_along(op, inputs, outputs, reads, 1, size=group, unit=unit, attrs=attrs)


@CUTS.register("Convolution")
def _convolution(op: Op[ConvolutionAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Output channels or groups, images, then rows with what their windows reach over."""
    attrs = op.attrs
    if attrs.group == 1:
        cuts = [cut_along(op, inputs, outputs, [None, 0, 0, 1], 1, unit=4)]
    else:
        cuts = [_groups(op, inputs, outputs, attrs.group, (0, 0, 1))]
    return cuts + _images_and_rows(op, inputs, outputs)


@CUTS.register("QuantizedConvolution", "DynamicQuantizeConvolution")
def _images_and_rows(op: Op[Direct], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Images, then rows with what their windows reach over."""
    attrs, x, w = op.attrs, _given(inputs, 0), _given(inputs, 1)
    cuts = [cut_along(op, inputs, outputs, [0, None, None, 0], 0)]
    spatial = x.shape[2:]
    window = conv_window(attrs, spatial, w.shape[2:])

    def rows(axis: int) -> Cut:
        def span(begin: int, end: int) -> tuple[int, int]:
            return _windowed(window, spatial, axis, begin, end)[0]

        def attrs_of(begin: int, end: int) -> OpAttrs:
            pads = _windowed(window, spatial, axis, begin, end)[1]
            return replace(attrs, pads=pads, auto_pad="NOTSET")

        spans: dict[int, Span] = {0: span}
        reads = [axis + 2, None, None, axis + 2]
        return cut_along(op, inputs, outputs, reads, axis + 2, attrs=attrs_of, spans=spans)

    return cuts + [rows(axis) for axis in range(len(spatial)) if not _blind(window, axis)]


@CUTS.register("Deconvolution")
def _deconvolution(op: Op[DeconvolutionAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    attrs = op.attrs
    if attrs.group == 1:
        channels = cut_along(op, inputs, outputs, [None, 1, 0], 1, unit=4)
    else:
        channels = _groups(op, inputs, outputs, attrs.group, (0, 0))
    cuts = [channels, cut_along(op, inputs, outputs, [0, None, None], 0)]
    x, w = _given(inputs, 0), _given(inputs, 1)
    spatial = x.shape[2:]
    window = deconv_window(attrs, spatial, w.shape[2:])

    def rows(axis: int) -> Cut:
        def span(begin: int, end: int) -> tuple[int, int]:
            return _spread(window, spatial, axis, begin, end)[0]

        def attrs_of(begin: int, end: int) -> OpAttrs:
            pads = _spread(window, spatial, axis, begin, end)[1]
            # What no product reaches at the end are negative pads, which attributes cannot say.
            added = tuple(max(-pad, 0) for pad in pads[len(spatial) :])
            return replace(
                attrs,
                pads=tuple(max(pad, 0) for pad in pads),
                output_padding=added,
                output_shape=(),
                auto_pad="NOTSET",
            )

        spans: dict[int, Span] = {0: span}
        reads = [axis + 2, None, None]
        return cut_along(op, inputs, outputs, reads, axis + 2, attrs=attrs_of, spans=spans)

    return cuts + [rows(axis) for axis in range(len(spatial))]


def _spread(
    window: Window, spatial: Sequence[int], axis: int, begin: int, end: int
) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return what a transposed convolution's results from `begin` to `end` read, and their pads."""
    stride, pad = window.strides[axis], window.begins[axis]
    reach = (window.kernel[axis] - 1) * window.dilations[axis]
    first = min(max((begin + pad) // stride - reach // stride, 0), spatial[axis] - 1)
    last = max(min((end - 1 + pad) // stride + 1, spatial[axis]), first + 1)
    begins, ends = list(window.begins), list(window.ends)
    begins[axis] = pad + begin - first * stride
    ends[axis] = (last - first - 1) * stride + reach + 1 - begins[axis] - (end - begin)
    return (first, last), (*begins, *ends)


@CUTS.register("Pooling")
def _pooling(op: Op[PoolingAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Images, channels and rows; not where positions in the whole are asked for."""
    attrs, x = op.attrs, _given(inputs, 0)
    if len(outputs) > 1:
        return []
    cuts = _every_axis(op, inputs, outputs, (0, 1))
    spatial = x.shape[2:]
    # Beyond the pads lies what ceil_mode adds; only an average that counts pads tells the two.
    if attrs.is_global or (attrs.ceil_mode and attrs.count_include_pad):
        return cuts
    window = pool_window(attrs, spatial)

    def rows(axis: int) -> Cut:
        def span(begin: int, end: int) -> tuple[int, int]:
            return _windowed(window, spatial, axis, begin, end)[0]

        def attrs_of(begin: int, end: int) -> OpAttrs:
            pads = _windowed(window, spatial, axis, begin, end)[1]
            return replace(attrs, pads=pads, auto_pad="NOTSET")

        spans: dict[int, Span] = {0: span}
        return cut_along(op, inputs, outputs, [axis + 2], axis + 2, attrs=attrs_of, spans=spans)

    return cuts + [rows(axis) for axis in range(len(spatial)) if not _blind(window, axis)]


@CUTS.register("MatMul", "NormedMatMul", "QuantizedMatMul", "DynamicQuantizeMatMul")
def _matmul(
    op: Op[MatMulAttrs]
    | Op[NormedMatMulAttrs]
    | Op[QuantizedMatMulAttrs]
    | Op[DynamicQuantizeMatMulAttrs],
    inputs: Operands,
    outputs: Outputs,
) -> list[Cut]:
    """Matrices of a batch, rows, columns."""
    attrs, a, b = op.attrs, _given(inputs, 0), _given(inputs, 1)
    rank = len(outputs[0].shape)
    a_rank, b_rank = len(a.shape), len(b.shape)
    cuts = []
    for axis in range(rank - (a_rank > 1) - (b_rank > 1)):
        reads: list[int | None] = []
        for tensor in (a, b):
            own = axis - rank + len(tensor.shape)
            # A vector has no axis that the result does not lack.
            batch = len(tensor.shape) > 2 and own >= 0 and min(a_rank, b_rank) > 1
            reads.append(own if batch and tensor.shape[own] > 1 else None)
        if reads != [None, None]:
            cuts.append(cut_along(op, inputs, outputs, [*reads, None, axis], axis))
    if a_rank > 1:
        row = rank - 1 - (b_rank > 1)
        own = a_rank - 1 if attrs.transpose_a else a_rank - 2
        cuts.append(cut_along(op, inputs, outputs, [own, None, None, row], row))
    if b_rank > 1:
        own = b_rank - 2 if attrs.transpose_b else b_rank - 1
        factor = inputs[4] if len(inputs) > 4 else None
        each = factor is not None and prod(factor.shape) > 1
        again = 1 if op.type == "QuantizedMatMul" else None
        reads = [None, own, 0, rank - 1, 0 if each else None, None, again]
        gates = b.shape[own] // max(1, outputs[0].shape[-1])
        unit = COLUMNS // max(1, gates)
        cuts.append(cut_along(op, inputs, outputs, reads, rank - 1, unit=unit))
    return cuts


@CUTS.register("MatMulNBits")
def _matmul_nbits(op: Op[MatMulNBitsAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Rows, columns."""
    attrs, last = op.attrs, len(outputs[0].shape) - 1
    times = 2 if attrs.gated else 1

    def narrower(begin: int, end: int) -> OpAttrs:
        return replace(attrs, columns=(end - begin) * times)

    rows = [cut_along(op, inputs, outputs, [axis, None, None, axis], axis) for axis in range(last)]
    reads = [None, 0, 0, last, 0, 0]
    columns = cut_along(op, inputs, outputs, reads, last, unit=COLUMNS // times, attrs=narrower)
    return [*rows, columns]


@CUTS.register("GatherNBits")
def _gather_nbits(op: Op[GatherNBitsAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Whole blocks of columns, indices."""
    attrs, last = op.attrs, len(outputs[0].shape) - 1

    def narrower(begin: int, end: int) -> OpAttrs:
        return replace(attrs, depth=(end - begin) * attrs.block)

    cuts = [cut_along(op, inputs, outputs, [None, axis], axis) for axis in range(last)]
    if attrs.depth % attrs.block == 0:
        blocks, reads = attrs.depth // attrs.block, [1, None, 1, 1]
        cuts.append(cut_along(op, inputs, outputs, reads, last, size=blocks, attrs=narrower))
    return cuts


COLUMNS = 32
"""Columns of a product are cut at multiples of this, as its kernels take them."""


@CUTS.register("Softmax")
def _softmax(op: Op[SoftmaxAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    attrs, rank = op.attrs, len(outputs[0].shape)
    axis = attrs.axis % rank if rank else 0
    axes = range(axis) if attrs.flatten else [n for n in range(rank) if n != axis]
    return _every_axis(op, inputs, outputs, axes)


@CUTS.register("TopK", "CumSum", "CumProd")
def _along_axis(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    rank = len(outputs[0].shape)
    if isinstance(op.attrs, TopKAttrs):
        axis = op.attrs.axis % rank
    else:
        given = _given(inputs, 1)
        assert given.value is not None
        axis = int(given.value.reshape(-1)[0]) % rank
    return _every_axis(op, inputs, outputs, [n for n in range(rank) if n != axis], (1,))


@CUTS.register("ArgMax", "ArgMin")
def _arg_reduce(op: Op[ArgReduceAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    attrs, rank = op.attrs, len(_given(inputs, 0).shape)
    return _reduced(op, inputs, outputs, [attrs.axis % rank], attrs.keepdims)


def _reduced(
    op: Op, inputs: Operands, outputs: Outputs, axes: Sequence[int], keepdims: bool
) -> list[Cut]:
    cuts = []
    for axis in range(len(_given(inputs, 0).shape)):
        if axis not in axes:
            made = axis if keepdims else axis - sum(other < axis for other in axes)
            cuts.append(cut_along(op, inputs, outputs, [axis], made))
    return cuts


@CUTS.register("Reduction")
def _reduction(op: Op[ReductionAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    attrs = op.attrs
    given = inputs[1] if len(inputs) > 1 else None
    values = None if given is None else given.value
    axes = reduction_axes(
        len(_given(inputs, 0).shape),
        None if values is None else [int(axis) for axis in values.reshape(-1)],
        noop_with_empty_axes=attrs.noop_with_empty_axes,
    )
    cuts = _reduced(op, inputs, outputs, axes, attrs.keepdims)
    return cuts + [_in_two_steps(op, inputs, outputs, axes, axis) for axis in axes]


_FIRST_STEPS = {"LOG_SUM": "SUM"}
"""What parts compute of reductions that do not repeat themselves."""
_LAST_STEPS = {"SUM_SQUARE": "SUM", "L1": "SUM"}
"""What is computed of the parts' results, where that is another reduction."""


def _in_two_steps(
    op: Op[ReductionAttrs], inputs: Operands, outputs: Outputs, axes: Sequence[int], axis: int
) -> Cut:
    """Cut along an axis that is reduced: the reduction of the parts' reductions."""
    attrs, x = op.attrs, _given(inputs, 0)
    first = replace(attrs, kind=_FIRST_STEPS.get(attrs.kind, attrs.kind), keepdims=True)
    made = tuple(1 if n in axes else size for n, size in enumerate(x.shape))

    def part(begin: int, end: int) -> Part:
        taken = along(x.shape, axis, begin, end)
        return Part(first, (taken, *[None] * (len(inputs) - 1)), (along(made, axis, 0, 1),))

    again = replace(attrs, kind=_LAST_STEPS.get(attrs.kind, attrs.kind))
    equal = attrs.kind == "MEAN"
    return Cut(x.shape[axis], 1, axis, frozenset({0}), part, again, equal)


@CUTS.register("LayerNorm")
def _layer_norm(op: Op[LayerNormAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    attrs, rank = op.attrs, len(outputs[0].shape)
    return _every_axis(op, inputs, outputs, range(attrs.axis % rank), (1, 2))


@CUTS.register("GroupNorm")
def _group_norm(op: Op[GroupNormAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Images, and whole groups."""
    attrs, channels = op.attrs, outputs[0].shape[1]
    groups = attrs.groups or channels

    def attrs_of(begin: int, end: int) -> OpAttrs:
        return replace(attrs, groups=end - begin if attrs.groups else 0)

    unit = 4 // gcd(4, channels // groups)
    return [
        cut_along(op, inputs, outputs, [1, 0, 0], 1, size=groups, unit=unit, attrs=attrs_of),
        cut_along(op, inputs, outputs, [0, None, None], 0),
    ]


@CUTS.register("LRN")
def _lrn(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    axes = [axis for axis in range(len(outputs[0].shape)) if axis != 1]
    return _every_axis(op, inputs, outputs, axes)


@CUTS.register("Recurrent")
def _recurrent(op: Op[RecurrentAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Sequences; but parts number their outputs, so that none may be left out before another."""
    if "" in op.outputs[: len(outputs)]:
        return []
    axis = 0 if op.attrs.batch_first else 1
    every = 0 if op.attrs.batch_first else 2
    reads = [axis, None, None, 0, axis, axis, None]
    makes = [every, axis, axis][: len(outputs)]
    return [cut_along(op, inputs, outputs, reads, makes)]


@CUTS.register("Interp")
def _interp(op: Op[InterpAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Axes that keep their size."""
    attrs, x = op.attrs, _given(inputs, 0)
    sizes = inputs[3] if len(inputs) > 3 else None
    if attrs.keep_aspect_ratio_policy != "stretch" or attrs.coordinate_mode == "tf_crop_and_resize":
        return []
    values = [None if tensor is None else tensor.value for tensor in inputs]
    kept = [n for n, axis in enumerate(resize_axes(op, x.shape, values)) if axis.is_identity]
    cuts = _every_axis(op, inputs, outputs, kept, (1, 2, 3))
    if sizes is None or sizes.value is None or sizes.value.size == 0:
        return cuts
    named = [axis % len(x.shape) for axis in attrs.axes] or list(range(len(x.shape)))
    return [_with_sizes(cut, named, sizes.value) for cut in cuts]


def _with_sizes(cut: Cut, named: Sequence[int], sizes: Array) -> Cut:
    """Let the parts of a resize be told their own sizes."""

    def part(begin: int, end: int) -> Part:
        made = cut.part(begin, end)
        own = np.array(sizes)
        if cut.axis in named:
            own[named.index(cut.axis)] = end - begin
        return replace(made, inputs=(*made.inputs[:3], own))

    return replace(cut, part=part)


@CUTS.register("GridSample")
def _grid_sample(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    cuts = [
        cut_along(op, inputs, outputs, [1, None], 1, unit=4),
        cut_along(op, inputs, outputs, [0, 0], 0),
    ]
    rows = range(2, len(outputs[0].shape))
    return cuts + [cut_along(op, inputs, outputs, [None, axis - 1], axis) for axis in rows]


@CUTS.register("Gather")
def _gather(op: Op[AxisAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """What is not gathered along, and the indices."""
    data, indices = _given(inputs, 0), _given(inputs, 1)
    axis, rank = op.attrs.axis % len(data.shape), len(indices.shape)
    cuts = []
    for own in range(len(data.shape)):
        if own != axis:
            made = own if own < axis else own - 1 + rank
            cuts.append(cut_along(op, inputs, outputs, [own, None], made))
    return cuts + [cut_along(op, inputs, outputs, [None, own], axis + own) for own in range(rank)]


@CUTS.register("GatherElements")
def _gather_elements(op: Op[AxisAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    rank = len(outputs[0].shape)
    axis = op.attrs.axis % rank

    def same(begin: int, end: int) -> tuple[int, int]:
        return begin, end

    return [
        cut_along(op, inputs, outputs, [own if own != axis else None, own], own, spans={0: same})
        for own in range(rank)
    ]


@CUTS.register("GatherND")
def _gather_nd(op: Op[GatherNDAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    data, indices = _given(inputs, 0), _given(inputs, 1)
    batch, tuples = op.attrs.batch_dims, len(indices.shape) - 1
    inner = batch + indices.shape[-1]
    reads: list[tuple[int | None, int | None, int]] = []
    reads += [(axis, axis, axis) for axis in range(batch)]
    reads += [(None, axis, axis) for axis in range(batch, tuples)]
    reads += [(axis, None, tuples + axis - inner) for axis in range(inner, len(data.shape))]
    return [cut_along(op, inputs, outputs, [x, i], made) for x, i, made in reads]


@CUTS.register("ScatterND")
def _scatter_nd(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    """The axes of the slices that are scattered."""
    data, indices, _ = operands(inputs)
    depth, tuples = indices.shape[-1], len(indices.shape) - 1
    return [
        cut_along(op, inputs, outputs, [axis, None, tuples + axis - depth], axis)
        for axis in range(depth, len(data.shape))
    ]


@CUTS.register("ScatterElements")
def _scatter_elements(op: Op, inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Axes, but the one that is scattered along, over which the indices reach to the end."""
    data, indices, _ = operands(inputs)
    axis = getattr(op.attrs, "axis", 0) % len(data.shape)
    whole = [n for n, size in enumerate(data.shape) if n != axis and indices.shape[n] == size]
    return _every_axis(op, inputs, outputs, whole)


@CUTS.register("OneHot")
def _one_hot(op: Op[AxisAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    rank = len(outputs[0].shape)
    axis = op.attrs.axis % rank
    return [
        cut_along(op, inputs, outputs, [own, None, None], own + (own >= axis))
        for own in range(rank - 1)
    ]


SINK = 5  # of a StridedAttention, a number for every matrix


@CUTS.register("StridedAttention")
def _attention(op: Op[StridedAttentionAttrs], inputs: Operands, outputs: Outputs) -> list[Cut]:
    """Matrices, and queries where what they see does not depend on their number."""
    attrs = op.attrs
    cuts = [_attention_cut(attrs, len(inputs), axis) for axis in range(len(attrs.batch))]
    if not (attrs.causal or attrs.window or (attrs.codes and attrs.codes.later)):
        cuts.append(_attention_cut(attrs, len(inputs), len(attrs.batch)))
    return cuts


def _attention_cut(attrs: StridedAttentionAttrs, count: int, axis: int) -> Cut:
    """Cut along a batch axis, or along the queries, which follow those."""
    sizes = (*attrs.batch, attrs.queries)

    def part(begin: int, end: int) -> Part:
        views = [*attrs.views, *([attrs.mask] if attrs.mask is not None else []), attrs.result]
        rows = [attrs.queries, attrs.keys, attrs.keys, attrs.queries]
        columns = [attrs.depth, attrs.depth, attrs.width, attrs.keys]
        if attrs.mask is None:
            rows, columns = rows[:3], columns[:3]
        rows.append(attrs.queries)
        columns.append(attrs.width)
        pieces, seen = [], []
        for number, (view, height, width) in enumerate(zip(views, rows, columns, strict=True)):
            size = [n if step else 1 for n, step in zip(attrs.batch, view.strides, strict=False)]
            size += [height if view.strides[3] else 1, width]
            offset = view.offset
            if size[axis] > 1 and (axis < len(attrs.batch) or number not in (1, 2)):
                offset += begin * view.strides[axis]
                size[axis] = end - begin
            strides = (*view.strides, 1)
            pieces.append(Piece(tuple(size), View(offset, strides), tuple(size)))
            steps = row_major(size)[:4]
            seen.append(
                View(0, tuple(s if n > 1 else 0 for n, s in zip(size, steps, strict=False)))
            )
        now = [*sizes[:axis], end - begin, *sizes[axis + 1 :]]
        changed = replace(
            attrs,
            batch=(now[0], now[1], now[2]),
            queries=now[3],
            views=(seen[0], seen[1], seen[2]),
            mask=seen[3] if attrs.mask is not None else None,
            result=seen[-1],
        )
        *taken, given = pieces
        others: list[Piece | None] = [None] * (count - len(taken))
        if count > SINK:
            others[-1] = _sinks(attrs.batch, axis, begin, end)
        return Part(changed, (*taken, *others), (given,))

    touched = {0, count} if axis == len(attrs.batch) else {0, 1, 2, count}
    touched |= {3} if attrs.mask else set()
    touched |= {SINK} if count > SINK and axis < len(attrs.batch) else set()
    return Cut(sizes[axis], 1, axis, frozenset(touched), part)


def _sinks(batch: tuple[int, ...], axis: int, begin: int, end: int) -> Piece | None:
    """Return the sinks of a part of the matrices; None for all, where queries are cut."""
    if axis >= len(batch):
        return None
    size = (*batch[:axis], end - begin, *batch[axis + 1 :])
    steps = row_major(batch)
    return Piece(size, View(begin * steps[axis], tuple(steps)), size)
