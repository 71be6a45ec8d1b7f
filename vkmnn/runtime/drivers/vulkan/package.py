"""The cffi library inside the package `vulkan`, without the package's own functions."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

_TYPES = "vulkan._vulkancache"
_LOADERS = {"win32": ("vulkan-1.dll",), "darwin": ("libvulkan.dylib", "libMoltenVK.dylib")}
_HOMEBREW = ("/opt/homebrew/lib", "/usr/local/lib")
"""Folders of Homebrew; macOS does not search the first one."""


def loaders() -> list[str]:
    """Return the names of the Vulkan loader on this system, in the order of attempts.

    On macOS, MoltenVK may stand in for the loader, and both may be in Homebrew's or the SDK's
    folder, where the system does not look.
    """
    system: str = sys.platform
    names = _LOADERS.get(system, ("libvulkan.so.1", "libvulkan.so"))
    if system != "darwin":
        return list(names)
    sdk = os.environ.get("VULKAN_SDK")
    folders = ["", *([f"{sdk}/lib"] if sdk else []), *_HOMEBREW]
    return [f"{folder}/{name}" if folder else name for name in names for folder in folders]


def raw_vulkan() -> tuple[Any, Any]:
    """Return the package's `ffi` and `lib`.

    Its types are in a separate module. A normal import would first run the package, thousands of
    definitions that are not needed here.

    Raises:
        ImportError: the package does not exist.
        OSError: there is no Vulkan loader.
    """
    types = None if "vulkan" in sys.modules else _types()
    if types is not None:
        for name in loaders():
            with contextlib.suppress(OSError):
                return types, types.dlopen(name)
    from vulkan._vulkan import ffi, lib  # it may know other names

    return ffi, lib


def _types() -> Any | None:
    """Return the `ffi` of the package without importing it; None if it is built otherwise."""
    package = find_spec("vulkan")
    if package is None:
        return None
    spec = PathFinder.find_spec(_TYPES, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    ffi: Any = getattr(module, "ffi", None)
    if ffi is not None:  # used by later imports of the package
        sys.modules.setdefault(_TYPES, module)
    return ffi
