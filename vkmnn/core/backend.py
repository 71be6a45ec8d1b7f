"""The backend interface: creates executions and prepares commands to be run repeatedly."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.device_tensor import DeviceTensor, HostStorage
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.errors import Float16OverflowError, VkmnnError, VoidRunError
from vkmnn.ir import Array, DType, Op, PackedForm

TensorPurpose = Literal["device", "upload", "readback"]
"""How the host uses a tensor in addition to feeding it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one step of a segment, with its op ("" for a copy to the host) and its kernel.

    `choice` says how the kernel was chosen: "rule", "tuned", or "" if there was only one.
    `start_us` is when the step started, on the clock of `time.perf_counter_ns`.
    """

    op: str
    kernel: str
    microseconds: float
    choice: str = ""
    start_us: float = 0.0


@dataclass(frozen=True, slots=True)
class HostCall:
    """A host call to the device, "submit" or "wait"; times in microseconds, as in `Timing`."""

    name: str
    start_us: float
    microseconds: float


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """A choice between kernels, decided by measurement.

    `ops` are the ops that share the choice; `rule` is the rules' choice, both kernels by their
    readable names. Times are those of one of the ops, in microseconds.
    """

    what: str
    problem: str
    ops: tuple[str, ...]
    rule: str
    taken: str
    rule_us: float
    taken_us: float
    rule_name: str = ""
    taken_name: str = ""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of tuning a network.

    `choices` is empty if no op has a choice. `before_us` and `after_us` are the median times of
    whole runs, alternating, in microseconds: with the previous kernels, and with those that
    measured fastest op by op; both are 0 if these are the same. `kept`: the latter are now in use.
    """

    choices: tuple[TunedChoice, ...] = ()
    before_us: float = 0.0
    after_us: float = 0.0
    kept: bool = True

    @property
    def changed(self) -> tuple[TunedChoice, ...]:
        """The choices whose fastest kernel is not the rules' choice."""
        return tuple(choice for choice in self.choices if choice.taken != choice.rule)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Device memory of a plan in bytes.

    `activations` holds all temporaries, which share memory by lifetime; `lower_bound` is the
    minimum for any placement of them. `constants` is shared by the plans of a session.
    """

    activations: int = 0
    lower_bound: int = 0
    constants: int = 0
    io: int = 0


class TunablePlan(Protocol):
    """The parts of a plan that a backend needs to tune it."""

    def execute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run it once."""

    def timings(self) -> list[tuple[str, Timing]]:
        """Return (backend, timing) of every step of the last run."""

    def close(self) -> None:
        """Release it."""


class OpsRejectedError(VkmnnError):
    """A backend cannot run ops that it accepted; known only once their kernels are.

    `reasons` maps names of ops to reasons. The plan is made again without them.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in self.reasons.items()))


class Segment(ABC):
    """Consecutive commands on one backend, prepared for repeated runs.

    `busy_us` is the backend's own part of the last run in microseconds: submit and wait on a
    device, the executions on numpy. The rest of `run` is Python around it. `takes_device_tensors`
    says that `run` may read DeviceTensors.
    """

    busy_us: float = 0.0
    takes_device_tensors: bool = False

    @abstractmethod
    def run(self, host: dict[str, Array]) -> None:
        """Run once.

        Args:
            host: arrays by tensor name; the segment's external inputs are read from it, and results
                for others are stored in it.
        """

    def forget_arrays(self) -> bool:
        """Forget the constants in the host's memory; False if runs read them.

        `bound` segments keep running, but nothing can be bound any more.
        """
        return False

    def begin(self, host: dict[str, Array]) -> None:
        """Do the part of `run` that need not wait; `end` does the rest. Segments may overlap."""
        self.run(host)

    def end(self, host: dict[str, Array] | None) -> None:  # noqa: B027 - most never wait
        """Finish a run that `begin` started; without `host`, results stay on the device."""

    def replay(self) -> None:
        """Run a segment returned by `bound` on the current contents of its tensors."""
        raise NotImplementedError

    def bound(
        self,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
        resident: Collection[str] = (),
    ) -> Segment | None:
        """Return a copy of the segment that reads and writes these tensors in place.

        It shares memory with this one and must be closed before it.

        Args:
            inputs: tensors that the host provides.
            outputs: tensors that the host reads.
            resident: those of them that the host does not touch when it begins and ends a run.

        Returns:
            None if that is impossible: a tensor has another form on the device, or is not on it.
        """
        return None

    def overflowed(self) -> Collection[str]:
        """Return the names of ops with results, or operands, that overflowed in float16 so far."""
        return ()

    def timings(self) -> list[Timing]:
        """Return the time of every step of the last run; needs a backend from `timed`."""
        return []

    def calls(self) -> list[HostCall]:
        """Return the host calls to the device in the last run."""
        return []

    def memory(self) -> MemoryUse:
        """Return the device memory of the plan that the segment is part of."""
        return MemoryUse()

    def close(self) -> None:  # noqa: B027 - most segments own nothing
        """Release the segment's resources."""


