"""Attention between codes: products of codes, and a Softmax of codes between them."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    SoftmaxAttrs,
    TransposeAttrs,
)
from vkmnn.records import dataclass

MAX_KEYS = 1024
"""Keys whose scores every kernel can hold."""
MAX_TABLE = 256

_Product = Op[QuantizedMatMulAttrs]


@dataclass(frozen=True, slots=True)
class _Match:
    scores: _Product
    softmax: Op[SoftmaxAttrs]
    scale: float
    codes: CodeAttention


class FuseCodeAttention(PatternPass[_Match]):
    """A product of codes, of what a Softmax makes of another: Attention that rounds as they do."""

    name = "fuse_code_attention"
    roots = frozenset({"QuantizedMatMul"})

    def match(self, op: _Product, index: GraphIndex) -> _Match | NoMatch:
        softmax = index.producer_of_type(op.inputs[0], "Softmax")
        if softmax is None or not is_over_rows(softmax, index) or softmax.attrs.ending is None:
            return NoMatch("no Softmax over rows that makes codes")
        scores = index.producer_of_type(softmax.inputs[0], "QuantizedMatMul")
        if scores is None or not _is_bare(scores, index) or not _is_bare(op, index):
            return NoMatch("no product of computed codes by one factor before or after")
        if any(op.inputs[TABLE:]) or op.attrs.transpose_b or scores.attrs.scale != 1.0:
            return NoMatch("more than products")
        if not index.read_once(softmax.outputs[0]) or not index.read_once(scores.outputs[0]):
            return NoMatch("scores or probabilities are used elsewhere")
        if not self._fits(scores, op, index):
            return NoMatch("batches differ, keys are too many, or sizes are not known")
        table = _table(scores, softmax.attrs.of_input, index)
        if table is None:
            return NoMatch("too many codes")
        ending, factors = softmax.attrs.ending, [_factor(one, index) for one in (scores, op)]
        if ending.of_x != 1.0 or ending.scale != 1.0:
            return NoMatch("probabilities that are not codes")
        codes = CodeAttention(
            scores.attrs.low,
            table,
            ending.unit,
            (ending.low, ending.high),
            factors[1],
            (op.attrs.low, op.attrs.high),
            op.attrs.scale,
        )
        return _Match(scores, softmax, factors[0], codes)

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
        source = merged_source((scores, match.softmax, op))
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
    """True for a product of two computed matrices by one factor, with a table at most."""
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


def _table(scores: _Product, of_input: float, index: GraphIndex) -> tuple[float, ...] | None:
    """Return what Softmax takes for every code of a score."""
    attrs = scores.attrs
    if not 0 <= attrs.high - attrs.low < MAX_TABLE:
        return None
    values: Array = np.arange(attrs.low, attrs.high + 1, dtype=np.float32)
    if any(scores.inputs[TABLE:]):
        values = index.constants[scores.inputs[TABLE]]
    return tuple(float(value) for value in values * np.float32(of_input))
