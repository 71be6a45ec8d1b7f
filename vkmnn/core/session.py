"""A Session runs one network on one main backend and keeps a plan per input shape."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from vkmnn.base.budget import Meter, unlimited
from vkmnn.base.records import dataclass
from vkmnn.core.backend import Backend, MemoryUse, Tuning
from vkmnn.core.bound import Begun, Bound, Dependent
from vkmnn.core.device_tensor import DeviceTensor, HostStorage
from vkmnn.core.futures import RunFuture, Submitter
from vkmnn.core.placement import Placement
from vkmnn.core.plan import Plan
from vkmnn.core.plans import TUNING_RUNS, Planner
from vkmnn.core.profile import Profile
from vkmnn.core.program import (
    NestNetworks,
    OpenHost,
    Program,
    Value,
    no_host,
    refuse_host_ops,
)
from vkmnn.core.shared_sizes import SharedSizes, shapes_of
from vkmnn.core.stages import Stage, cut, cut_everywhere
from vkmnn.core.static import StaticShapes
from vkmnn.core.watched import Callback
from vkmnn.errors import (
    DeviceLostError,
    IntegerRangeError,
    InvalidInputError,
    StateLostError,
    VkmnnError,
    VoidRunError,
    unexpected_error,
)
from vkmnn.ir import Array, DType, Graph, TensorInfo
from vkmnn.shape.folding import Evaluator

__all__ = ["TUNING_RUNS", "Session"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Options of planning and running.

    Args:
        max_plans: how many input shapes are kept planned, for each stage; None for as many as a
            memory budget allows. The least recently used is dropped first.
        require_main: refuse plans that put an op on the backup.
        meter: creates a meter of the limits of one load or plan.
        rebuild: when the device is lost, reopen it, plan again and repeat the call once.
        open_host: opens the parts that run ops of type HostGraph.
        nest: runs the graphs inside If, Loop and Scan as networks; None runs all of them on
            the host.
        static: state shared by sessions of a network of fixed shapes.
        told_apart: returns the network without the names that inputs share for sizes, for callers
            whose sizes contradict them; None refuses such sizes.
    """

    max_plans: int | None = None
    require_main: bool = False
    meter: Callable[[], Meter] = unlimited
    rebuild: bool = False
    open_host: OpenHost = no_host
    nest: NestNetworks | None = None
    static: StaticShapes | None = None
    told_apart: Callable[[SharedSizes], Graph] | None = None


