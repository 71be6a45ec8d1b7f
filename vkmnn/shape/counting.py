"""How many floating-point operations an operator takes: for tuning, placement and reports."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from vkmnn.ir import Op, TensorInfo
from vkmnn.ir.ops import EinsumAttrs, MatMulAttrs, PoolingAttrs, StridedAttentionAttrs
from vkmnn.shape.common import Infos, attrs_of, shape_of
from vkmnn.shape.einsum import parse_einsum
from vkmnn.shape.windows import pool_window

_Counter = Callable[[Op, Infos, int], int]


def _convolution(op: Op, inputs: Infos, elements: int) -> int:
    weight = shape_of(inputs, 1)
    return 2 * elements * prod(weight[1:])


def _deconvolution(op: Op, inputs: Infos, elements: int) -> int:
    # Every input element meets each weight of its channel once.
    return 2 * prod(shape_of(inputs, 0)) * prod(shape_of(inputs, 1)[1:])


def _matmul(op: Op, inputs: Infos, elements: int) -> int:
    a = shape_of(inputs, 0)
    inner = a[-2] if attrs_of(op, MatMulAttrs).transpose_a and len(a) > 1 else a[-1]
    return 2 * elements * inner


def _attention(op: Op, inputs: Infos, elements: int) -> int:
    q, k = shape_of(inputs, 0), shape_of(inputs, 1)
    rows = elements // max(shape_of(inputs, 2)[-1], 1)
    return 2 * rows * k[-2] * q[-1] + 5 * rows * k[-2] + 2 * elements * k[-2]


def _strided_attention(op: Op, inputs: Infos, elements: int) -> int:
    attrs = attrs_of(op, StridedAttentionAttrs)
    scores = prod(attrs.batch) * attrs.queries * attrs.keys
    return scores * (2 * attrs.depth + 5 + 2 * attrs.width)


def _einsum(op: Op, inputs: Infos, elements: int) -> int:
    shapes = [shape_of(inputs, index) for index in range(len(inputs))]
    plan = parse_einsum(attrs_of(op, EinsumAttrs).equation, shapes)
    return max(len(shapes), 1) * prod(plan.sizes.values())


def _pooling(op: Op, inputs: Infos, elements: int) -> int:
    window = pool_window(attrs_of(op, PoolingAttrs), shape_of(inputs, 0)[2:])
    return elements * prod(window.kernel)


def _per_input(factor: int) -> _Counter:
    return lambda op, inputs, elements: factor * prod(shape_of(inputs, 0))


def _per_output(factor: int) -> _Counter:
    return lambda op, inputs, elements: factor * elements


def _nothing(op: Op, inputs: Infos, elements: int) -> int:
    return 0


_COUNTERS: dict[str, _Counter] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "MatMul": _matmul,
    "Attention": _attention,
    "StridedAttention": _strided_attention,
    "Einsum": _einsum,
    "Pooling": _pooling,
    "Reduction": _per_input(1),
    "ArgMax": _per_input(1),
    "ArgMin": _per_input(1),
    "Softmax": _per_output(5),
    "LayerNorm": _per_output(8),
    "GroupNorm": _per_output(8),
    "Scale": _per_output(2),
    "LRN": _per_output(6),
    "Interp": _per_output(8),
    "GridSample": _per_output(8),
    **dict.fromkeys(
        (
            "Concat",
            "ConstantOfShape",
            "ConvertTensor",
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "OneHot",
            "Pad",
            "Raster",
            "Reshape",
            "Shape",
            "Size",
            "Slice",
            "SpaceToDepth",
            "Split",
            "Squeeze",
            "Tile",
            "Transpose",
            "Trilu",
            "Unsqueeze",
        ),
        _nothing,
    ),
}

_EXTRA_OPERANDS = {"Convolution": (2, 3), "Deconvolution": (2,), "MatMul": (2, 3)}


def flops(op: Op, inputs: Infos, outputs: list[TensorInfo]) -> int:
    """Return the number of floating-point operations of `op` (a multiply-add counts as two).

    Data movement counts as nothing; element-wise operators as one per output element.

    Args:
        op: the operator.
        inputs: its inputs with static shapes; None = absent.
        outputs: its outputs, as from `compute_shapes`.
    """
    elements = prod(outputs[0].dims) if outputs else 0
    counter = _COUNTERS.get(op.type, _per_output(1))
    extra = sum(
        elements
        for index in _EXTRA_OPERANDS.get(op.type, ())
        if index < len(inputs) and inputs[index] is not None
    )
    return counter(op, inputs, elements) + extra
