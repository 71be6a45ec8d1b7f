"""Shape computation: output shapes and element types, needed contents, operation counts."""

from __future__ import annotations

from vkmnn.shape import (
    convolution,
    einsum,
    elementwise,
    gathering,
    generation,
    matmul,
    movement,
    normalization,
    pooling,
    reduction,
    reshaping,
    resizing,
)
from vkmnn.shape.counting import flops
from vkmnn.shape.registry import (
    SizeComputer,
    compute_shapes,
    content_inputs,
    has_size_computer,
    size_computer,
)

__all__ = [
    "SizeComputer",
    "compute_shapes",
    "content_inputs",
    "convolution",
    "einsum",
    "elementwise",
    "flops",
    "gathering",
    "generation",
    "has_size_computer",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "reshaping",
    "resizing",
    "size_computer",
]
