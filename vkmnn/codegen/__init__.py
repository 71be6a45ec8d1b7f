"""The shader generator: templates and `macro.json` in, SPIR-V, manifest and a typed module out.

`python -m vkmnn.codegen` is its command line; README.md in this folder explains how to write a
template. `compile_source` and `compile_folder` do the same from Python.
"""

from __future__ import annotations

from vkmnn.codegen.source import CompiledSource, compile_folder, compile_source

__all__ = ["CompiledSource", "compile_folder", "compile_source"]
