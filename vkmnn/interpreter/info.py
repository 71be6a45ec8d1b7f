"""What a session says of itself."""

from __future__ import annotations

import enum

from vkmnn.core.backend import MemoryUse
from vkmnn.records import dataclass


class SessionStatus(enum.Enum):
    """What a session needs before it can run."""

    READY = "ready"
    NEEDS_MEMORY = "needs memory"
    """Its plans were released; the next run, or `resize_session`, makes one for the same shapes."""
    NEEDS_RESIZE = "needs resize"
    """The shape of an input has changed, or none was known; `resize_session` plans."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a session takes, and where it runs.

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
