"""Cases of the built-in kernels, one module per family; each registers itself when imported."""

from __future__ import annotations

import pkgutil
from importlib import import_module


def load_all() -> None:
    """Import every module of this package, so that all cases are registered."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
