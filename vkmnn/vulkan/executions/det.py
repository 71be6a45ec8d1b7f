"""Det: determinants of square matrices."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import OpAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution


def elimination_rounds(size: int) -> int:
    """Return the number of loop iterations of an invocation."""
    steps = sum(rows * (rows + 2) + 2 * rows + 5 for rows in range(size))
    return size * size + steps


@vulkan_execution("Det")
class DetExecution(VulkanExecution[OpAttrs]):
    """One invocation per matrix, by elimination in a copy."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject matrices without elements, and those too large for a loop."""
        size = self.operand(0).shape[-1]
        if size == 0:
            raise Rejection("matrices without elements")
        if elimination_rounds(size) > MAX_LOOP_ROUNDS:
            raise Rejection(f"matrices of {size} by {size}")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        x, y = self.operand(0), self.output
        params = kernels.DetParams(count=prod(y.shape), size=x.shape[-1])
        work = encoder.scratch(max(1, prod(x.shape)))
        shader = kernels.det(load=encoder.load)
        encoder.dispatch_linear(shader, [x, work, y], params, params.count)
