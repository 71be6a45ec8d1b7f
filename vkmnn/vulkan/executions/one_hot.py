"""OneHot."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.ir.ops import AxisAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.indexing import operands
from vkmnn.vulkan.storage import kernel_dtype


@vulkan_execution("OneHot")
class OneHotExecution(VulkanExecution):
    """One dispatch over the result."""

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        assert isinstance(self.op.attrs, AxisAttrs)
        index, _, values = operands(inputs)
        shape = outputs[0].shape
        axis = self.op.attrs.axis % len(shape)
        count = prod(shape)
        params = kernels.OneHotParams(count=count, inner=prod(shape[axis + 1 :]), depth=shape[axis])
        shader = kernels.one_hot(
            dtype=kernel_dtype(index.dtype),  # type: ignore[arg-type]
            storage=encoder.full_storage,
        )
        encoder.dispatch_linear(shader, [index, values, outputs[0]], params, count)
