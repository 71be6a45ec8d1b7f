"""Drivers, by name. A driver is imported when it is first asked for."""

from __future__ import annotations

import importlib
import threading

from vkmnn.errors import InvalidInputError
from vkmnn.runtime.drivers.base import Driver, DriverUnavailableError

DRIVERS = {
    "vulkan": ("vkmnn.runtime.drivers.vulkan_driver", "VulkanDriver"),
}
"""Name -> (module, class)."""

_lock = threading.Lock()
_loaded: dict[str, Driver] = {}


def get_driver(name: str) -> Driver:
    """Return the driver called `name`, made on first use.

    Raises:
        InvalidInputError: there is no driver of that name.
        DriverUnavailableError: the driver's Python package or library is missing.
    """
    if name not in DRIVERS:
        raise InvalidInputError(
            f"there is no driver '{name}'", hint=f"drivers: {', '.join(sorted(DRIVERS))}"
        )
    with _lock:
        if name not in _loaded:
            module, attribute = DRIVERS[name]
            _loaded[name] = getattr(importlib.import_module(module), attribute)()
        return _loaded[name]


__all__ = ["DRIVERS", "Driver", "DriverUnavailableError", "get_driver"]
