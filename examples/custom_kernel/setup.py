"""Compiles the shaders into the wheel; all else is in pyproject.toml."""

from __future__ import annotations

from setuptools import setup
from vkmnn.codegen.packaging import BuildShaders

setup(cmdclass={"build_py": BuildShaders})
