"""Compiles the shaders into the wheel; all else is in pyproject.toml."""

from __future__ import annotations

from vkmnn.codegen.packaging import setup

setup()
