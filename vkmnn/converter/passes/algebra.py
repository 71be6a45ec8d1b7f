"""Elementwise arithmetic as polynomials, so that patterns match in every order of operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import isclose

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.identity import keeps_shape
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import BinaryAttrs, UnaryAttrs

Polynomial = Mapping[tuple[str, ...], float]
"""Coefficients by product of tensors (sorted names, repeated for powers; () = no tensor)."""

MAX_TERMS = 8
MAX_OPS = 16
TOLERANCE = 2e-5
"""Relative error of a coefficient: exporters write constants in fp32, people with five digits."""


def same_polynomial(first: Polynomial, second: Polynomial) -> bool:
    """True when both have the same terms, with coefficients equal up to `TOLERANCE`."""
    return first.keys() == second.keys() and all(
        isclose(first[term], second[term], rel_tol=TOLERANCE) for term in first
    )


@dataclass(slots=True)
class Expression:
    """A tensor as a polynomial in other tensors; `ops` are the ops that compute it from them.

    Only scalar constants that cannot change a shape qualify; all tensors are floating-point.
    """

    index: GraphIndex
    ops: list[Op] = field(default_factory=list)

    def expand(self, name: str, atoms: frozenset[str]) -> dict[tuple[str, ...], float]:
        """Return the polynomial of a tensor, without looking inside `atoms`.

        Anything but a sum, difference, product, quotient by a constant, square or cube is an atom.
        """
        op = self.index.producer(name)
        if name in atoms or op is None or len(self.ops) >= MAX_OPS:
            return {(name,): 1.0}
        place = len(self.ops)
        self.ops.append(op)
        found = self._expand_op(op, atoms)
        if found is None or len(found) > MAX_TERMS:
            del self.ops[place:]
            return {(name,): 1.0}
        return found

    def _expand_op(self, op: Op, atoms: frozenset[str]) -> dict[tuple[str, ...], float] | None:
        attrs = op.attrs
        if isinstance(attrs, UnaryAttrs):
            if attrs.kind == "NEG":
                return _scale(self.expand(op.inputs[0], atoms), -1.0)
            if attrs.kind == "SQUARE":
                return _power(self.expand(op.inputs[0], atoms), 2)
            return None
        if not isinstance(attrs, BinaryAttrs) or attrs.activation.kind != "NONE":
            return None
        if attrs.kind in ("DIV", "POW"):
            number = self._scalar(op.inputs[1], op.inputs[0])
            if number is None or number == 0:
                return None
            if attrs.kind == "DIV":
                return _scale(self.expand(op.inputs[0], atoms), 1.0 / number)
            return (
                _power(self.expand(op.inputs[0], atoms), int(number)) if number in (2, 3) else None
            )
        if attrs.kind not in ("ADD", "SUB", "MUL"):
            return None
        a, b = op.inputs
        first, second = self._operand(a, b, atoms), self._operand(b, a, atoms)
        if attrs.kind == "MUL":
            return _multiply(first, second)
        return _add(first, second if attrs.kind == "ADD" else _scale(second, -1.0))

    def _operand(
        self, name: str, other: str, atoms: frozenset[str]
    ) -> dict[tuple[str, ...], float]:
        number = self._scalar(name, other)
        if number is None:
            return self.expand(name, atoms)
        return {(): number} if number else {}

    def _scalar(self, name: str, other: str) -> float | None:
        """Return a scalar constant that leaves the shape of the other operand unchanged."""
        number = self.index.scalar(name)
        if number is None:
            return None
        keeps = keeps_shape(self.index.constants[name].shape, self.index.shape(other))
        return number if keeps else None


_Terms = dict[tuple[str, ...], float]


def _add(first: _Terms, second: _Terms) -> _Terms:
    total = dict(first)
    for term, factor in second.items():
        total[term] = total.get(term, 0.0) + factor
    return {term: factor for term, factor in total.items() if factor}


def _scale(terms: _Terms, factor: float) -> _Terms:
    return {term: value * factor for term, value in terms.items()}


def _multiply(first: _Terms, second: _Terms) -> _Terms:
    total: _Terms = {}
    for one, factor in first.items():
        for other, times in second.items():
            term = tuple(sorted((*one, *other)))
            total[term] = total.get(term, 0.0) + factor * times
    return {term: factor for term, factor in total.items() if factor}


def _power(terms: _Terms, exponent: int) -> _Terms:
    result: _Terms = {(): 1.0}
    for _ in range(exponent):
        result = _multiply(result, terms)
    return result
