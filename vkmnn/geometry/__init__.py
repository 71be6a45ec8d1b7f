"""Geometry: data movement as Raster regions, and composed operators as simpler ones."""

from __future__ import annotations

from vkmnn.geometry import movement, padding, reshaping
from vkmnn.geometry.fuse import fuse_rasters, view_source
from vkmnn.geometry.lowering import lower_graph
from vkmnn.geometry.registry import GeometryContext, Lowering, geometry, has_geometry, lower

__all__ = [
    "GeometryContext",
    "Lowering",
    "fuse_rasters",
    "geometry",
    "has_geometry",
    "lower",
    "lower_graph",
    "movement",
    "padding",
    "reshaping",
    "view_source",
]
