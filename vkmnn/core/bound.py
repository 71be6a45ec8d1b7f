"""Runs on inputs and outputs in fixed memory, and runs that do not block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from vkmnn.core.backend import Backend, Segment
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.errors import InvalidInputError

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


class Shared(Protocol):
    """A plan with several users, released when the last one closes it."""

    def retain(self) -> None: ...

    def close(self) -> None: ...

    def give_back(self, lane: Lane) -> None: ...


class Dependent(Protocol):
    """An object that holds plans of a session and is closed with it."""

    def plan_anew(self) -> None:
        """Replace the plans: the session now plans differently."""

    def close(self, lost: bool = False) -> None:
        """Release memory and plans; `lost` says that they were lost with the device."""


class Bound(ABC):
    """A network with its inputs and outputs bound to tensors.

    Attributes:
        inputs: inputs of a run, by name.
        outputs: its outputs.
        copies: whether a run copies between them and the plan's own memory.
    """

    copies: bool

    def __init__(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self.closed = False

    def run(self) -> None:
        """Run once.

        Raises:
            InvalidInputError: it is closed, with its session or by a lost device; or a kernel
                reported an invalid value.
        """
        if self.closed:
            raise InvalidInputError(
                "the bound run has been closed", hint="bind again, in a session that is open"
            )
        self._run()

    def plan_anew(self) -> None:  # noqa: B027 - may hold no plan
        """Replace the plan: the session now plans differently."""

    def close(self, lost: bool = False) -> None:
        """Release its share of the plan; the tensors stay."""
        if not self.closed:
            self.closed = True
            self._close()

    @abstractmethod
    def _run(self) -> None:
        """Run once."""

    def _close(self) -> None:  # noqa: B027 - may hold nothing
        """Release."""


class BoundPlan(Bound):
    """A plan re-recorded on the tensors themselves: a run is one submit and one wait."""

    copies = False

    def __init__(
        self,
        plan: Shared,
        segment: Segment,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        super().__init__(inputs, outputs)
        self._plan = plan
        self._segment = segment
        self.again: Callable[[], BoundPlan | None] = lambda: None
        """Returns the same on the plan that the session has now, or None if that is impossible."""
        plan.retain()

    def plan_anew(self) -> None:
        made = None if self.closed else self.again()
        if made is not None:
            self._close()
            self._plan, self._segment = made._plan, made._segment

    def _run(self) -> None:
        self._segment.replay()

    def _close(self) -> None:
        self._segment.close()
        self._plan.close()


class CopyingRun(Bound):
    """A network with several steps or off the device: runs as usual, with copies around."""

    copies = True

    def __init__(
        self,
        run: Run,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
    ) -> None:
        super().__init__(inputs, outputs)
        self._do = run

    def _run(self) -> None:
        results = self._do({name: as_array(tensor) for name, tensor in self.inputs.items()})
        for name, tensor in self.outputs.items():
            tensor.copy_from(results[name])


class Lane:
    """A plan re-recorded on its own inputs and outputs, so that runs in two lanes can overlap.

    Args:
        segment: the plan's segment, as recorded for the lane.
        constants: outputs that no run changes.
        names: the outputs.
    """

    def __init__(
        self, segment: Segment, constants: Mapping[str, Any], names: tuple[str, ...]
    ) -> None:
        self._segment = segment
        self._constants = constants
        self._names = names

    def begin(self, feeds: Mapping[str, Any]) -> None:
        """Write the inputs and submit."""
        self._segment.begin(dict(feeds))

    def end(self) -> dict[str, Any]:
        """Wait; return new arrays of the outputs."""
        host: dict[str, Any] = {}
        self._segment.end(host)
        return {
            name: self._constants[name].copy() if name in self._constants else host[name]
            for name in self._names
        }

    def close(self) -> None:
        """Release it after the current run."""
        self._segment.close()


class Begun:
    """A run in progress in a lane; the plan stays open until it has finished."""

    def __init__(self, plan: Shared, lane: Lane, backend: Backend) -> None:
        self._plan = plan
        self._lane = lane
        self._backend = backend
        plan.retain()

    def end(self) -> dict[str, Any]:
        """Wait for the run, and return its outputs.

        Raises:
            VkmnnError: as a run.
        """
        try:
            with self._backend.use():
                results = self._lane.end()
        except BaseException:
            self._lane.close()
            self._plan.close()
            raise
        self._plan.give_back(self._lane)
        self._plan.close()
        return results
