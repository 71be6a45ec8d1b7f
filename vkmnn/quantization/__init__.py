"""Quantisation of float models: weights and activations."""

from __future__ import annotations

from vkmnn.quantization.report import FloatNode, OutputAccuracy, Progress, Quantized, Size
from vkmnn.quantization.run import quantize
from vkmnn.quantization.scheme import ActivationType, Method, WeightType

__all__ = [
    "ActivationType",
    "FloatNode",
    "Method",
    "OutputAccuracy",
    "Progress",
    "Quantized",
    "Size",
    "WeightType",
    "quantize",
]
