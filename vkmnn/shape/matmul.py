"""Shapes of MatMul, Det and Attention."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import (
    AttentionAttrs,
    DynamicQuantizeMatMulAttrs,
    MatMulAttrs,
    NormedMatMulAttrs,
    QuantizedMatMulAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    broadcast_shapes,
    check_broadcastable_to,
    check_shape,
    dtype_of,
    has_input,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import broadcast, shape_rule


def matmul_shape(
    a: Sequence[int], b: Sequence[int], *, transpose_a: bool = False, transpose_b: bool = False
) -> Shape:
    """Return the shape of a @ b by numpy's rules; transposes swap the last two axes of rank >= 2.

    Raises:
        ShapeError: a scalar operand, different inner sizes, or batches that do not broadcast.
    """
    if not a or not b:
        raise ShapeError(f"matrix product of a scalar: {tuple(a)} @ {tuple(b)}")
    left, right = list(a), list(b)
    if transpose_a and len(left) > 1:
        left[-2:] = left[:-3:-1]
    if transpose_b and len(right) > 1:
        right[-2:] = right[:-3:-1]
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ShapeError(
            f"inner sizes of {tuple(a)} @ {tuple(b)} differ: {left[-1]} against {inner}"
        )
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else []
    return (*broadcast_shapes(left[:-2], right[:-2]), *rows, *columns)


@size_computer("MatMul")
def _matmul(op: Op[MatMulAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    output = matmul_shape(
        shape_of(inputs, 0),
        shape_of(inputs, 1),
        transpose_a=attrs.transpose_a,
        transpose_b=attrs.transpose_b,
    )
    if has_input(inputs, 2):
        check_shape(inputs, 2, output[-1:], "bias")
    check_shape(inputs, 3, output, "residual")
    return [(same_dtype(inputs, 0, 1, 2, 3), output)]


@size_computer("QuantizedMatMul")
def _quantized(op: Op[QuantizedMatMulAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    output = matmul_shape(
        shape_of(inputs, 0),
        shape_of(inputs, 1),
        transpose_a=attrs.transpose_a,
        transpose_b=attrs.transpose_b,
    )
    if has_input(inputs, 2):
        check_shape(inputs, 2, output[-1:], "bias")
    check_shape(inputs, 3, output, "residual")
    # Constant quantised values may be bytes.
    whole = dtype_of(inputs, 1) in (DType.INT8, DType.INT16)
    floats = (0, 2, 3, 4, 5, 6) if whole else (0, 1, 2, 3, 4, 5, 6)
    if has_input(inputs, 6):
        check_shape(inputs, 6, (7, *output[-1:]), "second rounding")
    return [(same_dtype(inputs, *floats), output)]


@size_computer("DynamicQuantizeMatMul")
def _dynamic(op: Op[DynamicQuantizeMatMulAttrs], inputs: Infos, values: Values) -> Outputs:
    output = matmul_shape(
        shape_of(inputs, 0), shape_of(inputs, 1), transpose_b=op.attrs.transpose_b
    )
    if has_input(inputs, 2):
        check_shape(inputs, 2, output[-1:], "bias")
    check_shape(inputs, 3, output, "residual")
    return [(same_dtype(inputs, 0, 2, 3, 4, 5, 6), output)]


@shape_rule("MatMul")
@shape_rule("QuantizedMatMul")
@shape_rule("DynamicQuantizeMatMul")
def _named_matmul(
    op: Op[MatMulAttrs] | Op[QuantizedMatMulAttrs] | Op[DynamicQuantizeMatMulAttrs], facts: Facts
) -> list[Found]:
    attrs, a, b = op.attrs, facts.shape(op), facts.shape(op, 1)
    dtype = facts.dtype(op, 0, 1) if op.type == "MatMul" else facts.dtype(op, 0)
    batch = broadcast(facts, a[:-2], b[:-2]) if a and b else None
    if not a or not b or batch is None:
        return [(dtype, None)]
    rows = () if len(a) == 1 else (a[-1 if attrs.transpose_a else -2],)
    columns = () if len(b) == 1 else (b[-2 if attrs.transpose_b else -1],)
    return [(dtype, (*batch, *rows, *columns))]


@shape_rule("NormedMatMul", exact=True)
def _normed(op: Op[NormedMatMulAttrs], facts: Facts) -> list[Found]:
    attrs, x, w = op.attrs, facts.shape(op), facts.shape(op, 1)
    dtype = facts.dtype(op)
    if w is None:
        return [(dtype, None)]
    if len(w) != 2:
        raise ShapeError(f"weights are a matrix, got the shape {tuple(w)}")
    columns, depth = w if attrs.transpose_b else (w[1], w[0])
    if attrs.gated and isinstance(columns, int):
        if columns % 4:
            raise ShapeError(
                f"{columns} columns do not alternate between four gates and four gated values"
            )
        columns //= 2
    if x is None:
        return [(dtype, None)]
    if not x or (isinstance(x[-1], int) and isinstance(depth, int) and x[-1] != depth):
        raise ShapeError(f"rows of {depth} are needed, got the shape {tuple(x)}")
    return [(dtype, (*x[:-1], columns))]


@size_computer("Attention")
def _attention(op: Op[AttentionAttrs], inputs: Infos, values: Values) -> Outputs:
    q, k, v = (shape_of(inputs, index) for index in range(3))
    if min(len(q), len(k), len(v)) < 2:
        raise ShapeError(f"query {q}, key {k} and value {v} must have rank 2 or more")
    if q[-1] != k[-1]:
        raise ShapeError(f"query {q} and key {k} have different head sizes")
    if k[-2] != v[-2]:
        raise ShapeError(f"key {k} and value {v} have different lengths")
    batch = broadcast_shapes(q[:-2], k[:-2], v[:-2])
    if has_input(inputs, 3):
        check_broadcastable_to(shape_of(inputs, 3), (*batch, q[-2], k[-2]), "mask")
    if has_input(inputs, 5):
        check_broadcastable_to(shape_of(inputs, 5), (*batch, 1, 1), "sink")
    same_dtype(inputs, 0, 1, 2)
    return [(dtype_of(inputs, 0), (*batch, q[-2], v[-1]))]


@shape_rule("Attention")
def _named_attention(op: Op, facts: Facts) -> list[Found]:
    q, k, v = (facts.shape(op, place) for place in range(3))
    if q is None or k is None or v is None:
        return [(facts.dtype(op), None)]
    batch = broadcast(facts, q[:-2], k[:-2], v[:-2])
    return [(facts.dtype(op), None if batch is None else (*batch, q[-2], v[-1]))]


@shape_rule("Det", exact=True)
def _det(op: Op, facts: Facts) -> list[Found]:
    shape, dtype = facts.shape(op), facts.dtype(op)
    if shape is None:
        return [(dtype, None)]
    sizes = {size for size in shape[-2:] if isinstance(size, int)}
    if len(shape) < 2 or len(sizes) > 1:
        raise ShapeError(f"{list(shape)} are not square matrices")
    if dtype is not None and not dtype.is_float:
        raise ShapeError(f"determinants of {dtype.value}")
    return [(dtype, shape[:-2])]
