"""Mapped files as memory of a device that reads them in place."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from vkmnn.base import mapped_files
from vkmnn.base.mapped_files import (
    FileChangedError,
    MappedFile,
    address_of,
    let_go_of_pages,
    map_file,
    place_in_file,
    read_file,
)
from vkmnn.runtime import open_device
from vkmnn.runtime.device import Device


@pytest.fixture
def device() -> Device:
    found = open_device()
    if "file_memory" not in found.info.features:
        pytest.skip("the device copies what files hold")
    return found


def mapped(path: Path, nbytes: int) -> MappedFile:
    path.write_bytes(bytes(n % 251 for n in range(nbytes)))
    with path.open("rb") as file:
        return map_file(file.fileno())


def test_a_file_that_was_read_is_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In parts by several threads; the content stays, whatever happens to the file."""
    monkeypatch.setattr(mapped_files, "CHUNK_BYTES", 1000)
    path, data = tmp_path / "data", bytes(n % 251 for n in range(10_001))
    path.write_bytes(data)
    with path.open("rb+") as file:
        copy = read_file(file.fileno())
        file.truncate(10)
    assert bytes(copy) == data
    array = np.frombuffer(copy, np.uint8)[4096:8192]
    assert place_in_file(array) == (copy, 4096)
    let_go_of_pages(array)  # nobody could read them again
    assert array.tobytes() == data[4096:8192]


@pytest.mark.parametrize("change", ["shorter", "written"])
def test_a_file_that_changes_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, change: str, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(10_000))
    os.utime(path, (1, 1))
    read = mapped_files._read

    def changes(descriptor: int, part: memoryview, start: int) -> None:
        if change == "shorter":
            os.truncate(path, 10)
        else:
            path.write_bytes(bytes([1]) * 10_000)
        read(descriptor, part, start)

    monkeypatch.setattr(mapped_files, "_read", changes)
    with path.open("rb") as file, pytest.raises(FileChangedError):
        read_file(file.fileno())


def test_place_in_file(tmp_path: Path) -> None:
    file = mapped(tmp_path / "data", 4096)
    floats = np.frombuffer(memoryview(file)[64:1088], np.uint8).view(np.float32).reshape(16, 16)
    assert address_of(file) % mmap.PAGESIZE == 0
    assert place_in_file(floats) == (file, 64)
    assert place_in_file(floats[2:].reshape(-1)) == (file, 192)
    assert place_in_file(floats.T) is None  # in another order
    assert place_in_file(floats[:, 1:]) is None
    assert place_in_file(floats[:0]) is None
    assert place_in_file(floats.copy()) is None
    assert place_in_file(np.arange(4)) is None


def pages(file: MappedFile) -> int:
    """Return how many KiB of a file are in this process's memory."""
    begin = f"{address_of(file):x}-"
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(begin))
    return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell")
def test_pages_are_let_go(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    with path.open("rb") as opened:
        file = map_file(opened.fileno())
    array = np.frombuffer(file, np.uint8)[100 : (3 << 20) + 100]
    total = int(array.sum())
    before = pages(file)
    let_go_of_pages(array)
    assert before - pages(file) >= (3 << 10) - 8  # all but those that it shares at its ends
    assert int(array.sum()) == total
    for other in (array[:50], array[::2], array[:0], array.copy()):  # nothing to let go of
        let_go_of_pages(other)
    assert pages(file) >= 3 << 10


@pytest.mark.parametrize("nbytes", [1, 5000, 3 * 4096])
def test_a_file_is_memory(device: Device, nbytes: int, tmp_path: Path) -> None:
    """Its bytes are read, up to whole vectors; it stays mapped as long as the buffer is there."""
    path = tmp_path / "some.file"
    buffer = device.import_file(mapped(path, nbytes))
    assert buffer is not None
    assert buffer.host is None
    assert buffer.nbytes >= nbytes
    assert buffer.nbytes % 16 == 0
    expected = np.frombuffer(path.read_bytes(), np.uint8)
    np.testing.assert_array_equal(buffer.read(0, buffer.nbytes)[:nbytes], expected)
    assert not buffer.read(0, buffer.nbytes)[nbytes:].any()
    gc.collect()
    assert path.name in Path("/proc/self/maps").read_text()
    buffer.destroy()
    del buffer
    gc.collect()
    assert path.name not in Path("/proc/self/maps").read_text()


def test_files_that_are_not_taken(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whose size would have Mesa compile kernels again, and where the feature is switched off."""
    assert device.import_file(mapped(tmp_path / "power", 8192)) is None
    monkeypatch.setenv("VKMNN_DISABLE_FEATURES", "file_memory")
    plain = open_device()
    assert plain.import_file(mapped(tmp_path / "some", 5000)) is None
    live = device.stats()
    monkeypatch.setattr("vkmnn.runtime.drivers.vulkan.imported._memory_types", lambda *_: 0)
    assert device.import_file(mapped(tmp_path / "other", 5000)) is None
    assert device.stats() == live
