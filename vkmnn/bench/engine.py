"""The interface of an engine in benchmarks, and its job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkmnn.ir import Array


class EngineMissingError(Exception):
    """The engine cannot run here; the message says why, `hint` how to get it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Job:
    """The work of an engine.

    Attributes:
        model: an ONNX file.
        feeds: one array per input of the model, in their order.
        device: the selector of vkmnn's device.
        device_name: the device's name, by which other Vulkan engines find it.
        twin: how many devices before it have the same name.
        threads: threads of engines that run on the CPU.
        folder: for files that are worth keeping between runs, such as converted models.
        options: further options of an engine, such as "precision".
    """

    model: Path
    feeds: Mapping[str, Array]
    device: str
    device_name: str
    twin: int
    threads: int
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """A model on an engine, in a separate process."""

    @abstractmethod
    def load(self, job: Job) -> None:
        """Prepare the model to run.

        Raises:
            EngineMissingError: the engine is not installed, or cannot run here.
        """

    @abstractmethod
    def run(self) -> list[Array]:
        """Run once, from arrays to arrays, and return the outputs in the model's order."""

    def facts(self) -> dict[str, Any]:
        """Return further facts after a run, such as memory."""
        return {}
