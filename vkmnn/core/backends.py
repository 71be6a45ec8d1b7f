"""Backends added by plug-ins: `device` selects one by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vkmnn.base.registry import Registry
from vkmnn.core.backend import Backend
from vkmnn.errors import PluginError, VkmnnError, unexpected_error

OpenBackend = Callable[[str], Backend]
"""Opens a backend from the text after the colon in `device="F64:option"`, or ""."""

BACKENDS: Registry[str, OpenBackend] = Registry("backend")
_TAKEN = ("CPU", "VULKAN", "AUTO")

_B = TypeVar("_B", bound=OpenBackend)


def backend(name: str) -> Callable[[_B], _B]:
    """Register a class of backends, or a function that opens one, under a name.

    `device="NAME"` runs a network on it, `device="NAME:option"` with an option. Ops that it rejects
    run on numpy.

    Args:
        name: a name in capitals, like "F64"; the `type` of the backend.

    Raises:
        PluginError: the name is in use, or is not in capitals.
    """
    if not name.isidentifier() or not name.isupper() or name in _TAKEN:
        raise PluginError(
            f"'{name}' cannot be the name of a backend",
            hint=f'use capitals, digits and _: @backend("F64"); {", ".join(_TAKEN)} are taken',
        )
    return BACKENDS.register(name)  # type: ignore[return-value]


def named_backend(device: object) -> str | None:
    """Return the name of the registered backend that a device selector names, or None."""
    name = str(device).partition(":")[0].strip().upper()
    return name if name in BACKENDS else None


def open_backend(device: str) -> Backend:
    """Open the backend that a selector names.

    Raises:
        PluginError: the registered function does not open a backend of that name.
        VkmnnError: the backend cannot be opened.
    """
    name = named_backend(device) or device
    try:
        opened: object = BACKENDS[name](device.partition(":")[2])
    except VkmnnError:
        raise
    except Exception as error:
        raise unexpected_error(error, f"opening the backend {name}", kind=PluginError) from error
    if not isinstance(opened, Backend) or opened.type != name:
        raise PluginError(
            f"the backend {name} opened {opened!r}, which is not that backend",
            hint=f'return a Backend whose type is "{name}"',
        )
    return opened
