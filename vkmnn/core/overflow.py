"""Handling of finite float32 numbers that overflow in float16."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.core.execution import Command
from vkmnn.errors import Float16OverflowError, plural

_log = logging.getLogger(__name__)

Action = Literal["warn", "high", "raise"]

MAX_REPEATS = 4
"""Number of attempts to keep further ops in float32 before the whole network is."""

HINT = (
    'open the session with on_overflow="high", which runs this op in float32, or with '
    'precision="high"'
)


@dataclass(frozen=True, slots=True)
class Overflowed:
    """An op with a result, or an operand, that overflowed in float16.

    Attributes:
        label: the name of the step in profiles.
        tensor: the tensor with the infinite number.
        op: its type.
        node: its name in the model.
        names: the ops and tensors that must keep float32 to avoid the overflow.
    """

    label: str
    tensor: str
    op: str
    node: str
    names: frozenset[str]


def overflow_of(
    command: Command, tensors: Sequence[str], owner: Command | None = None
) -> Overflowed:
    """Return the description of a command with an operand or result in `tensors`.

    A tensor that overflows in one place does so wherever else it is narrowed, so all its readers
    have to keep float32.

    Args:
        command: the step.
        tensors: tensors by their names in the network; "" for absent ones.
        owner: the op of the network that the step belongs to, if it is another.
    """
    op = (owner or command).op
    named = [name for name in tensors if name]
    names = frozenset({command.owner or command.op.name, *named})
    return Overflowed(command.op.name, named[0], op.type, op.source or op.name, names)


class OverflowWatch:
    """Reaction of a session to overflow, shared by all its backends and plans.

    Args:
        action: "warn" logs it once per op; "raise" raises; so does "high", for the session
            to repeat the run with these ops in float32.
    """

    def __init__(self, action: Action) -> None:
        self.action = action
        self._told: set[tuple[str, str]] = set()
        self._repeats = 0

    def note(self, found: Sequence[Overflowed]) -> None:
        """Handle the overflows of a run.

        Raises:
            Float16OverflowError: `action` is not only to log.
        """
        if not found:
            return
        first = found[0]
        more = f", as in {plural(len(found) - 1, 'other op')}" if len(found) > 1 else ""
        message = (
            f"'{first.tensor}' holds a number beyond ±65504, which became infinite in float16 and "
            f"would not in float32{more}"
        )
        if self.action != "warn":
            names = frozenset().union(*(one.names for one in found))
            hint = None if self.action == "high" else HINT
            raise Float16OverflowError(message, names, op=first.op, node=first.node, hint=hint)
        for one in found:
            if (one.op, one.node) not in self._told:
                self._told.add((one.op, one.node))
                _log.warning(
                    "%s '%s': '%s' holds a value beyond ±65504, which is finite in float32 but "
                    "became "
                    "infinite in float16; %s",
                    *(one.op, one.node, one.tensor, HINT),
                )

    def widened(self, error: Float16OverflowError, full: frozenset[str]) -> frozenset[str] | None:
        """Return further names to keep in float32 besides `full`; none means the whole network.

        Returns:
            None if the error is to be raised.
        """
        if self.action != "high":
            return None
        self._repeats += 1
        whole = error.names <= full or self._repeats > MAX_REPEATS
        what = "the network runs" if whole else "this op, and those that read its results, run"
        _log.warning(
            "%s '%s': %s; %s in float32 from now on", error.op, error.node, error.message, what
        )
        return frozenset() if whole else full | error.names
