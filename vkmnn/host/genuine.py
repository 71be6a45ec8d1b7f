"""The real onnxruntime, even where `vkmnn.onnxruntime` has replaced it in `sys.modules`."""

from __future__ import annotations

import importlib
import sys
import threading
from functools import lru_cache
from importlib.machinery import PathFinder
from types import ModuleType

_NAME = "onnxruntime"
_lock = threading.Lock()


def is_installed() -> bool:
    """True if onnxruntime can be imported, whatever module has its name at present."""
    return PathFinder.find_spec(_NAME) is not None


def genuine_onnxruntime() -> ModuleType:
    """Return the package that is installed as onnxruntime.

    Raises:
        ImportError: there is none, or it cannot be imported.
    """
    present = sys.modules.get(_NAME)
    if present is None or present.__name__ == _NAME:
        return importlib.import_module(_NAME)
    with _lock:
        return _imported_aside()


@lru_cache(maxsize=1)
def _imported_aside() -> ModuleType:
    """Import the package, then restore the module that had its name."""
    hidden = {name: sys.modules.pop(name) for name in _modules()}
    try:
        return importlib.import_module(_NAME)
    finally:
        for name in _modules():
            del sys.modules[name]
        sys.modules.update(hidden)


def _modules() -> list[str]:
    return [name for name in sys.modules if f"{name}.".startswith(f"{_NAME}.")]
