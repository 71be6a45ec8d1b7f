"""A configured way to run a network."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.closing import Closing
from vkmnn.core.device_tensor import as_array
from vkmnn.core.futures import RunFuture
from vkmnn.core.pipelines import Pipelines
from vkmnn.core.placement import Placement
from vkmnn.core.session import Session as CoreSession
from vkmnn.core.watched import Callback
from vkmnn.errors import InvalidInputError
from vkmnn.interpreter.info import SessionInfo, SessionStatus
from vkmnn.interpreter.modes import BackendChoice, SessionModes, Shapes
from vkmnn.interpreter.tensor import SessionConstant, SessionTensor
from vkmnn.ir import Array, DType, TensorInfo
from vkmnn.opening import CPU_DEVICE, CpuInfo, Network, network_of
from vkmnn.opening.reshaped import Openings
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import Precision, ScheduleConfig

if TYPE_CHECKING:
    pass

_log = logging.getLogger(__name__)

_NUMPY_FLOPS = 5e10
"""Peak operations a second of numpy; slower networks are not measured."""


class Session(Closing):
    """A configured way to run a network; created by `Interpreter.create_session`.

    `precision` is the session's actual one: "high" if the device has no 16-bit storage. `devices`
    are those of its parts, in running order, and `device` is the first of them. Sessions run at the
    same time on any number of threads. Threads that share one hold its `lock` from the first
    `copy_from` to the last `copy_to`, because they also share its tensors.
    """

    def __init__(
        self, network: Network, configs: Sequence[ScheduleConfig], modes: SessionModes
    ) -> None:
        self.configs = tuple(configs)
        self.config = self.configs[0]
        self.modes = modes
        self.lock = threading.RLock()
        self.resized = False
        self._network: Network | None = network
        self._pending: list[RunFuture[None]] = []
        self._pending_lock = threading.Lock()
        self._numbers = itertools.count()
        self._taken = 0
        self._changed: dict[str, Array] = {}
        self._stale = False
        self._chosen = modes.backend is BackendChoice.FIX
        self._first_shapes: Mapping[str, tuple[int, ...]] | None = None
        self._open(Openings(network, self.configs))
        graph = self.core.graph
        self.inputs = {
            info.name: SessionTensor(
                info, info.dims if info.is_static else None, False, modes.inputs
            )
            for info in graph.inputs
        }
        self.outputs = {
            info.name: SessionTensor(info, None, True, modes.outputs) for info in graph.outputs
        }
        self._constants: dict[str, SessionConstant] = {}
        for tensor in (*self.inputs.values(), *self.outputs.values()):
            tensor.belong_to(self)

    def _open(self, openings: Openings) -> None:
        self._openings = openings
        self.devices: tuple[DeviceInfo | CpuInfo, ...] = openings.current.devices
        self.device = self.devices[0]
        self.precision: Precision = openings.current.precision

    @property
    def core(self) -> CoreSession | Pipelines:
        """The core session for the current shapes."""
        return self._openings.current.core

    # --- shapes ----------------------------------------------------------------------------------

    @property
    def state(self) -> SessionStatus:
        """The session's state: ready, or the missing step."""
        if not self.resized:
            return SessionStatus.NEEDS_RESIZE
        planned = self.core.is_planned(self._shapes())
        return SessionStatus.READY if planned else SessionStatus.NEEDS_MEMORY

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: t.shape for name, t in self.inputs.items() if t.shape is not None}

    def plan_ahead(self) -> None:
        """Plan now if all shapes are known and do not depend on fed contents."""
        if len(self._shapes()) == len(self.inputs) and not self.core.content_inputs:
            self.resize()

    def resize(self) -> None:
        """Plan for the present input shapes; see `Interpreter.resize_session`."""
        self.sync()
        for tensor in self.inputs.values():
            if tensor.shape is None:
                raise InvalidInputError(
                    f"input '{tensor.name}' has no static shape: {tensor.info.shape}",
                    hint="call resize_tensor for it first",
                )
        shapes = self._shapes()
        self._refuse_other_shapes(shapes)
        if self._stale:
            self._renew()
        self._openings.fit(shapes)
        feeds = {n: as_array(t.array) for n, t in self.inputs.items() if t.array is not None}
        known = self.core.resize(shapes, feeds)
        if not self._chosen:
            self._choose_backend(shapes, feeds)
        self._first_shapes = self._first_shapes or shapes
        for name, output in self.outputs.items():
            output.shape = known[name].dims if name in known else None
            output.array = None
        self.resized = True

    def _refuse_other_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        fixed = self.modes.shapes is Shapes.FIX
        if fixed and self._first_shapes is not None and self._first_shapes != shapes:
            raise InvalidInputError(
                f"the session keeps the input shapes of its first plan: {self._first_shapes}",
                hint="make it with SessionModes(shapes=Shapes.CHECK)",
            )

    def _choose_backend(
        self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array]
    ) -> None:
        """Measure the device and numpy, and keep the faster."""
        self._chosen = True
        if self._network is None or self.core.backend_types()[0] == "CPU":
            return
        zeros = {
            info.name: np.zeros(shapes[info.name], info.dtype.numpy)
            for info in self.core.graph.inputs
        }
        arrays: dict[str, Any] = {**zeros, **feeds}
        taken = _seconds(self.core, arrays)
        if self.core.flops() / _NUMPY_FLOPS > taken:
            return
        configs = [replace(config, device=CPU_DEVICE) for config in self.configs]
        other = Openings(self._network, configs)
        try:
            core = other.fit(shapes).core
            core.resize(shapes, feeds)
            on_cpu = _seconds(core, arrays)
        except BaseException:
            other.close()
            raise
        slower = self._openings if on_cpu < taken else other
        if on_cpu < taken:
            self._open(other)
        slower.close()
        _log.info("%s in %.3f ms, numpy in %.3f ms", self.device.name, taken * 1e3, on_cpu * 1e3)

    # --- constants -------------------------------------------------------------------------------

    def constant(self, name: str) -> SessionConstant:
        """Return this session's constant of the network."""
        if name not in self._constants:
            network = self.network
            if name not in network.source.constants:
                raise InvalidInputError(
                    f"the network has no constant '{name}'",
                    hint=f"its constants: {', '.join(list(network.source.constants)[:8])}",
                )
            array = network.source.constants[name]
            info = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
            tensor = self._constants[name] = SessionConstant(info, array.shape)
            tensor.array = array
            tensor.belong_to(self)
        return self._constants[name]

    def change_constant(self, name: str, array: Array) -> None:
        """Use other data for a constant when the session is resized next."""
        _ = self.network
        self._changed[name] = array
        self._stale = True
        self.resized = False

    @property
    def network(self) -> Network:
        """The network that the session runs.

        Raises:
            InvalidInputError: the model has been released.
        """
        if self._network is None:
            raise _released("the session's model is gone")
        return self._network

    def with_changes(self, network: Network) -> Network:
        """Return a network with this session's constants, after all passes.

        Of models for training, the constants changed by training; of others, all except those.
        """
        source = network.source
        changed = {
            name: array
            for name, array in self._changed.items()
            if (name in source.trainable) is source.is_for_training
        }
        return self._network_with(network, changed, SessionModes()) if changed else network

    def _changed_network(self, network: Network, modes: SessionModes) -> Network:
        return self._network_with(network, self._changed, modes)

    def _network_with(
        self, network: Network, changed: Mapping[str, Array], modes: SessionModes
    ) -> Network:
        constants = {**network.source.constants, **changed}
        source = replace(network.source, constants=constants)
        return network_of(source, network, optimised=modes.passes, without=modes.without_passes)

    def _renew(self) -> None:
        """Reopen the session with the changed constants."""
        openings = Openings(self._changed_network(self.network, self.modes), self.configs)
        self._openings.close()
        self._open(openings)
        self._stale = False

    # --- runs and their end ----------------------------------------------------------------------

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run on arrays that were checked already; plans when their shapes are new."""
        return self.core.run(feeds)

    def run_inputs(self) -> None:
        """Run on the data of the inputs; see `Interpreter.run_session`."""
        feeds = self._feeds()
        self.sync()
        self._take(self.core.run(feeds), next(self._numbers))

    def submit(self) -> RunFuture[None]:
        """Start a run on the current data of the inputs, and return at once.

        The next run may be fed meanwhile. Outputs get the results of the run submitted last; their
        `copy_to`, and `sync`, wait for it.

        Returns:
            A `concurrent.futures.Future`, which can be awaited, too; it raises the run's errors.

        Raises:
            InvalidInputError: as `Interpreter.run_session`.
        """
        feeds, number = self._feeds(), next(self._numbers)
        return self._submitted(self.core.submit(feeds, lambda made: self._take(made, number)))

    def run_watched(self, before: Callback, after: Callback) -> None:
        """Run op by op; see `Interpreter.run_session_with_callback`."""
        feeds = self._feeds()
        self.sync()
        self._take(self.core.run_watched(feeds, before, after), next(self._numbers))

    def submit_watched(self, before: Callback, after: Callback) -> RunFuture[None]:
        """Start a run op by op; the callbacks are called in a separate thread."""
        feeds, number, core = self._feeds(), next(self._numbers), self.core
        work = partial(core.run_watched, feeds, before, after)
        return self._submitted(core.submit_call(lambda: self._take(work(), number)))

    def sync(self) -> None:
        """Wait for the runs that were submitted (MNN's `sync`, `Tensor::wait`).

        Raises:
            VkmnnError: the error of the first failed run.
        """
        with self._pending_lock:
            pending, self._pending = self._pending, []
        errors = [_error_of(one) for one in pending]
        for error in errors:
            if error is not None:
                raise error

    def _submitted(self, future: RunFuture[None]) -> RunFuture[None]:
        with self._pending_lock:
            kept = [one for one in self._pending if not one.done() or _error_of(one) is not None]
            self._pending = [*kept, future]
        return future

    def _feeds(self) -> dict[str, Any]:
        if not self.resized:
            raise InvalidInputError(
                "input shapes changed since the session was planned",
                hint="call resize_session first",
            )
        feeds: dict[str, Any] = {}
        for tensor in self.inputs.values():
            if tensor.array is None:
                raise InvalidInputError(
                    f"input '{tensor.name}' has no data", hint="call its copy_from first"
                )
            feeds[tensor.name] = tensor.array
        return feeds

    def _take(self, results: Mapping[str, Any], number: int) -> None:
        """Set the outputs to the results of a run; missing ones have no data."""
        with self._pending_lock:
            if number < self._taken:  # a later run was faster
                return
            self._taken = number
            for name, output in self.outputs.items():
                output.take(results.get(name))

    def info(self) -> SessionInfo:
        """Return the session's memory, work and device."""
        return SessionInfo(
            self.core.memory(),
            self.core.flops(),
            self.core.backend_types(),
            self.state,
            max(config.cpu_threads for config in self.configs),
        )

    def placement(self) -> Placement:
        """Return where each op of the current plan runs and why."""
        return self.core.placement()

    def release_cache(self) -> None:
        """Free the memory of all plans (MNN releaseCache); the next run plans again.

        Raises:
            InvalidInputError: the model has been released: there is nothing to plan from.
        """
        _ = self.network
        self._openings.release_plans()

    def release_model(self) -> None:
        """Forget the network: the session runs on at all shapes that it has plans for."""
        self._network = None
        self._constants.clear()
        self._changed.clear()
        self._openings.release_model()

    @property
    def closed(self) -> bool:
        """Whether the session has been closed."""
        return self._openings.closed

    def close(self) -> None:
        """Release plans, buffers and pipelines of this session."""
        self._openings.close()


def _error_of(future: RunFuture[None]) -> BaseException | None:
    """Wait for a run and return its error; a run that was cancelled has none."""
    try:
        return future.exception()
    except CancelledError:
        return None


def _seconds(core: CoreSession | Pipelines, arrays: Mapping[str, Any]) -> float:
    """Return the seconds of a run, without the first."""
    core.run(arrays)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        core.run(arrays)
        times.append(time.perf_counter() - start)
    return min(times)


def _released(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what}: the interpreter has released its model",
        hint="plan what is needed before release_model, or load the model again",
    )
