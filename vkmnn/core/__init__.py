"""The backend-independent engine: sessions, plans, executions and the backend interface."""

from __future__ import annotations

from vkmnn.core.backend import Backend, MemoryUse, Segment, Timing
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.placement import PlacedOp, Placement
from vkmnn.core.plan import Plan
from vkmnn.core.profile import Profile, ProfileEntry
from vkmnn.core.session import Session
from vkmnn.core.tensor import Tensor, Usage

__all__ = [
    "Backend",
    "Command",
    "Execution",
    "MemoryUse",
    "PlacedOp",
    "Placement",
    "Plan",
    "Profile",
    "ProfileEntry",
    "Rejection",
    "Segment",
    "Session",
    "Tensor",
    "Timing",
    "Usage",
]
