"""DynamicRange: scale and zero point of a tensor, from its extremes."""

from __future__ import annotations

from vkmnn.core.execution import Layouts
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, storage_elements
from vkmnn.ir.ops import OpAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.rows.reduction import row_grid

# The vec4s of a workgroup; a GPU needs more of them to be busy.
CHUNK_CPU = 4_096
CHUNK_GPU = 1_024


@vulkan_execution("DynamicRange")
class DynamicRangeExecution(VulkanExecution[OpAttrs]):
    """One dispatch; for large tensors, an earlier one computes the extremes of pieces."""

    float_rule = FloatRule.READS

    def layouts(self) -> Layouts:
        """Any order works: the zeros of tail lanes are within every range."""
        return [self.operand(0).layout], [Layout.NCHW] * len(self.outputs)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        x, pairs = self.operand(0), False
        elements = storage_elements(x.shape, x.layout)
        chunk = CHUNK_GPU if is_gpu(encoder.info) else CHUNK_CPU
        pieces = ceil_div(ceil_div(elements, 4), chunk)
        if pieces > 1:
            extremes = encoder.scratch(4 * pieces, full=True)
            params = kernels.DynamicRangeParams(elements=elements, chunk=chunk)
            shader = kernels.dynamic_range(result="pieces", element=x.element, load=encoder.load)
            encoder.dispatch(shader, [x, extremes], params, row_grid(pieces, encoder))
            x, elements, pairs = extremes, 4 * pieces, True
        params = kernels.DynamicRangeParams(elements=elements, chunk=ceil_div(elements, 4))
        shader = kernels.dynamic_range(result="range", element=x.element, load=encoder.load)
        made = [self._made(index, encoder) for index in range(2)]
        encoder.dispatch(shader, [x, *made], params, spec={"PAIRS": pairs})

    def _made(self, index: int, encoder: VulkanEncoder) -> Tensor:
        wanted = self.result(index)
        return encoder.scratch(1, full=True) if wanted is None else wanted
