"""Scales of codes into the op that makes them."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import BinaryAttrs, QuantizedConvolutionAttrs, QuantizedMatMulAttrs
from vkmnn.records import dataclass


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    attrs: QuantizedConvolutionAttrs | QuantizedMatMulAttrs


class DecodeCodes(PatternPass[_Match]):
    """Codes times one number, which nothing else reads: what makes them multiplies."""

    name = "decode_codes"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        parts = binary_parts(op, "MUL")
        scale = index.scalar(parts[1]) if parts else None
        if parts is None or scale is None:
            return NoMatch("not a product with one number")
        producer = index.producer_of_type(parts[0], "QuantizedConvolution", "QuantizedMatMul")
        if producer is None:
            return NoMatch("no codes before")
        if not index.read_once(parts[0]) or producer.attrs.scale != 1.0:
            return NoMatch("the codes are read elsewhere")
        if not index.same_shape(parts[0], op.outputs[0]):
            return NoMatch("the number has more axes")
        return _Match(producer, replace(producer.attrs, scale=scale))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer = match.producer
        source, outputs = merged_source((producer, op)), list(op.outputs)
        inputs = list(producer.inputs)
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, match.attrs, source))
