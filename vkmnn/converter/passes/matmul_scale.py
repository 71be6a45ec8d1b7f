"""Moves factors of a matrix product's operands or result into its alpha."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.affine import is_moderate
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.identity import keeps_shape
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import BinaryAttrs, MatMulAttrs


def _scaled(op: Op[BinaryAttrs], index: GraphIndex) -> tuple[str, float] | NoMatch:
    """Return the tensor that a BinaryOp scales, and the factor."""
    attrs = op.attrs
    if attrs.kind not in ("MUL", "DIV"):
        return NoMatch("not a scaling")
    a, b = op.inputs
    if attrs.kind == "MUL" and index.scalar(a) is not None:
        a, b = b, a
    factor = index.scalar(b)
    if factor is None or index.constant(a) is not None:
        return NoMatch("not one scalar constant")
    if not keeps_shape(index.constants[b].shape, index.shape(a)):
        return NoMatch("the constant may raise the rank")
    if not is_moderate(np.asarray(factor)):
        return NoMatch("the factor is too far from 1 to store operands and results without it")
    if attrs.kind == "MUL":
        return a, factor
    return NoMatch("it divides by zero") if factor == 0 else (a, 1.0 / factor)


@dataclass(frozen=True, slots=True)
class _Operands:
    inputs: list[str]
    attrs: MatMulAttrs
    producers: tuple[Op, ...]


class FoldOperandScale(PatternPass[_Operands]):
    """MUL or DIV by a scalar constant before a MatMul: into alpha."""

    name = "fold_operand_scale"
    roots = frozenset({"MatMul"})

    def match(self, op: Op[MatMulAttrs], index: GraphIndex) -> _Operands | NoMatch:
        no_match = NoMatch("no preceding BinaryOp")
        inputs, alpha, producers = list(op.inputs), op.attrs.alpha, []
        for place in (0, 1):
            producer = index.producer_of_type(op.inputs[place], "BinaryOp")
            if producer is None:
                continue
            found = _scaled(producer, index)
            if binary_parts(producer, "MUL", "DIV") is None:
                found = NoMatch("not a scaling, or there is an activation in between")
            if isinstance(found, NoMatch):
                no_match = found
                continue
            producers.append(producer)
            inputs[place] = found[0]
            alpha *= found[1]
        if not producers:
            return no_match
        return _Operands(inputs, replace(op.attrs, alpha=alpha), tuple(producers))

    def rewrite(self, op: Op, match: _Operands, index: GraphIndex) -> None:
        source, outputs = merged_source((*match.producers, op)), list(op.outputs)
        index.replace(op, Op(op.type, op.name, match.inputs, outputs, match.attrs, source))


@dataclass(frozen=True, slots=True)
class _Scaled:
    product: Op
    attrs: MatMulAttrs
    factor: float


class FoldResultScale(PatternPass[_Scaled]):
    """MUL or DIV by a scalar constant after a MatMul: into alpha, and into a constant bias."""

    name = "fold_result_scale"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Scaled | NoMatch:
        found = _scaled(op, index)
        if isinstance(found, NoMatch):
            return found
        value, factor = found
        product = index.producer_of_type(value, "MatMul")
        if product is None:
            return NoMatch("no preceding MatMul")
        attrs = product.attrs
        if not index.read_once(value):
            return NoMatch("the preceding value is used elsewhere")
        if attrs.activation.kind != "NONE" or any(product.inputs[3:]):
            return NoMatch("an activation or there is a residual in between")
        if any(product.inputs[2:3]) and index.constant(product.inputs[2]) is None:
            return NoMatch("the bias is not constant")
        alpha = attrs.alpha * factor
        attrs = replace(attrs, alpha=alpha, activation=op.attrs.activation)
        return _Scaled(product, attrs, factor)

    def rewrite(self, op: Op, match: _Scaled, index: GraphIndex) -> None:
        product = match.product
        inputs = list(product.inputs)
        if any(inputs[2:3]):
            bias = index.constants[inputs[2]]
            scaled = np.multiply(bias, match.factor).astype(bias.dtype)
            inputs[2] = index.add_constant(f"{product.name}_bias", scaled)
        source, outputs = merged_source((product, op)), list(op.outputs)
        index.replace(op, Op("MatMul", product.name, inputs, outputs, match.attrs, source))
