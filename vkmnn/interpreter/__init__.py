"""The MNN-shaped face: an Interpreter holds a network, Sessions run it."""

from __future__ import annotations

from vkmnn.interpreter.info import SessionInfo, SessionStatus
from vkmnn.interpreter.modes import BackendChoice, Owner, PlanTime, SessionModes, Shapes
from vkmnn.interpreter.net import Interpreter
from vkmnn.interpreter.session import Session
from vkmnn.interpreter.tensor import SessionTensor

__all__ = [
    "BackendChoice",
    "Interpreter",
    "Owner",
    "PlanTime",
    "Session",
    "SessionInfo",
    "SessionModes",
    "SessionStatus",
    "SessionTensor",
    "Shapes",
]
