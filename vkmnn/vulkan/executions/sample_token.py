"""SampleToken: a random choice from the likeliest tokens, without sorting them."""

from __future__ import annotations

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import SampleTokenAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands
from vkmnn.vulkan.storage import element_bytes

PASSES, MOST_PASSES = 7, 18
"""Times that a row is read: for the maximum, the histogram, two searches and equal tokens; at most
three searches of five passes."""
AHEAD = 8
"""Loads of an invocation that are under way at a time."""
ROUNDS = 6
"""Loop iterations of an invocation per vec4 of a pass."""
OTHER_ROUNDS = 2_000
"""Over the bins of histograms."""
LOCAL_SIZES = 32, 128, 512
"""Sizes of workgroups: CPU devices run the smallest that suffices, GPUs the largest."""


def most_tokens(local: int) -> int:
    """Return how many tokens a workgroup's loops may process."""
    return 4 * local * ((MAX_LOOP_ROUNDS - OTHER_ROUNDS) // (MOST_PASSES * ROUNDS))


def local_size(tokens: int, info: DeviceInfo) -> int | None:
    """Return the size of a workgroup for rows of `tokens`; None if none suffices."""
    limits = info.limits
    most = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
    sizes = [one for one in LOCAL_SIZES if one <= most and tokens <= most_tokens(one)]
    if not sizes:
        return None
    return sizes[-1] if is_gpu(info) else sizes[0]


@vulkan_execution("SampleToken")
class SampleTokenExecution(VulkanExecution[SampleTokenAttrs]):
    """A workgroup per row."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject rows beyond the kernel's loops."""
        rows, tokens = self.operand(0).shape
        local = local_size(tokens, info)
        if local is None or rows > info.limits.max_workgroup_count[0]:
            raise Rejection(f"{rows} rows of {tokens} tokens")
        self._local = local

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read logits as they are stored; settings and random numbers are float32."""
        return [self.operand(0).element != "f32", False, False], [False]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        x, settings, numbers = self.operands
        rows, tokens = x.shape
        if not rows:
            return
        shader = kernels.sample_token(element=encoder.element)
        params = kernels.SampleTokenParams(size=tokens)
        local = self._local
        tensors = [x, settings, numbers, self.output]
        encoder.dispatch(shader, tensors, params, (rows, 1, 1), {"local_size_x": local})
        device = class_of(encoder.info)
        nbytes = rows * tokens * element_bytes(x)
        rounds = PASSES * ceil_div(tokens, 4 * local)
        cost = Cost(
            device.start_us,
            latency=rounds * device.round_us / AHEAD,
            loads=PASSES * tokens * element_bytes(x) / device.core_bytes,
        )
        encoder.expect(lambda: Expected(cost, nbytes=nbytes))
