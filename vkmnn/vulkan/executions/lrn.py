"""LRN: local response normalisation across channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Op
from vkmnn.ir.ops import LRNAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.half import HalfRule


@vulkan_execution("LRN")
class LRNExecution(VulkanExecution):
    """One dispatch, in the order in which the input lies."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse windows that take too many loop iterations."""
        assert isinstance(op.attrs, LRNAttrs)
        window = min(op.attrs.size, outputs[0].shape[1])
        return f"a window of {window} channels" if window > MAX_LOOP_ROUNDS else None

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Keep the input's order: zero tail lanes stay zero."""
        x = inputs[0]
        assert x is not None
        return [x.layout], [x.layout]

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        attrs = self.op.attrs
        assert isinstance(attrs, LRNAttrs)
        x, y = inputs[0], outputs[0]
        assert x is not None
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
            # A window wider than the tensor may not overflow int32.
            before=min((attrs.size - 1) // 2, channels),
            after=min(attrs.size // 2, channels),
            ratio=attrs.alpha / attrs.size,
            bias=attrs.bias,
        )
        shader = kernels.lrn(form=form, storage=encoder.load_storage)
        encoder.dispatch_linear(shader, [x, y], params, count, {"BETA": attrs.beta})