class Session:
    """Plans of one network on one pair of backends; safe to use from several threads.

    Only one call runs at a time. `close` waits for a call in another thread; later calls are
    refused. A session belongs to the process that created it: in a forked child, it refuses all
    calls.

    A network with ops that only the host can run, or with shapes that depend on computed values,
    is cut into stages, which run in sequence ([why](docs/decisions/host-nodes.md)).

    Args:
        graph: the optimised network.
        main: the backend that is offered every op first; closed with the session.
        backup: runs ops that `main` rejects.
        evaluate: runs one op on arrays, for constant folding.
        settings: options of planning and running.
        changes: fields of `settings` with other values.

    Raises:
        PlacementError: `require_main` is set, and some op can only run on the host.
        UnsupportedOpError: no backend can run some op.
    """

    def __init__(
        self,
        graph: Graph,
        main: Backend,
        backup: Backend,
        evaluate: Evaluator,
        settings: SessionSettings | None = None,
        **changes: Any,
    ) -> None:
        settings = replace(settings or SessionSettings(), **changes)
        folding, kept = settings.meter(), settings.max_plans
        self._main = main
        self._backup = backup
        self._planner = Planner(
            main, backup, evaluate, folding.renewed, kept, settings.require_main
        )
        self._folding = folding
        self._open_host = settings.open_host
        self._nest = settings.nest
        self._watched: Program | None = None
        self._program = self._open_program(graph, settings.static)
        if main.type != backup.type:
            self._program.tell()
        self._former: list[Program] = []
        self._shared = SharedSizes(graph.inputs)
        self._told_apart = settings.told_apart if self._shared else None  # it holds the model
        self.graph = self._program.graph
        self._rebuild = settings.rebuild
        self._rebuild_failed = False
        self._lock = threading.RLock()
        self._closed = False
        self._submitter: Submitter | None = None
        self._dependents: weakref.WeakSet[Dependent] = weakref.WeakSet()
        self._process = os.getpid()

    def _open_program(self, graph: Graph, static: StaticShapes | None = None) -> Program:
        program = self._program_of(graph, cut(graph), self._folding.renewed(), static)
        if self._planner.require_main and self._main.type != self._backup.type:
            refuse_host_ops(program)
        return program

    def _program_of(
        self,
        graph: Graph,
        stages: Sequence[Stage],
        meter: Meter,
        static: StaticShapes | None = None,
    ) -> Program:
        """Return a program on the current planner, including the networks inside it."""
        open_host = self._open_host
        if self._nest is not None:
            open_host = self._nest(open_host, self._planner, self._folding)
        return Program(graph, stages, self._planner, meter, open_host, static)

    def _agree(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Remove size names that a caller's sizes contradict."""
        try:
            self._shared.refuse(shapes)
        except InvalidInputError as error:
            if self._told_apart is None:
                raise
            _log.warning("%s: the network is planned without such names", error.message)
        else:
            return
        self._drop_watched()
        program = self._open_program(self._told_apart(self._shared))
        self._former.append(self._program)  # dependents may continue with it
        self._program, self.graph = program, program.graph
        self._shared = SharedSizes(())

    @property
    def content_inputs(self) -> frozenset[str]:
        """Inputs whose content determines a shape: new content means a new plan."""
        return self._program.content

    def resize(
        self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array]
    ) -> dict[str, TensorInfo]:
        """Create the plan for these input shapes if there is none; later stages wait for data.

        Args:
            shapes: the shape of every graph input.
            feeds: at least the inputs that `content_inputs` names.

        Returns:
            The graph outputs whose shapes are known now.

        Raises:
            ShapeError: the shapes do not fit the network.
            PlacementError: `require_main` is set and the backup would have to run an op.
            InvalidInputError: the session has been closed, or belongs to another process.
        """

        def work() -> dict[str, TensorInfo]:
            self._agree(shapes)
            return self._program.resize(shapes, feeds)

        return self.call(work)

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call `work` exclusively, keeping the session and its device open."""
        if os.getpid() != self._process:
            self._refuse_inherited()
        with self._lock:
            if self._closed:
                raise _closed()
            try:
                return self._work(work, *arguments)
            except StateLostError:  # an earlier call has opened another device
                raise
            except DeviceLostError as error:
                if not self._rebuild:
                    raise
                _log.warning("the session is rebuilt: %s", error.message)
            # Not in the handler: the error keeps what was on the lost device alive.
            self._rebuild_failed = True
            self._reopen()
            try:
                return self._work(work, *arguments)
            finally:
                self._rebuild_failed = self._main.lost

    def _refuse_inherited(self) -> None:
        if os.getpid() != self._process:  # no other code would release a lock that was held
            raise InvalidInputError(
                "the session belongs to the parent process",
                hint="open sessions after the fork, or use the start method 'spawn'",
            )

    def _work(self, work: Callable[..., T], *arguments: Any) -> T:
        with self._main.use():
            try:
                while True:
                    try:
                        return work(*arguments)
                    except VoidRunError as error:
                        void = error
                    self._plan_anew(void)
            except VkmnnError:
                raise
            except MemoryError as error:
                raise unexpected_error(error, "planning or running the network") from error

    def _plan_anew(self, error: VoidRunError) -> None:
        """Plan again so that the error does not recur; dependents keep their data.

        Raises:
            VoidRunError: it is not to be handled.
        """
        if self._program.forgotten:
            error.hint = "keep the model: its plans cannot be made anew after it is released"
            raise error
        other = self._main.after(error)
        if other is None:
            raise error
        self._drop_watched()
        self._drop_plans()
        self._main = other
        self._planner = replace(self._planner, main=other)
        for program in (*self._former, self._program):
            program.use(self._planner)
        for dependent in list(self._dependents):
            dependent.plan_anew()

    def _reopen(self) -> None:
        """Replace the lost device with a new one, which has no plans yet."""
        self._close_dependents(lost=True)
        self._drop_watched()
        self._drop_plans()
        lost, self._main = self._main, self._main.reopened()
        self._planner = replace(self._planner, main=self._main)
        for program in (*self._former, self._program):
            program.use(self._planner)
        lost.close()

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """Run the network, planning first if the shapes are new.

        Args:
            feeds: one C-contiguous array per graph input, of the input's dtype; for an input that
                is not a tensor, a value of its ONNX type.
        """
        return self.call(self._run, feeds)

    def _run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        if self._shared:
            self._agree(shapes_of(feeds))
        return self._program.run(feeds)

    def run_watched(
        self, feeds: Mapping[str, Value], before: Callback, after: Callback
    ) -> dict[str, Value]:
        """Run op by op, each planned on its own, with a call before and after it.

        Slower than `run` by the submissions and the copies of every op's results. The callbacks may
        not call the session.

        Args:
            feeds: as for `run`.
            before: called with the op and its inputs; may skip the op or stop the run.
            after: called with the op and its results; may stop the run.

        Returns:
            The outputs that were computed.

        Raises:
            InvalidInputError: an op that only the host runs was to be skipped.
        """

        def work() -> dict[str, Value]:
            self._agree(shapes_of(feeds))
            if self._watched is None:
                graph, stages = self._program.graph, cut_everywhere(self._program.graph)
                self._watched = self._program_of(graph, stages, self._folding)
            return self._watched.run_watched(feeds, before, after)

        return self.call(work)

    def submit(
        self, feeds: Mapping[str, Value], finish: Callable[[dict[str, Value]], T]
    ) -> RunFuture[T]:
        """Request a run and return immediately.

        Args:
            feeds: as for `run`; they must not change until the run is done.
            finish: turns the outputs into the result of the future.

        Raises:
            InvalidInputError: the session has been closed, or belongs to another process.
        """

        def begin() -> Callable[[], T]:
            begun: Begun | None = None
            with suppress(IntegerRangeError):  # `run` handles this case
                begun = self.call(self._begin, feeds)
            if begun is None:
                results = self.run(feeds)
                return lambda: finish(results)
            return lambda: finish(self._end(begun, feeds))

        return self._submitted(begin)

    def submit_call(self, work: Callable[[], T]) -> RunFuture[T]:
        """Request a call after the runs submitted before it; errors are those of `submit`."""

        def begin() -> Callable[[], T]:
            result = work()
            return lambda: result

        return self._submitted(begin)

    def _submitted(self, begin: Callable[[], Callable[[], T]]) -> RunFuture[T]:
        self._refuse_inherited()
        with self._lock:
            if self._closed:
                raise _closed()
            if self._submitter is None:
                self._submitter = Submitter()
            submitter = self._submitter
        # Not under the lock: while another thread closes the session, runs start right here, after
        # one that waits for the lock.
        return submitter.submit(begin)

    def _begin(self, feeds: Mapping[str, Value]) -> Begun | None:
        if self._shared:
            self._agree(shapes_of(feeds))
        return self._program.begin(feeds)

    def _end(self, begun: Begun, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """Wait for a run that was started; repeat it where `run` would."""
        try:
            return begun.end()
        except DeviceLostError:
            if not self._rebuild:
                raise
        except (IntegerRangeError, VoidRunError):
            pass
        return self.run(feeds)

    def bind(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor | None]
    ) -> Bound:
        """Return a run on fixed tensors; see `Program.bind`."""
        return self.call(lambda: self._bind(inputs, outputs))

    def _bind(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor | None]
    ) -> Bound:
        self._agree(shapes_of(inputs))
        bound = self._program.bind(inputs, outputs)
        self.attach(bound)
        return bound

    def run_bound(self, bound: Bound) -> None:
        """Execute a bound run; see `Bound.run`."""
        self.call(bound.run)

    @property
    def program(self) -> Program:
        """The network as currently planned; for work that is passed to `call`."""
        return self._program

    def attach(self, dependent: Dependent) -> None:
        """Register a dependent, to be closed and replanned with the session; within `call`."""
        self._dependents.add(dependent)

    def detach(self, dependent: Dependent) -> None:
        """Close a dependent object, unless the session has already closed it."""
        self._refuse_inherited()
        with self._lock:
            dependent.close()
            self._dependents.discard(dependent)

    def check_sizes(self, feeds: Mapping[str, Value]) -> None:
        """Reject sizes that contradict the names of the inputs' dimensions.

        Raises:
            InvalidInputError: names the dimension and both inputs.
        """
        self._shared.refuse(shapes_of(feeds))

    def run_on_device(
        self, feeds: Mapping[str, Value], names: Sequence[str]
    ) -> dict[str, DeviceTensor]:
        """Run the network; return these outputs as tensors that stay on the device.

        Outputs whose elements the device does not support are tensors in the host's memory.
        """
        return self.call(lambda: self._run_on_device(feeds, names))

    def _run_on_device(
        self, feeds: Mapping[str, Value], names: Sequence[str]
    ) -> dict[str, DeviceTensor]:
        self._agree(shapes_of(feeds))
        results = self._program.run_on_device(feeds, names)
        return {name: self._tensor_of(name, value) for name, value in results.items()}

    def _tensor_of(self, name: str, value: Value) -> DeviceTensor:
        if isinstance(value, DeviceTensor):
            return value
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            raise InvalidInputError(
                f"output '{name}' is not a tensor that a device can hold", hint="ask for it by run"
            )
        try:
            return self._upload(value)
        except IntegerRangeError:  # computed on the backup
            return DeviceTensor(value.shape, DType.from_numpy(value.dtype), HostStorage(value))

    def new_tensor(self, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        """Return a tensor of zeros on the session's device; see `Backend.new_tensor`."""
        return self.call(lambda: self._main.new_tensor(shape, dtype))

    def upload(self, array: Array) -> DeviceTensor:
        """Copy an array into a new tensor on the session's device.

        Raises:
            IntegerRangeError: an integer does not fit in the device's 32 bits.
        """
        return self.call(lambda: self._upload(array))

    def _upload(self, array: Array) -> DeviceTensor:
        tensor = self._main.new_tensor(array.shape, DType.from_numpy(array.dtype))
        tensor.copy_from(array)
        return tensor

    def counters(self) -> dict[str, int]:
        """Count the expensive operations that a run should avoid.

        "plans" were created by this session; "recordings" and "submits" of command buffers, the
        "commands" in them (dispatches, copies and fills), "allocations" of device memory,
        "pipelines" created and "host_copies" of tensors are those of all users of the device.
        """
        made = sum(program.plans_made for program in (*self._former, self._program))
        return {"plans": made, **self._main.counters()}

    def measured(self) -> tuple[str, Mapping[str, str]]:
        """Return the measurements on the device; see `Backend.measured`."""
        return self._main.measured()

    def trim(self) -> None:
        """Free the memory of all plans but the latest, staging memory, and unused pipelines."""
        self.call(self._trim)

    def _trim(self) -> None:
        self._program.trim()
        self._main.trim()

    def forget_model(self) -> None:
        """Free the model; afterwards only cached plans can run.

        Runs at other shapes are refused, and so are runs op by op.
        """

        def work() -> None:
            self._drop_watched()
            self._told_apart = None
            for former in self._former:
                former.forget_arrays()
            self._program.forget_arrays()
            self._main.offer(())
            self.graph = self._program.graph
            self._main.trim()

        self.call(work)

    def release(self) -> None:
        """Free the memory of all plans, including the latest, and the staging memory."""

        def work() -> None:
            self._drop_watched()
            self._drop_plans()
            self._main.trim()

        self.call(work)

    def profile(self, feeds: Mapping[str, Value], runs: int) -> Profile:
        """Measure where the time goes, on a second plan that is dropped afterwards.

        Args:
            feeds: as for `run`.
            runs: number of runs to measure.

        Raises:
            InvalidInputError: `runs` is below 1, or the device cannot measure time.
        """
        if runs < 1:
            raise InvalidInputError(f"cannot profile {runs} runs", hint="ask for at least one run")

        def work() -> Profile:
            self._agree(shapes_of(feeds))
            return self._program.profile(feeds, runs)

        return self.call(work)

    def tune(
        self,
        feeds: Mapping[str, Value],
        runs: int,
        progress: Callable[[int, int], object] | None = None,
    ) -> Tuning:
        """Measure the kernels the network could use at these shapes; plans are rebuilt.

        Args:
            feeds: as for `run`.
            runs: runs per candidate.
            progress: called with (done, total) after every trial; `total` may grow. If it returns
                True, no further candidate is tried, and the measurements so far decide.

        Raises:
            InvalidInputError: `runs` is below 1, or the device cannot measure time.
        """
        if runs < 1:
            raise InvalidInputError(f"cannot tune with {runs} runs", hint="ask for at least one")

        def work() -> Tuning:
            self._agree(shapes_of(feeds))
            return self._program.tune(feeds, runs, progress)

        return self.call(work)

    def memory(self) -> MemoryUse:
        """Return the device memory of the current plan.

        Raises:
            InvalidInputError: there is no plan yet.
        """
        return self._planned().memory()

    @property
    def current(self) -> Plan | None:
        """The most recently used plan of the last stage."""
        return self._program.current

    @property
    def plans(self) -> list[Plan]:
        """The most recently used plan of every stage that has one."""
        return self._program.plans_in_use

    def is_planned(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether a run at these shapes would find its plan."""
        return self._program.is_planned(shapes)

    def flops(self) -> int:
        """Return the floating-point operations of the plans in use; 0 for host ops."""
        return sum(command.flops for plan in self.plans for command in plan.commands)

    def backend_types(self) -> tuple[str, ...]:
        """Return the types of the backends that plans run on, the main one first."""
        used = {command.backend for plan in self.plans for command in plan.commands}
        return (self._main.type, *sorted(used - {self._main.type}))

    def placement(self) -> Placement:
        """Return where each op of the current plan runs.

        Raises:
            InvalidInputError: there is no plan yet.
        """
        return self._planned().placement()

    def _planned(self) -> Program:
        if self._closed:
            raise _closed()
        if not self._program.planned:
            raise InvalidInputError(
                "the session has no plan yet",
                hint="run it once: shapes of inputs that the model leaves open are known then",
            )
        return self._program

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    @property
    def rebuilds(self) -> bool:
        """Whether it reopens a lost device."""
        return self._rebuild

    @property
    def lost(self) -> bool:
        """Whether its device is lost and has not been reopened.

        With `rebuild`, every later call tries again.
        """
        return self._main.lost and (self._rebuild_failed or not self._rebuild)

    @property
    def plan_count(self) -> int:
        """Number of plans kept."""
        return self._program.plan_count

    def _drop_watched(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.drop()

    def _drop_plans(self) -> None:
        for program in (*self._former, self._program):
            program.drop()

    def _close_dependents(self, lost: bool = False) -> None:
        for dependent in list(self._dependents):
            dependent.close(lost)
        self._dependents.clear()

    def close(self) -> None:
        """Release all plans and the backends; the session cannot be used afterwards.

        Waits for a call in another thread, and for submitted runs that have started; the others are
        refused. Safe to call twice; in a forked child there is nothing to release.
        """
        if os.getpid() != self._process:
            return
        if self._submitter is not None:
            self._submitter.close()
        with self._lock:
            self._closed = True
            self._close_dependents()
            self._drop_watched()
            self._drop_plans()
            self._main.close()
            self._backup.close()


def _closed() -> InvalidInputError:
    return InvalidInputError("the session has been closed", hint="create a new one")
