"""Checks of values, on the host or on the device; failures raise."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.base.records import dataclass
from vkmnn.errors import IntegerRangeError, InvalidInputError
from vkmnn.ir import Array, DType
from vkmnn.runtime.memory import BufferRange

# Types that the device computes in int32 although they are wider.
WIDE_INTEGERS = frozenset({DType.INT64, DType.UINT64, DType.UINT32})

OVERFLOW_HINT = 'run this network with device="cpu", which keeps 64-bit integers'
INDEX_HINT = "check the indices (token ids, for example) against the table's size"

# Kernels report a failed check as this minus its number, so that the largest word, which an atomic
# maximum keeps, belongs to the first check.
_FIRST = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The range of allowed indices of an op, both ends included."""

    low: int
    high: int
    op: str
    node: str

    def check(self, array: Array, name: str) -> None:
        """Refuse indices outside the range.

        Raises:
            InvalidInputError: names the op, the value and the range.
        """
        if array.size and not self.low <= array.min() <= array.max() <= self.high:
            bad = array.max() if array.max() > self.high else array.min()
            raise InvalidInputError(
                f"input '{name}' holds the index {bad}, outside {self.low} to {self.high}",
                op=self.op,
                node=self.node,
                hint=INDEX_HINT,
            )


@dataclass(frozen=True, slots=True)
class Check:
    """A check by a kernel, and its error message."""

    op: str
    node: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Status:
    """The word in which a plan's kernels report failed checks; `checks[0]` has the number 1."""

    place: BufferRange
    checks: Sequence[Check]

    def reset(self) -> None:
        """Forget earlier failures; call it before every run."""
        self.place.buffer.set_word(self.place.offset, 0)

    def raise_failed(self) -> None:
        """Raise for the first check that failed since `reset`.

        Raises:
            InvalidInputError: names op and node.
        """
        word = self.place.buffer.word(self.place.offset)
        if word:
            failed = self.checks[_FIRST - word - 1]
            kind = IntegerRangeError if failed.hint == OVERFLOW_HINT else InvalidInputError
            raise kind(failed.message, op=failed.op, node=failed.node, hint=failed.hint)
