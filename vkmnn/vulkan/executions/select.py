"""Select: element-wise choice (ONNX Where)."""

from __future__ import annotations

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.broadcast import elementwise_layouts, plan_operands, reject_many_axes
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule


@vulkan_execution("Select")
class SelectExecution(VulkanExecution):
    """One dispatch over the broadcast result."""

    float_rule = FloatRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject shapes with too many alternating axes."""
        reject_many_axes(self.operands, self.output)

    def layouts(self) -> Layouts:
        """Use the largest operand's order; zero tails choose between zeros."""
        return elementwise_layouts(self.operands, self.output, True)

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the computed operands: constants that hide scores become the lowest number."""
        return self.by_rule(self.float_rule, element, clamped=True)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        plan, operands = plan_operands(self.operands, self.output, encoder)
        shader = kernels.select(
            width=plan.width,
            element=encoder.element,
            load=encoder.load,
        )
        params = kernels.SelectParams(
            count=plan.count,
            size=plan.padded_sizes(),
            cond_stride=plan.padded_strides(0),
            a_stride=plan.padded_strides(1),
            b_stride=plan.padded_strides(2),
        )
        spec: dict[str, int | bool] = {"AXES": len(plan.sizes)}
        if plan.width == 4:
            names = ("COND_SPLAT", "A_SPLAT", "B_SPLAT")
            spec |= dict(zip(names, plan.splats, strict=True))
        encoder.dispatch_linear(shader, [*operands, self.output], params, plan.count, spec)
