"""Scale: a multiplier and a shift per channel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, Layout
from vkmnn.ir.ops import ScaleAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import activation_spec
from vkmnn.vulkan.broadcast import blocked_operand
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.indexing import operands


@vulkan_execution("Scale")
class ScaleExecution(VulkanExecution):
    """One dispatch; channel-blocked wherever the tensor has pixels."""

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Work on channel blocks; the vectors stay plain."""
        blocked = len(outputs[0].shape) > 2
        layout = Layout.NC4HW4 if blocked else Layout.NCHW
        return [layout, Layout.NCHW, Layout.NCHW], [layout]

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        attrs = self.op.attrs
        assert isinstance(attrs, ScaleAttrs)
        source, scale, bias = operands(inputs)
        output = outputs[0]
        batch, channels, *spatial = output.shape
        blocked = output.layout is Layout.NC4HW4
        if blocked:
            source = blocked_operand(source, len(output.shape), encoder)
            scale, bias = _padded(scale, encoder), _padded(bias, encoder)
            inner = batch * prod(spatial)
            count = ceil_div(channels, 4) * inner
        else:
            inner, count = prod(spatial), prod(output.shape)
        shader = kernels.scale(layout="nc4hw4" if blocked else "nchw", storage=encoder.load_storage)
        params = kernels.ScaleParams(
            count=count,
            inner=inner,
            channels=channels,
            act_alpha=attrs.activation.alpha,
            act_beta=attrs.activation.beta,
        )
        spec = activation_spec(attrs.activation)
        encoder.dispatch_linear(shader, [source, scale, bias, output], params, count, spec)


def _padded(vector: Tensor, encoder: VulkanEncoder) -> Tensor:
    """Return a per-channel vector with whole vec4s; storage pads what is no constant anyway."""
    if vector.value is None:
        return vector
    return encoder.constant(vector, "vec4", _pad_to_vec4)


def _pad_to_vec4(array: Array) -> Array:
    return np.pad(array, (0, -array.size % 4))
