"""Fuses dequantisation into the producer of a quantised tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import DType
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    BinaryAttrs,
    LayerNormAttrs,
    PoolingAttrs,
    QuantizedConvolutionAttrs,
    QuantizedMatMulAttrs,
    SoftmaxAttrs,
)

_Rows = LayerNormAttrs | SoftmaxAttrs
MAKERS = ("QuantizedConvolution", "QuantizedMatMul", "Pooling", "LayerNorm", "Softmax")
_STEPS = ("UnaryOp", "BinaryOp", "Elementwise")


MOVES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose")


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor, and the ops that move it, first to last; each result has one reader."""

    source: str
    moves: tuple[Op, ...]

    def again(self, made: str, last: str, index: GraphIndex) -> list[Op]:
        """Return the same movement of another tensor; the last op produces `last`."""
        ops: list[Op] = []
        for op in self.moves:
            result = last if op is self.moves[-1] else index.unique_name(f"{op.outputs[0]}:decoded")
            if result != last:
                index.add_info(result, DType.FLOAT32, index.shape(op.outputs[0]))
            inputs = [made, *op.inputs[1:]]
            ops.append(Op(op.type, op.name, inputs, [result], op.attrs, op.source))
            made = result
        return ops

    def name_for(self, last: str, index: GraphIndex) -> str:
        """Return the name of the tensor to move instead: `last` itself without movement."""
        if not self.moves:
            return last
        name = index.unique_name(f"{self.source}:decoded")
        index.add_info(name, DType.FLOAT32, index.shape(self.source))
        return name


def moved(name: str, index: GraphIndex) -> Moved | None:
    """Return the source of a chain of movements; None if one has another reader."""
    moves: list[Op] = []
    op = index.producer_of_type(name, *MOVES)
    while op is not None and index.read_once(name):
        moves.insert(0, op)
        name = op.inputs[0]
        op = index.producer_of_type(name, *MOVES)
    return Moved(name, tuple(moves)) if index.read_once(name) else None


def scaled_by(op: Op[BinaryAttrs], index: GraphIndex) -> tuple[Moved, float] | NoMatch:
    """Return the source of a movement followed by a multiplication, and the factor."""
    parts = binary_parts(op, "MUL")
    scale = index.scalar(parts[1]) if parts else None
    if parts is None or scale is None:
        return NoMatch("not a product with one number")
    found = moved(parts[0], index)
    if found is None:
        return NoMatch("the quantised tensor has other readers")
    if not index.same_shape(parts[0], op.outputs[0]):
        return NoMatch("the number has more axes")
    return found, scale


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    found: Moved
    attrs: QuantizedConvolutionAttrs | QuantizedMatMulAttrs | PoolingAttrs | _Rows


class DecodeCodes(PatternPass[_Match]):
    """A quantised tensor times a number, without other readers: the producer multiplies.

    Changes of shape and of the order of axes may be in between.
    """

    name = "decode_codes"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        scaled = scaled_by(op, index)
        if isinstance(scaled, NoMatch):
            return scaled
        found, scale = scaled
        producer = index.producer_of_type(found.source, *MAKERS)
        if producer is None:
            return NoMatch("the operand is not quantised")
        attrs = times(producer.attrs, scale)
        return (
            NoMatch("the operand is not quantised, or multiplied already")
            if attrs is None
            else _Match(producer, found, attrs)
        )

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer, last = match.producer, op.outputs[0]
        source, made = merged_source((producer, op)), match.found.name_for(last, index)
        inputs = list(producer.inputs)
        first: Op = Op(producer.type, producer.name, inputs, [made], match.attrs, source)
        index.replace(op, first, *match.found.again(made, last, index))


@dataclass(frozen=True, slots=True)
class _Joined:
    join: Op
    found: Moved
    scale: str


class DecodeParts(PatternPass[_Joined]):
    """Joined quantised tensors times a number: the producers of the parts multiply."""

    name = "decode_parts"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Joined | NoMatch:
        scaled = scaled_by(op, index)
        if isinstance(scaled, NoMatch):
            return scaled
        found, scale = scaled
        join = index.producer_of_type(found.source, "Concat")
        if join is None:
            return NoMatch("nothing is joined")
        if not all(_can_multiply(part, scale, index) for part in join.inputs):
            return NoMatch("a part would need a separate op")
        return _Joined(join, found, op.inputs[1])

    def rewrite(self, op: Op, match: _Joined, index: GraphIndex) -> None:
        join, last = match.join, op.outputs[0]
        made, parts = match.found.name_for(last, index), []
        for part in join.inputs:
            name = index.unique_name(f"{part}:decoded")
            index.add_info(name, DType.FLOAT32, index.shape(part))
            inputs = [part, match.scale]
            parts.append(Op("BinaryOp", name, inputs, [name], BinaryAttrs("MUL"), op.source))
        names = [part.outputs[0] for part in parts]
        joined: Op = Op(join.type, join.name, names, [made], join.attrs, join.source)
        index.replace(op, *parts, joined, *match.found.again(made, last, index))


def _can_multiply(name: str, scale: float, index: GraphIndex) -> bool:
    """True for an op whose kernel can multiply its result, for this reader only."""
    found = moved(name, index)
    producer = index.producer(found.source) if found else None
    if producer is None:
        return False
    if producer.type in MAKERS:
        return times(producer.attrs, scale) is not None
    return producer.type in _STEPS


_Attrs = TypeVar(
    "_Attrs",
    QuantizedConvolutionAttrs,
    QuantizedMatMulAttrs,
    PoolingAttrs,
    LayerNormAttrs,
    SoftmaxAttrs,
)


def times(attrs: _Attrs, scale: float) -> _Attrs | None:
    """Return the producer with a factor; None if it is not quantised, or has one already."""
    if isinstance(attrs, QuantizedConvolutionAttrs | QuantizedMatMulAttrs):
        return replace(attrs, scale=scale) if attrs.scale == 1.0 else None
    ending = attrs.ending
    if ending is None or ending.scale != 1.0:
        return None
    return replace(attrs, ending=replace(ending, scale=scale))
