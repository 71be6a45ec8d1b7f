"""Buffers: written data is read back, views live as long as they are used, limits are typed."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.conftest import Places, record_scale
from vkmnn.errors import InvalidInputError, OutOfDeviceMemoryError
from vkmnn.runtime import BufferRange, Device, MemoryKind, Shader

MakePlaces = Callable[..., Places]


@pytest.mark.parametrize("kind", MemoryKind)
@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 4096, 1_000_003])
def test_write_and_read(device: Device, kind: MemoryKind, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    with device.allocate(nbytes, kind) as buffer:
        assert (buffer.nbytes, buffer.kind) == (nbytes, kind)
        buffer.write(0, data)
        np.testing.assert_array_equal(buffer.read(0, nbytes), data)
        if nbytes > 100:
            buffer.write(13, data[:50].view(np.int8)[::-1])
            np.testing.assert_array_equal(buffer.read(13, 50), data[:50][::-1])
            np.testing.assert_array_equal(buffer.read(63, nbytes - 63), data[63:])
        for offset, size in ((-1, 1), (0, nbytes + 1), (nbytes, 1), (0, -1)):
            with pytest.raises(InvalidInputError, match="outside a buffer"):
                buffer.read(offset, size)
        with pytest.raises(InvalidInputError, match="outside a buffer"):
            buffer.write(1, data if nbytes else np.zeros(1, np.float32))


@pytest.mark.parametrize("kind", [MemoryKind.UPLOAD, MemoryKind.READBACK])
def test_memory_for_the_host_is_mapped(device: Device, kind: MemoryKind) -> None:
    with device.allocate(64, kind) as buffer:
        assert buffer.host is not None
        assert buffer.host.shape == (64,)
        buffer.host.view(np.float32)[:] = 7
        assert buffer.read(0, 64).view(np.float32).tolist() == [7] * 16


def test_a_view_keeps_its_memory(device: Device) -> None:
    gc.collect()
    before = device.stats()
    view = device.allocate(1 << 20, MemoryKind.READBACK).host
    assert view is not None
    part = view[10:20]
    del view
    gc.collect()
    part[:] = 3
    assert device.stats() != before
    del part
    assert device.stats() == before


@pytest.mark.parametrize("kind", MemoryKind)
def test_memory_of_every_kind_can_be_computed_with(
    device: Device, make_places: MakePlaces, scale: Shader, kind: MemoryKind
) -> None:
    x = np.random.default_rng(1).standard_normal(37).astype(np.float32)
    places = make_places(device, 2, x.nbytes, kind)
    recorder = device.recorder()
    record_scale(recorder, scale, [places.at(0), places.at(1)], 3.0)
    with recorder.finish() as commands:
        for factor in (1, 2):
            places.write(0, factor * x)
            commands.run()
            np.testing.assert_array_equal(places.read(1), 3 * (factor * x))


def test_more_than_fits_into_a_staging_buffer(device: Device) -> None:
    nbytes = (16 << 20) + 40
    data = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    with device.allocate(nbytes + 4, MemoryKind.DEVICE) as buffer:
        buffer.write(0, np.zeros(nbytes + 4, np.uint8))
        buffer.write(3, data)
        np.testing.assert_array_equal(buffer.read(3, nbytes), data)
        assert buffer.read(0, 3).tolist() == [0, 0, 0]
        assert buffer.read(5, 0).size == 0


def test_too_much_memory(device: Device) -> None:
    before = device.stats()
    with pytest.raises(OutOfDeviceMemoryError, match="exceeds the device's limit") as caught:
        device.allocate(1 << 50, MemoryKind.DEVICE)
    assert caught.value.hint
    with pytest.raises(InvalidInputError, match="-1 bytes"):
        device.allocate(-1, MemoryKind.DEVICE)
    assert device.stats() == before


def test_offsets_are_taken_where_they_are_claimed(
    device: Device, scale: Shader, make_places: MakePlaces
) -> None:
    with device.allocate(1024, MemoryKind.DEVICE) as buffer:
        buffer.write(0, np.arange(256, dtype=np.float32))
        y = make_places(device, 1, 64)
        recorder = device.recorder()
        ranges = [BufferRange(buffer, 512, 64), y.at(0)]
        if device.info.limits.whole_buffers:
            with pytest.raises(InvalidInputError, match="binds whole buffers") as caught:
                record_scale(recorder, scale, ranges, 2.0)
            assert "buffer of its own" in str(caught.value)
            recorder.finish().destroy()
            return
        record_scale(recorder, scale, ranges, 2.0)
        with recorder.finish() as commands:
            commands.run()
        np.testing.assert_array_equal(y.read(0), 2 * np.arange(128, 144))


def test_copies_and_fills_take_offsets_everywhere(device: Device) -> None:
    with device.allocate(64, MemoryKind.DEVICE) as a, device.allocate(96, MemoryKind.DEVICE) as b:
        data = np.arange(64, dtype=np.uint8)
        a.write(0, data)
        b.write(0, np.full(96, 255, np.uint8))
        recorder = device.recorder()
        recorder.copy(BufferRange(a, 3, 21), BufferRange(b, 5, 21))
        recorder.copy(BufferRange(b, 5, 4), BufferRange(b, 40, 4))
        recorder.fill(BufferRange(b, 60, 8), 0x01020304)
        with recorder.finish() as commands:
            for _ in range(2):
                commands.run()
        expected = np.full(96, 255, np.uint8)
        expected[5:26] = data[3:24]
        expected[40:44] = data[3:7]
        expected[60:68] = [4, 3, 2, 1] * 2
        np.testing.assert_array_equal(b.read(0, 96), expected)


def test_kompute_counts_what_is_left(own_device: Device) -> None:
    """Its library goes on with no memory where an allocation fails: none may be tried."""
    if own_device.info.driver != "kompute":
        pytest.skip("this driver learns of a failure from Vulkan")
    made = own_device.driver_device
    made.info = dataclasses.replace(made.info, memory_bytes=8192)
    with own_device.allocate(4096, MemoryKind.DEVICE):
        with pytest.raises(OutOfDeviceMemoryError, match="4096 bytes in 1 buffers are in use"):
            own_device.allocate(4097, MemoryKind.WEIGHTS)
        own_device.allocate(4096, MemoryKind.UPLOAD).destroy()
    limits = dataclasses.replace(made.info.limits, max_allocation_count=1)
    made.info = dataclasses.replace(made.info, limits=limits)
    with own_device.allocate(1, MemoryKind.UPLOAD), pytest.raises(OutOfDeviceMemoryError):
        own_device.allocate(1, MemoryKind.UPLOAD)
