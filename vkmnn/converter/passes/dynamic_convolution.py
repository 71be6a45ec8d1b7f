"""Dynamically quantised convolutions with both scales as one op."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.affine import Channels, channel_vector
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts, merged_source
from vkmnn.converter.passes.dynamic_product import both_ways, factor_of, range_of
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import DynamicQuantizeConvolutionAttrs, QuantizedConvolutionAttrs

_BIAS, _RESIDUAL, _FACTOR = 2, 3, 4
MAX_PRODUCTS = 1 << 15
"""Sums of more are computed in parts, each on its own."""


@dataclass(frozen=True, slots=True)
class _Match:
    product: Op[QuantizedConvolutionAttrs]
    range: Op
    factor: Array


class FuseDynamicConvolution(PatternPass[_Match]):
    """conv(q, bytes) · (scale · constant), where q is dynamically quantised.

    The op that rounds the tensor stays if others read it.
    """

    name = "fuse_dynamic_convolution"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        for sums, scales in both_ways(binary_parts(op, "MUL")):
            product = index.producer_of_type(sums, "QuantizedConvolution")
            if product is None or not index.read_once(sums) or not _is_plain(product, index):
                continue
            found = range_of(product.inputs[0], index)
            factor = None if found is None else factor_of(scales, found.outputs[0], index)
            if found is None or factor is None or not index.same_shape(op.outputs[0], sums):
                continue
            weights = index.constants[product.inputs[1]]
            channels = Channels(1 - weights.ndim, weights.shape[0], weights.ndim)
            each = channel_vector(factor, channels)
            if each is not None:
                return _Match(product, found, each.astype(np.float32))
        return NoMatch("no dynamically quantised convolution with its scale")

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        product, source = match.product, merged_source((match.product, op))
        factor = index.add_constant(f"{product.name}:factor", match.factor)
        scale, point = match.range.outputs
        inputs = [match.range.inputs[0], product.inputs[1], "", "", factor, scale, point]
        a = product.attrs
        attrs = DynamicQuantizeConvolutionAttrs(
            a.kernel, a.strides, a.dilations, a.pads, a.group, a.auto_pad
        )
        outputs = list(op.outputs)
        index.replace(
            op, Op("DynamicQuantizeConvolution", product.name, inputs, outputs, attrs, source)
        )


def _is_plain(op: Op[QuantizedConvolutionAttrs], index: GraphIndex) -> bool:
    """True for exact sums by constant bytes."""
    attrs, weights = op.attrs, index.constant(op.inputs[1])
    if attrs.scale != 1.0 or (attrs.low, attrs.high) != (-np.inf, np.inf):
        return False
    if op.inputs[_RESIDUAL] or any(op.inputs[_FACTOR + 1 :]) or weights is None:
        return False
    bias, factor = index.constant(op.inputs[_BIAS]), index.constant(op.inputs[_FACTOR])
    if bias is None or bias.any() or factor is None or not bool((factor == 1).all()):
        return False
    if weights.dtype not in (np.int8, np.int16) or prod(weights.shape[1:]) > MAX_PRODUCTS:
        return False
    return int(weights.max(initial=0)) - int(weights.min(initial=0)) <= np.iinfo(np.uint8).max
