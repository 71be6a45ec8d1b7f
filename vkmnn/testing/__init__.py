"""Shader regression tests: every kernel variant against numpy, on every Vulkan device present.

`pytest --vkmnn-shaders` runs them. A plug-in adds cases for its own kernels with `shader_cases`.
"""

from __future__ import annotations

from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases

__all__ = ["Case", "Variant", "blocked_case", "op_case", "shader_cases"]
