"""Every test of this folder runs on every driver; one that is not installed is skipped.

"kompute, discrete" is the driver `kompute` as on a device with separate memory: the host then sees
copies, which are transferred.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.runtime.conftest import make_shader, scale, spin, texel_add
from vkmnn.errors import DeviceNotFoundError, ValidationLayerError
from vkmnn.runtime import (
    Buffer,
    BufferRange,
    CommandBuffer,
    CommandRecorder,
    Device,
    MemoryKind,
    Shader,
    linear_groups,
)
from vkmnn.runtime.device import open_device
from vkmnn.runtime.drivers import DRIVERS

__all__ = ["make_shader", "scale", "spin", "texel_add"]

STRIDE = 256  # no device asks for a larger alignment of ranges
FLOAT = 4


@pytest.fixture(params=[*DRIVERS, "kompute, discrete"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the driver under test."""
    name, *variant = request.param.split(", ")
    try:
        open_device(driver=name, validation=False)
    except DeviceNotFoundError as error:
        pytest.skip(error.message)
    if variant:
        monkeypatch.setattr("vkmnn.runtime.drivers.kompute.memory.is_unified", lambda _: False)
    return str(name)


@pytest.fixture
def device(driver: str) -> Device:
    """A device, under the validation layer if that is installed."""
    try:
        return open_device(driver=driver, validation=True)
    except ValidationLayerError:
        return open_device(driver=driver, validation=False)


@pytest.fixture
def validated(driver: str) -> Device:
    """A device under the validation layer; skips the test if the layer is not installed."""
    try:
        return open_device(driver=driver, validation=True)
    except ValidationLayerError as error:
        pytest.skip(error.message)


@pytest.fixture
def own_device(driver: str) -> Iterator[Device]:
    """A device that the test may lose or close."""
    open_device(driver=driver, validation=False).close()
    device = open_device(driver=driver, validation=False)
    yield device
    device.close()


class Places:
    """Ranges of equal size: in one buffer, or each in its own if necessary."""

    def __init__(self, device: Device, count: int, nbytes: int, kind: MemoryKind) -> None:
        self.device = device
        self.nbytes = nbytes
        step = -(-nbytes // STRIDE) * STRIDE
        if device.info.limits.whole_buffers:
            self.buffers = [device.allocate(nbytes, kind) for _ in range(count)]
            self._ranges = [BufferRange(buffer, 0, nbytes) for buffer in self.buffers]
        else:
            self.buffers = [device.allocate(count * step, kind)]
            self._ranges = [BufferRange(self.buffers[0], i * step, nbytes) for i in range(count)]

    def at(self, place: int, nbytes: int | None = None) -> BufferRange:
        whole = self._ranges[place]
        return BufferRange(whole.buffer, whole.offset, whole.nbytes if nbytes is None else nbytes)

    def write(self, place: int, array: np.ndarray) -> None:
        whole = self._ranges[place]
        whole.buffer.write(whole.offset, array)

    def read(self, place: int, count: int | None = None) -> np.ndarray:
        """Return the range's first floats, all where `count` is None."""
        whole = self._ranges[place]
        nbytes = whole.nbytes if count is None else FLOAT * count
        return whole.buffer.read(whole.offset, nbytes).view(np.float32)


@pytest.fixture
def make_places() -> Iterator[Callable[..., Places]]:
    """Return a function that creates ranges on a device, filled with NaN."""
    made: list[Buffer] = []

    def make(
        device: Device, count: int, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE
    ) -> Places:
        places = Places(device, count, nbytes, kind)
        made.extend(places.buffers)
        for buffer in places.buffers:
            buffer.write(0, np.full(buffer.nbytes // FLOAT, np.nan, np.float32))
        return places

    yield make
    for buffer in made:
        buffer.destroy()


def record_scale(
    recorder: CommandRecorder,
    shader: Shader,
    ranges: Sequence[BufferRange],
    factor: float,
    label: str = "",
) -> None:
    """Record y = factor * x over the floats of the first range."""
    count = ranges[0].nbytes // FLOAT
    limits = recorder.device.info.limits
    groups = linear_groups(count, shader.local_size[0], limits)
    params = struct.pack("If", count, factor)
    recorder.dispatch(recorder.device.pipeline(shader), ranges, params, groups, label)


def scaling(
    device: Device, shader: Shader, places: Places, steps: Sequence[tuple[int, int]]
) -> CommandBuffer:
    """Record ranges[target] = 2 * ranges[source] for every step."""
    recorder = device.recorder()
    for source, target in steps:
        ranges = [places.at(source), places.at(target)]
        record_scale(recorder, shader, ranges, 2.0, f"{source} to {target}")
    return recorder.finish()
