"""Select: element-wise choice (ONNX Where)."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Op
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.broadcast import MAX_AXES, blocked_layout, plan_operands, plan_plain
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.half import HalfRule, Halves, halves


@vulkan_execution("Select")
class SelectExecution(VulkanExecution):
    """One dispatch over the broadcast result."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse shapes with too many alternating axes."""
        shapes = [tensor.shape for tensor in inputs if tensor is not None]
        plan = plan_plain(shapes, outputs[0].shape)
        if not plan.fits:
            return f"broadcasting alternates over {len(plan.sizes)} axes, at most {MAX_AXES} fit"
        return None

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Work in the largest operand's order; zero tails choose between zeros."""
        tensors = [tensor for tensor in inputs if tensor is not None]
        layout = Layout.NC4HW4 if blocked_layout(tensors, outputs[0], True) else Layout.NCHW
        return [layout] * len(inputs), [layout]

    def halves(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Halves:
        """Follow what is computed: what hides scores in its place may be the lowest half."""
        return halves(self.half_rule, inputs, outputs, clamped=True)

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        plan, operands = plan_operands([t for t in inputs if t is not None], outputs[0], encoder)
        shader = kernels.select(
            width="4" if plan.width == 4 else "1",
            storage=encoder.load_storage,
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
        encoder.dispatch_linear(shader, [*operands, outputs[0]], params, plan.count, spec)
