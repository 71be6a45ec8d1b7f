"""LinearAttention: a state carried from step to step, one column per invocation."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import LinearAttentionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution

MAX_PARTS = 4_096
"""Maximum dispatches; each runs as many steps as a loop allows."""


@vulkan_execution("LinearAttention")
class LinearAttentionExecution(VulkanExecution[LinearAttentionAttrs]):
    """One invocation per column of a state computes all steps."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject more steps than a loop allows."""
        attrs, depth = self.attrs, self.operand(0).shape[2] // self.attrs.query_heads
        readers = attrs.query_heads // attrs.heads
        self._depth = depth
        # The first step also fills the state.
        self._steps = (MAX_LOOP_ROUNDS - depth - 2) // ((2 + readers) * (depth + 2) + 1)
        if self._steps < 1 or self.operand(0).shape[1] > MAX_PARTS * self._steps:
            raise Rejection(f"{self.operand(0).shape[1]} steps of a state of {depth} rows")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record as many dispatches as the steps need."""
        attrs, query, y = self.attrs, self.operand(0), self.output
        past, decay, rate = (self.optional(place) for place in (3, 4, 5))
        images, times, _ = query.shape
        width = self.operand(2).shape[2] // attrs.heads
        shape = (images, attrs.heads, self._depth, width)
        state = self.result(1) or encoder.scratch(max(1, prod(shape)))
        count = images * attrs.heads * width
        tensors = [query, self.operand(1), self.operand(2)]
        tensors += [past or query, decay or query, rate or query, y, state]
        spec = {
            "HAS_PAST": past is not None,
            "HAS_DECAY": decay is not None,
            "HAS_RATE": rate is not None,
        }
        for first in range(0, max(times, 1), self._steps):
            params = kernels.LinearAttentionParams(
                count=count,
                times=times,
                heads=attrs.heads,
                group=attrs.query_heads // attrs.heads,
                depth=self._depth,
                width=width,
                decay_columns=decay.shape[2] if decay is not None else attrs.heads,
                rate_columns=rate.shape[2] if rate is not None else 1,
                first=first,
                steps=min(self._steps, times - first),
                scale=attrs.scale or self._depth**-0.5,
            )
            shader = kernels.linear_attention(load=encoder.load)
            encoder.dispatch_linear(shader, tensors, params, count, spec)
