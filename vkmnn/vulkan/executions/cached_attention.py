"""CachedAttention: rotary embedding, append and attention of a few rows in one dispatch."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.base.elements import FloatElement
from vkmnn.base.packed_rows import row_elements
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir.ops import CachedAttentionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.attention.cached import (
    KEYS,
    PART_VECTORS,
    PARTS,
    CachedProblem,
    kernels_of,
)
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import Params, VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.executions.attention import score_spec
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.storage import reject_integers

MAX_DEPTH = 256
"""Elements of a row: a workgroup keeps rows in 64 vec4s."""
CACHES = (5, 6)
COSINES, SINES, MASK, SINKS, Q_GAIN, K_GAIN = 3, 4, 8, 9, 10, 11


@dataclass(frozen=True, slots=True)
class _Sizes:
    images: int
    heads: int
    groups: int
    rows: int
    capacity: int
    depth: int
    columns: int


@vulkan_execution("CachedAttention")
class CachedAttentionExecution(VulkanExecution[CachedAttentionAttrs]):
    """A workgroup for every head and row."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject integers, rows that are not whole vec4s, and too many rows."""
        whole = (*CACHES, 7) if self.attrs.packing else (7,)
        reject_integers([tensor for place, tensor in enumerate(self.inputs) if place not in whole])
        sizes = self._sizes()
        if not fits(sizes.depth, sizes.columns):
            raise Rejection(f"rows of {sizes.depth} and {sizes.columns} elements")
        steps = sizes.depth // 4 + KEYS // 4 + (1 << _log2(sizes.columns // 4)) + 1
        if (ceil_div(sizes.capacity, KEYS) + sizes.rows) * steps > MAX_LOOP_ROUNDS:
            raise Rejection(f"a cache of {sizes.capacity} rows")
        groups = (sizes.heads * PARTS[-1], sizes.images, sizes.rows)
        if any(n > most for n, most in zip(groups, info.limits.max_workgroup_count, strict=True)):
            raise Rejection(f"{groups} workgroups")

    def _sizes(self) -> _Sizes:
        layout, y = self.attrs.layout, self.outputs[0].shape
        heads, rows = (y[2], y[1]) if layout else (y[1], y[2])
        _, groups, capacity, words = self.operand(5).shape
        depth = row_elements(self.attrs.packing, words)
        return _Sizes(y[0], heads, groups, rows, capacity, depth, y[3])

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the new rows; caches, mask, sinks and factors are float32."""
        wanted, _ = self.by_rule(FloatRule.FULL, element)
        new = [tensor for tensor in self.inputs[:3] if tensor is not None]
        narrow = all(tensor.element != "f32" for tensor in new)
        return [narrow and place <= SINES for place in range(len(wanted))], [narrow, False, False]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch; the caches are written in place."""
        attrs, sizes = self.attrs, self._sizes()
        packed = attrs.layout == "packed"
        q = self.operand(0)
        k, v = (q, q) if packed else (self.operand(1), self.operand(2))
        keys, cached, length = (self.operand(place) for place in (5, 6, 7))
        cosines, sines, mask, sinks = (
            self.optional(place) for place in (COSINES, SINES, MASK, SINKS)
        )
        y, new_keys, new_values = self.outputs
        encoder.alias(new_keys, keys)
        encoder.alias(new_values, cached)
        if 0 in q.shape or 0 in keys.shape:
            return
        workgroups = sizes.heads * sizes.images * sizes.rows
        seen = min(sizes.capacity, attrs.window or sizes.capacity)
        problem = CachedProblem(workgroups, seen, sizes.depth, sizes.columns, attrs.packing)
        spec: dict[str, int | bool | float] = {
            "TURNED": attrs.width > 0,
            "INTERLEAVED": attrs.interleaved,
            "POSITIONS": attrs.positions,
            "PAIRS": cosines is not None and cosines.shape[3] != attrs.width,
            "MASK": mask is not None,
            "ZERO_FULLY_MASKED": attrs.zero_fully_masked,
            "SEVERAL": sizes.rows > 1,
            "BY_ROW": bool(attrs.layout),
            "SINK": sinks is not None,
            "NORMED": self.optional(Q_GAIN) is not None,
            **score_spec(attrs),
        }
        found = kernels_of(problem, encoder.info, "texel" in encoder.loads)
        kernel = encoder.choose("cached_attention", problem, found)
        shader, params_of = kernel.call(encoder, problem)
        # Bindings that the specialization leaves out still need a buffer; any will do.
        tensors = [q, k, v, cosines or q, sines or q, keys, cached, length, mask or keys]
        tensors += [sinks or keys, *(self.optional(place) or keys for place in (Q_GAIN, K_GAIN))]
        tensors += [y, new_keys, new_values]
        if kernel.parts > 1:
            parts = encoder.scratch(4 * PART_VECTORS * kernel.parts * workgroups, full=True)
            tensors += [parts, encoder.counter(workgroups)]
        params = self._params(params_of, sizes, cosines, mask, kernel.parts)
        groups = (sizes.heads * kernel.parts, sizes.images, sizes.rows)
        encoder.dispatch(shader, tensors, params, groups, spec | kernel.spec(problem))
        info = encoder.info
        encoder.expect(lambda: Expected(kernel.time(problem, info)))

    def _params(
        self,
        params_of: Callable[..., Params],
        sizes: _Sizes,
        cosines: Tensor | None,
        mask: Tensor | None,
        parts: int,
    ) -> Params:
        attrs, depth, columns = self.attrs, sizes.depth, sizes.columns
        table = cosines.shape if cosines is not None else (1, 1, 1, 0)
        seen = (1,) * 4 if mask is None else (*(1,) * (4 - len(mask.shape)), *mask.shape)
        q_row, k_row, v_row = depth, depth, columns
        if attrs.layout:
            q_row, k_row, v_row = sizes.heads * depth, sizes.groups * depth, sizes.groups * columns
        k_start, v_start = 0, 0
        if attrs.layout == "packed":
            k_start, v_start = q_row, q_row + k_row
            q_row = k_row = v_row = v_start + v_row
        return params_of(
            heads=sizes.heads,
            shared_by=sizes.heads // sizes.groups,
            capacity=sizes.capacity,
            depth=depth,
            columns=columns,
            width=attrs.width,
            table=table[3],
            table_image=table[2] * table[3] if table[0] > 1 else 0,
            mask_image=seen[1] * seen[2] * seen[3] if seen[0] > 1 else 0,
            mask_head=seen[2] * seen[3] if seen[1] > 1 else 0,
            lanes_log2=_log2(columns // 4),
            scores=KEYS,
            scale=attrs.scale / (attrs.softcap or 1.0),
            rows=sizes.rows,
            table_row=table[3] if table[2] > 1 else 0,
            mask_row=seen[3] if seen[2] > 1 else 0,
            q_row=q_row,
            k_row=k_row,
            v_row=v_row,
            k_start=k_start,
            v_start=v_start,
            length_image=int(self.operand(7).shape != (1,)) if sizes.images > 1 else 0,
            parts=parts,
            epsilon=attrs.epsilon,
        )


def fits(depth: int, columns: int) -> bool:
    """Return whether the kernel supports rows of these sizes."""
    return not depth % 4 and not columns % 4 and 0 < depth <= MAX_DEPTH and 0 < columns <= MAX_DEPTH


def _log2(size: int) -> int:
    """Return the exponent of the first power of two that is not smaller."""
    return (size - 1).bit_length()
