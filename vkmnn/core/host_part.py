"""Ops that run on the host, as plans and profiles see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vkmnn.core.placement import PlacedOp
from vkmnn.core.plans import Planner
from vkmnn.ir import Op

Value = Any
"""An array; on the host also a list of arrays, a dictionary, or None."""


class HostPart(Protocol):
    """Some ops of the type HostGraph, ready to run."""

    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    busy_us: float
    start_us: float

    @property
    def engine(self) -> str:
        """The engine that runs them."""

    def __call__(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the outputs by name."""


class NestedProgram(Protocol):
    """A network inside a part."""

    @property
    def plans_made(self) -> int:
        """Number of plans created."""

    def host_ops(self) -> list[Op]:
        """Return its ops that only the host runs."""

    def engines(self) -> set[str]:
        """Return the engines of these ops."""

    def trim(self) -> None:
        """Close all plans except the most recently used."""


class NestedPart(ABC):
    """A HostPart that runs nested networks on the session's backends."""

    @property
    @abstractmethod
    def programs(self) -> Sequence[NestedProgram]:
        """The networks."""

    @abstractmethod
    def use(self, planner: Planner) -> None:
        """Use another planner from now on."""

    @abstractmethod
    def drop(self) -> None:
        """Close all plans."""

    @abstractmethod
    def placed(self) -> list[PlacedOp]:
        """Return where the ops of the networks that have run are placed."""
