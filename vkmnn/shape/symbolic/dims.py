"""Arithmetic with symbolic dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from vkmnn.ir.graph import Dim

_Monomial = tuple[str, ...]
_Terms = Counter[_Monomial]

MAX_NAME = 256
"""Maximum characters of a name. Longer ones are unknown: hostile models nest and multiply sizes."""

_MAX_TERMS = 16
_MAX_FACTORS = 8
_MAX_INT = 1 << 63


def _cut_name(limit: int | str, dim: Dim) -> str:
    return f"min({limit}, {dim})"


def is_cut(name: Dim, dim: Dim) -> bool:
    """True if a dimension is min(some int above 1, dim)."""
    if not isinstance(name, str):
        return False
    start, end = _cut_name("#", dim).split("#")
    limit = name[len(start) : -len(end)]
    return name.startswith(start) and name.endswith(end) and limit.isdigit() and limit != "1"


class DimAlgebra:
    """Sums, products and quotients of dimensions, with one notation for each value.

    A dimension is an int, the name of an unknown one, or None if nothing is known. Results that are
    not ints are names like "2*batch" or "floor((height - 1)/2)": equal names mean equal dimensions.
    A name is read as a polynomial if this object created it, else as one unknown. Overlong results,
    and ints beyond 64 bits, are None.
    """

    def __init__(self) -> None:
        self._made: dict[str, _Terms] = {}
        self._bounds: dict[str, tuple[int, Dim]] = {}
        self._quotients: dict[str, tuple[Dim, int]] = {}
        self._clipped: dict[str, Dim] = {}

    def _read(self, dim: int | str) -> _Terms:
        if isinstance(dim, int):
            return Counter({(): dim} if dim else {})
        return self._made.get(dim) or Counter({(dim,): 1})

    def _write(self, terms: _Terms) -> Dim:
        kept = Counter({factors: count for factors, count in terms.items() if count})
        if not kept:
            return 0
        if kept.keys() == {()}:
            return _in_range(kept[()])
        if len(kept) > _MAX_TERMS or max(map(len, kept)) > _MAX_FACTORS:
            return None
        parts = []
        for factors, count in sorted(kept.items(), reverse=True):
            if _in_range(count) is None:
                return None
            shown = [str(count)] if count != 1 or not factors else []
            parts.append("*".join([*shown, *factors]))
        name = " + ".join(parts)
        if len(name) > MAX_NAME and (name,) not in kept:
            return None
        self._made[name] = kept
        return name

    def add(self, first: Dim, second: Dim) -> Dim:
        """Return first + second."""
        if first is None or second is None:
            return None
        if isinstance(first, int) and isinstance(second, int):
            return _in_range(first + second)
        total = Counter(self._read(first))
        for factors, count in self._read(second).items():
            total[factors] += count
        return self._write(total)

    def multiply(self, first: Dim, second: Dim) -> Dim:
        """Return first · second."""
        if first is None or second is None:
            return None
        if isinstance(first, int) and isinstance(second, int):
            return _in_range(first * second)
        total: _Terms = Counter()
        for one, count in self._read(first).items():
            for other, times in self._read(second).items():
                total[tuple(sorted((*one, *other)))] += count * times
        return self._write(total)

    def subtract(self, first: Dim, second: Dim) -> Dim:
        """Return first - second."""
        return self.add(first, self.multiply(second, -1))

    def product(self, dims: tuple[Dim, ...]) -> Dim:
        """Return the product of dimensions, 1 when there are none."""
        total: Dim = 1
        for dim in dims:
            total = self.multiply(total, dim)
        return total

    def divide(self, first: Dim, second: Dim) -> Dim:
        """Return first / second if it is a whole product of known factors, else None."""
        if first is None or second is None:
            return None
        divisor = self._read(second)
        if len(divisor) != 1:
            return 1 if first == second else None
        ((factors, count),) = divisor.items()
        result: _Terms = Counter()
        for monomial, times in self._read(first).items():
            rest = Counter(monomial)
            rest.subtract(Counter(factors))
            if times % count or min(rest.values(), default=0) < 0:
                return None
            result[tuple(sorted(rest.elements()))] = times // count
        return self._write(result)

    def floor_divide(self, first: Dim, second: int) -> Dim:
        """Return floor(first / second); None when second is 0."""
        if first is None or second == 0:
            return None
        if isinstance(first, int):
            return first // second
        whole = self.divide(first, second)
        if whole is not None:
            return whole
        dividend = f"({first})" if " + " in first else first
        name = f"floor({dividend}/{second})"
        if len(name) > MAX_NAME:
            return None
        self._quotients[name] = (first, second)
        return name

    def minimum(self, limit: int, dim: str) -> Dim:
        """Return min(limit, dim) for a dimension that cannot be negative, None if it could be."""
        if not self.is_natural(dim):
            return None
        name = _cut_name(limit, dim)
        if len(name) > MAX_NAME:
            return None
        self._bounds[name] = (limit, dim)
        return name

    def clipped(self, dim: Dim) -> Dim:
        """Return max(0, dim)."""
        if not isinstance(dim, str):
            return dim if dim is None else max(0, dim)
        if self.is_natural(dim):
            return dim
        name = f"max(0, {dim})"
        if len(name) > MAX_NAME:
            return None
        self._clipped[name] = dim
        return name

    def is_natural(self, dim: Dim) -> bool:
        """True when a dimension is certainly not negative, as sizes are."""
        return dim is not None and min(self._read(dim).values(), default=0) >= 0

    def broadcast(self, first: Dim, second: Dim) -> Dim:
        """Return the broadcast of two dimensions, None if it is unknown."""
        if first == second:
            return first
        for one, other in ((first, second), (second, first)):
            if one == 1:
                return other
            if isinstance(one, int) and one > 1:
                return one  # the other one is equal or 1
            if isinstance(other, str) and one is not None and self._is_cut_of(other, one):
                return one  # min(limit, one) is one, or 1, or does not broadcast at all
        return None

    def _is_cut_of(self, name: str, dim: int | str) -> bool:
        bound = self._bounds.get(name)
        return bound is not None and bound[1] == dim

    def names_in(self, dim: Dim) -> frozenset[str]:
        """Return the symbols of the dimensions created by this object."""
        if not isinstance(dim, str):
            return frozenset()
        terms = self._made.get(dim)
        if terms is not None and (dim,) not in terms:
            return frozenset(
                name for factors in terms for one in factors for name in self.names_in(one)
            )
        if dim in self._quotients:
            return self.names_in(self._quotients[dim][0])
        if dim in self._bounds:
            return self.names_in(self._bounds[dim][1])
        if dim in self._clipped:
            return self.names_in(self._clipped[dim])
        return frozenset((dim,))

    def evaluate(self, dim: Dim, sizes: Mapping[str, int]) -> int | None:
        """Return a dimension for given sizes of its unknowns; None when one is not given."""
        if not isinstance(dim, str):
            return dim
        if dim in sizes:
            return sizes[dim]
        if dim in self._quotients:
            first, second = self._quotients[dim]
            whole = self.evaluate(first, sizes)
            return None if whole is None else whole // second
        if dim in self._bounds:
            limit, other = self._bounds[dim]
            size = self.evaluate(other, sizes)
            return None if size is None else min(limit, size)
        if dim in self._clipped:
            size = self.evaluate(self._clipped[dim], sizes)
            return None if size is None else max(0, size)
        terms = self._made.get(dim)
        if terms is None or (dim,) in terms:
            return None
        total = 0
        for factors, count in terms.items():
            values = [self.evaluate(factor, sizes) for factor in factors]
            known = [value for value in values if value is not None]
            if len(known) != len(values):
                return None
            total += count * prod(known)
        return total


class Numbers(DimAlgebra):
    """The same arithmetic for ints only: without bounds or memory."""

    def add(self, first: Dim, second: Dim) -> Dim:
        return _int(first) + _int(second)

    def multiply(self, first: Dim, second: Dim) -> Dim:
        return _int(first) * _int(second)

    def divide(self, first: Dim, second: Dim) -> Dim:
        return _int(first) // _int(second)

    def floor_divide(self, first: Dim, second: int) -> Dim:
        return _int(first) // second


def _int(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise TypeError(f"{dim} is not a number")
    return dim


def _in_range(number: int) -> Dim:
    return number if -_MAX_INT <= number < _MAX_INT else None
