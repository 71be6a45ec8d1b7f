"""The package `kp`: defects are detected and reported. None of it needs `kp`."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vkmnn.cli.devices import why_none
from vkmnn.errors import DeviceError, DeviceLostError, DeviceNotFoundError, OutOfDeviceMemoryError
from vkmnn.runtime.device import open_device
from vkmnn.runtime.drivers import DriverUnavailableError
from vkmnn.runtime.drivers.kompute.package import check_build, load, translated

KP = SimpleNamespace(TensorTypes=SimpleNamespace(host="host"))


class Tensor:
    def __init__(self, held: Any) -> None:
        self.held = held

    def data(self) -> Any:
        return self.held

    def destroy(self) -> None:
        pass


class Manager:
    """Creates tensors that hold the data as altered by `change`."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def tensor_t(self, data: np.ndarray, kind: str) -> Tensor:
        assert kind == "host"
        return Tensor(self.change(data))


def test_a_right_build_passes() -> None:
    check_build(KP, Manager(np.copy))


def _fails(data: np.ndarray) -> np.ndarray:
    raise RuntimeError("Kompute Python no valid dtype supported")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # The behaviour of kp built with pybind11 2.10 under numpy 2: the first element everywhere.
        (lambda data: np.full_like(data, data[0]), "computes with wrong data"),
        (lambda data: data.astype(np.float32), "computes with wrong data"),
        (lambda data: data[:5], "computes with wrong data"),
        (_fails, "no valid dtype supported"),
    ],
)
def test_a_wrong_build_is_refused_with_the_remedy(change: Any, message: str) -> None:
    with pytest.raises(DriverUnavailableError, match=message) as caught:
        check_build(KP, Manager(change))
    assert "tasks.py kompute" in caught.value.hint


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kp", None)
    with pytest.raises(DriverUnavailableError, match="cannot be imported"):
        load()
    monkeypatch.setattr("vkmnn.runtime.drivers._loaded", {})
    with pytest.raises(DeviceNotFoundError, match=r"'kp'.*cannot be imported") as caught:
        open_device(driver="kompute")
    assert "tasks.py kompute" in str(caught.value)
    reason, way_out = why_none("kompute")
    assert "cannot be imported" in reason
    assert "tasks.py kompute" in way_out


@pytest.mark.parametrize("version", ["0.8.1", "1.0", None])
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    module = ModuleType("kp")
    if version:
        module.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, "kp", module)
    with pytest.raises(DriverUnavailableError, match=r"needs 0\.9"):
        load()


def test_importing_leaves_the_log_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()

    def imported(name: str) -> ModuleType:
        logging.getLogger().addHandler(handler)  # as logging.basicConfig() does
        module = ModuleType("kp")
        module.__dict__["__version__"] = "0.9.0"
        return module

    monkeypatch.setattr("importlib.import_module", imported)
    load()
    assert handler not in logging.getLogger().handlers


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("vk::Device::mapMemory: ErrorMemoryMapFailed", OutOfDeviceMemoryError),
        ("vk::Queue::submit: ErrorDeviceLost", DeviceLostError),
        ("something else", DeviceError),
    ],
)
def test_errors_are_typed(text: str, kind: type[DeviceError]) -> None:
    error = translated(RuntimeError(text), "running")
    assert type(error) is kind
    assert text in error.message
    assert error.hint
