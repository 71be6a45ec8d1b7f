"""LRN: local response normalisation across channels."""

from __future__ import annotations

from math import prod
from typing import Literal

from vkmnn.core.execution import Layouts, Rejection
from vkmnn.ir import Layout
from vkmnn.ir.ops import LRNAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule


@vulkan_execution("LRN")
class LRNExecution(VulkanExecution[LRNAttrs]):
    """One dispatch, in the order of the input."""

    float_rule = FloatRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject windows that need too many loop iterations."""
        window = min(self.attrs.size, self.output.shape[1])
        if window > MAX_LOOP_ROUNDS:
            raise Rejection(f"a window of {window} channels")

    def layouts(self) -> Layouts:
        """Keep the input's order: zero tail lanes stay zero."""
        layout = self.operand(0).layout
        return [layout], [layout]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, x, y = self.attrs, self.operand(0), self.output
        if 0 in x.shape:
            return
        batch, channels = x.shape[:2]
        inner = prod(x.shape[2:])
        form: Literal[1, 4, "blocked"] = 1
        count = batch * channels * inner
        if x.layout is Layout.NC4HW4:
            form, inner = "blocked", batch * inner
            count = ceil_div(channels, 4) * inner
        elif inner % 4 == 0:
            form, inner, count = 4, inner // 4, count // 4
        params = kernels.LrnParams(
            count=count,
            channels=channels,
            inner=inner,
            # A window wider than the tensor must not overflow int32.
            before=min((attrs.size - 1) // 2, channels),
            after=min(attrs.size // 2, channels),
            ratio=attrs.alpha / attrs.size,
            bias=attrs.bias,
        )
        shader = kernels.lrn(form=form, element=encoder.element, load=encoder.load)
        encoder.dispatch_linear(shader, [x, y], params, count, {"BETA": attrs.beta})
