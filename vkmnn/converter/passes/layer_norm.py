"""Layer normalisation that a model spells out."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.identity import keeps_shape
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import LayerNormAttrs, ReductionAttrs, UnaryAttrs


def _unary_part(op: Op | None, kind: str) -> str | None:
    is_it = op is not None and isinstance(op.attrs, UnaryAttrs) and op.attrs.kind == kind
    return op.inputs[0] if op is not None and is_it else None


@dataclass(frozen=True, slots=True)
class _Match:
    value: str
    attrs: LayerNormAttrs
    ops: tuple[Op, ...]


class _Reader:
    """Matches (x - mean) / sqrt(mean((x - mean)²) + epsilon) backwards, and records the ops."""

    def __init__(self, root: Op, index: GraphIndex) -> None:
        self.index = index
        self.ops = [root]

    def _take(self, name: str) -> Op | None:
        op = self.index.producer(name)
        if op is not None:
            self.ops.append(op)
        return op

    def _is(self, name: str, number: float, other: str) -> bool:
        """True for a constant number that leaves the shape of the other operand unchanged."""
        if self.index.scalar(name) != number:
            return False
        return keeps_shape(self.index.constants[name].shape, self.index.shape(other))

    def inverse(self, name: str) -> str | None:
        """Return y if the tensor is 1/sqrt(y)."""
        op = self._take(name)
        under = _unary_part(op, "RSQRT")
        if under is not None:
            return under
        power = binary_parts(op, "POW")
        if power is not None and self._is(power[1], -0.5, power[0]):
            return power[0]
        root = _unary_part(op, "RECIPROCAL")
        quotient = binary_parts(op, "DIV")
        if root is None and quotient is not None and self._is(quotient[0], 1.0, quotient[1]):
            root = quotient[1]
        return None if root is None else self.square_root(root)

    def square_root(self, name: str) -> str | None:
        """Return y if the tensor is sqrt(y)."""
        op = self._take(name)
        power = binary_parts(op, "POW")
        if power is not None and self._is(power[1], 0.5, power[0]):
            return power[0]
        return _unary_part(op, "SQRT")

    def plus_epsilon(self, name: str) -> tuple[str, float] | None:
        """Return y and e if the tensor is y + e."""
        parts = binary_parts(self._take(name), "ADD")
        if parts is None:
            return None
        for value, other in (parts, parts[::-1]):
            epsilon = self.index.scalar(other)
            if epsilon is not None and epsilon >= 0:
                shape = self.index.constants[other].shape
                return (value, epsilon) if keeps_shape(shape, self.index.shape(value)) else None
        return None

    def mean(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return y and the axes of a mean with kept axes; None for other tensors."""
        op = self._take(name)
        if op is None or not isinstance(op.attrs, ReductionAttrs) or len(op.inputs) < 2:
            return None
        axes = self.index.ints(op.inputs[1])
        if op.attrs.kind != "MEAN" or not op.attrs.keepdims or not axes:
            return None
        return op.inputs[0], axes

    def square(self, name: str) -> str | None:
        """Return y if the tensor is y²."""
        op = self._take(name)
        parts = binary_parts(op, "MUL")
        if parts is not None and parts[0] == parts[1]:
            return parts[0]
        power = binary_parts(op, "POW")
        if power is not None and self.index.scalar(power[1]) == 2.0:
            return power[0] if self._is(power[1], 2.0, power[0]) else None
        return _unary_part(op, "SQUARE")

    def centred(self, name: str, axes: tuple[int, ...]) -> str | None:
        """Return y if the tensor is y - mean(y) over these axes."""
        parts = binary_parts(self._take(name), "SUB")
        mean = None if parts is None else self.mean(parts[1])
        if parts is None or mean is None or mean != (parts[0], axes):
            return None
        return parts[0]


def _first_axis(axes: tuple[int, ...], rank: int | None) -> int | None:
    """Return the first axis counted from the end, None if they are not the last axes."""
    if rank is None and max(axes) >= 0:
        return None
    places = sorted({axis if axis < 0 else axis - (rank or 0) for axis in axes})
    return places[0] if places == list(range(-len(axes), 0)) else None


class FuseLayerNorm(PatternPass[_Match]):
    """Division by the standard deviation over the last axes: LayerNorm, with or without the mean.

    Scaling and shifting of the result are folded later, see `norm_affine`.
    """

    name = "fuse_layer_norm"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        no_match = NoMatch("not a division by a standard deviation")
        if binary_parts(op, "MUL", "DIV") is None:
            return no_match
        divides = binary_parts(op, "DIV") is not None
        for value, deviation in (op.inputs,) if divides else (op.inputs, op.inputs[::-1]):
            reader = _Reader(op, index)
            under = reader.square_root(deviation) if divides else reader.inverse(deviation)
            variance = None if under is None else reader.plus_epsilon(under)
            if variance is None:
                continue
            found = self._finish(op, value, variance, reader, index)
            if isinstance(found, _Match):
                return found
            no_match = found
        return no_match

    def _finish(
        self, op: Op, value: str, variance: tuple[str, float], reader: _Reader, index: GraphIndex
    ) -> _Match | NoMatch:
        mean = reader.mean(variance[0])
        if mean is None:
            return NoMatch("not the root of a mean over constant axes")
        squared, axes = mean
        if reader.square(squared) != value:
            return NoMatch("the mean is not of the value's square")
        inside = list(reader.ops)
        source = reader.centred(value, axes)
        rms = source is None
        if source is None:
            source, reader.ops = value, inside
        axis = _first_axis(axes, index.rank(source))
        if axis is None:
            return NoMatch("the axes are not the last ones")
        if not index.is_float(source) and not index.is_float(op.outputs[0]):
            return NoMatch("not known to be of a floating-point type")
        ops = tuple({id(one): one for one in reader.ops}.values())
        if not all(index.read_only_by(one.outputs[0], ops) for one in ops if one is not op):
            return NoMatch("a value within the formula is used elsewhere")
        epsilon = float(np.float32(variance[1]))
        return _Match(source, LayerNormAttrs(axis, epsilon, rms), ops)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        source = merged_source(match.ops)
        index.replace(
            op, Op("LayerNorm", op.name, [match.value], list(op.outputs), match.attrs, source)
        )
