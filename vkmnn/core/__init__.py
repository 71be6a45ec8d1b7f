"""The abstract engine: backends, executions, pipelines, sessions; no Vulkan, no numpy kernels."""

from __future__ import annotations

from vkmnn.core.backend import Backend, Segment
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.pipeline import Pipeline
from vkmnn.core.placement import PlacedOp, Placement
from vkmnn.core.registry import Registry
from vkmnn.core.session import Session
from vkmnn.core.tensor import Tensor, Usage

__all__ = [
    "Backend",
    "Command",
    "Execution",
    "Pipeline",
    "PlacedOp",
    "Placement",
    "Registry",
    "Rejection",
    "Segment",
    "Session",
    "Tensor",
    "Usage",
]
