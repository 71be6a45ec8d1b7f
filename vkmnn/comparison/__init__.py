"""`vkmnn.compare`: a model's tensors on two engines, and the first tensor that differs."""

from __future__ import annotations

from vkmnn.comparison.references import (
    ONNXRUNTIME,
    Reference,
    check_reference,
    onnxruntime_of,
    reference_for,
)
from vkmnn.comparison.rows import Comparison, TensorRow, difference
from vkmnn.comparison.run import compare, usual_tolerance

__all__ = [
    "ONNXRUNTIME",
    "Comparison",
    "Reference",
    "TensorRow",
    "check_reference",
    "compare",
    "difference",
    "onnxruntime_of",
    "reference_for",
    "usual_tolerance",
]
