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

PASSES = 7
"""Times that a row is read: for the maximum, the histogram, two searches and equal tokens."""
MAX_TOKENS = 32 * MAX_LOOP_ROUNDS // (3 * PASSES)
"""Of a row: the smallest workgroups have 32 invocations, each of which takes a logit a round."""
CPU_LOCAL, GPU_LOCAL = 32, 512


@vulkan_execution("SampleToken")
class SampleTokenExecution(VulkanExecution[SampleTokenAttrs]):
    """A workgroup per row."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject rows beyond the kernel's loops."""
        rows, tokens = self.operand(0).shape
        if tokens > MAX_TOKENS or rows > info.limits.max_workgroup_count[0]:
            raise Rejection(f"{rows} rows of {tokens} tokens")

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
        most = encoder.info.limits.max_workgroup_invocations
        local = min(GPU_LOCAL, most) if is_gpu(encoder.info) else CPU_LOCAL
        tensors = [x, settings, numbers, self.output]
        encoder.dispatch(shader, tensors, params, (rows, 1, 1), {"local_size_x": local})
        device = class_of(encoder.info)
        nbytes = rows * tokens * element_bytes(x)
        rounds = PASSES * ceil_div(tokens, 4 * local)
        cost = Cost(
            device.start_us,
            # Two loads of an invocation are under way at a time.
            latency=rounds * device.round_us / 2,
            loads=PASSES * tokens * element_bytes(x) / device.core_bytes,
        )
        encoder.expect(lambda: Expected(cost, nbytes=nbytes))
