"""Scale: a factor and an offset per channel."""

from __future__ import annotations

from math import prod
from typing import Literal

from vkmnn.core.execution import Layouts
from vkmnn.ir import Layout
from vkmnn.ir.ops import ScaleAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import activation_spec
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule


@vulkan_execution("Scale")
class ScaleExecution(VulkanExecution[ScaleAttrs]):
    """One dispatch, in the order of the input."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def layouts(self) -> Layouts:
        """Keep the input's order; scale and bias are vectors, the same in both."""
        layout = self.operand(0).layout
        return [layout, Layout.NCHW, Layout.NCHW], [layout]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        if 0 in output.shape:
            return
        batch, channels = output.shape[:2]
        pixels = prod(output.shape[2:])
        width: Literal[1, 4] = 4
        splat, blocks, inner = False, ceil_div(channels, 4), 1
        if output.layout is Layout.NC4HW4:
            inner = batch * pixels
            count = blocks * inner
        elif pixels % 4 == 0:
            splat, blocks, inner = True, channels, pixels // 4
            count = batch * channels * inner
        elif pixels == 1 and channels % 4 == 0:
            count = batch * blocks
        else:
            width, blocks, inner = 1, channels, pixels
            count = batch * channels * pixels
        params = kernels.ScaleParams(
            count=count,
            inner=inner,
            blocks=blocks,
            channels=channels,
            act_alpha=attrs.activation.alpha,
            act_beta=attrs.activation.beta,
        )
        shader = kernels.scale(width=width, element=encoder.element, load=encoder.load)
        spec = {"SPLAT": splat, **activation_spec(attrs.activation)}
        tensors = [*self.operands, output]
        encoder.dispatch_linear(shader, tensors, params, count, spec)
