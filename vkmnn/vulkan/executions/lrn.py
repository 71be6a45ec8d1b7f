"""LRN: local response normalisation across channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Op
from vkmnn.ir.ops import LRNAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.indexing import operands


@vulkan_execution("LRN")
class LRNExecution(VulkanExecution):
    """One dispatch on channel blocks."""

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse tensors without pixels."""
        rank = len(outputs[0].shape)
        return f"rank {rank}, at least 3 is needed" if rank < 3 else None

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Work on channel blocks."""
        return [Layout.NC4HW4], [Layout.NC4HW4]

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        attrs = self.op.attrs
        assert isinstance(attrs, LRNAttrs)
        (source,) = operands(inputs)
        batch, channels, *spatial = outputs[0].shape
        pixels = batch * prod(spatial)
        count = ceil_div(channels, 4) * pixels
        params = kernels.LrnParams(
            count=count,
            pixels=pixels,
            channels=channels,
            # ONNX: floor((size - 1) / 2) channels below, ceil((size - 1) / 2) above.
            below=(attrs.size - 1) // 2,
            above=attrs.size // 2,
            alpha=attrs.alpha / attrs.size,
            beta=attrs.beta,
            bias=attrs.bias,
        )
        shader = kernels.lrn(storage=encoder.load_storage)
        encoder.dispatch_linear(shader, [source, outputs[0]], params, count)
