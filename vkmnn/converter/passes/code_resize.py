"""Fuses the requantisation before or after a quantised Resize."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.code_rounding import is_codes, rounding_of
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import CodeMean, InterpAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    codes: str
    ending: CodeMean
    ops: tuple[Op, ...]


class RoundResized(PatternPass[_Match]):
    """A requantisation read only by a nearest Resize, which rounds the values itself."""

    name = "round_resized"
    roots = frozenset({"Interp"})

    def match(self, op: Op[InterpAttrs], index: GraphIndex) -> _Match | NoMatch:
        attrs, x = op.attrs, op.inputs[0]
        copies = attrs.mode == "nearest" and attrs.coordinate_mode != "tf_crop_and_resize"
        if not copies or attrs.ending is not None or index.dtype(x) is not DType.FLOAT32:
            return NoMatch("no copies of floats, or rounded already")
        last = index.producer(x)
        rounding = rounding_of(last, index) if last is not None else None
        if last is None or rounding is None or not index.read_once(x):
            return NoMatch("nothing is rounded before it, or the result is used elsewhere")
        scaled = index.producer(rounding.value)
        parts = binary_parts(scaled, "MUL")
        scale = index.scalar(parts[1]) if parts else None
        if scaled is None or parts is None or scale is None or not is_codes(parts[0], index):
            return NoMatch("the operand is not dequantised")
        if not index.read_once(rounding.value) or not index.same_shape(parts[0], x):
            return NoMatch("the floats are used elsewhere, or have another shape")
        ending = CodeMean(scale, rounding.unit, rounding.low, rounding.high)
        return _Match(parts[0], ending, (scaled, *rounding.ops, last))

    def rewrite(self, op: Op[InterpAttrs], match: _Match, index: GraphIndex) -> None:
        inputs, attrs = [match.codes, *op.inputs[1:]], replace(op.attrs, ending=match.ending)
        source = merged_source((*match.ops, op))
        index.replace(op, Op(op.type, op.name, inputs, list(op.outputs), attrs, source))


@dataclass(frozen=True, slots=True)
class _Sums:
    resize: Op[InterpAttrs]
    x: str
    ending: CodeMean
    ops: tuple[Op, ...]


class RoundSums(PatternPass[_Sums]):
    """A Resize whose result is quantised: it rounds its sums itself."""

    name = "round_sums"
    roots = frozenset({"BinaryOp", "UnaryOp"})

    def match(self, op: Op, index: GraphIndex) -> _Sums | NoMatch:
        rounding = rounding_of(op, index)
        if rounding is None:
            return NoMatch("nothing is rounded")
        resize = index.producer_of_type(rounding.value, "Interp")
        if resize is None or resize.attrs.mode == "nearest" or resize.attrs.ending is not None:
            return NoMatch("no sums of pixels, or rounded already")
        if resize.attrs.coordinate_mode == "tf_crop_and_resize":
            return NoMatch("positions outside are filled in")
        x, ops = resize.inputs[0], (resize, *rounding.ops)
        if index.dtype(x) is not DType.FLOAT32 or not index.read_only_by(rounding.value, ops):
            return NoMatch("no floats, or they are used elsewhere")
        scaled = index.producer(x)
        parts = binary_parts(scaled, "MUL")
        scale = index.scalar(parts[1]) if parts else None
        of_x = 1.0
        if scaled and parts and scale is not None and _is_decoded(x, parts[0], index):
            x, of_x, ops = parts[0], scale, (scaled, *ops)
        return _Sums(resize, x, CodeMean(of_x, rounding.unit, rounding.low, rounding.high), ops)

    def rewrite(self, op: Op, match: _Sums, index: GraphIndex) -> None:
        resize = match.resize
        inputs, attrs = [match.x, *resize.inputs[1:]], replace(resize.attrs, ending=match.ending)
        source = merged_source((*match.ops, op))
        index.replace(op, Op(resize.type, resize.name, inputs, list(op.outputs), attrs, source))


def _is_decoded(x: str, codes: str, index: GraphIndex) -> bool:
    """Return whether x is a dequantised tensor of a single reader."""
    return is_codes(codes, index) and index.read_once(x) and index.same_shape(codes, x)
