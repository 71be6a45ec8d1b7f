"""What a matrix product can do to its operands itself: scale them and transpose them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vkmnn.converter.passes.base import PatternPass, Refusal, merged_source
from vkmnn.converter.passes.identity import keeps_shape
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import reshape_target
from vkmnn.converter.passes.transpose import permutation, swaps_last_two
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import BinaryAttrs, MatMulAttrs, ReshapeAttrs

_FLAGS = ("transpose_a", "transpose_b")


@dataclass(frozen=True, slots=True)
class _Match:
    place: int
    producer: Op
    value: str
    attrs: MatMulAttrs


def _product(op: Op, match: _Match, value: str) -> Op:
    inputs = list(op.inputs)
    inputs[match.place] = value
    source = merged_source((match.producer, op))
    return Op(op.type, op.name, inputs, list(op.outputs), match.attrs, source)


class FoldOperandScale(PatternPass[_Match]):
    """MUL or DIV by a scalar constant before a MatMul: into alpha."""

    name = "fold_operand_scale"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> _Match | Refusal:
        assert isinstance(op.attrs, MatMulAttrs)
        refusal = Refusal("no BinaryOp before")
        for place in (0, 1):
            producer = index.producer_of_type(op.inputs[place], "BinaryOp")
            if producer is None:
                continue
            found = _scaled(producer, index)
            if isinstance(found, Refusal):
                refusal = found
                continue
            value, factor = found
            return _Match(place, producer, value, replace(op.attrs, alpha=op.attrs.alpha * factor))
        return refusal

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        index.replace(op, _product(op, match, match.value))


def _scaled(op: Op, index: GraphIndex) -> tuple[str, float] | Refusal:
    """Return the tensor that a BinaryOp scales, and the factor."""
    attrs = op.attrs
    assert isinstance(attrs, BinaryAttrs)
    if attrs.kind not in ("MUL", "DIV") or attrs.activation.kind != "NONE":
        return Refusal("not a scaling")
    a, b = op.inputs
    if attrs.kind == "MUL" and index.scalar(a) is not None:
        a, b = b, a
    factor = index.scalar(b)
    if factor is None or index.constant(a) is not None:
        return Refusal("not one scalar constant")
    if not keeps_shape(index.constants[b].shape, index.shape(a)):
        return Refusal("the constant may raise the rank")
    if attrs.kind == "MUL":
        return a, factor
    return Refusal("it divides by zero") if factor == 0 else (a, 1.0 / factor)


class FoldOperandTranspose(PatternPass[_Match]):
    """Transpose of the last two axes before a MatMul: into its flags."""

    name = "fold_operand_transpose"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> _Match | Refusal:
        assert isinstance(op.attrs, MatMulAttrs)
        refusal = Refusal("no Transpose before")
        for place, flag in enumerate(_FLAGS):
            producer = index.producer_of_type(op.inputs[place], "Transpose")
            if producer is None:
                continue
            perm = permutation(producer, index)
            if perm is None or not swaps_last_two(perm):
                refusal = Refusal("other axes than the last two move")
                continue
            return _Match(place, producer, producer.inputs[0], _flipped(op.attrs, flag))
        return refusal

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        index.replace(op, _product(op, match, match.value))


def _flipped(attrs: MatMulAttrs, flag: str) -> MatMulAttrs:
    if flag == "transpose_a":
        return replace(attrs, transpose_a=not attrs.transpose_a)
    return replace(attrs, transpose_b=not attrs.transpose_b)


@dataclass(frozen=True, slots=True)
class _Reshaped:
    product: _Match
    reshape: Op
    target: tuple[int, ...]


class MoveTransposeAfterReshape(PatternPass[_Reshaped]):
    """A MatMul's operand that is transposed and then only reshaped in its leading axes.

    The operand is reshaped without the Transpose, and the MatMul transposes it. PyTorch's exporter
    transposes keys so: as [batch·heads, length, depth], between two reshapes.
    """

    name = "move_transpose_after_reshape"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> _Reshaped | Refusal:
        assert isinstance(op.attrs, MatMulAttrs)
        refusal = Refusal("no Reshape of a Transpose before")
        for place, flag in enumerate(_FLAGS):
            reshape = index.producer_of_type(op.inputs[place], "Reshape")
            transpose = reshape and index.producer_of_type(reshape.inputs[0], "Transpose")
            if reshape is None or transpose is None:
                continue
            perm = permutation(transpose, index)
            before, after = index.shape(transpose.inputs[0]), index.shape(reshape.outputs[0])
            if perm is None or not swaps_last_two(perm) or before is None or after is None:
                refusal = Refusal("other axes than the last two move, or a shape is not known")
                continue
            if len(after) < 2 or None in before[-2:] or after[-2:] != before[:-3:-1]:
                refusal = Refusal("the reshape changes the transposed axes")
                continue
            target = reshape_target(before, (*after[:-2], *before[-2:]))
            if target is None:
                refusal = Refusal("more than one dimension is unknown")
                continue
            attrs = _flipped(op.attrs, flag)
            product = _Match(place, transpose, transpose.inputs[0], attrs)
            return _Reshaped(product, reshape, target)
        return refusal

    def rewrite(self, op: Op, match: _Reshaped, index: GraphIndex) -> None:
        product, reshape = match.product, match.reshape
        value = index.unique_name(reshape.outputs[0])
        name = index.unique_name(reshape.name)
        shape = index.add_constant(f"{reshape.name}_shape", np.array(match.target, np.int64))
        before, after = index.info(product.value), index.shape(reshape.outputs[0])
        if before is not None and before.shape is not None and after is not None:
            index.add_info(value, before.dtype, (*after[:-2], *before.shape[-2:]))
        source = merged_source((product.producer, reshape))
        reshaped = Op("Reshape", name, [product.value, shape], [value], ReshapeAttrs(), source)
        index.replace(op, reshaped, _product(op, product, value))
