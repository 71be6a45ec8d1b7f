"""What the front end reads: a program of torch.export, or a TorchScript module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NEXT = "/next"
"""Ending of the outputs that have new values: of states, and of inputs that are written."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program of torch.export.

    Attributes:
        program: the `torch.export.ExportedProgram`.
        name: what its graph is called.
    """

    program: Any
    name: str = "torch"


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """A TorchScript module.

    Attributes:
        module: the `torch.jit.ScriptModule`.
        name: what its graph is called.
        args: example arguments, tensors; None where only the caller's shapes are known.
    """

    module: Any
    name: str = "torch"
    args: tuple[Any, ...] | None = None
