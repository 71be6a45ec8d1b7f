"""Fuses functions of one quantised tensor, as lookup tables, into its producer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.code_offset import AGAIN, TABLE
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import Array, DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import BinaryAttrs
from vkmnn.shape.folding import Evaluator, Folder

MAX_CODES = 256
"""Entries of a table."""
MAX_OPS = 40
"""Ops that one function may consist of: GELU between QuantizeLinear and DequantizeLinear has 30."""

_STEPS = ("UnaryOp", "BinaryOp", "Select", "Elementwise")
_MAKERS = ("QuantizedConvolution", "QuantizedMatMul")


_MOVES = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class _Source:
    """The producer of a quantised tensor, and the data movement after it."""

    producer: Op[Any]
    moves: tuple[Op[Any], ...]

    @property
    def moved(self) -> str:
        """The quantised tensor after the movement."""
        return (self.producer, *self.moves)[-1].outputs[0]


@dataclass(frozen=True, slots=True)
class _Match:
    source: _Source
    ops: tuple[Op, ...]
    table: Array


class FuseCodeTable(PatternPass[_Match]):
    """Elementwise ops of one quantised tensor and constants: tabulated for all 256 values.

    Quantised values may be reshaped and transposed before them; they are looked up at their
    producer.

    Args:
        evaluate: computes an op.
    """

    name = "fuse_code_table"
    roots = frozenset(_STEPS)

    def __init__(self, evaluate: Evaluator) -> None:
        self._evaluate = evaluate

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        if index.dtype(op.outputs[0]) is not DType.FLOAT32:
            return NoMatch("not known to be float32")
        found = _function(op, index)
        if found is None:
            return NoMatch("more than one non-constant tensor, or too many ops")
        source, ops = found
        producer, codes = source.producer, source.moved
        if all(_is_scaling(one, index) for one in ops):
            return NoMatch("a plain dequantisation")
        if not index.same_shape(codes, op.outputs[0]):
            return NoMatch("the shapes differ, or are not known well enough")
        inside = [codes, *(one.outputs[0] for one in ops if one is not op)]
        inner = (producer, *source.moves)
        if not all(index.read_only_by(name, ops) for name in inside):
            return NoMatch("a value within is used elsewhere")
        if not all(index.read_once(one.outputs[0]) for one in inner[: len(source.moves)]):
            return NoMatch("the quantised tensor has other readers")
        values = _values(producer, index)
        if values is None:
            return NoMatch("its result is not quantised, or too large")
        table = self._computed(ops, codes, values, index)
        return table if isinstance(table, NoMatch) else _Match(source, ops, table)

    def _computed(
        self, ops: tuple[Op, ...], codes: str, values: Array, index: GraphIndex
    ) -> Array | NoMatch:
        """Return the result of the last op for every quantised value."""
        known = {codes: values}
        folder = Folder(self._evaluate, index.meter)
        for one in ops:
            inputs = [known[name] if name in known else index.constant(name) for name in one.inputs]
            made = folder.compute_if_small(one, inputs, values.nbytes * MAX_OPS)
            if made is None:
                return NoMatch("the budget is used up")
            known[one.outputs[0]] = made[0].reshape(-1)
        table = known[ops[-1].outputs[0]]
        return np.ascontiguousarray(table, np.float32)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer, moves = match.source.producer, match.source.moves
        inputs = [*producer.inputs, ""][: max(len(producer.inputs), TABLE + 1)]
        attrs = producer.attrs
        if not inputs[TABLE]:
            attrs = replace(attrs, first=int(_bounds(producer, index)[0]))
        inputs[TABLE] = index.add_constant(f"{producer.name}:table", match.table)
        source = merged_source((producer, *match.ops))
        names = [self._named(one.outputs[0], index) for one in (producer, *moves)[: len(moves)]]
        made = [*names, op.outputs[0]]
        ops: list[Op[Any]] = [Op(producer.type, producer.name, inputs, made[:1], attrs, source)]
        for one, read, written in zip(moves, made, made[1:], strict=False):
            rest = [read, *one.inputs[1:]]
            ops.append(Op(one.type, one.name, rest, [written], one.attrs, one.source))
        index.replace(op, *ops)

    def _named(self, name: str, index: GraphIndex) -> str:
        """Return the name of a table's result before data movement."""
        made = index.unique_name(f"{name}:looked_up")
        index.add_info(made, DType.FLOAT32, index.shape(name))
        return made


def _function(op: Op, index: GraphIndex) -> tuple[_Source, tuple[Op, ...]] | None:
    """Return the producer of the tensor that an op is a function of, and the ops between."""
    sources: dict[str, _Source] = {}
    ops: dict[int, Op] = {}
    pending = [op]
    while pending:
        one = pending.pop()
        if id(one) in ops:
            continue
        ops[id(one)] = one
        for name in one.inputs:
            array = index.constant(name)
            if array is not None and array.size == 1:
                continue
            step = index.producer_of_type(name, *_STEPS)
            source = _source(name, index) if step is None else None
            if len(ops) > MAX_OPS or (step is None and source is None):
                return None
            if step is not None:
                pending.append(step)
            elif source is not None:
                sources[name] = source
    if len(sources) != 1:
        return None
    return next(iter(sources.values())), _in_order(ops, index)


def _source(name: str, index: GraphIndex) -> _Source | None:
    """Return the producer of a quantised tensor, through data movement."""
    moves: list[Op[Any]] = []
    producer = index.producer_of_type(name, *_MOVES, *_MAKERS)
    while producer is not None and producer.type in _MOVES:
        moves.insert(0, producer)
        producer = index.producer_of_type(producer.inputs[0], *_MOVES, *_MAKERS)
    return None if producer is None else _Source(producer, tuple(moves))


def _in_order(ops: dict[int, Op], index: GraphIndex) -> tuple[Op, ...]:
    """Return the ops in topological order."""
    later: Callable[[Op], int] = lambda one: sum(  # noqa: E731
        index.is_later(one, other) for other in ops.values() if other is not one
    )
    return tuple(sorted(ops.values(), key=later))


def _is_scaling(op: Op, index: GraphIndex) -> bool:
    """True for a multiplication or division by a number, which other passes absorb."""
    attrs = op.attrs
    if not isinstance(attrs, BinaryAttrs) or attrs.activation.kind != "NONE":
        return False
    numbers = [index.scalar(name) for name in op.inputs]
    return attrs.kind in ("MUL", "DIV") and numbers[1] is not None


def _values(producer: Op[Any], index: GraphIndex) -> Array | None:
    """Return the result of a convolution or product for every quantised value; None if unknown."""
    if producer.attrs.scale != 1.0 or producer.attrs.add is not None:
        return None
    inputs = [*producer.inputs, "", ""]
    if inputs[TABLE]:
        return index.constant(inputs[TABLE])
    low, high = _bounds(producer, index)
    if not (isfinite(low) and isfinite(high)) or not 0 <= high - low < MAX_CODES:
        return None
    return np.arange(low, high + 1, dtype=np.float32)


def _bounds(producer: Op[Any], index: GraphIndex) -> tuple[float, float]:
    """Return the bounds of quantised values before a table."""
    again = index.constant(producer.inputs[AGAIN]) if len(producer.inputs) > AGAIN else None
    if again is not None:
        return float(again[5].min()), float(again[6].max())
    return producer.attrs.low, producer.attrs.high
