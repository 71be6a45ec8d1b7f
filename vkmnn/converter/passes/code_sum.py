"""Fuses the sum of two quantised tensors into the convolution or product that computes one."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.residual import ends_later
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    CodeSum,
    QuantizedConvolutionAttrs,
    QuantizedMatMulAttrs,
    UnaryAttrs,
)

_Attrs = QuantizedConvolutionAttrs | QuantizedMatMulAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op[_Attrs]
    other: str
    add: CodeSum
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Quantised values times a scale."""

    codes: str
    scale: float
    op: Op


class FuseCodeSum(PatternPass[_Match]):
    """CLIP(ROUND((a · scale + b · scale) / unit)), where a quantised sum computes a or b.

    If both are, the end of the longer branch absorbs the other.
    """

    name = "fuse_code_sum"
    roots = frozenset({"UnaryOp"})

    def match(self, op: Op[UnaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        if op.attrs.kind != "CLIP":
            return NoMatch("not a clip")
        rounded = index.producer_of_type(op.inputs[0], "UnaryOp")
        if rounded is None or rounded.attrs.kind != "ROUND":
            return NoMatch("nothing is rounded before")
        steps = index.producer(rounded.inputs[0])
        divided = binary_parts(steps, "DIV")
        unit = index.scalar(divided[1]) if divided else None
        added = index.producer(divided[0]) if divided else None
        operands = binary_parts(added, "ADD")
        if unit is None or operands is None or steps is None or added is None:
            return NoMatch("no preceding sum in steps")
        inner = (op.inputs[0], rounded.inputs[0], steps.inputs[0])
        if not all(index.read_once(name) for name in inner):
            return NoMatch("a value between is used elsewhere")
        parts = [_scaled(name, index) for name in operands]
        if parts[0] is None or parts[1] is None:
            return NoMatch("the operands are not dequantised")
        found = [_taken(parts[0], parts[1], index), _taken(parts[1], parts[0], index)]
        ends = [end for end in found if end is not None]
        if not ends:
            return NoMatch("no quantised convolution with the sum as its only reader")
        later = len(ends) > 1 and ends_later(ends[1][0], ends[0][0], index)
        producer, one, other = ends[later]
        bounds = (op.attrs.alpha, op.attrs.beta)
        add = CodeSum(one.scale, other.scale, unit, *bounds)
        return _Match(producer, other.codes, add, (one.op, added, steps, rounded))

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer = match.producer
        inputs = list(producer.inputs)
        inputs[3] = match.other
        attrs = replace(producer.attrs, add=match.add)
        source = merged_source((producer, *match.ops, op))
        outputs = list(op.outputs)
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, attrs, source))


def _scaled(name: str, index: GraphIndex) -> _Scaled | None:
    op = index.producer(name)
    parts = binary_parts(op, "MUL")
    scale = index.scalar(parts[1]) if parts else None
    if op is None or parts is None or scale is None:
        return None
    return _Scaled(parts[0], scale, op)


_Taken = tuple[Op[_Attrs], _Scaled, _Scaled]


def _taken(one: _Scaled, other: _Scaled, index: GraphIndex) -> _Taken | None:
    """Return the convolution that computes `one`, if it can absorb the other operand."""
    producer = index.producer_of_type(one.codes, "QuantizedConvolution", "QuantizedMatMul")
    if producer is None or producer.inputs[3] or one.codes == other.codes:
        return None
    if isinstance(producer.attrs, QuantizedConvolutionAttrs) and producer.attrs.wide:
        return None
    read = index.read_once(one.codes) and index.read_once(one.op.outputs[0])
    return (producer, one, other) if read and index.same_shape(one.codes, other.codes) else None
