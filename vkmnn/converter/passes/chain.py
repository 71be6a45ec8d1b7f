"""Chains of elementwise ops: one op that computes them step by step."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, isnan

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import (
    COMPARISON_KINDS,
    MAX_STEP_INPUTS,
    MAX_STEP_NUMBERS,
    MAX_STEPS,
    NO_ACTIVATION,
    STEP_KINDS,
    Activation,
    BinaryAttrs,
    ElementwiseAttrs,
    ScaleAttrs,
    Step,
    UnaryAttrs,
)

_MAX_RANK = 6
"""Maximum rank of the result, which every kernel supports."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step."""

    number: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor; a constant vector may have `trailing` further axes of size 1."""

    name: str
    trailing: int = 0


Value = Result | Operand | float
Steps = tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Match:
    steps: Steps
    ops: tuple[Op, ...]


class FuseChains(PatternPass[_Match]):
    """Elementwise ops whose results nothing but the next ones read, all of one shape and type.

    An op absorbs the ops that produce its operands, as long as the steps, the tensors and the
    numbers fit into one kernel. The source of a broadcast operand is read again for every element,
    but computed again only if that is a single step on single numbers.
    """

    name = "fuse_chains"
    roots = frozenset({"BinaryOp", "UnaryOp", "Scale", "Select", "Elementwise"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        result = op.outputs[0]
        rank = index.rank(result)
        if rank is None or rank > _MAX_RANK:
            return NoMatch("the rank is not known, or too high")
        steps = steps_of(op, index)
        if isinstance(steps, NoMatch):
            return steps
        ops = [op]
        no_match = NoMatch("no preceding elementwise op")
        pending = self._producers(steps, index)
        while pending:
            producer = pending.pop()
            longer = _joined(steps, producer, ops, index)
            if isinstance(longer, NoMatch):
                no_match = longer
                continue
            steps = longer
            ops.insert(0, producer)
            # An op that was refused before may have had a reader that is now within.
            pending = self._producers(steps, index)
        if len(ops) == 1:
            return no_match
        if not _is_float_only(steps, result, index):
            return NoMatch("the operands are not known to be of one floating-point type")
        return _Match(steps, tuple(ops))

    def _producers(self, steps: Steps, index: GraphIndex) -> list[Op]:
        found = (index.producer_of_type(one.name, *self.roots) for one in _operands(steps))
        return [producer for producer in found if producer is not None]

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        operands, numbers = _operands(match.steps), _numbers(match.steps)

        def place(value: Value) -> int:
            if isinstance(value, Result):
                return len(operands) + value.number
            if isinstance(value, Operand):
                return operands.index(value)
            return -1 - numbers.index(value)

        steps = tuple(
            Step(kind, tuple(place(value) for value in values)) for kind, values in match.steps
        )
        inputs = [_tensor(operand, index) for operand in operands]
        attrs = ElementwiseAttrs(steps, tuple(numbers))
        source = merged_source(match.ops)
        index.replace(op, Op("Elementwise", op.name, inputs, list(op.outputs), attrs, source))


def _joined(steps: Steps, producer: Op, ops: Sequence[Op], index: GraphIndex) -> Steps | NoMatch:
    """Return the steps with those of the producer of an operand before them."""
    name = producer.outputs[0]
    if not index.read_only_by(name, ops):
        return NoMatch("a value within is used elsewhere")
    first = steps_of(producer, index)
    if isinstance(first, NoMatch):
        return first
    result = ops[-1].outputs[0]
    if not index.same_shape(name, result) and not _is_small(first, name, result, index):
        return NoMatch("a value within has another shape, or none that is known")

    def moved(value: Value) -> Value:
        if isinstance(value, Result):
            return Result(value.number + len(first))
        return Result(len(first) - 1) if value == Operand(name) else value

    joined = (
        *first,
        *((kind, tuple(moved(value) for value in values)) for kind, values in steps),
    )
    fits = (
        len(joined) <= MAX_STEPS
        and len(_operands(joined)) <= MAX_STEP_INPUTS
        and len(_numbers(joined)) <= MAX_STEP_NUMBERS
    )
    return joined if fits else NoMatch("it would grow too long")


def _is_small(steps: Steps, name: str, result: str, index: GraphIndex) -> bool:
    """True for one step with a single result of a lower rank than the chain's."""
    shape, rank = index.shape(name), index.rank(result)
    single = shape is not None and all(size == 1 for size in shape)
    return single and len(steps) == 1 and rank is not None and len(shape or ()) < rank


def _operands(steps: Steps) -> list[Operand]:
    values = (value for _, taken in steps for value in taken)
    return list(dict.fromkeys(value for value in values if isinstance(value, Operand)))


def _numbers(steps: Steps) -> list[float]:
    values = (value for _, taken in steps for value in taken)
    return list(dict.fromkeys(value for value in values if isinstance(value, float)))


def _is_float_only(steps: Steps, result: str, index: GraphIndex) -> bool:
    dtype = index.dtype(result)
    return (
        dtype is not None
        and dtype.is_float
        and all(index.dtype(operand.name) == dtype for operand in _operands(steps))
    )


def _tensor(operand: Operand, index: GraphIndex) -> str:
    if not operand.trailing:
        return operand.name
    array = index.constants[operand.name]
    return index.add_constant(
        f"{operand.name}:channels", array.reshape(-1, *[1] * operand.trailing)
    )


# --- the ops as steps ----------------------------------------------------------------------------


