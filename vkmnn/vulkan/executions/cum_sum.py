"""CumSum and CumProd: running sums and products along one axis."""

from __future__ import annotations

from vkmnn.ir.ops import CumSumAttrs
from vkmnn.shape.common import int_scalar, normalize_axis
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.rows.reduction import line_of
from vkmnn.vulkan.rows.running import encode_running


@vulkan_execution("CumSum", "CumProd")
class CumSumExecution(VulkanExecution[CumSumAttrs]):
    """One invocation per line; in long lines, sums of pieces first, then their running sums."""

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        x, axis = self.operand(0), self.operand(1)
        along = normalize_axis(int_scalar([None, axis.value], 1, "axis"), len(x.shape))
        if 0 not in x.shape:
            line = line_of(x.shape, along, along)
            encode_running(self.op, self.attrs, x, self.output, line, encoder)
