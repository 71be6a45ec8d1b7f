"""LayerNorm and Softmax with quantised inputs and outputs."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.code_rounding import is_codes, rounding_of
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import CodeMean, LayerNormAttrs, SoftmaxAttrs

MAX_ROW = 65_536
"""Elements of a row that one dispatch normalises."""

_ROWS = ("LayerNorm", "Softmax")


@dataclass(frozen=True, slots=True)
class _Read:
    codes: str
    scale: float
    op: Op


class DecodeRows(PatternPass[_Read]):
    """A dequantisation read only by a LayerNorm or Softmax, which multiplies the values itself."""

    name = "decode_rows"
    roots = frozenset(_ROWS)

    def match(self, op: Op[Any], index: GraphIndex) -> _Read | NoMatch:
        if op.attrs.of_input != 1.0 or not is_over_rows(op, index):
            return NoMatch("it is quantised already, or not over short rows")
        scaled = index.producer(op.inputs[0])
        parts = binary_parts(scaled, "MUL")
        scale = index.scalar(parts[1]) if parts else None
        if scaled is None or parts is None or scale is None or not is_codes(parts[0], index):
            return NoMatch("the operand is not dequantised")
        if not index.read_once(op.inputs[0]) or not index.same_shape(parts[0], op.inputs[0]):
            return NoMatch("the floats are used elsewhere, or have another shape")
        return _Read(parts[0], scale, scaled)

    def rewrite(self, op: Op[Any], match: _Read, index: GraphIndex) -> None:
        inputs, attrs = [match.codes, *op.inputs[1:]], replace(op.attrs, of_input=match.scale)
        source = merged_source((match.op, op))
        index.replace(op, Op(op.type, op.name, inputs, list(op.outputs), attrs, source))


@dataclass(frozen=True, slots=True)
class _Made:
    producer: Op[Any]
    ending: CodeMean
    ops: tuple[Op, ...]


class RoundRows(PatternPass[_Made]):
    """A LayerNorm or Softmax whose result is quantised and has no other reader."""

    name = "round_rows"
    roots = frozenset({"UnaryOp", "BinaryOp"})

    def match(self, op: Op[Any], index: GraphIndex) -> _Made | NoMatch:
        rounding = rounding_of(op, index)
        if rounding is None:
            return NoMatch("nothing is rounded")
        producer = index.producer_of_type(rounding.value, *_ROWS)
        if producer is None or producer.attrs.ending is not None or any(producer.outputs[1:]):
            return NoMatch("no LayerNorm or Softmax, or one with more than one result")
        if not index.read_once(rounding.value) or not is_over_rows(producer, index):
            return NoMatch("it is used elsewhere, or is not over short rows")
        ending = CodeMean(1.0, rounding.unit, rounding.low, rounding.high)
        return _Made(producer, ending, rounding.ops)

    def rewrite(self, op: Op[Any], match: _Made, index: GraphIndex) -> None:
        producer = match.producer
        inputs, attrs = list(producer.inputs), replace(producer.attrs, ending=match.ending)
        source = merged_source((producer, *match.ops, op))
        outputs = list(op.outputs)
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, attrs, source))


def has_codes(op: Op[Any]) -> bool:
    """True for a LayerNorm or Softmax with a quantised input or output."""
    return op.attrs.of_input != 1.0 or op.attrs.ending is not None


def is_over_rows(op: Op[LayerNormAttrs] | Op[SoftmaxAttrs], index: GraphIndex) -> bool:
    """True for float32 along the last axes, of known and sufficiently short lengths."""
    shape, attrs = index.shape(op.inputs[0]), op.attrs
    if not shape or index.dtype(op.outputs[0]) is not DType.FLOAT32:
        return False
    axis = attrs.axis % len(shape)
    if isinstance(attrs, SoftmaxAttrs) and (attrs.log or attrs.flatten):
        return False
    if isinstance(attrs, SoftmaxAttrs) and axis != len(shape) - 1:
        return False
    sizes = [size for size in shape[axis:] if isinstance(size, int)]
    return len(sizes) == len(shape) - axis and 0 < prod(sizes) <= MAX_ROW
