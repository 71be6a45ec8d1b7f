"""Feeds of several requests in one run: which may be joined, how, and the check that they may."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array

Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests for a network are joined.

    Attributes:
        most: maximum rows of a joined run; 1 joins nothing.
        preferred: numbers of rows that are run without waiting for more; `most` by default.
        delay_s: seconds for which a request waits for others that could join it.
        limit: maximum rows of a request; None for no limit.
    """

    most: int = 32
    preferred: tuple[int, ...] = ()
    delay_s: float = 0.0
    limit: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.most < 1 or any(not 1 <= one <= self.most for one in self.preferred):
            raise InvalidInputError(
                f"the preferred sizes {list(self.preferred)} are not between 1 and {self.most}",
                hint="raise the maximum, or leave the preferred sizes out",
            )
        if not 0 <= self.delay_s <= 60:
            raise InvalidInputError(f"a delay of {self.delay_s:g} s is not between 0 and 60 s")

    @property
    def enough(self) -> int:
        """The number of rows that no longer wait for others."""
        return min(self.preferred, default=self.most)

    def size_of(self, rows: int) -> int:
        """Return the rows of the run for a group: few sizes, as each needs a separate plan."""
        powers = {1 << bit for bit in range(self.most.bit_length())}
        fits = [size for size in {*powers, *self.preferred, self.most} if size >= rows]
        return min(fits, default=rows)


def reason_against(inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> str | None:
    """Return why requests for a network cannot be joined; None if the shapes allow it."""
    for kind, args in (("input", inputs), ("output", outputs)):
        for arg in args:
            if not arg.type.startswith("tensor(") or arg.shape is None:
                return f"the {kind} '{arg.name}' is not a tensor of known rank"
            if not arg.shape:
                return f"the {kind} '{arg.name}' is a scalar"
            if isinstance(arg.shape[0], int):
                return f"the first axis of the {kind} '{arg.name}' is fixed to {arg.shape[0]}"
    return None if inputs else "the network has no inputs"


def rows_of(feeds: Feeds) -> int:
    """Return the size of the first axis of all feeds; 0 if they have none in common."""
    sizes = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
    return sizes.pop() if len(sizes) == 1 else 0


def key_of(feeds: Feeds) -> Hashable:
    """Return the key that feeds need in common to be joined."""
    return tuple(sorted((n, one.dtype.str, one.shape[1:]) for n, one in feeds.items()))


def joined(group: Sequence[Feeds], size: int) -> dict[str, Array]:
    """Return the feeds of one run of `size` rows: those of the group, then copies of a row."""
    made = {}
    for name in group[0]:
        parts = [feeds[name] for feeds in group]
        missing = size - sum(part.shape[0] for part in parts)
        if missing > 0:
            parts.append(np.repeat(parts[0][:1], missing, axis=0))
        made[name] = np.concatenate(parts)
    return made


def split(counts: Sequence[int], outputs: Sequence[Array], size: int) -> list[list[Array]]:
    """Return the outputs of each request of a run.

    Args:
        counts: the rows of each request.
        outputs: the outputs of the run.
        size: the rows of the run.

    Raises:
        InvalidInputError: an output has another number of rows.
    """
    for array in outputs:
        if not array.ndim or array.shape[0] != size:
            raise InvalidInputError(
                f"an output of shape {list(array.shape)} does not have {size} rows"
            )
    ends = np.cumsum([0, *counts]).tolist()
    return [[array[start:end] for array in outputs] for start, end in itertools.pairwise(ends)]
