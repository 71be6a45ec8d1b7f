"""Modes of an interpreter's sessions (MNN's session modes), one enumeration per setting."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Owner(enum.Enum):
    """Who owns the memory of inputs, or of outputs."""

    SESSION = "session"
    """The session's: `copy_from` copies, and results are new arrays."""
    USER = "user"
    """The caller's: inputs are read in place, results written to the caller's memory."""


class PlanTime(enum.Enum):
    """When a session is planned."""

    DIRECT = "direct"
    """On creation, if the model fixes all shapes."""
    DEFER = "defer"
    """When `resize_session` is called."""


class Shapes(enum.Enum):
    """Effect of other input shapes."""

    CHECK = "check"
    """Other shapes are planned, and plans are kept."""
    FIX = "fix"
    """They are refused: the shapes of the first plan stay."""


class BackendChoice(enum.Enum):
    """Choice between the device and numpy."""

    FIX = "fix"
    """The configuration."""
    AUTO = "auto"
    """By measurement: the first plan keeps the faster one."""


@dataclass(frozen=True, slots=True)
class SessionModes:
    """Modes of sessions.

    Args:
        debug: callbacks before and after ops are possible; False refuses them.
        inputs: who owns the memory of inputs.
        outputs: who owns the memory of outputs.
        plan: when sessions are planned.
        shapes: the reaction to other input shapes.
        backend: who chooses between the device and numpy.
        passes: the network is optimised; False runs it as the model's file has it, an op or
            several for each node.
        without_passes: names of passes that are left out; `docs/extending/pass.md` lists them.
    """

    debug: bool = True
    inputs: Owner = Owner.SESSION
    outputs: Owner = Owner.SESSION
    plan: PlanTime = PlanTime.DIRECT
    shapes: Shapes = Shapes.CHECK
    backend: BackendChoice = BackendChoice.FIX
    passes: bool = True
    without_passes: tuple[str, ...] = ()
