"""Typed access to the shaders of this folder; `kernels.pyi` lists the names.

`name(axis=...)` returns a variant, `NameParams(...).pack()` its push constants.
"""

from __future__ import annotations

from vkmnn.shaders.loader import bind

__getattr__, __dir__ = bind(globals())
