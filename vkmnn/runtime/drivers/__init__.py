"""Drivers, by name. A driver is imported when it is first requested."""

from __future__ import annotations

import ctypes
import importlib
import threading

from vkmnn.errors import InvalidInputError, nearest
from vkmnn.runtime.drivers.base import Driver, DriverUnavailableError

DRIVERS = {
    "vulkan": ("vkmnn.runtime.drivers.vulkan_driver", "VulkanDriver"),
    "kompute": ("vkmnn.runtime.drivers.kompute.driver", "KomputeDriver"),
}
"""Name -> (module, class)."""

_lock = threading.Lock()
_loaded: dict[str, Driver] = {}
_parents: list[Driver] = []  # kept, so that they are not destroyed in the child


def get_driver(name: str) -> Driver:
    """Return the driver of this name; it is created on first use.

    Raises:
        InvalidInputError: there is no driver of that name.
        DriverUnavailableError: the driver's Python package or library is missing.
    """
    if name not in DRIVERS:
        raise InvalidInputError(
            f"there is no driver '{name}'", hint=nearest(name, sorted(DRIVERS), "drivers")
        )
    with _lock:
        if name not in _loaded:
            module, attribute = DRIVERS[name]
            driver: Driver = getattr(importlib.import_module(module), attribute)()
            driver.others = get_driver
            _loaded[name] = driver
        return _loaded[name]


def close_drivers() -> None:
    """Free the drivers; all devices must have been closed."""
    with _lock:
        for driver in _loaded.values():
            driver.close()


def forget_drivers() -> None:
    """Create new drivers from now on: those from before a fork belong to the parent process."""
    global _lock
    _lock = threading.Lock()
    _parents.extend(_loaded.values())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_parents))  # not even when the interpreter ends
    _loaded.clear()


__all__ = [
    "DRIVERS",
    "Driver",
    "DriverUnavailableError",
    "close_drivers",
    "forget_drivers",
    "get_driver",
]
