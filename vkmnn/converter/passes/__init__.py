"""Rewrites of graphs: fewer ops, the same results. `optimize` runs them all."""

from __future__ import annotations

from vkmnn.converter.passes.base import IndexedPass, NoMatch, Pass, PatternPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.pipeline import default_passes, optimize
from vkmnn.shape.folding import Evaluator

__all__ = [
    "Evaluator",
    "GraphIndex",
    "IndexedPass",
    "NoMatch",
    "Pass",
    "PatternPass",
    "default_passes",
    "optimize",
]
