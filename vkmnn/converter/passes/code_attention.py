"""Quantised attention: quantised products, and a quantised Softmax between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.code_offset import TABLE
from vkmnn.converter.passes.code_rows import is_over_rows
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    AttentionAttrs,
    CodeAttention,
    QuantizedMatMulAttrs,
    TransposeAttrs,
)
from vkmnn.shape.folding import Evaluator

MAX_KEYS = 1024
"""Maximum keys whose scores every kernel supports."""
MAX_TABLE = 256
_HIDING = ("BinaryOp", "Elementwise", "Select")

_Product = Op[QuantizedMatMulAttrs]


@dataclass(frozen=True, slots=True)
class _Match:
    ops: tuple[Op[Any], ...]
    scores: _Product
    scale: float
    codes: CodeAttention


class FuseCodeAttention(PatternPass[_Match]):
    """Two quantised products with a quantised Softmax between them.

    An op between the first product and the Softmax may treat keys after the query differently, as a
    mask of constants does: every quantised score then has two results.
    """

    name = "fuse_code_attention"
    roots = frozenset({"QuantizedMatMul"})

    def __init__(self, evaluate: Evaluator) -> None:
        self._evaluate = evaluate

    def match(self, op: _Product, index: GraphIndex) -> _Match | NoMatch:
        softmax = index.producer_of_type(op.inputs[0], "Softmax")
        if softmax is None or not is_over_rows(softmax, index) or softmax.attrs.ending is None:
            return NoMatch("no quantised Softmax over rows")
        hiding = index.producer_of_type(softmax.inputs[0], *_HIDING)
        made = softmax.inputs[0] if hiding is None else _computed(hiding, index)
        scores = index.producer_of_type(made, "QuantizedMatMul")
        if scores is None or not _is_bare(scores, index) or not _is_bare(op, index):
            return NoMatch("no quantised product with one factor before or after")
        if any(op.inputs[TABLE:]) or op.attrs.transpose_b:
            return NoMatch("it does more than multiply")
        ops = (scores, *([] if hiding is None else [hiding]), softmax)
        if not all(index.read_once(one.outputs[0]) for one in ops):
            return NoMatch("scores or probabilities are used elsewhere")
        if not self._fits(scores, op, index):
            return NoMatch("batches differ, keys are too many, or sizes are not known")
        tables = self._tables(scores, hiding, softmax.attrs.of_input, index)
        if tables is None:
            return NoMatch("too many quantised values, or a mask that is not causal")
        ending, factors = softmax.attrs.ending, [_factor(one, index) for one in (scores, op)]
        if ending.of_x != 1.0 or ending.scale != 1.0:
            return NoMatch("the probabilities are not quantised")
        codes = CodeAttention(
            scores.attrs.low,
            tables[0],
            ending.unit,
            (ending.low, ending.high),
            factors[1],
            (op.attrs.low, op.attrs.high),
            op.attrs.scale,
            *tables[1:],
        )
        return _Match((*ops, op), scores, factors[0], codes)

    def _tables(
        self, scores: _Product, hiding: Op[Any] | None, of_input: float, index: GraphIndex
    ) -> list[tuple[float, ...]] | None:
        """Return the Softmax's input for every quantised score, and for masked keys."""
        attrs = scores.attrs
        if not 0 <= attrs.high - attrs.low < MAX_TABLE:
            return None
        values: Array = np.arange(attrs.low, attrs.high + 1, dtype=np.float32)
        if any(scores.inputs[TABLE:]):
            values = index.constants[scores.inputs[TABLE]]
        values = values * np.float32(attrs.scale)
        tables = [values]
        if hiding is not None:
            seen = _seen(hiding, scores, index)
            found = [] if seen is None else [self._hidden(hiding, values, one) for one in seen]
            if not found or any(one is None for one in found):
                return None
            tables = [one for one in found if one is not None]
            if np.array_equal(tables[0], tables[1]):
                tables.pop()
        return [tuple(float(x) for x in one * np.float32(of_input)) for one in tables]

    def _hidden(self, hiding: Op[Any], values: Array, others: Mapping[str, Array]) -> Array | None:
        """Return the op's result for values of scores, its other inputs being single numbers."""
        inputs = [others.get(name, values) for name in hiding.inputs]
        (made,) = self._evaluate(hiding, inputs)
        return made if made.shape == values.shape and made.dtype == np.float32 else None

    def _fits(self, scores: _Product, op: _Product, index: GraphIndex) -> bool:
        """True for one matrix each of queries, keys and values."""
        q, k, v = (index.shape(name) for name in (*scores.inputs[:2], op.inputs[1]))
        if q is None or k is None or v is None or not len(q) == len(k) == len(v) >= 2:
            return False
        if not q[:-2] == k[:-2] == v[:-2] or None in q[:-2]:
            return False
        return isinstance(v[-2], int) and 0 < v[-2] <= MAX_KEYS

    def rewrite(self, op: _Product, match: _Match, index: GraphIndex) -> None:
        scores = match.scores
        query, keys = scores.inputs[:2]
        ops: list[Op[Any]] = []
        source = merged_source(match.ops)
        if not scores.attrs.transpose_b:
            info = index.info(keys)
            assert info is not None
            assert info.shape is not None
            rank, name = len(info.shape), index.unique_name(f"{keys}:rows")
            perm = (*range(rank - 2), rank - 1, rank - 2)
            index.add_info(name, info.dtype, tuple(info.shape[axis] for axis in perm))
            made = index.unique_name(f"{op.name}:keys")
            ops.append(Op("Transpose", made, [keys], [name], TransposeAttrs(perm), source))
            keys = name
        attrs = AttentionAttrs(match.scale, zero_fully_masked=False, codes=match.codes)
        inputs = [query, keys, op.inputs[1]]
        ops.append(Op("Attention", op.name, inputs, list(op.outputs), attrs, source))
        index.replace(op, *ops)


