"""A predicted time, term by term."""

from __future__ import annotations

from dataclasses import fields

from vkmnn.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of a dispatch, from its first workgroup to its last.

    Args:
        start: until the first workgroup loads, and from the last store to the end.
        latency: loads that nothing hides, once per step of a wave of workgroups.
        loads: operands from memory or a cache.
        arithmetic: additional time if it takes longer than the loads.
        stores: sums into results, and results into memory.
        split: parts of sums through memory, if workgroups share a tile.
    """

    start: float = 0.0
    latency: float = 0.0
    loads: float = 0.0
    arithmetic: float = 0.0
    stores: float = 0.0
    split: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all terms."""
        # Planning asks for this thousands of times: it builds no dict.
        return self.start + self.latency + self.loads + self.arithmetic + self.stores + self.split

    def terms(self) -> dict[str, float]:
        """Return the terms by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __truediv__(self, cores: float) -> Cost:
        return Cost(**{name: value / cores for name, value in self.terms().items()})

    def __add__(self, other: Cost) -> Cost:
        mine, theirs = self.terms(), other.terms()
        return Cost(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True, slots=True)
class Expected:
    """Prediction for a dispatch.

    Args:
        cost: the predicted time.
        needed: multiplications of the problem.
        done: multiplications including the padding of tiles.
        nbytes: bytes read and written, if not those of each tensor once.
        ahead: microseconds of the loads of constants that it asks for before all else.
    """

    cost: Cost
    needed: int = 0
    done: int = 0
    nbytes: int | None = None
    ahead: float = 0.0
