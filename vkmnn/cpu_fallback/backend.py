"""The numpy backup backend: runs any op of the vocabulary on arrays."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, islice

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.base.lazy_array import whole
from vkmnn.base.threads import Workers
from vkmnn.core.backend import Backend, Segment, Timing
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.kernels import create
from vkmnn.core.overflow import Overflowed, OverflowWatch
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback.kernel import CpuKernel, NumpyExecution
from vkmnn.cpu_fallback.narrow_floats import NarrowRunner, forms_of
from vkmnn.cpu_fallback.registry import has_execution
from vkmnn.cpu_fallback.scratch import Arena
from vkmnn.errors import Float16OverflowError
from vkmnn.ir import Array, Op


class CpuSegment(Segment):
    """Consecutive numpy ops.

    Args:
        steps: the commands, each with the arrays that die after it.
        workers: runs independent ops in parallel; None to run them in order.
        narrow: works on floats that are stored narrow; None where they are float32.
        watch: handles overflows; None to ignore them.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Command, Sequence[str]]],
        workers: Workers | None = None,
        narrow: NarrowRunner | None = None,
        watch: OverflowWatch | None = None,
    ) -> None:
        self._narrow = narrow
        self._watch = watch
        self._found: list[Overflowed] = []
        self._seen: set[str] = set()
        self._steps = steps
        self._workers = workers
        self._waves = _waves([command for command, _ in steps]) if workers else []
        self._dead = _dead(steps, self._waves)
        self._times = [(0, 0)] * len(steps)  # start and end in nanoseconds

    def run(self, host: dict[str, Array]) -> None:
        """Run the ops on the arrays in `host`, in order or several at once."""
        start = time.perf_counter_ns()
        self._found = []
        if self._workers is not None:
            self._run_at_once(host, self._workers)
            self.busy_us = (time.perf_counter_ns() - start) / 1000
            self._note_overflows()
            return
        for number, (_, dead) in enumerate(self._steps):
            host.update(self._run_one(number, host))
            for name in dead:
                del host[name]
        self.busy_us = sum(end - start for start, end in self._times) / 1000
        self._note_overflows()

    def _note_overflows(self) -> None:
        if self._found and self._watch is not None:
            self._seen.update(one.label for one in self._found)
            self._watch.note(self._found)

    def overflowed(self) -> Collection[str]:
        """Return the ops that have overflowed in float16."""
        return self._seen

    def _run_at_once(self, host: dict[str, Array], workers: Workers) -> None:
        for wave in self._waves:
            others = [workers.submit(self._run_one, number, host) for number in wave[1:]]
            try:
                made = [self._run_one(wave[0], host)]
            finally:
                for other in others:  # none may read `host` once the run has ended
                    other.exception()
            for results in (*made, *(other.result() for other in others)):
                host.update(results)
            for name in self._dead[wave[0]]:
                del host[name]

    def _run_one(self, number: int, host: Mapping[str, Array]) -> dict[str, Array]:
        command, _ = self._steps[number]
        execution = command.execution
        assert isinstance(execution, NumpyExecution)
        inputs = [
            None
            if tensor is None
            else whole(tensor.value if tensor.value is not None else host[tensor.name])
            for tensor in command.inputs
        ]
        infos = [tensor.info for tensor in command.outputs]
        start = time.perf_counter_ns()
        if self._narrow is None:
            results = execution.on_execute(inputs, infos)
        else:
            results = self._narrow.run(
                command, inputs, lambda given: execution.on_execute(given, infos), self._found
            )
        self._times[number] = (start, time.perf_counter_ns())
        pairs = zip(command.op.outputs, results, strict=True)
        return {name: array for name, array in pairs if name}

    def timings(self) -> list[Timing]:
        """Return the time of every op in the last run."""
        return [
            Timing(command.op.name, "numpy", (end - start) / 1000, start_us=start / 1000)
            for (command, _), (start, end) in zip(self._steps, self._times, strict=True)
        ]


def _waves(commands: Sequence[Command]) -> list[list[int]]:
    """Return groups of command numbers; no command reads another's output within its group."""
    level: dict[str, int] = {}
    levels = []
    for command in commands:
        read = (level.get(tensor.name, 0) for tensor in command.inputs if tensor is not None)
        levels.append(max(read, default=0))
        level.update((tensor.name, levels[-1] + 1) for tensor in command.outputs)
    order = sorted(range(len(commands)), key=lambda number: levels[number])
    return [list(group) for _, group in groupby(order, key=lambda number: levels[number])]


def _dead(
    steps: Sequence[tuple[Command, Sequence[str]]], waves: Sequence[Sequence[int]]
) -> dict[int, list[str]]:
    """Return the tensors that die after each wave, by the wave's first command."""
    dying = {name for _, dead in steps for name in dead}
    last: dict[str, int] = {}
    for wave in waves:
        for number in wave:
            for tensor in (*steps[number][0].outputs, *steps[number][0].inputs):
                if tensor is not None and tensor.name in dying:
                    last[tensor.name] = wave[0]
    return {wave[0]: [name for name, at in last.items() if at == wave[0]] for wave in waves}


def _is_own(command: Command) -> bool:
    return type(command.execution) is NumpyExecution


class CpuBackend(Backend):
    """The backend for ops without another one, and for constant folding.

    Args:
        threads: how many ops may run at once; numpy's own threads are its own matter.
        element: how floats are stored where their range allows it.
        arithmetic: the type in which narrow floats are computed.
        overflows: handles overflows in narrow floats; None to ignore them.
        full: names of ops, and of tensors whose readers, keep float32 all the same.
    """

    type = "CPU"
    uses_geometry = False

    def __init__(
        self,
        threads: int = 1,
        element: FloatElement = "f32",
        arithmetic: FloatElement = "f32",
        overflows: OverflowWatch | None = None,
        full: frozenset[str] = frozenset(),
    ) -> None:
        self.threads = threads
        self._element = element
        self._arithmetic = arithmetic
        self._overflows = overflows
        self._full = full
        self._arena = Arena()
        self._workers = Workers(threads - 1, "vkmnn-numpy") if threads > 1 else None

    def on_create(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Execution | Rejection:
        """Return an execution, or a rejection when numpy has no kernel of that op."""
        own = NumpyExecution if has_execution(op.type) else None
        made = create(self.type, own, op, inputs, outputs)
        if isinstance(made, CpuKernel):
            made.use_arena(self._arena)
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
        narrow = None
        if self._element != "f32":
            forms = forms_of(commands, _is_own, self._element, self._arithmetic, self._full)
            narrow = NarrowRunner(commands, forms, kept, self._element)
        steps = iter((command, dying.get(step, [])) for step, command in enumerate(commands))
        return [
            CpuSegment(list(islice(steps, len(segment))), self._workers, narrow, self._overflows)
            for segment in segments
        ]

    def widened(self, error: Float16OverflowError) -> CpuBackend | None:
        """Return a backend that keeps overflowed tensors in float32; see `Backend`."""
        watch = self._overflows if FLOATS[self._element].overflows else None
        full = watch.widened(error, self._full) if watch is not None else None
        if full is None:
            return None
        self.close()
        if not full:
            return CpuBackend(self.threads, overflows=watch)
        return CpuBackend(self.threads, self._element, self._arithmetic, watch, full)

    def trim(self) -> None:
        """Free the memory that kernels use while they compute."""
        self._arena.trim()

    def close(self) -> None:
        """End the threads."""
        if self._workers is not None:
            self._workers.close()
