"""CachedAttention: rotary embedding, append and attention of one row in one dispatch."""

from __future__ import annotations

from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import CachedAttentionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.fp16 import Fp16Operands, Fp16Rule
from vkmnn.vulkan.storage import reject_integers

MAX_DEPTH = 256
"""Elements of a row: a workgroup keeps rows in 64 vec4s."""
KEYS = 64
COSINES, SINES, MASK = 3, 4, 8


@vulkan_execution("CachedAttention")
class CachedAttentionExecution(VulkanExecution[CachedAttentionAttrs]):
    """A workgroup for every head."""

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse integers, rows that are not whole vec4s, and too many of them."""
        reject_integers([tensor for place, tensor in enumerate(self.inputs) if place != 7])
        depth, columns = self.operand(0).shape[3], self.operand(2).shape[3]
        if not fits(depth, columns):
            raise Rejection(f"rows of {depth} and {columns} elements")
        steps = depth // 4 + KEYS // 4 + (1 << _log2(columns // 4)) + 1
        if ceil_div(self.operand(5).shape[2], KEYS) * steps > MAX_LOOP_ROUNDS:
            raise Rejection(f"a cache of {self.operand(5).shape[2]} rows")
        if max(self.operand(0).shape[:2]) > min(info.limits.max_workgroup_count[:2]):
            raise Rejection(f"{self.operand(0).shape[:2]} workgroups")

    def fp16_operands(self) -> Fp16Operands:
        """Follow what is new; caches and mask are float32."""
        wanted, _ = self.by_rule(Fp16Rule.FULL)
        new = [tensor for tensor in self.inputs[:3] if tensor is not None]
        fp16 = all(tensor.fp16 for tensor in new)
        return [fp16 and place <= SINES for place in range(len(wanted))], [fp16, False, False]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch; the caches are written where they lie."""
        attrs = self.attrs
        q, k, v = (self.operand(place) for place in range(3))
        keys, cached, length = (self.operand(place) for place in (5, 6, 7))
        cosines, sines, mask = (self.optional(place) for place in (COSINES, SINES, MASK))
        y, new_keys, new_values = self.outputs
        encoder.alias(new_keys, keys)
        encoder.alias(new_values, cached)
        images, heads, _, depth = q.shape
        if 0 in q.shape or 0 in keys.shape:
            return
        table = cosines.shape[3] if cosines is not None else 0
        columns = v.shape[3]
        seen = (1,) * 4 if mask is None else (*(1,) * (4 - len(mask.shape)), *mask.shape)
        params = kernels.CachedAttentionParams(
            heads=heads,
            shared_by=heads // k.shape[1],
            capacity=keys.shape[2],
            depth=depth,
            columns=columns,
            width=attrs.width,
            table=table,
            table_image=table if cosines is not None and cosines.shape[0] > 1 else 0,
            mask_image=seen[1] * seen[3] if seen[0] > 1 else 0,
            mask_head=seen[3] if seen[1] > 1 else 0,
            lanes_log2=_log2(columns // 4),
            scores=KEYS,
            scale=attrs.scale,
        )
        spec = {
            "TURNED": attrs.width > 0,
            "INTERLEAVED": attrs.interleaved,
            "PAIRS": table != attrs.width,
            "MASK": mask is not None,
            "ZERO_FULLY_MASKED": attrs.zero_fully_masked,
        }
        shader = kernels.cached_attention(element=encoder.element, load=encoder.load)
        # Bindings that the specialization leaves out still need a buffer; any will do.
        tensors = [q, k, v, cosines or q, sines or q, keys, cached, length, mask or keys]
        encoder.dispatch(
            shader, [*tensors, y, new_keys, new_values], params, (heads, images, 1), spec
        )


def fits(depth: int, columns: int) -> bool:
    """Return whether the kernel takes rows of these sizes."""
    return not depth % 4 and not columns % 4 and 0 < depth <= MAX_DEPTH and 0 < columns <= MAX_DEPTH


def _log2(size: int) -> int:
    """Return the exponent of the first power of two that is not smaller."""
    return (size - 1).bit_length()
