"""Tensors in 2-D images: their layout, and the ops with kernels for them."""

from __future__ import annotations

from importlib import import_module


def load_all() -> None:
    """Import the modules that register kernels for images."""
    for module in ("elementwise", "interp", "raster", "windows"):
        import_module(f"{__name__}.{module}")
