"""Vulkan objects that have an owner before they are created."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from vkmnn.runtime.drivers.vulkan.api import NULL, ffi, lib

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.owner import Owner

_CALLS = {"VkDeviceMemory": ("vkAllocateMemory", "vkFreeMemory")}
"""Type -> (create function, destroy function), for types whose functions have irregular names."""


class Handles:
    """Objects of one device, destroyed together in the reverse order of their cells.

    Vulkan writes a handle into a cell that is stored here beforehand, in the call that creates the
    object: an exception right after the call (Ctrl-C) leaks nothing.
    """

    __slots__ = ("_cells", "_device")

    def __init__(self, device: Owner) -> None:
        self._device = device
        self._cells: list[tuple[Any, Any]] = []

    def cell(self, ctype: str) -> Any:
        """Return the cell for the handle of an object of this type."""
        _, destroy, kind = _calls(ctype)
        cell = ffi.new(kind)
        self._cells.append((destroy, cell))
        return cell

    def create(self, ctype: str, info: Any, cell: Any = None) -> Any:
        """Create an object, in a new cell by default, and return its handle.

        Raises:
            DeviceError: of the class for the driver's result.
        """
        create, _, _ = _calls(ctype)
        if cell is None:
            cell = self.cell(ctype)
        result = getattr(lib, create)(self._device.handle, info, NULL, cell)
        return self.made(cell, result, create)

    def made(self, cell: Any, result: int, call: str) -> Any:
        """Return the handle written by a call, or raise the error of its result."""
        if result < 0:
            cell[0] = NULL  # undefined after an error
        self._device.check(result, call)
        return cell[0]

    def destroy(self) -> None:
        """Destroy all; nothing happens the second time."""
        while self._cells:
            destroy, cell = self._cells[-1]
            # No call in between, so no signal either: destroying and forgetting are one step.
            handle, cell[0] = cell[0], NULL
            if handle:
                destroy(self._device.handle, handle, NULL)
            self._cells.pop()


@cache
def _calls(ctype: str) -> tuple[str, Any, Any]:
    """Return the create and destroy functions of a type, and its cell type."""
    create, destroy = _CALLS.get(ctype) or (f"vkCreate{ctype[2:]}", f"vkDestroy{ctype[2:]}")
    return create, getattr(lib, destroy), ffi.typeof(f"{ctype}[1]")
