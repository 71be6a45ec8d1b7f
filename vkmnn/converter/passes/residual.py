"""Residual additions, and products, into the convolution or matrix product before them."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    BinaryAttrs,
    ConvolutionAttrs,
    DynamicQuantizeConvolutionAttrs,
    DynamicQuantizeMatMulAttrs,
    ExpertMatMulAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
)

_LONGEST_BRANCH = 16

_Attrs = (
    ConvolutionAttrs
    | DynamicQuantizeConvolutionAttrs
    | DynamicQuantizeMatMulAttrs
    | MatMulAttrs
    | MatMulNBitsAttrs
)
_TYPES = (
    "Convolution",
    "DynamicQuantizeConvolution",
    "DynamicQuantizeMatMul",
    "MatMul",
    "MatMulNBits",
)


@dataclass(frozen=True, slots=True)
class _Match:
    producer: Op
    other: str
    attrs: _Attrs


class _IntoProducer(PatternPass[_Match]):
    """BinaryOp of a Convolution's or MatMul's result and a tensor of provably the same shape.

    If both operands could absorb the other, the end of the longer branch does, so that the shortcut
    may run in parallel; for equally long branches, the later one in the graph's order.
    """

    roots = frozenset({"BinaryOp"})

    def joined(self, attrs: _Attrs, binary: BinaryAttrs) -> _Attrs | NoMatch:
        """Return the attributes of a producer with the other operand as its residual."""
        raise NotImplementedError

    def match(self, op: Op[BinaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        if op.attrs.kind not in ("ADD", "MUL"):
            return NoMatch("neither ADD nor MUL")
        if op.inputs[0] == op.inputs[1]:
            return NoMatch("both operands are the same")
        best: _Match | None = None
        no_match = NoMatch("no preceding Convolution or MatMul")
        for name, other in (op.inputs, op.inputs[::-1]):
            producer = index.producer_of_type(name, *_TYPES)
            if producer is None:
                continue
            attrs = producer.attrs
            joined = self.joined(attrs, op.attrs)
            if not index.read_once(name):
                no_match = NoMatch("the preceding value is used elsewhere")
            elif any(producer.inputs[3:4]):
                no_match = NoMatch("it has a residual already")
            elif isinstance(joined, NoMatch):
                no_match = joined
            elif not index.is_float(name):
                no_match = NoMatch("not known to be of a floating-point type")
            elif not index.same_shape(name, other):
                no_match = NoMatch("the shapes differ, or are not known well enough")
            elif best is None or ends_later(producer, best.producer, index):
                best = _Match(producer, other, joined)
        return best or no_match

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        producer = match.producer
        inputs = [*producer.inputs, "", ""]
        inputs = inputs[: max(4, len(producer.inputs))]
        inputs[3] = match.other
        source = merged_source((producer, op))
        outputs = list(op.outputs)
        index.replace(op, Op(producer.type, producer.name, inputs, outputs, match.attrs, source))


def ends_later(first: Op, second: Op, index: GraphIndex) -> bool:
    """True if `first` has more ops since the two branches diverged than `second`."""
    one, other = _branch(first, index), _branch(second, index)
    for length, name in enumerate(one):
        if name in other:
            if length != other.index(name):
                return length > other.index(name)
            break
    return index.is_later(first, second)


def _branch(op: Op | None, index: GraphIndex) -> list[str]:
    """Return the tensors from an op upwards along first inputs, nearest first."""
    names: list[str] = []
    while op is not None and op.inputs and len(names) < _LONGEST_BRANCH:
        names.append(op.inputs[0])
        op = index.producer(op.inputs[0])
    return names


class FuseResidual(_IntoProducer):
    """ADD with a tensor of the same shape; the activation of the ADD moves along."""

    name = "fuse_residual"

    def joined(self, attrs: _Attrs, binary: BinaryAttrs) -> _Attrs | NoMatch:
        if binary.kind != "ADD":
            return NoMatch("not an ADD")
        if attrs.activation.kind != "NONE":
            return NoMatch("there is an activation in between")
        return replace(attrs, activation=binary.activation)


class FuseLateResidual(_IntoProducer):
    """ADD after an activation, and MUL: x + silu(conv(x)), silu(gate(x)) · up(x)."""

    name = "fuse_late_residual"

    def joined(self, attrs: _Attrs, binary: BinaryAttrs) -> _Attrs | NoMatch:
        if binary.activation.kind != "NONE":
            return NoMatch("an activation follows")
        return replace(attrs, residual=f"{binary.kind}_AFTER")


class FuseExpertResidual(PatternPass["tuple[Op[ExpertMatMulAttrs], str]"]):
    """ADD of a mixture of experts and a tensor of the same shape."""

    name = "fuse_expert_residual"
    roots = frozenset({"BinaryOp"})

    def match(
        self, op: Op[BinaryAttrs], index: GraphIndex
    ) -> tuple[Op[ExpertMatMulAttrs], str] | NoMatch:
        if op.attrs.kind != "ADD" or op.attrs.activation.kind != "NONE":
            return NoMatch("not an ADD, or one with an activation")
        for name, other in (op.inputs, op.inputs[::-1]):
            experts = index.producer_of_type(name, "ExpertMatMul")
            summed = experts is not None and len(experts.inputs) == 7
            if summed and index.read_once(name) and index.same_shape(name, other):
                assert experts is not None
                return experts, other
        return NoMatch("no experts whose sum is read once, and has the same shape")

    def rewrite(self, op: Op, match: tuple[Op[ExpertMatMulAttrs], str], index: GraphIndex) -> None:
        experts, other = match
        source = merged_source((experts, op))
        inputs, outputs = [*experts.inputs, other], list(op.outputs)
        index.replace(op, Op("ExpertMatMul", experts.name, inputs, outputs, experts.attrs, source))
