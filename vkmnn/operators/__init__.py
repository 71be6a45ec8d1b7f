"""Operators in one file each, besides their shader: a plug-in that vkmnn brings itself.

`python -m vkmnn.codegen new-op NAME` adds one; docs/add-an-operator.md shows how it goes on. Every
module here is imported before the first model is loaded.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
