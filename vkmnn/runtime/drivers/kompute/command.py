"""Recording and running: kp sequences, replayed one after the other.

kp has no barrier between dispatches. A sequence therefore holds dispatches that do not depend on
each other, and the wait at its end is the barrier (measured: docs/decisions/drivers.md). Copies and
fills are done by the host between two sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import DeviceError, ShaderError
from vkmnn.runtime.drivers.base import DriverCommands, DriverPipeline, DriverRecorder
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.drivers.kompute.memory import KomputeBuffer
from vkmnn.runtime.drivers.kompute.package import translated
from vkmnn.runtime.drivers.kompute.pipeline import KomputePipeline

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.kompute.owner import Owner
    from vkmnn.runtime.memory import BufferRange


class KomputeRecorder(DriverRecorder):
    """Records steps: sequences of independent dispatches, and host work between them."""

    def __init__(self, device: Owner) -> None:
        self._device = device
        self._result = KomputeCommands(device)
        self._sequence: Any = None  # None after a barrier
        self._algorithms: dict[tuple[object, ...], Any] = {}

    def dispatch(
        self,
        pipeline: DriverPipeline,
        ranges: Sequence[BufferRange],
        params: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        if 0 in groups:  # otherwise kp would choose a grid
            return
        assert isinstance(pipeline, KomputePipeline)
        kp = self._device.kp
        if self._sequence is None:
            self._sequence = self._result.add_sequence()
        algorithm = self._algorithm(pipeline, ranges, groups)
        self._device.collect_messages()
        if self._device.messages:  # the recorder raises them; recording a faulty pipeline may crash
            return
        try:
            if params:
                operation = kp.OpAlgoDispatch(algorithm, np.frombuffer(params, np.uint32))
            else:
                operation = kp.OpAlgoDispatch(algorithm)
            self._sequence.record(operation)
        except RuntimeError as error:
            raise translated(error, f"recording {pipeline.name}") from error
        self._device.collect_messages()

    def _algorithm(
        self, pipeline: KomputePipeline, ranges: Sequence[BufferRange], groups: tuple[int, int, int]
    ) -> Any:
        """Return kp's pipeline with its descriptor set and grid; it is created on first use."""
        tensors = [self._tensor(ranges, place) for place in pipeline.order]
        key = (pipeline, groups, *map(id, tensors))
        algorithm = self._algorithms.get(key)
        if algorithm is None:
            device = self._device
            try:
                algorithm = device.manager.algorithm(
                    # Without a tensor, kp creates no pipeline.
                    tensors or [device.spare_tensor],
                    pipeline.code,
                    groups,
                    pipeline.constants,
                    pipeline.push,
                )
            except RuntimeError as error:
                known = translated(error, "vkCreateComputePipelines")
                if type(known) is not DeviceError:
                    raise known from error
                raise ShaderError(
                    f"the driver of {device.info.name} refuses shader {pipeline.name}: {error}",
                    hint="update the driver, or choose another device",
                ) from error
            self._algorithms[key] = algorithm
            self._result.keep(algorithm)
        return algorithm

    def _tensor(self, ranges: Sequence[BufferRange], place: int | None) -> Any:
        if place is None:
            return self._device.spare_tensor
        bound = ranges[place]
        return _own(bound).bound_tensor(bound.nbytes)

    def copy(self, src: BufferRange, dst: BufferRange) -> None:
        source, target = _own(src), _own(dst)

        def step() -> None:
            source.fetch()
            if dst.nbytes < target.nbytes:
                target.fetch()
            _bytes(target, dst)[:] = _bytes(source, src)
            target.push()

        self._host_step(step)

    def fill(self, dst: BufferRange, value: int) -> None:
        target = _own(dst)
        word = np.uint32(value & 0xFFFF_FFFF)

        def step() -> None:
            if dst.nbytes < target.nbytes:
                target.fetch()
            _bytes(target, dst).view(np.uint32)[:] = word
            target.push()

        self._host_step(step)

    def _host_step(self, step: Callable[[], None]) -> None:
        self._sequence = None
        self._result.add_step(step)

    def barrier(self, src: int, dst: int) -> None:
        self._sequence = None

    def timestamp(self) -> None:
        raise AssertionError("the device offers no timestamps")

    def finish(self, buffers: Sequence[DriverBuffer]) -> KomputeCommands:
        self._result.keep_buffers(buffers)
        return self._result


class KomputeCommands(DriverCommands):
    """The steps of a recording. kp waits for each, holding Python's global lock."""

    def __init__(self, device: Owner) -> None:
        self._device = device
        self._steps: list[Callable[[], object]] = []
        self._buffers: tuple[DriverBuffer, ...] = ()
        self._owned: list[Any] = []
        self._finalizer = device.own(self, "command_buffers", self._owned)

    def add_sequence(self) -> Any:
        """Begin a sequence that runs after everything added before."""
        sequence = self._device.manager.sequence()
        self._owned.append(sequence)
        self._steps.append(sequence.eval)
        return sequence

    def add_step(self, step: Callable[[], None]) -> None:
        """Add host work that runs after everything added before."""
        self._steps.append(step)

    def keep(self, algorithm: Any) -> None:
        """Free the algorithm together with the commands."""
        self._owned.append(algorithm)

    def keep_buffers(self, buffers: Sequence[DriverBuffer]) -> None:
        """Keep buffers alive as long as the commands."""
        self._buffers = tuple(buffers)

    def submit(self) -> None:
        try:
            for step in self._steps:
                step()
        except RuntimeError as error:
            raise self._device.failure(error, "running commands") from error
        self._device.collect_messages()

    def wait(self, timeout_s: float) -> bool:
        return True  # `submit` has waited

    def timestamps_ns(self) -> list[float | None]:
        return []

    def destroy(self) -> None:
        self._steps.clear()
        self._buffers = ()
        self._device.release(self._finalizer)


def _own(bound: BufferRange) -> KomputeBuffer:
    buffer = bound.buffer.driver_buffer
    assert isinstance(buffer, KomputeBuffer)
    return buffer


def _bytes(buffer: KomputeBuffer, bound: BufferRange) -> np.ndarray[Any, np.dtype[np.uint8]]:
    assert buffer.mapped is not None
    return buffer.mapped[bound.offset : bound.offset + bound.nbytes]
