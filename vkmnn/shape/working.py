"""What ops take of memory and time on the numpy backend, before they run.

The figures are those of `vkmnn.cpu_fallback`: sums are taken in float64, convolutions are unfolded,
sorting keeps indices. They are estimates, and rather too high.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

from vkmnn.ir import Op, TensorInfo
from vkmnn.ir.ops import (
    ConvolutionAttrs,
    DeconvolutionAttrs,
    EinsumAttrs,
    InterpAttrs,
    LRNAttrs,
    PoolingAttrs,
    StridedAttentionAttrs,
)
from vkmnn.shape.common import Infos, Values, shape_of
from vkmnn.shape.counting import flops
from vkmnn.shape.einsum import parse_einsum
from vkmnn.shape.resizing import resize_axes
from vkmnn.shape.windows import Window, conv_window, deconv_window, pool_window

VIEWS = frozenset(
    {
        "Identity",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Slice",
        "Split",
        "Expand",
    }
)
"""Ops whose results numpy makes without memory of their own."""

_WIDE = 8
"""Bytes of a float64, and of an index."""

_CHUNK = 1 << 20
"""Elements that are unfolded or converted at a time."""

_Counter = Callable[[Op[Any], Infos, Values, Sequence[TensorInfo]], int]


def _elements(info: TensorInfo | None) -> int:
    return 0 if info is None else prod(info.dims)


def _inputs(factor: int) -> _Counter:
    """So many wide copies of all inputs."""
    return lambda op, inputs, values, outputs: factor * _WIDE * sum(map(_elements, inputs))


def _outputs(factor: int) -> _Counter:
    """So many wide copies of the outputs."""
    return lambda op, inputs, values, outputs: factor * _WIDE * sum(map(_elements, outputs))


def _both(op: Op, inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    return _inputs(1)(op, inputs, values, outputs) + _outputs(2)(op, inputs, values, outputs)


def _conv_window(op: Op[ConvolutionAttrs], inputs: Infos) -> Window:
    attrs = op.attrs
    return conv_window(attrs, shape_of(inputs, 0)[2:], shape_of(inputs, 1)[2:])


def _deconv_window(op: Op[DeconvolutionAttrs], inputs: Infos) -> Window:
    attrs = op.attrs
    return deconv_window(attrs, shape_of(inputs, 0)[2:], shape_of(inputs, 1)[2:])


def _pool_window(op: Op[PoolingAttrs], inputs: Infos) -> Window:
    return pool_window(op.attrs, shape_of(inputs, 0)[2:])


def _convolution(
    op: Op[ConvolutionAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]
) -> int:
    x, window = shape_of(inputs, 0), _conv_window(op, inputs)
    padded = prod(x[:2])
    for size, begin, end in zip(x[2:], window.begins, window.ends, strict=True):
        padded *= size + begin + end
    row = x[1] * prod(window.kernel) * prod(window.output[1:])
    unfolded = 2 * min(max(_CHUNK, row), row * window.output[0])
    return _WIDE * (padded + unfolded + _elements(inputs[1]) + 2 * _elements(outputs[0]))


def _deconvolution(
    op: Op[DeconvolutionAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]
) -> int:
    x, w, window = shape_of(inputs, 0), shape_of(inputs, 1), _deconv_window(op, inputs)
    channels = x[0] * w[1] * op.attrs.group
    spread = channels * prod(window.kernel) * prod(x[2:])
    full: int = channels * prod(
        max(stride * (size - 1) + (kernel - 1) * dilation + 1, begin + count)
        for stride, size, kernel, dilation, begin, count in zip(
            window.strides,
            x[2:],
            window.kernel,
            window.dilations,
            window.begins,
            window.output,
            strict=True,
        )
    )
    return _WIDE * (prod(x) + prod(w) + spread + full + 2 * _elements(outputs[0]))


def _pooling(
    op: Op[PoolingAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]
) -> int:
    attrs, x = op.attrs, shape_of(inputs, 0)
    if attrs.is_global:
        return 2 * _WIDE * prod(x)
    window = _pool_window(op, inputs)
    spans: list[int] = [
        max(size + begin, (count - 1) * stride + (kernel - 1) * dilation + 1)
        for size, begin, count, stride, kernel, dilation in zip(
            x[2:],
            window.begins,
            window.output,
            window.strides,
            window.kernel,
            window.dilations,
            strict=True,
        )
    ]
    counted = [size * count for size, count in zip(window.kernel, window.output, strict=True)]
    places = 3 * max(counted) if attrs.kind == "AVERAGE" else 0
    return _WIDE * (2 * prod(x[:2]) * prod(spans) + places + 4 * _elements(outputs[0]))


def _einsum(
    op: Op[EinsumAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]
) -> int:
    shapes = [shape_of(inputs, index) for index in range(len(inputs))]
    plan = parse_einsum(op.attrs.equation, shapes)
    operands = [prod(plan.sizes[label] for label in labels) for labels in plan.operands]
    # Partial products are kept below the largest operand or result.
    return _WIDE * (3 * sum(operands) + 3 * max(*operands, _elements(outputs[0])))


def _matmul(op: Op, inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    b = shape_of(inputs, 1)
    wide = min(prod(b), _CHUNK) if len(b) == 2 else prod(b)
    return _WIDE * (_elements(inputs[0]) + wide + 2 * _elements(outputs[0]))


def _strided_attention(
    op: Op[StridedAttentionAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]
) -> int:
    attrs = op.attrs
    scores = prod(attrs.batch) * attrs.queries * attrs.keys
    return _WIDE * (2 * sum(map(_elements, inputs)) + 4 * scores + _elements(outputs[0]))


def _attention(op: Op, inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    q, k = shape_of(inputs, 0), shape_of(inputs, 1)
    scores = prod(q[:-1]) * k[-2]
    return _WIDE * (sum(map(_elements, inputs)) + 4 * scores + _elements(outputs[0]))


def _lrn(op: Op[LRNAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    x = shape_of(inputs, 0)
    rows = x[1] + _lrn_steps(op, inputs)
    return _WIDE * (4 * prod(x) + prod(x[:1]) * rows * prod(x[2:]))


def _lrn_steps(op: Op[LRNAttrs], inputs: Infos) -> int:
    return min(op.attrs.size, 2 * shape_of(inputs, 0)[1] + 1)


def _interp(
    op: Op[InterpAttrs], inputs: Infos, values: Values, outputs: Sequence[TensorInfo]
) -> int:
    x, result = shape_of(inputs, 0), outputs[0].dims
    # Axes are resized one after the other.
    largest = max(prod((*result[:n], *x[n:])) for n in range(len(x) + 1))
    table = 0
    attrs = op.attrs
    for axis in resize_axes(op, x, values):
        shrink = min(axis.scale, 1.0) if attrs.antialias else 1.0
        taps = 4 * ceil(1 / shrink) if shrink > 0 else 0
        matrix = axis.size if taps > 2 * _WIDE else 0
        table = max(table, axis.output * (4 * taps + matrix))
    return _WIDE * (3 * largest + table)


def _grid_sample(op: Op, inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    # Four taps along an axis at most, each with a place, a weight and whether it counts.
    return _WIDE * (12 * _elements(inputs[1]) + _elements(inputs[0]) + 4 * _elements(outputs[0]))


def _indexed(op: Op, inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    return _WIDE * 4 * _elements(inputs[1])


_NOTHING: _Counter = lambda op, inputs, values, outputs: 0  # noqa: E731

_EXTRA: dict[str, _Counter] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "Pooling": _pooling,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "Attention": _attention,
    "StridedAttention": _strided_attention,
    "LRN": _lrn,
    "Interp": _interp,
    "GridSample": _grid_sample,
    "OneHot": _inputs(3),
    "TopK": _inputs(3),
    "CumSum": _inputs(2),
    "Reduction": _inputs(2),
    "ArgMax": _inputs(1),
    "ArgMin": _inputs(1),
    "Softmax": _outputs(3),
    "LayerNorm": _outputs(3),
    "GroupNorm": _outputs(3),
    "Gather": _indexed,
    "GatherElements": _indexed,
    "GatherND": _indexed,
    "ScatterElements": _both,
    "ScatterND": _both,
    "Range": _outputs(2),
    "Tile": _outputs(1),
    "Pad": _outputs(1),
    **dict.fromkeys(
        (
            *VIEWS,
            "Concat",
            "ConstantOfShape",
            "ConvertTensor",
            "DepthToSpace",
            "Raster",
            "Shape",
            "Size",
            "SpaceToDepth",
        ),
        _NOTHING,
    ),
}


def working_bytes(op: Op, inputs: Infos, values: Values, outputs: Sequence[TensorInfo]) -> int:
    """Return the most bytes that an op holds on numpy beside its inputs; results included.

    Args:
        op: the operator.
        inputs: its inputs with static shapes; None = absent.
        values: the contents of inputs where they are known.
        outputs: its outputs, as from `compute_shapes`.

    Raises:
        ShapeError: attributes or contents do not fit the shapes.
    """
    results = sum(_elements(info) * info.dtype.numpy.itemsize for info in outputs)
    return results + _EXTRA.get(op.type, _outputs(1))(op, inputs, values, outputs)


# --- time ----------------------------------------------------------------------------------------

_STEP_S = 5e-6
"""One call of numpy."""

_ELEMENT_S = 5e-9
"""One element of an input or a result that is read or written."""

_FLOP_S = {"Convolution": 3e-10, "Deconvolution": 3e-10, "MatMul": 1e-10, "Attention": 4e-10}
"""Operations of products, which a library for matrices does in floating point."""

_OTHER_FLOP_S = 3e-9
_INTEGER_FACTOR = 10
_SORT_S = 2e-7
"""One element that is sorted."""


def _steps(op: Op[Any], inputs: Infos) -> int:
    """Return how many calls of numpy an op's loops make."""
    if op.type == "Convolution":
        window, (batch, channels) = _conv_window(op, inputs), shape_of(inputs, 0)[:2]
        row = channels * prod(window.kernel) * prod(window.output[1:])
        rows = max(1, _CHUNK // max(row, 1))
        return batch * -(-window.output[0] // rows) * (2 + prod(window.kernel))
    if op.type == "Deconvolution":
        return prod(_deconv_window(op, inputs).kernel)
    if op.type == "Pooling" and not op.attrs.is_global:
        kernel = _pool_window(op, inputs).kernel
        return 10 * prod(kernel) if len(op.outputs) > 1 else sum(kernel)
    return _lrn_steps(op, inputs) if op.type == "LRN" else 1


def working_seconds(op: Op, inputs: Infos, outputs: Sequence[TensorInfo]) -> float:
    """Return about how long an op takes on numpy; arguments and errors as of `working_bytes`."""
    if op.type in VIEWS:
        return 0.0
    present = [info for info in inputs if info is not None]
    moved = sum(map(_elements, present)) + sum(map(_elements, outputs))
    rate = _FLOP_S.get(op.type, _OTHER_FLOP_S)
    if op.type in _FLOP_S and present and present[0].dtype.numpy.kind != "f":
        rate *= _INTEGER_FACTOR
    seconds = flops(op, inputs, list(outputs)) * rate + _ELEMENT_S * moved
    if op.type == "TopK":
        seconds += _SORT_S * _elements(present[0])
    return seconds + _STEP_S * _steps(op, inputs)
