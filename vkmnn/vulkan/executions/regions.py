"""RoiAlign and RoiPool: regions of images, in bins of one size."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import RoiAlignAttrs, RoiPoolAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution

_HINT = "the first input has fewer images"
SPARE = 8
"""Samples outside an image that a line may have, and the tolerance of its ends."""


@vulkan_execution("RoiAlign")
class RoiAlignExecution(VulkanExecution[RoiAlignAttrs]):
    """One invocation per bin; several dispatches if a bin may be a large image."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject images without pixels, and lines with too many samples for a loop."""
        if 0 in self.operand(0).shape:
            raise Rejection("images without pixels")
        if self._line >= MAX_LOOP_ROUNDS // 2:
            raise Rejection(f"bins of {self._line} samples in a line are too large")

    @property
    def _line(self) -> int:
        """Samples that a loop along an axis may have: half a pixel apart in small bins."""
        return self.attrs.ratio or max(self.operand(0).shape[2:]) + SPARE

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches; only large bins keep the later ones busy."""
        attrs, x, y = self.attrs, self.operand(0), self.output
        status, check = encoder.check(
            self.op, f"'{self.operand(2).name}' names an image that does not exist", _HINT
        )
        count = prod(y.shape)
        rows = max(1, MAX_LOOP_ROUNDS // (self._line + 2))
        for part in range(ceil_div(self._line, rows)):
            encoder.dispatch_linear(
                kernels.roi_align(load=encoder.load),
                [x, self.operand(1), self.operand(2), y, status],
                kernels.RoiAlignParams(
                    count=count,
                    images=x.shape[0],
                    channels=x.shape[1],
                    size=(x.shape[2], x.shape[3]),
                    bins=attrs.size,
                    ratio=attrs.ratio,
                    scale=attrs.scale,
                    part=part,
                    budget=MAX_LOOP_ROUNDS,
                    check=check,
                ),
                count,
                {"HALF_PIXEL": attrs.half_pixel, "LARGEST": attrs.largest},
            )


@vulkan_execution("RoiPool")
class RoiPoolExecution(VulkanExecution[RoiPoolAttrs]):
    """One invocation per bin."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject images without pixels, and those too large for a loop."""
        shape = self.operand(0).shape
        if 0 in shape:
            raise Rejection("images without pixels")
        if shape[2] * (shape[3] + 1) > MAX_LOOP_ROUNDS:
            raise Rejection(f"bins of up to {shape[2]} by {shape[3]} pixels are too large")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        x, regions, y = self.operand(0), self.operand(1), self.output
        message = f"'{regions.name}' names an image that does not exist"
        status, check = encoder.check(self.op, message, _HINT)
        params = kernels.RoiPoolParams(
            count=prod(y.shape),
            images=x.shape[0],
            channels=x.shape[1],
            size=(x.shape[2], x.shape[3]),
            bins=self.attrs.size,
            scale=self.attrs.scale,
            check=check,
        )
        shader = kernels.roi_pool(load=encoder.load)
        encoder.dispatch_linear(shader, [x, regions, y, status], params, params.count)