def steps_of(op: Op, index: GraphIndex) -> Steps | NoMatch:
    """Return the steps of an op; the last one computes its result."""
    attrs = op.attrs
    if isinstance(attrs, ElementwiseAttrs):
        return _decoded(op, attrs)
    values = _values(op, index)
    found: Steps | None = None
    if isinstance(attrs, UnaryAttrs):
        found = _function(Activation(attrs.kind, attrs.alpha, attrs.beta), values[0], 0)
    elif isinstance(attrs, BinaryAttrs):
        found = _followed(_binary(attrs.kind, values[0], values[1]), attrs.activation)
    elif isinstance(attrs, ScaleAttrs):
        found = _followed(_scale(op, values[0], index), attrs.activation)
    elif _is_choice(op, index):
        found = (("SELECT", tuple(values)),)
    return found or NoMatch("a function that is not a step")


def _decoded(op: Op, attrs: ElementwiseAttrs) -> Steps:
    def value(number: int) -> Value:
        if number < 0:
            return attrs.numbers[-1 - number]
        if number >= len(op.inputs):
            return Result(number - len(op.inputs))
        return Operand(op.inputs[number])

    return tuple((step.kind, tuple(value(v) for v in step.values)) for step in attrs.steps)


def _values(op: Op, index: GraphIndex) -> list[Value]:
    """Return the operands of an op, its constants of one element as numbers.

    A constant stays a tensor if only it gives the result its rank, and if it is NaN or -0, which do
    not compare equal to themselves or differ from what they equal.
    """
    rank = index.rank(op.outputs[0])
    numbers = {name: index.scalar(name) for name in op.inputs}
    whole = rank is not None and any(
        number is None and index.rank(name) == rank for name, number in numbers.items()
    )

    def value(name: str, number: float | None) -> Value:
        if number is None or isnan(number) or (number == 0 and copysign(1, number) < 0):
            return Operand(name)
        raises = not whole and (rank is None or index.constants[name].ndim == rank)
        return Operand(name) if raises and rank != 0 else number

    return [value(name, numbers[name]) for name in op.inputs]


_Part = str | int | float

# Functions of x with parameters alpha and beta; integers stand for results of steps here.
_FUNCTIONS: dict[str, tuple[tuple[_Part, ...], ...]] = {
    **{kind: ((kind, "x"),) for kind, count in STEP_KINDS.items() if count == 1},
    "NEG": (("MUL", "x", -1.0),),
    "RECIPROCAL": (("DIV", 1.0, "x"),),
    "SQUARE": (("MUL", "x", "x"),),
    "RELU": (("MAX", "x", 0.0),),
    "CLIP": (("CLIP", "x", "alpha", "beta"),),
    "LEAKY_RELU": (("PRELU", "x", "alpha"),),
    "HARD_SIGMOID": (("MUL_ADD", "x", "alpha", "beta"), ("CLIP", 0, 0.0, 1.0)),
    "HARD_SWISH": (("MUL_ADD", "x", 1 / 6, 0.5), ("CLIP", 0, 0.0, 1.0), ("MUL", "x", 1)),
    "SILU": (("SIGMOID", "x"), ("MUL", "x", 0)),
    "QUICK_GELU": (("MUL", "x", "alpha"), ("SIGMOID", 0), ("MUL", "x", 1)),
    "SOFTSIGN": (("ABS", "x"), ("ADD", 0, 1.0), ("DIV", "x", 1)),
}


def _function(function: Activation, x: Value, first: int) -> Steps | None:
    """Return the steps of a function; the first one has the number `first`."""
    steps = _FUNCTIONS.get(function.kind)
    if steps is None:
        return None
    # Bounds of a clip that comes from integers are integers.
    known = {"x": x, "alpha": float(function.alpha), "beta": float(function.beta)}

    def value(part: _Part) -> Value:
        if isinstance(part, str):
            return known[part]
        return Result(first + part) if isinstance(part, int) else part

    return tuple((str(kind), tuple(value(part) for part in parts)) for kind, *parts in steps)


def _followed(steps: Steps | None, activation: Activation) -> Steps | None:
    if steps is None or activation == NO_ACTIVATION:
        return steps
    more = _function(activation, Result(len(steps) - 1), len(steps))
    return None if more is None else (*steps, *more)


def _binary(kind: str, a: Value, b: Value) -> Steps | None:
    if kind == "POW":
        square: Steps = (("MUL", (a, a)),)
        powers: dict[Value, Steps] = {2.0: square, 3.0: (*square, ("MUL", (Result(0), a)))}
        return powers.get(b)
    return ((kind, (a, b)),) if STEP_KINDS.get(kind) == 2 else None


def _scale(op: Op, x: Value, index: GraphIndex) -> Steps | None:
    rank = index.rank(op.outputs[0])
    if rank is None or any(index.constant(name) is None for name in op.inputs[1:]):
        return None
    scale, bias = (Operand(name, rank - 2) for name in op.inputs[1:])
    return (("MUL_ADD", (x, scale, bias)),)


def _is_choice(op: Op, index: GraphIndex) -> bool:
    """True for a Select whose comparison serves it alone."""
    condition = index.producer_of_type(op.inputs[0], "BinaryOp")
    return (
        condition is not None
        and isinstance(condition.attrs, BinaryAttrs)
        and condition.attrs.kind in COMPARISON_KINDS
        and index.read_once(op.inputs[0])
    )
