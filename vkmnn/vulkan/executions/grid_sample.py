"""GridSample: reads a tensor at computed coordinates."""

from __future__ import annotations

from math import prod

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.ir import Layout
from vkmnn.ir.ops import GridSampleAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.splitting.spatial import blocked, triple
from vkmnn.vulkan.storage import kernel_dtype

MAX_AXES = 3
GRID = 1  # number of the input


@vulkan_execution("GridSample")
class GridSampleExecution(VulkanExecution[GridSampleAttrs]):
    """One dispatch over the texels of the channel-blocked output."""

    float_rule = FloatRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject more than three spatial axes, and interpolation between integers."""
        x = self.operand(0)
        if len(x.shape) - 2 > MAX_AXES:
            raise Rejection(f"{len(x.shape) - 2} spatial axes, at most {MAX_AXES} fit")
        if self.attrs.mode != "nearest" and kernel_dtype(x.dtype) == "i32":
            # Results are truncated: a rounding error in float32 would change integers.
            raise Rejection(f"{self.attrs.mode} interpolation of {x.dtype.value}")

    def layouts(self) -> Layouts:
        """Channel blocks, and a plain grid."""
        return [Layout.NC4HW4, Layout.NCHW], [Layout.NC4HW4]

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the sampled tensor; coordinates need full precision."""
        return self.by_rule(self.float_rule, element, wide=GRID)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        x, grid = self.operands
        spatial = x.shape[2:]
        batch, channels, *points = output.shape
        count = batch * ceil_div(channels, 4) * prod(points)
        encoder.dispatch_linear(
            kernels.grid_sample(element=encoder.element, load=encoder.load),
            [blocked(x, encoder), grid, output],
            kernels.GridSampleParams(
                count=count,
                points=prod(points),
                batch=batch,
                channels=channels,
                size=triple(spatial, 1),
            ),
            count,
            {
                "MODE": kernels.SampleMode[attrs.mode.upper()],
                "PADDING": kernels.SamplePadding[attrs.padding_mode.upper()],
                "ALIGN_CORNERS": attrs.align_corners,
                "AXES": len(spatial),
            },
        )
