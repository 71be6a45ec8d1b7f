"""Rotary: pairs of columns rotated by tables of cosines and sines."""

from __future__ import annotations

from math import prod

from vkmnn.base.elements import FloatElement
from vkmnn.ir.ops import RotaryAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.storage import reject_integers


@vulkan_execution("Rotary")
class RotaryExecution(VulkanExecution[RotaryAttrs]):
    """One dispatch over the result, four columns at a time if they are aligned."""

    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject integers."""
        reject_integers(self.inputs)

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the operands: a rotation does not increase values."""
        return self.by_rule(FloatRule.FOLLOWS, element)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, (x, cos, sin) = self.attrs, self.operands
        _, heads, rows, depth = x.shape
        width = attrs.width
        block = 2 if attrs.interleaved else 1
        aligned = depth % 4 == 0 and width % (8 // block) == 0
        lanes = 4 if aligned else 1
        count = prod(x.shape) // lanes
        if count == 0:
            return
        shader = kernels.rotary(
            aligned=4 if aligned else 1, element=encoder.element, load=encoder.load
        )
        params = kernels.RotaryParams(
            count=count,
            units=depth // lanes,
            width=width,
            rows=rows,
            heads=heads,
            columns=cos.shape[3],
            batch=rows * cos.shape[3] if cos.shape[0] > 1 else 0,
        )
        spec = {"INTERLEAVED": attrs.interleaved, "PAIRS": cos.shape[3] != width}
        encoder.dispatch_linear(shader, [x, cos, sin, self.output], params, count, spec)
