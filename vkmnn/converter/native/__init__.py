"""vkmnn's own model file: an optimised graph, as schema/vkmnn.fbs describes it.

docs/model-file.md describes its content and its guarantees.
"""

from __future__ import annotations

from vkmnn.converter.native.front_end import NativeFrontEnd

__all__ = ["NativeFrontEnd"]
