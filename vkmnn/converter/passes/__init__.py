"""Rewrites of graphs: fewer ops, the same results. `optimize` runs them all."""

from __future__ import annotations

from vkmnn.converter.passes.base import IndexedPass, Pass, PatternPass, Refusal
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.pipeline import default_passes, optimize
from vkmnn.folding import Evaluator

__all__ = [
    "Evaluator",
    "GraphIndex",
    "IndexedPass",
    "Pass",
    "PatternPass",
    "Refusal",
    "default_passes",
    "optimize",
]
