"""The numpy backup backend: runs any op of the vocabulary on arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice

from vkmnn.core.backend import Backend, Segment, Timing
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.kernels import create
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback.registry import CpuExecution, has_execution, run_op
from vkmnn.ir import Array, Op, TensorInfo


class NumpyExecution(Execution):
    """One op on numpy."""

    def on_execute(
        self, inputs: Sequence[Array | None], outputs: Sequence[TensorInfo]
    ) -> list[Array]:
        """Return the op's outputs."""
        return run_op(self.op, inputs, outputs)


class CpuKernel(NumpyExecution):
    """An op computed by a plug-in's code, made anew for every plan.

    A subclass may override `prepare`, which is called once for the plan's shapes; what it keeps in
    `self` is there in all runs.

    Raises:
        Rejection: raised by `prepare`, the kernel cannot run this op.
    """

    def __init__(self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        super().__init__(op, inputs, outputs)
        self.prepare()

    def prepare(self) -> None:
        """Plan what shapes and attributes decide, or raise Rejection."""

    def compute(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Return all outputs; it must not change the inputs, None where one is absent."""
        raise NotImplementedError

    def on_execute(
        self, inputs: Sequence[Array | None], outputs: Sequence[TensorInfo]
    ) -> list[Array]:
        """Return the op's outputs; what `compute` raises becomes a typed error."""
        return run_op(self.op, inputs, outputs, lambda op, given, infos: self.compute(given))


class FunctionKernel(CpuKernel):
    """An op computed by a function of op and inputs."""

    function: CpuExecution

    def compute(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Call the function."""
        return type(self).function(self.op, inputs)


class CpuSegment(Segment):
    """Consecutive numpy ops; `steps` pairs each command with the arrays that die after it."""

    def __init__(self, steps: Sequence[tuple[Command, Sequence[str]]]) -> None:
        self._steps = steps
        self._times = [(0, 0)] * len(steps)  # start and end in nanoseconds

    def run(self, host: dict[str, Array]) -> None:
        """Run the ops in order on the arrays in `host`."""
        for number, (command, dead) in enumerate(self._steps):
            execution = command.execution
            assert isinstance(execution, NumpyExecution)
            inputs = [
                None
                if tensor is None
                else host[tensor.name]
                if tensor.value is None
                else tensor.value
                for tensor in command.inputs
            ]
            infos = [tensor.info for tensor in command.outputs]
            start = time.perf_counter_ns()
            results = execution.on_execute(inputs, infos)
            self._times[number] = (start, time.perf_counter_ns())
            pairs = zip(command.op.outputs, results, strict=True)
            host.update((name, array) for name, array in pairs if name)
            for name in dead:
                del host[name]
        self.busy_us = sum(end - start for start, end in self._times) / 1000

    def timings(self) -> list[Timing]:
        """Return the time of every op in the last run."""
        return [
            Timing(command.op.name, "numpy", (end - start) / 1000, start_us=start / 1000)
            for (command, _), (start, end) in zip(self._steps, self._times, strict=True)
        ]


class CpuBackend(Backend):
    """The backend of last resort and of constant folding."""

    type = "CPU"
    uses_geometry = False

    def on_create(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Execution | Rejection:
        """Return an execution, or a rejection when numpy has no kernel of that op."""
        own = NumpyExecution if has_execution(op.type) else None
        made = create(self.type, own, op, inputs, outputs)
        return made or Rejection(f"the CPU backend has no execution for {op.type}")

    def timed(self) -> CpuBackend:
        """Return the backend itself: its ops are always timed."""
        return self

    def on_resize_begin(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands unchanged: numpy arrays are always in plain order."""
        return list(commands)

    def on_resize_end(
        self,
        segments: Sequence[Sequence[Command]],
        kept: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> list[Segment]:
        """Return a segment per command list; arrays are dropped after their last reader."""
        commands = [command for segment in segments for command in segment]
        last: dict[str, int] = {}
        for step, command in enumerate(commands):
            for tensor in (*command.outputs, *command.inputs):
                if tensor is not None and tensor.value is None:
                    last[tensor.name] = step
        dying: dict[int, list[str]] = {}
        for command in commands:
            for out in command.outputs:
                if out.name not in kept:
                    dying.setdefault(last[out.name], []).append(out.name)
        steps = iter((command, dying.get(step, [])) for step, command in enumerate(commands))
        return [CpuSegment(list(islice(steps, len(segment)))) for segment in segments]
