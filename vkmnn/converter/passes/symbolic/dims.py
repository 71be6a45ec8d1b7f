"""Arithmetic with dimensions, some of which are known by name only."""

from __future__ import annotations

from collections import Counter

from vkmnn.ir.graph import Dim

_Monomial = tuple[str, ...]


def _cut_name(limit: int | str, dim: Dim) -> str:
    return f"min({limit}, {dim})"


def is_cut(name: Dim, dim: Dim) -> bool:
    """True when a dimension is min(some int, dim)."""
    if not isinstance(name, str):
        return False
    start, end = _cut_name("#", dim).split("#")
    return name.startswith(start) and name.endswith(end) and name[len(start) : -len(end)].isdigit()


class DimAlgebra:
    """Sums, products and quotients of dimensions, in one spelling for one value.

    A dimension is an int, the name of an unknown one, or None when nothing is known. Results that
    are no ints are names like "2*batch" or "floor((height - 1)/2)": equal names mean equal
    dimensions. A name is read as a polynomial when this object made it, else as one unknown.
    """

    def __init__(self) -> None:
        self._made: dict[str, Counter[_Monomial]] = {}
        self._bounds: dict[str, Dim] = {}

    def _read(self, dim: int | str) -> Counter[_Monomial]:
        if isinstance(dim, int):
            return Counter({(): dim} if dim else {})
        return self._made.get(dim) or Counter({(dim,): 1})

    def _write(self, terms: Counter[_Monomial]) -> int | str:
        kept = Counter({factors: count for factors, count in terms.items() if count})
        if not kept:
            return 0
        if kept.keys() == {()}:
            return kept[()]
        parts = []
        for factors, count in sorted(kept.items(), reverse=True):
            shown = [str(count)] if count != 1 or not factors else []
            parts.append("*".join([*shown, *factors]))
        name = " + ".join(parts)
        self._made[name] = kept
        return name

    def add(self, first: Dim, second: Dim) -> Dim:
        """Return first + second."""
        if first is None or second is None:
            return None
        total = Counter(self._read(first))
        for factors, count in self._read(second).items():
            total[factors] += count
        return self._write(total)

    def multiply(self, first: Dim, second: Dim) -> Dim:
        """Return first · second."""
        if first is None or second is None:
            return None
        total: Counter[_Monomial] = Counter()
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
        """Return first / second when it is a whole product of known factors, else None."""
        if first is None or second is None:
            return None
        divisor = self._read(second)
        if len(divisor) != 1:
            return 1 if first == second else None
        ((factors, count),) = divisor.items()
        result: Counter[_Monomial] = Counter()
        for monomial, times in self._read(first).items():
            rest = Counter(monomial)
            rest.subtract(Counter(factors))
            if times % count or min(rest.values(), default=0) < 0:
                return None
            result[tuple(sorted(rest.elements()))] = times // count
        return self._write(result)

    def floor_divide(self, first: Dim, second: int) -> Dim:
        """Return floor(first / second)."""
        whole = self.divide(first, second)
        if whole is not None or first is None:
            return whole
        return first // second if isinstance(first, int) else f"floor(({first})/{second})"

    def minimum(self, limit: int, dim: str) -> Dim:
        """Return min(limit, dim) for a dimension that cannot be negative, None if it could be."""
        if min(self._read(dim).values()) < 0:
            return None
        name = _cut_name(limit, dim)
        self._bounds[name] = dim
        return name

    def broadcast(self, first: Dim, second: Dim) -> Dim:
        """Return what two dimensions broadcast to, None when that is not known."""
        if first == second:
            return first
        for one, other in ((first, second), (second, first)):
            if one == 1:
                return other
            if isinstance(one, int) and one > 1:
                return one  # the other one is equal or 1
            if isinstance(other, str) and one is not None and self._bounds.get(other) == one:
                return one  # min(limit, one) is one, or 1, or does not broadcast at all
        return None
