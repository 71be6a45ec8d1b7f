"""The numpy backup backend: every operator of the vocabulary, by ONNX's definitions.

Runs ops that the device cannot, folds constants, and serves as the reference in tests of the
device.
"""

from __future__ import annotations

from vkmnn.cpu_fallback import (
    binary,
    boxes,
    cached_attention,
    convolution,
    custom,
    erf,
    fourier,
    gathering,
    generation,
    matmul,
    movement,
    normalization,
    packed,
    pooling,
    raster,
    recurrent,
    reduction,
    resizing,
    rotary,
    unary,
    unfolding,
)
from vkmnn.cpu_fallback.backend import CpuBackend
from vkmnn.cpu_fallback.registry import (
    CpuExecution,
    cpu_execution,
    has_execution,
    placed_execution,
    run_op,
)

__all__ = [
    "CpuBackend",
    "CpuExecution",
    "binary",
    "boxes",
    "cached_attention",
    "convolution",
    "cpu_execution",
    "custom",
    "erf",
    "fourier",
    "gathering",
    "generation",
    "has_execution",
    "matmul",
    "movement",
    "normalization",
    "packed",
    "placed_execution",
    "pooling",
    "raster",
    "recurrent",
    "reduction",
    "resizing",
    "rotary",
    "run_op",
    "unary",
    "unfolding",
]
