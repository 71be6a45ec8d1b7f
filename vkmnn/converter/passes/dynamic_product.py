"""Dynamically quantised products with both scales as one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.merge_code_products import joined_columns
from vkmnn.converter.passes.merged_products import MergedProducts, put_together
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import DynamicQuantizeMatMulAttrs, QuantizedMatMulAttrs

_FACTOR, _POINT = 4, 7


@dataclass(frozen=True, slots=True)
class _Match:
    product: Op[QuantizedMatMulAttrs]
    range: Op
    factor: Array


class FuseDynamicProduct(PatternPass[_Match]):
    """(q @ bytes) · (scale · constant), where q is dynamically quantised.

    The op that rounds the tensor stays if others read it.
    """

    name = "fuse_dynamic_product"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        for sums, scales in both_ways(binary_parts(op, "MUL")):
            product = index.producer_of_type(sums, "QuantizedMatMul")
            if product is None or not index.read_once(sums) or not _is_plain(product, index):
                continue
            weights = index.constants[product.inputs[1]]
            columns = weights.shape[0 if product.attrs.transpose_b else 1]
            found = range_of(product.inputs[0], index)
            if found is None or found.outputs[1] != product.inputs[_POINT]:
                continue
            factor = factor_of(scales, found.outputs[0], index)
            if factor is None or not _by_column(factor, columns):
                continue
            if not index.same_shape(op.outputs[0], sums):
                continue
            return _Match(product, found, factor.reshape(-1))
        return NoMatch("no dynamically quantised product with its scale")

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        product, source = match.product, merged_source((match.product, op))
        factor = index.add_constant(f"{product.name}:factor", match.factor)
        scale, point = match.range.outputs
        inputs = [match.range.inputs[0], product.inputs[1], "", "", factor, scale, point]
        attrs, outputs = DynamicQuantizeMatMulAttrs(product.attrs.transpose_b), list(op.outputs)
        index.replace(op, Op("DynamicQuantizeMatMul", product.name, inputs, outputs, attrs, source))


def both_ways(operands: tuple[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return operands in either order."""
    return () if operands is None else (operands, operands[::-1])


def _is_plain(op: Op[QuantizedMatMulAttrs], index: GraphIndex) -> bool:
    """True for exact sums of rows by constant bytes, with a known zero point."""
    attrs, weights = op.attrs, index.constant(op.inputs[1])
    if attrs.transpose_a or attrs.scale != 1.0 or (attrs.low, attrs.high) != (-np.inf, np.inf):
        return False
    if any(op.inputs[2:_FACTOR]) or any(op.inputs[_FACTOR + 1 : _POINT]) or not op.inputs[_POINT:]:
        return False
    whole = weights is not None and weights.dtype in (np.int8, np.int16) and weights.ndim == 2
    return whole and index.scalar(op.inputs[_FACTOR]) == 1.0


def range_of(codes: str, index: GraphIndex) -> Op | None:
    """Return the DynamicRange that a tensor was quantised with."""
    less = binary_parts(index.producer(codes), "SUB")
    point = less[1] if less else ""
    found = index.producer_of_type(point, "DynamicRange")
    if found is None or less is None or found.outputs[1] != point:
        return None
    below = binary_parts(index.producer(less[0]), "MIN")
    chosen = index.producer_of_type(below[0], "Select") if below else None
    if below is None or index.scalar(below[1]) != 255 or chosen is None:
        return None
    above, steps, lowest = chosen.inputs
    compared = binary_parts(index.producer(above), "GREATER")
    if compared is None or compared[0] != steps or index.scalar(compared[1]) != 0:
        return None
    moved = binary_parts(index.producer(steps), "ADD")
    if index.scalar(lowest) != 0 or moved is None or moved[1] != point:
        return None
    rounded = index.producer_of_type(moved[0], "UnaryOp")
    if rounded is None or rounded.attrs.kind != "ROUND":
        return None
    divided = binary_parts(index.producer(rounded.inputs[0]), "DIV")
    return found if divided == (found.inputs[0], found.outputs[0]) else None


def factor_of(scales: str, scale: str, index: GraphIndex) -> Array | None:
    """Return the finite constant of a product of `scale` and a constant, or of `scale` alone."""
    if scales == scale:
        return np.ones(1, np.float32)
    for name, other in both_ways(binary_parts(index.producer(scales), "MUL")):
        factor = index.constant(other)
        if name == scale and factor is not None and factor.dtype == np.float32:
            return factor if bool(np.isfinite(factor).all()) else None
    return None


def _by_column(factor: Array, columns: int) -> bool:
    """True for one number, and for one for each column, which broadcasts along the last axis."""
    return factor.size == 1 or (factor.size == columns and factor.shape[-1] == columns)


_Product = Op[DynamicQuantizeMatMulAttrs]
_WEIGHTS, _BIAS, _RESIDUAL, _OF_COLUMNS = 1, 2, 3, 4


class MergeDynamicProducts(MergedProducts[DynamicQuantizeMatMulAttrs]):
    """Queries, keys and values of one input, quantised by its range: one product and a Split."""

    name = "merge_dynamic_products"
    roots = frozenset({"DynamicQuantizeMatMul"})

    def is_part(self, op: Op[Any], index: GraphIndex) -> bool:
        attrs = op.attrs
        if not isinstance(attrs, DynamicQuantizeMatMulAttrs) or op.inputs[_RESIDUAL]:
            return False
        if op.inputs[_BIAS] and index.constant(op.inputs[_BIAS]) is None:
            return False
        signed = index.constants[op.inputs[_WEIGHTS]].dtype == np.int8
        return signed and attrs.activation.kind == "NONE" and index.rank(op.outputs[0]) is not None

    def are_alike(self, op: _Product, other: _Product, index: GraphIndex) -> bool:
        ranges = slice(_OF_COLUMNS + 1, None)
        return op.attrs == other.attrs and op.inputs[ranges] == other.inputs[ranges]

    def rewrite(self, op: _Product, match: list[_Product], index: GraphIndex) -> None:
        axis = 0 if op.attrs.transpose_b else 1
        weights = [index.constants[one.inputs[_WEIGHTS]] for one in match]
        sizes = [array.shape[axis] for array in weights]
        nothing = np.zeros(1, np.float32)
        arrays = {_WEIGHTS: np.concatenate(weights, axis)}
        for place in (_BIAS, _OF_COLUMNS):
            arrays[place] = joined_columns(match, place, sizes, index, nothing)
        inputs = list(op.inputs)
        for place, array in arrays.items():
            inputs[place] = index.add_constant(f"{op.name}_{place}", array)
        put_together(match, inputs, op.attrs, sizes, index)
