"""Shape computation: output shapes and element types, needed contents, operation counts."""

from __future__ import annotations

from vkmnn.shape import (
    boxes,
    cached_attention,
    convolution,
    custom,
    einsum,
    elementwise,
    fourier,
    gathering,
    generation,
    matmul,
    movement,
    normalization,
    packed,
    pooling,
    recurrent,
    reduction,
    reshaping,
    resizing,
    rotary,
    slicing,
    unfolding,
)
from vkmnn.shape.alike import AlikeShapes, reads_declared_contents
from vkmnn.shape.counting import flops
from vkmnn.shape.registry import (
    SizeComputer,
    compute_shapes,
    is_too_large,
    size_computer,
)
from vkmnn.shape.sizes import Cost, cost_of, info_bytes, new_bytes
from vkmnn.shape.working import is_view, working_bytes, working_seconds

__all__ = [
    "AlikeShapes",
    "Cost",
    "SizeComputer",
    "boxes",
    "cached_attention",
    "compute_shapes",
    "convolution",
    "cost_of",
    "custom",
    "einsum",
    "elementwise",
    "flops",
    "fourier",
    "gathering",
    "generation",
    "info_bytes",
    "is_too_large",
    "is_view",
    "matmul",
    "movement",
    "new_bytes",
    "normalization",
    "packed",
    "pooling",
    "reads_declared_contents",
    "recurrent",
    "reduction",
    "reshaping",
    "resizing",
    "rotary",
    "size_computer",
    "slicing",
    "unfolding",
    "working_bytes",
    "working_seconds",
]
