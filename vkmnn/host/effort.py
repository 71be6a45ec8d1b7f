"""Work of nodes whose attributes and values, not sizes, determine it.

A running kernel cannot be interrupted, so work that would take too long is refused before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass

if TYPE_CHECKING:
    import onnx

Arrays = Sequence[Any]
"""A node's inputs; None for absent ones and those that are not arrays."""

LONG = frozenset({
    *("Loop", "Scan", "If", "BeamSearch", "WhisperBeamSearch", "GreedySearch", "Sampling"),
    *("Conv", "ConvTranspose", "Einsum", "MatMul", "Gemm", "Det", "Inverse", "RoiAlign"),
    *("TfIdfVectorizer", "Attention", "LSTM", "GRU", "RNN", "DFT", "STFT", "NonMaxSuppression"),
    *("MaxRoiPool", "AveragePool", "MaxPool", "LpPool", "GridSample", "Resize"),
})  # fmt: skip
"""Operators that may take longer than reading their inputs: they run under a timeout."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Estimated work of a node.

    Attributes:
        steps: elementary ones: multiplications, or elements that are looked at.
        nbytes: bytes of temporary memory, which no allocator counts.
    """

    steps: float
    nbytes: float = 0.0


NONE = Effort(0.0)
_TABLE_BYTES = 40.0
"""Four offsets and four weights, which RoiAlign keeps of a sample."""


def effort_of(node: onnx.NodeProto, inputs: Arrays) -> Effort:
    """Return the work of a node beyond a constant number of steps per element.

    Args:
        node: the node.
        inputs: its inputs; None if one is unknown, or not an array.
    """
    rule = _RULES.get(node.op_type)
    if rule is None:
        return NONE
    from onnx import helper

    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute if one.type}
    try:
        return rule(attributes, [one if isinstance(one, np.ndarray) else None for one in inputs])
    except (ArithmeticError, IndexError, TypeError, ValueError):
        return NONE  # an invalid node: the evaluator reports the error


def _roi_align(attributes: Mapping[str, Any], inputs: Arrays) -> Effort:
    x, rois = inputs[0], inputs[1]
    if x is None or rois is None:
        return NONE
    bins = [float(attributes.get(name, 1)) for name in ("output_height", "output_width")]
    ratio = attributes.get("sampling_ratio", 0)
    if ratio > 0:
        samples = np.full(len(rois), float(ratio) ** 2)
    else:  # as many as there are pixels in a bin
        scale = abs(attributes.get("spatial_scale", 1.0))
        extents = np.nan_to_num(rois[:, 2:].astype(np.float64) - rois[:, :2]) * scale
        width, height = np.maximum(extents, 1.0).T
        samples = np.ceil(height / bins[0]) * np.ceil(width / bins[1])
    each = samples * prod(bins)
    largest = float(each.max(initial=0.0)) * _TABLE_BYTES
    return Effort(float(each.sum()) * (1.0 + x.shape[1]), largest)


def _n_grams(attributes: Mapping[str, Any], inputs: Arrays) -> Effort:
    if inputs[0] is None:
        return NONE
    skips = 1.0 + attributes.get("max_skip_count", 0)
    return Effort(float(inputs[0].size) * skips * attributes.get("max_gram_length", 1))


def _cubic(_: Mapping[str, Any], inputs: Arrays) -> Effort:
    x = inputs[0]
    return NONE if x is None or x.ndim < 1 else Effort(float(x.size) * x.shape[-1])


def _product(attributes: Mapping[str, Any], inputs: Arrays) -> Effort:
    a, b = inputs[0], inputs[1]
    if a is None or b is None or not a.ndim or not b.ndim:
        return NONE
    columns = b.shape[0 if attributes.get("transB", 0) else -1] if b.ndim > 1 else 1
    batch = max(prod(b.shape[:-2]) // max(prod(a.shape[:-2]), 1), 1)
    return Effort(float(a.size) * columns * batch)


_RULES: Mapping[str, Callable[[Mapping[str, Any], Arrays], Effort]] = {
    "RoiAlign": _roi_align,
    "TfIdfVectorizer": _n_grams,
    "Det": _cubic,
    "Inverse": _cubic,
    "MatMul": _product,
    "Gemm": _product,
}

MEASURED = frozenset(_RULES)
"""Operators that `effort_of` can estimate."""

BY_VALUES = frozenset({"RoiAlign", "TfIdfVectorizer"})
"""Operators that must not run before their inputs are checked: each gets a separate model."""
