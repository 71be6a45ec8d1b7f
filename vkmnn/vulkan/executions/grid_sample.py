"""GridSample: reads a tensor at computed coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Op
from vkmnn.ir.ops import GridSampleAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.gemm.convolution import blocked, triple
from vkmnn.vulkan.half import HalfRule, Halves, halves
from vkmnn.vulkan.indexing import operands
from vkmnn.vulkan.storage import kernel_dtype

MAX_AXES = 3
GRID = 1  # number of the input


@vulkan_execution("GridSample")
class GridSampleExecution(VulkanExecution):
    """One dispatch over the texels of the channel-blocked output."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse more than three spatial axes, and interpolation between integers."""
        assert isinstance(op.attrs, GridSampleAttrs)
        x, _ = operands(inputs)
        if len(x.shape) - 2 > MAX_AXES:
            return f"{len(x.shape) - 2} spatial axes, at most {MAX_AXES} fit"
        if op.attrs.mode != "nearest" and kernel_dtype(x.dtype) == "i32":
            # Results are truncated: a rounding error in float32 would change integers.
            return f"{op.attrs.mode} interpolation of {x.dtype.value}"
        return None

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Channel blocks, and a plain grid."""
        return [Layout.NC4HW4, Layout.NCHW], [Layout.NC4HW4]

    def halves(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Halves:
        """Follow what is sampled; coordinates need all their digits."""
        return halves(self.half_rule, inputs, outputs, wide=GRID)

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        attrs = self.op.attrs
        assert isinstance(attrs, GridSampleAttrs)
        x, grid = operands(inputs)
        spatial = x.shape[2:]
        batch, channels, *points = outputs[0].shape
        count = batch * ceil_div(channels, 4) * prod(points)
        encoder.dispatch_linear(
            kernels.grid_sample(storage=encoder.load_storage),
            [blocked(x, encoder), grid, outputs[0]],
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
