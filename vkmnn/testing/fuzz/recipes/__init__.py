"""One recipe for each operator: it adds a valid node of it to a sketch."""

from __future__ import annotations

from vkmnn.testing.fuzz.recipes import (
    attention,
    boxes,
    compaction,
    contrib,
    contrib_quantized,
    control,
    elementwise,
    indexing,
    matrix,
    movement,
    normalization,
    patterns,
    quantized,
    quantized_layers,
    recurrent,
    reduction,
    shapes,
    signal,
    windows,
)
from vkmnn.testing.fuzz.recipes.table import EXCUSED, PATTERNS, RECIPES, Recipe, pattern, recipe

__all__ = [
    "EXCUSED",
    "PATTERNS",
    "RECIPES",
    "Recipe",
    "attention",
    "boxes",
    "compaction",
    "contrib",
    "contrib_quantized",
    "control",
    "elementwise",
    "indexing",
    "matrix",
    "movement",
    "normalization",
    "pattern",
    "patterns",
    "quantized",
    "quantized_layers",
    "recipe",
    "recurrent",
    "reduction",
    "shapes",
    "signal",
    "windows",
]