class Backend(ABC):
    """A session's use of a device (MNN Backend).

    `type` names it in placements ("VULKAN", "CPU"); `uses_geometry` says that data movement is
    lowered to Raster before executions are created; `records` that segments can be `bound`;
    `threads` how many ops it runs at once on the host.
    """

    type: str
    uses_geometry: bool
    records: bool = False
    threads: int = 1

    @abstractmethod
    def on_create(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Execution | Rejection:
        """Return an execution for the op, or the reason it cannot run here."""

    @abstractmethod
    def on_resize_begin(self, commands: Sequence[Command]) -> list[Command]:
        """Take the whole plan's commands before segments are built; may insert conversions.

        Only here may a backend change the forms of tensors, by `Tensor.take_form`, and only of its
        own commands' results. They are final when it returns.
        """

    @abstractmethod
    def on_resize_end(
        self,
        segments: Sequence[Sequence[Command]],
        kept: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> list[Segment]:
        """Plan memory and prepare this backend's segments.

        Args:
            segments: the command lists of this backend, in running order.
            kept: tensors that the host reads after a segment has run (outputs, inputs of other
                backends).
            inputs: tensors that the host provides (graph inputs, outputs of other backends).

        Raises:
            OpsRejectedError: some ops must run elsewhere; nothing has been allocated.
        """

    def on_execute_begin(self) -> None:  # noqa: B027 - most do all they do in segments
        """Called when a run starts.

        Called before the first segment of any backend, and only for backends that do not record.
        """

    def on_execute_end(self) -> None:  # noqa: B027 - see above
        """Called when a run has ended, successfully or not; the backup first."""

    @abstractmethod
    def timed(self) -> Backend:
        """Return a backend on the same device whose segments time their steps, for profiles.

        Raises:
            InvalidInputError: the device cannot measure time.
        """

    def tune(
        self,
        make_plan: Callable[[Backend], TunablePlan],
        feeds: Mapping[str, Array],
        runs: int,
        progress: Callable[[int, int], object] | None,
        limit_s: float = math.inf,
    ) -> Tuning:
        """Measure the kernels a plan could use; keep the fastest if the whole run gets faster.

        Args:
            make_plan: creates the plan on a backend.
            feeds: arrays to run it on.
            runs: runs per candidate.
            limit_s: seconds after which no further candidate is tried.
            progress: called with (done, total) after every trial; `total` may grow.

        Returns:
            The outcome of every choice.
        """
        return Tuning()

    def suggest(  # noqa: B027 - a backend may have no choices
        self, tuned: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Use kernels that a model file lists as fastest, unless this machine has measured its own.

        Args:
            tuned: candidates by choice, for each device by its key.
        """

    def offer(self, forms: Sequence[PackedForm]) -> None:  # noqa: B027 - or read constants plain
        """Use constants in the forms of a model file, where kernels read these.

        Args:
            forms: constants that need not be packed, in place of those offered before.
        """

    def collect_forms(self) -> None:  # noqa: B027 - as above
        """Record packed constants from now on, for `packed_forms`."""

    def packed_forms(self) -> list[PackedForm]:
        """Return the constants packed since `collect_forms`."""
        return []

    def measured(self) -> tuple[str, Mapping[str, str]]:
        """Return the device's key, and the measurements of the choices of its plans."""
        return "", {}

    @property
    def tunes_new_plans(self) -> bool:
        """Whether new plans are to be tuned."""
        return False

    def holds(self, dtype: DType) -> bool:
        """Return whether the backend can store elements of a numpy type."""
        return True

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, purpose: TensorPurpose = "device"
    ) -> DeviceTensor:
        """Return a tensor of zeros in the backend's memory, or the host's if it cannot `hold` it.

        Args:
            shape: its sizes.
            dtype: the type of its elements, one that numpy has.
            purpose: "upload" for tensors that the host writes often, "readback" for tensors that it
                reads often.

        Raises:
            OutOfDeviceMemoryError: there is not enough memory.
        """
        return DeviceTensor(shape, dtype, HostStorage(np.zeros(shape, dtype.numpy)))

    def counters(self) -> dict[str, int]:
        """Count the expensive operations that a run should avoid; see `Session.counters`."""
        return {}

    def trim(self) -> None:  # noqa: B027 - a backend may keep nothing
        """Free everything that is cached only for speed."""

    def reopened(self) -> Backend:
        """Return an equivalent backend after a device loss, on the same device reopened."""
        return self

    @property
    def lost(self) -> bool:
        """Whether its device is lost, so that only `reopened` can compute again."""
        return False

    def after(self, error: VoidRunError) -> Backend | None:
        """Return a backend on which the error does not recur; None to raise instead."""
        return self.widened(error) if isinstance(error, Float16OverflowError) else None

    def widened(self, error: Float16OverflowError) -> Backend | None:
        """Return a backend that keeps overflowed tensors in float32; None to raise instead.

        It may keep more than that, up to the whole network.
        """
        return None

    def use(self) -> AbstractContextManager[None]:
        """Return a context manager that keeps the device open."""
        return nullcontext()

    def close(self) -> None:  # noqa: B027 - a backend may own nothing
        """Release the backend's resources."""
