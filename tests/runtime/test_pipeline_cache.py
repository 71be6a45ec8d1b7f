from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vkmnn.runtime import Device, DeviceInfo, Shader
from vkmnn.runtime.device import open_device
from vkmnn.runtime.pipeline_cache import PipelineCacheFile

MakeInfo = Callable[..., DeviceInfo]
PAYLOAD = bytes(range(256)) * 5


@pytest.fixture
def file(tmp_path: Path, make_info: MakeInfo) -> PipelineCacheFile:
    file = PipelineCacheFile(tmp_path, make_info())
    file.store(PAYLOAD)
    return file


def test_what_is_stored_is_loaded(file: PipelineCacheFile) -> None:
    assert file.load() == PAYLOAD
    file.store(b"shorter")
    assert file.load() == b"shorter"
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_every_damaged_byte_rejects_the_file(file: PipelineCacheFile) -> None:
    good = file.path.read_bytes()
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 0x40
        file.path.write_bytes(data)
        assert file.load() is None


@pytest.mark.parametrize("length", [0, 1, 79, 80, 81, 500])
def test_files_cut_short_or_grown_are_rejected(file: PipelineCacheFile, length: int) -> None:
    good = file.path.read_bytes()
    file.path.write_bytes(good[:length])
    assert file.load() is None
    file.path.write_bytes(good + bytes(length + 1))
    assert file.load() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"uuid": "00000000-0000-0000-0000-000000000009"},
        {"driver_uuid": "00000000-0000-0000-0000-000000000009"},
        {"driver_version": "1.1"},
        {"api_version": (1, 2, 0)},
        {"driver": "kompute"},
    ],
)
def test_another_device_or_driver_has_another_file(
    file: PipelineCacheFile, tmp_path: Path, make_info: MakeInfo, changes: dict[str, object]
) -> None:
    other = PipelineCacheFile(tmp_path, make_info(**changes))
    assert other.load() is None
    other.path.write_bytes(file.path.read_bytes())
    assert other.load() is None


def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path, make_info: MakeInfo) -> None:
    (tmp_path / "file").write_text("in the way")
    file = PipelineCacheFile(tmp_path / "file", make_info())
    file.store(PAYLOAD)
    assert file.load() is None
    file = PipelineCacheFile(tmp_path, make_info())
    file.path.mkdir(parents=True)
    file.store(PAYLOAD)
    assert file.load() is None
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_a_device_saves_and_loads_its_cache(
    own_device: Device, scale: Shader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path))
    own_device.close()
    device = open_device("auto", validation=False)
    device.pipeline(scale)
    data = device.driver_device.cache_data()
    device.close()
    files = list(tmp_path.rglob("*.bin"))
    # Mesa's software driver keeps nothing in its cache but the header: then there is no file.
    assert len(files) == (len(data) > 32)


@pytest.mark.parametrize("size", [0, 10, 31, 32, 33, 5000])
def test_hostile_cache_data_never_harms(
    own_device: Device, scale: Shader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A file with a valid checksum whose content the driver did not write."""
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path))
    PipelineCacheFile(tmp_path, own_device.info).store(os.urandom(size))
    own_device.close()
    device = open_device("auto", validation=False)
    device.pipeline(scale)
    device.close()
