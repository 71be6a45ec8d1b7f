"""Append: rows written into a tensor in place."""

from __future__ import annotations

from math import prod

from vkmnn.ir.ops import AppendAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution


@vulkan_execution("Append")
class AppendExecution(VulkanExecution[AppendAttrs]):
    """One dispatch over the appended rows; the result is the first input."""

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        whole, rows, length = self.operands
        encoder.alias(self.output, whole)
        axis, count = self.attrs.axis, prod(rows.shape)
        if count == 0:
            return
        params = kernels.AppendParams(
            count=count,
            inner=prod(rows.shape[axis + 1 :]),
            rows=rows.shape[axis],
            capacity=whole.shape[axis],
        )
        shader = kernels.append(load=encoder.load)
        encoder.dispatch_linear(shader, [rows, length, self.output], params, count)
