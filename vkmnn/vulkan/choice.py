"""Which of several kernels does a job: executions rank the candidates, a chooser picks one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chooser(Protocol):
    """Picks one of the kernels that all do the same job on the device at hand."""

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return one of `candidates`.

        Args:
            what: names the kind of choice ("matmul", "convolution", "row group", …).
            problem: all that the speed of the candidates depends on, besides the device.
            candidates: at least one; the one that the rules think fastest comes first.
        """
        ...


def by_rule(what: str, problem: Hashable, candidates: Sequence[T]) -> T:
    """Return the first candidate: what the rules think fastest."""
    return candidates[0]
