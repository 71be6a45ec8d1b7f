"""Geometry: data movement as Raster regions, and composed operators as simpler ones."""

from __future__ import annotations

from vkmnn.geometry import (
    attention,
    caches,
    einsum,
    fourier,
    gathering,
    generation,
    movement,
    narrow,
    padding,
    reduction,
    reshaping,
    triangle,
    unfolding,
)
from vkmnn.geometry.alike import is_lowered_by_kind
from vkmnn.geometry.fuse import fuse_rasters, view_source
from vkmnn.geometry.lowering import lower_graph
from vkmnn.geometry.operands import fuse_operands
from vkmnn.geometry.registry import (
    GeometryContext,
    Lowering,
    geometry,
    has_geometry,
    lower,
    may_lower,
)
from vkmnn.geometry.views import fuse_views

__all__ = [
    "GeometryContext",
    "Lowering",
    "attention",
    "caches",
    "einsum",
    "fourier",
    "fuse_operands",
    "fuse_rasters",
    "fuse_views",
    "gathering",
    "generation",
    "geometry",
    "has_geometry",
    "is_lowered_by_kind",
    "lower",
    "lower_graph",
    "may_lower",
    "movement",
    "narrow",
    "padding",
    "reduction",
    "reshaping",
    "triangle",
    "unfolding",
    "view_source",
]
