"""Activation functions that a model spells out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose, pi, sqrt

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.algebra import TOLERANCE, Expression, Polynomial, same_polynomial
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import BinaryAttrs, UnaryAttrs

_DEPTH = 6
"""Maximum distance in ops of a pattern's function from the last op."""


@dataclass(frozen=True, slots=True)
class Function:
    """A UnaryOp within a pattern: kind, parameters, argument in terms of x or the next one."""

    kind: str
    argument: Polynomial
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """A formula: `result` in terms of x and f = functions[0], whose argument may hold g."""

    kind: str
    result: Polynomial
    functions: tuple[Function, ...]
    alpha: float = 0.0
    beta: float = 0.0


_X: Polynomial = {("x",): 1.0}
_GATED: Polynomial = {("f", "x"): 1.0}
_HALVES: Polynomial = {("x",): 0.5, ("f", "x"): 0.5}
_CUBIC: Polynomial = {("x",): sqrt(2 / pi), ("x", "x", "x"): sqrt(2 / pi) * 0.044715}
_RELU6_OF_X_PLUS_3 = Function("CLIP", {("x",): 1.0, (): 3.0}, 0.0, 6.0)

PATTERNS: tuple[Pattern, ...] = (
    Pattern("GELU", _HALVES, (Function("ERF", {("x",): sqrt(0.5)}),)),
    Pattern("GELU_TANH", _HALVES, (Function("TANH", _CUBIC),)),
    Pattern("SILU", _GATED, (Function("SIGMOID", _X),)),
    Pattern("QUICK_GELU", _GATED, (Function("SIGMOID", {("x",): 1.702}),), 1.702),
    Pattern("HARD_SWISH", _GATED, (Function("HARD_SIGMOID", _X, 1 / 6, 0.5),)),
    Pattern("HARD_SWISH", {("f", "x"): 1 / 6}, (_RELU6_OF_X_PLUS_3,)),
    Pattern("HARD_SIGMOID", {("f",): 1 / 6}, (_RELU6_OF_X_PLUS_3,), 1 / 6, 0.5),
    Pattern("MISH", _GATED, (Function("TANH", {("g",): 1.0}), Function("SOFTPLUS", _X))),
    Pattern(
        "SOFTPLUS",
        {("f",): 1.0},
        (Function("LOG", {(): 1.0, ("g",): 1.0}), Function("EXP", _X)),
    ),
)
"""GELU: Hendrycks and Gimpel 2016; SiLU: Elfwing et al. 2017; MISH: Misra 2019; HARD_SWISH: Howard
et al. 2019; QUICK_GELU: Hendrycks and Gimpel's approximation of GELU by a sigmoid."""


@dataclass(frozen=True, slots=True)
class _Match:
    pattern: Pattern
    value: str
    ops: tuple[Op, ...]


class FuseElementwise(PatternPass[_Match]):
    """Sums, products and functions that spell out an activation function: one op.

    Matching is up to the order of operands and the grouping of constants.
    """

    name = "fuse_elementwise"
    roots = frozenset({"BinaryOp", "UnaryOp"})

    def match(self, op: Op[UnaryAttrs] | Op[BinaryAttrs], index: GraphIndex) -> _Match | NoMatch:
        if not _may_end(op):
            return NoMatch("no pattern ends with this op")
        reachable = list(_functions_below(op, index))
        no_match = NoMatch("no pattern has these functions")
        for pattern in PATTERNS:
            for function in reachable:
                if not _is(function, pattern.functions[0]):
                    continue
                found = _match(pattern, op, function, index)
                if isinstance(found, _Match):
                    return found
                no_match = found
        return no_match

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        pattern = match.pattern
        attrs = UnaryAttrs(pattern.kind, pattern.alpha, pattern.beta)
        source = merged_source(match.ops)
        index.replace(op, Op("UnaryOp", op.name, [match.value], list(op.outputs), attrs, source))


def _may_end(op: Op[UnaryAttrs] | Op[BinaryAttrs]) -> bool:
    attrs = op.attrs
    if isinstance(attrs, UnaryAttrs):
        return attrs.kind == "LOG"
    return attrs.kind in ("MUL", "DIV") and attrs.activation.kind == "NONE"


def _is(op: Op, function: Function) -> bool:
    attrs = op.attrs
    return (
        isinstance(attrs, UnaryAttrs)
        and attrs.kind == function.kind
        and isclose(attrs.alpha, function.alpha, rel_tol=TOLERANCE, abs_tol=1e-12)
        and isclose(attrs.beta, function.beta, rel_tol=TOLERANCE, abs_tol=1e-12)
    )


def _below(op: Op, index: GraphIndex) -> Iterator[Op]:
    """Yield an op and the elementwise ops before it, nearest first, each once."""
    level, seen = [op], {id(op)}
    for _ in range(_DEPTH):
        following = []
        for one in level:
            yield one
            for name in one.inputs:
                producer = index.producer_of_type(name, "BinaryOp", "UnaryOp")
                if producer is not None and id(producer) not in seen:
                    seen.add(id(producer))
                    following.append(producer)
        level = following


def _functions_below(op: Op, index: GraphIndex) -> Iterator[Op]:
    return (one for one in _below(op, index) if one.type == "UnaryOp")


def _match(pattern: Pattern, root: Op, first: Op, index: GraphIndex) -> _Match | NoMatch:
    chain = [first]
    for function in pattern.functions[1:]:
        inner = next(
            (
                one
                for one in _functions_below(chain[-1], index)
                if one is not chain[-1] and _is(one, function)
            ),
            None,
        )
        if inner is None:
            return NoMatch("the inner function is missing")
        chain.append(inner)
    names = {"fg"[number]: one.outputs[0] for number, one in enumerate(chain)}
    innermost = chain[-1]
    candidates = dict.fromkeys(
        name
        for one in _below(innermost, index)
        for name in one.inputs
        if index.constant(name) is None
    )
    no_match = NoMatch("constants or operands differ from the formula")
    for value in candidates:
        found = _verify(pattern, root, chain, {**names, "x": value}, index)
        if isinstance(found, _Match):
            return found
        no_match = found or no_match
    return no_match


def _verify(
    pattern: Pattern, root: Op, chain: list[Op], names: Mapping[str, str], index: GraphIndex
) -> _Match | NoMatch | None:
    """Compare every polynomial of the pattern; None when one differs."""
    atoms = frozenset(names.values())
    parts = [(root.outputs[0], pattern.result)]
    parts += [
        (one.inputs[0], function.argument)
        for one, function in zip(chain, pattern.functions, strict=True)
    ]
    ops = list(chain)
    for name, wanted in parts:
        expression = Expression(index)
        found = expression.expand(name, atoms)
        renamed = {tuple(sorted(names[one] for one in term)): c for term, c in wanted.items()}
        if not same_polynomial(found, renamed):
            return None
        ops += expression.ops
    unique = tuple({id(op): op for op in (*ops, root)}.values())
    if not index.is_float(names["x"]) and not index.is_float(root.outputs[0]):
        return NoMatch("not known to be of a floating-point type")
    if not all(index.read_only_by(op.outputs[0], unique) for op in unique if op is not root):
        return NoMatch("a value within the formula is used elsewhere")
    return _Match(pattern, names["x"], unique)
