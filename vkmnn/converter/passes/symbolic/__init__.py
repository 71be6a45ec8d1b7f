"""Shapes and shape vectors with dimensions that are known by name only."""

from __future__ import annotations

from vkmnn.converter.passes.symbolic.dims import DimAlgebra, is_cut
from vkmnn.converter.passes.symbolic.facts import Facts, Shape
from vkmnn.converter.passes.symbolic.shapes import SHAPE_RULES
from vkmnn.converter.passes.symbolic.values import MAX_ELEMENTS, VALUE_RULES

__all__ = ["MAX_ELEMENTS", "SHAPE_RULES", "VALUE_RULES", "DimAlgebra", "Facts", "Shape", "is_cut"]