def _is_bare(op: _Product, index: GraphIndex) -> bool:
    """True for a product of two computed matrices by one factor, with at most a table."""
    inputs, attrs = [*op.inputs, "", ""], op.attrs
    factor = index.constant(inputs[4])
    return (
        not any((inputs[2], inputs[3], inputs[TABLE + 1], attrs.transpose_a, attrs.add))
        and index.constant(inputs[1]) is None
        and factor is not None
        and factor.size == 1
    )


def _factor(op: _Product, index: GraphIndex) -> float:
    return float(index.constants[op.inputs[4]].reshape(()))


def _computed(op: Op[Any], index: GraphIndex) -> str:
    """Return the only input of an op that is not a constant, "" if there are several."""
    names = {name for name in op.inputs if index.constant(name) is None}
    return names.pop() if len(names) == 1 else ""


def _seen(
    op: Op[Any], scores: _Product, index: GraphIndex
) -> tuple[dict[str, Array], dict[str, Array]] | None:
    """Return the numbers that an op's constants have for keys up to the query, and for later ones.

    None if there are others.
    """
    shape = index.shape(scores.outputs[0])
    if shape is None or not index.same_shape(op.outputs[0], scores.outputs[0]):
        return None
    first: dict[str, Array] = {}
    later: dict[str, Array] = {}
    for name in op.inputs:
        array = index.constant(name)
        if array is None:
            continue
        parts = [array.reshape(-1)] * 2
        if array.size != 1:
            if array.shape[-2:] != shape[-2:] or any(dim != 1 for dim in array.shape[:-2]):
                return None
            rows, columns = np.indices(array.shape[-2:])
            square = array.reshape(rows.shape)
            parts = [square[columns <= rows], square[columns > rows]]
        if any(part.size == 0 or (part != part[0]).any() for part in parts):
            return None
        first[name], later[name] = (part[:1] for part in parts)
    return first, later
