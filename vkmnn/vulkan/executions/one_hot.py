"""OneHot."""

from __future__ import annotations

from math import prod

from vkmnn.ir.ops import AxisAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.storage import kernel_dtype


@vulkan_execution("OneHot")
class OneHotExecution(VulkanExecution[AxisAttrs]):
    """One dispatch over the result."""

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        index, _, values = self.operands
        shape = self.output.shape
        axis = self.attrs.axis % len(shape)
        count = prod(shape)
        params = kernels.OneHotParams(count=count, inner=prod(shape[axis + 1 :]), depth=shape[axis])
        shader = kernels.one_hot(
            element=kernel_dtype(index.dtype),  # type: ignore[arg-type]
            load=encoder.load,
        )
        encoder.dispatch_linear(shader, [index, values, self.output], params, count)
