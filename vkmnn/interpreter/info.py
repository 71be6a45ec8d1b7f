"""Status and cost of a session."""

from __future__ import annotations

import enum

from vkmnn.base.records import dataclass
from vkmnn.core.backend import MemoryUse


class SessionStatus(enum.Enum):
    """State of a session before it can run."""

    READY = "ready"
    NEEDS_MEMORY = "needs memory"
    """Plans were released; the next run, or `resize_session`, plans again."""
    NEEDS_RESIZE = "needs resize"
    """The shape of an input has changed, or none was known; `resize_session` plans."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Memory and work of a session, and its device.

    Attributes:
        memory: device memory of the plans in use, in bytes.
        flops: floating-point operations of a run, without those of nodes that only the host runs.
        backends: the backends that ops run on, the main one first: "VULKAN", "CPU".
        state: whether it can run.
        threads: how many ops the CPU backend may run at once.
    """

    memory: MemoryUse
    flops: int
    backends: tuple[str, ...]
    state: SessionStatus
    threads: int
