"""DeformColumns: im2col for deformable convolution."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import DeformColumnsAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution


@vulkan_execution("DeformColumns")
class DeformColumnsExecution(VulkanExecution[DeformColumnsAttrs]):
    """One invocation per element."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject images without pixels."""
        if 0 in self.operand(0).shape:
            raise Rejection("images without pixels")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, x, offsets, y = self.attrs, self.operand(0), self.operand(1), self.output
        factors = self.optional(2)
        params = kernels.DeformColumnsParams(
            count=prod(y.shape),
            channels=x.shape[1],
            groups=attrs.groups,
            kernel=attrs.kernel,
            size=(x.shape[2], x.shape[3]),
            places=(offsets.shape[2], offsets.shape[3]),
            strides=attrs.strides,
            dilations=attrs.dilations,
            pads=attrs.pads[:2],
        )
        encoder.dispatch_linear(
            kernels.deform_columns(load=encoder.load),
            [x, offsets, factors or offsets, y],
            params,
            params.count,
            {"HAS_FACTOR": factors is not None},
        )
