"""Op-by-op runs with a callback before and after each op."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from vkmnn.base.records import dataclass


class Decision(enum.Enum):
    """Decision of a callback; `True` and None mean GO_ON."""

    GO_ON = "go on"
    SKIP = "skip"
    """Before an op: leave it out; its results are zeros."""
    STOP = "stop"
    """Stop the run; later ops have no results."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """An op that is about to run, or has run.

    Attributes:
        name: the op's name in the optimised network.
        type: its type, or the ONNX type of a node that only the host runs.
        source: its node in the model.
        flops: floating-point operations; 0 if the host runs it.
    """

    name: str
    type: str
    source: str
    flops: int


Callback = Callable[[OpCall, Mapping[str, Any]], "Decision | bool | None"]
"""Gets the op and its inputs (before) or its results (after), by tensor name."""


def decided(answer: object, no: Decision) -> Decision:
    """Return a callback's decision; False means `no`."""
    if isinstance(answer, Decision):
        return answer
    return no if answer is False else Decision.GO_ON
