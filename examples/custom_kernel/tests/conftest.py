"""Registers the cases of the shaders, for `pytest --vkmnn-shaders`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

for _path in sorted(Path(__file__).parent.glob("cases_*.py")):
    import_module(_path.stem)
