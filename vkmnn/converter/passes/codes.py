"""Products by packed weights: merged side by side, with gates, with normalised rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.base.lazy_array import derived
from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.code_rows import has_codes
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.merged_products import MergedProducts, put_together
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import NO_ACTIVATION, LayerNormAttrs, MatMulNBitsAttrs

MAX_BYTES = 1 << 28
"""Larger packed weights are not merged, since merging copies them."""

_Product = Op[MatMulNBitsAttrs]
_CODES, _BIAS, _RESIDUAL, _SCALES, _ZEROS, _GAIN = 1, 2, 3, 4, 5, 6


def _operand(op: Op[Any], place: int) -> str:
    return op.inputs[place] if place < len(op.inputs) else ""


def _columns(ops: Sequence[_Product], place: int, index: GraphIndex) -> list[Array] | None:
    """Return an operand of each op; zeros for an absent bias; None if none has it."""
    names = [_operand(op, place) for op in ops]
    if not any(names):
        return None
    return [
        index.constants[name] if name else np.zeros(op.attrs.columns, _bias_type(ops, index))
        for op, name in zip(ops, names, strict=True)
    ]


def _bias_type(ops: Sequence[_Product], index: GraphIndex) -> np.dtype[np.generic]:
    return next(
        index.constants[op.inputs[_BIAS]].dtype for op in ops if len(op.inputs) > _BIAS
        if op.inputs[_BIAS]
    )  # fmt: skip


def _is_plain(op: Op[Any] | None, index: GraphIndex) -> bool:
    """True for a product by packed constants, with a constant bias or none."""
    if op is None or not isinstance(op.attrs, MatMulNBitsAttrs) or op.attrs.gated:
        return False
    given = (_operand(op, place) for place in (_CODES, _BIAS, _SCALES, _ZEROS))
    return not _operand(op, _GAIN) and all(not n or index.constant(n) is not None for n in given)


def _type_of(op: _Product, place: int, index: GraphIndex) -> np.dtype[np.generic] | None:
    """Return the element type of a constant operand; None if there is none."""
    name = _operand(op, place)
    return index.constants[name].dtype if name else None


def _alike(ops: Sequence[_Product], index: GraphIndex) -> bool:
    """True for products of one input by packed weights of the same form."""
    forms = {
        (op.inputs[0], op.attrs.bits, op.attrs.block, op.attrs.depth, _type_of(op, _ZEROS, index),
         _type_of(op, _SCALES, index))
        for op in ops
    }  # fmt: skip
    return len(forms) == 1


def _add_joined(
    ops: Sequence[_Product], joined: dict[int, Array], name: str, index: GraphIndex
) -> list[str]:
    """Return the inputs of a product with these operands."""
    inputs = [ops[0].inputs[0], "", "", "", "", ""]
    for place, array in joined.items():
        inputs[place] = index.add_constant(f"{name}_{place}", array)
    return inputs if inputs[-1] else inputs[:-1]


class MergeCodes(MergedProducts[MatMulNBitsAttrs]):
    """Queries, keys and values by packed weights of one input: one product and a Split."""

    name = "merge_codes"
    roots = frozenset({"MatMulNBits"})

    weights = _CODES
    max_bytes = MAX_BYTES

    def is_part(self, op: Op[Any], index: GraphIndex) -> bool:
        plain = _is_plain(op, index) and not _operand(op, _RESIDUAL)
        return plain and op.attrs.activation == NO_ACTIVATION

    def are_alike(self, op: _Product, other: _Product, index: GraphIndex) -> bool:
        return _alike([op, other], index)

    def rewrite(self, op: _Product, match: list[_Product], index: GraphIndex) -> None:
        joined = {}
        for place in (_CODES, _BIAS, _SCALES, _ZEROS):
            arrays = _columns(match, place, index)
            if arrays is not None:
                joined[place] = derived(lambda *parts: np.concatenate(parts), *arrays)
        sizes = [one.attrs.columns for one in match]
        inputs = _add_joined(match, joined, op.name, index)
        put_together(match, inputs, replace(op.attrs, columns=sum(sizes)), sizes, index)


@dataclass(frozen=True, slots=True)
class _Gate:
    gate: _Product
    other: _Product


class FuseGate(PatternPass[_Gate]):
    """act(gate(x)) · up(x): one product with interleaved gate and up columns."""

    name = "fuse_gate"
    roots = frozenset({"MatMulNBits"})

    def match(self, op: _Product, index: GraphIndex) -> _Gate | NoMatch:
        other = index.producer_of_type(_operand(op, _RESIDUAL), "MatMulNBits")
        if op.attrs.residual != "MUL_AFTER" or not _is_plain(op, index):
            return NoMatch("not a product that is gated")
        if other is None or not _is_plain(other, index) or not index.read_once(other.outputs[0]):
            return NoMatch("the other is not a plain product that is read once")
        if _operand(other, _RESIDUAL) or not _alike([op, other], index):
            return NoMatch("the products differ")
        if op.attrs.columns != other.attrs.columns or op.attrs.columns % 2:
            return NoMatch("the number of columns is odd, or differs")
        if 2 * index.constants[op.inputs[_CODES]].nbytes > MAX_BYTES:
            return NoMatch("the packed weights are too large")
        for gate, gated in ((other, op), (op, other)):
            if gated.attrs.activation == NO_ACTIVATION:
                return _Gate(gate, gated)
        return NoMatch("both have activations")

    def rewrite(self, op: _Product, match: _Gate, index: GraphIndex) -> None:
        pair = [match.gate, match.other]
        joined = {}
        for place in (_CODES, _BIAS, _SCALES, _ZEROS):
            arrays = _columns(pair, place, index)
            if arrays is not None:
                joined[place] = derived(_in_fours, *arrays)
        attrs = replace(
            op.attrs,
            columns=2 * op.attrs.columns,
            activation=match.gate.attrs.activation,
            residual="ADD_BEFORE",
            gated=True,
        )
        inputs = _add_joined(pair, joined, op.name, index)
        source = merged_source(pair)
        index.replace(op, Op("MatMulNBits", op.name, inputs, list(op.outputs), attrs, source))


def _in_fours(*pair: Array) -> Array:
    """Interleave two arrays along the first axis: two rows of one, two of the other."""
    twos = [array.reshape(-1, 2, *array.shape[1:]) for array in pair]
    fours = np.concatenate(twos, axis=1)
    return fours.reshape(-1, *fours.shape[2:])


class FuseNorm(PatternPass["Op[LayerNormAttrs]"]):
    """A product by packed weights of RMS-normalised rows: it normalises them itself."""

    name = "fuse_norm"
    roots = frozenset({"MatMulNBits"})

    def match(self, op: _Product, index: GraphIndex) -> Op[LayerNormAttrs] | NoMatch:
        if _operand(op, _GAIN):
            return NoMatch("it normalises rows already")
        norm = index.producer_of_type(op.inputs[0], "LayerNorm")
        if norm is None or not norm.attrs.rms or any(norm.outputs[1:]) or has_codes(norm):
            return NoMatch("no preceding root mean square")
        gain = index.constant(_operand(norm, 1))
        if gain is None or gain.shape != (op.attrs.depth,) or any(norm.inputs[2:]):
            return NoMatch("the factors are not constants, one for each column")
        rank = index.rank(norm.inputs[0])
        if norm.attrs.axis != -1 and (rank is None or norm.attrs.axis != rank - 1):
            return NoMatch("axes other than the last")
        if not index.read_once(norm.outputs[0]):
            return NoMatch("the normalised rows are used elsewhere")
        return norm

    def rewrite(self, op: _Product, match: Op[LayerNormAttrs], index: GraphIndex) -> None:
        inputs = [*op.inputs, "", ""][:_GAIN]
        inputs = [match.inputs[0], *inputs[1:], match.inputs[1]]
        attrs = replace(op.attrs, epsilon=match.attrs.epsilon)
        source = merged_source((match, op))
        index.replace(op, Op("MatMulNBits", op.name, inputs, list(op.outputs), attrs, source))
