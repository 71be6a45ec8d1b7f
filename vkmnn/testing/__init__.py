"""Shader regression tests: every kernel variant against numpy, on every Vulkan device present.

`pytest --vkmnn-shaders` runs them. A plug-in adds cases for its own kernels with `shader_cases`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases

__all__ = ["Case", "Variant", "blocked_case", "op_case", "shader_cases"]


def __getattr__(name: str) -> Any:
    """Import the engine on first use: pytest imports this package in every project (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from vkmnn.testing import case

    return getattr(case, name)
