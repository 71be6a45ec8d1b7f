"""Shapes, and the contents of shape vectors, with dimensions known only by name."""

from __future__ import annotations

from vkmnn.shape.symbolic.dims import DimAlgebra, is_cut
from vkmnn.shape.symbolic.facts import MAX_ELEMENTS, Facts, Found, NamedShape, merge_shapes
from vkmnn.shape.symbolic.infer import infer, infer_values
from vkmnn.shape.symbolic.rules import shape_rule, value_rule

__all__ = [
    "MAX_ELEMENTS",
    "DimAlgebra",
    "Facts",
    "Found",
    "NamedShape",
    "infer",
    "infer_values",
    "is_cut",
    "merge_shapes",
    "shape_rule",
    "value_rule",
]
