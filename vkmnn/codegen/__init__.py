"""The shader generator: templates and `macro.json` in, SPIR-V, manifest and a typed module out.

`python -m vkmnn.codegen` is its face; README.md in this folder says how to write a template.
"""

from __future__ import annotations
