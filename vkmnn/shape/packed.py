"""Shapes of products by packed weights, and of lookups in packed tables."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import ExpertMatMulAttrs, GatherNBitsAttrs, MatMulNBitsAttrs
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import shape_rule


def _check_codes(op: Op, facts: Facts, place: int, rows: int, blocks: int, width: int) -> None:
    shape = facts.shape(op, place)
    if shape is not None and tuple(shape) != (rows, blocks, width):
        raise ShapeError(f"packed weights are {tuple(shape)}, {(rows, blocks, width)} are needed")


@shape_rule("MatMulNBits", exact=True)
def _matmul_n_bits(op: Op[MatMulNBitsAttrs], facts: Facts) -> list[Found]:
    attrs, x = op.attrs, facts.shape(op)
    blocks = -(-attrs.depth // attrs.block)
    _check_codes(op, facts, 1, attrs.columns, blocks, attrs.block * attrs.bits // 8)
    if attrs.gated and attrs.columns % 4:
        raise ShapeError(
            f"{attrs.columns} columns do not alternate between four gates and four gated values"
        )
    if x is None:
        return [(facts.dtype(op), None)]
    if not x or (isinstance(x[-1], int) and x[-1] != attrs.depth):
        raise ShapeError(f"rows of {attrs.depth} are needed, got the shape {tuple(x)}")
    return [(facts.dtype(op), (*x[:-1], attrs.width))]


@shape_rule("GatherNBits", exact=True)
def _gather_n_bits(op: Op[GatherNBitsAttrs], facts: Facts) -> list[Found]:
    attrs, indices = op.attrs, facts.shape(op, 1)
    blocks = -(-attrs.depth // attrs.block)
    _check_codes(op, facts, 0, attrs.rows, blocks, attrs.block * attrs.bits // 8)
    dtype = DType.FLOAT32 if attrs.wide else facts.dtype(op, 2)
    return [(dtype, None if indices is None else (*indices, attrs.depth))]


@shape_rule("ExpertMatMul", exact=True)
def _expert_matmul(op: Op[ExpertMatMulAttrs], facts: Facts) -> list[Found]:
    attrs, x, weights, chosen = op.attrs, facts.shape(op), facts.shape(op, 1), facts.shape(op, 2)
    if weights is not None and tuple(weights) != attrs.weights:
        raise ShapeError(f"weights are {tuple(weights)}, {attrs.weights} are needed")
    if attrs.gated and attrs.columns % 4:
        raise ShapeError(f"{attrs.columns} columns are not gates and gated in fours")
    if x is None or chosen is None:
        return [(facts.dtype(op), None)]
    rank = len(chosen) + attrs.each
    if not chosen or len(x) != rank or (isinstance(x[-1], int) and x[-1] != attrs.depth):
        raise ShapeError(
            f"rank {rank} with rows of {attrs.depth} is needed for experts {tuple(chosen)}, "
            f"got the shape {tuple(x)}"
        )
    summed = len(op.inputs) > 6 and op.inputs[6]
    return [(facts.dtype(op), (*(chosen[:-1] if summed else chosen), attrs.width))]
