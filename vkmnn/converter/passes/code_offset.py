"""Fuses a constant added per column, and requantisation, into the quantised product."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.code_rounding import Rounding, rounding_of
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import QuantizedMatMulAttrs

TABLE, AGAIN = 5, 6
"""Inputs of a quantised product: its result, and its second requantisation."""


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op[QuantizedMatMulAttrs]
    scale: float
    offset: Array
    rounding: Rounding
    ops: tuple[Op, ...]


class FuseCodeOffset(PatternPass[_Match]):
    """CLIP(ROUND((q · scale + constant) / unit)): the product requantises a second time."""

    name = "fuse_code_offset"
    roots = frozenset({"UnaryOp", "BinaryOp"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        rounding = rounding_of(op, index)
        added = index.producer(rounding.value) if rounding else None
        operands = binary_parts(added, "ADD")
        if rounding is None or added is None or operands is None:
            return NoMatch("no sum that is rounded")
        for name, other in (operands, operands[::-1]):
            scaled = index.producer(name)
            parts = binary_parts(scaled, "MUL")
            scale = index.scalar(parts[1]) if parts else None
            if scaled is None or parts is None or scale is None:
                continue
            offset = _by_column(other, parts[0], index)
            producer = index.producer_of_type(parts[0], "QuantizedMatMul")
            if offset is None or producer is None or not is_open(producer):
                continue
            ops = (scaled, added, *rounding.ops)
            inside = (*(one.outputs[0] for one in ops[:2]), parts[0])
            if all(index.read_once(one) for one in inside):
                return _Match(producer, scale, offset, rounding, ops)
        return NoMatch(
            "no quantised product, plus a constant per column, with the sum as its only reader"
        )

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer, rounding = match.producer, match.rounding
        attrs, ones = producer.attrs, np.ones_like(match.offset)
        numbers = (attrs.low, attrs.high, match.scale, 1.0, rounding.unit, rounding.low)
        rows = [ones * np.float32(number) for number in (*numbers, rounding.high)]
        rows[3] = match.offset
        again = index.add_constant(f"{producer.name}:again", np.stack(rows))
        inputs = [*producer.inputs[:5], "", again]
        source = merged_source((producer, *match.ops, op))
        outputs = list(op.outputs)
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, attrs, source))


def is_open(producer: Op[QuantizedMatMulAttrs]) -> bool:
    """True for a quantised product without a second requantisation."""
    attrs = producer.attrs
    return attrs.scale == 1.0 and attrs.add is None and not any(producer.inputs[TABLE:])


def _by_column(name: str, codes: str, index: GraphIndex) -> Array | None:
    """Return a finite constant that broadcasts along the last axis alone."""
    array, shape = index.constant(name), index.shape(codes)
    if array is None or array.dtype != np.float32 or shape is None or array.ndim > len(shape):
        return None
    columns = shape[-1] if shape else 1
    if array.shape[-1:] != (columns,) or array.size != columns:
        return None
    return array.reshape(-1) if bool(np.isfinite(array).all()) else None
