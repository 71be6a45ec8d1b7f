"""Quantisation of float models: weights and activations."""

from __future__ import annotations

from vkmnn.quantization.report import (
    FloatNode,
    LayerError,
    OutputAccuracy,
    Perplexity,
    Progress,
    Quantized,
    Reached,
    Size,
)
from vkmnn.quantization.run import quantize
from vkmnn.quantization.scheme import ActivationType, Method, WeightType
from vkmnn.quantization.targets import METRICS, TargetMissedError

__all__ = [
    "METRICS",
    "ActivationType",
    "FloatNode",
    "LayerError",
    "Method",
    "OutputAccuracy",
    "Perplexity",
    "Progress",
    "Quantized",
    "Reached",
    "Size",
    "TargetMissedError",
    "WeightType",
    "quantize",
]
