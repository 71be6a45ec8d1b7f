"""StridedAttention: products, masks and softmax in one dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import numpy as np

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import View
from vkmnn.ir.ops import CodeAttention, StridedAttentionAttrs
from vkmnn.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, CpuLanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.fp16 import Fp16Operands, Fp16Rule

KEYS = 32  # that a kernel takes at a time, at least
COLUMNS = 64  # of the result, that a workgroup makes
# Queries of the rotation kernel's workgroups by the size of its subgroup, the faster ones first.
ROTATE_ROWS: dict[CpuLanes, tuple[kernels.AttentionRotateRows, ...]] = {
    8: (16, 8),
    16: (32, 16),
}
MAX_CODED_KEYS = 1024  # whose scores lie in shared memory
CODED_COLUMNS = 256  # of values, which a workgroup sums at once
MASK, LENGTH = 3, 4  # numbers of inputs
TILE_GROUPS: tuple[kernels.AttentionTileGroups, ...] = (1, 2, 4)
TILE_INVOCATIONS = 128  # of a group
TILE_REGISTERS = 96  # of an invocation, at a guess
# The part of the arithmetic rate that is left beside the reads of shared memory.
TILE_EFFICIENCY = 0.65
# Vec4s of queries, and of keys or values of a group, that lie in shared memory as they do outside;
# bytes of scores, maxima and factors of a group.
TILE_QUERIES, TILE_KEYS, TILE_SCORES = 16 * 17, 32 * 17, 16 * (16 * 9 + 32 + 4)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A workgroup computes `rows` queries; queries, keys and values pass through shared memory.

    The blocks of keys go in turn to `groups` of invocations.
    """

    rows: int = 16
    groups: kernels.AttentionTileGroups = 1
    family = "tile"

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        shader = kernels.attention_tile(
            groups=self.groups,
            element=encoder.element,
            load=encoder.load if self.groups == 1 else "buffer",
            aligned=aligned,
        )
        return shader, kernels.AttentionTileParams

    def fits(self, info: DeviceInfo, fp16: bool) -> bool:
        """Return whether there is a kernel, and a device has the shared memory and invocations."""
        if self.groups == 4 and not fp16:
            return False
        limits = info.limits
        room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        held = (8 if fp16 else 16) * (TILE_QUERIES + self.groups * TILE_KEYS)
        shared_bytes = held + self.groups * TILE_SCORES
        return self.groups * TILE_INVOCATIONS <= room and shared_bytes <= limits.max_shared_memory

    def time(self, attrs: StridedAttentionAttrs, info: DeviceInfo, element_bytes: int) -> Cost:
        """Return the time that the kernel is expected to take.

        A round is as many blocks of keys as there are groups: what it loads, the round before it
        asked for, so that it waits once.
        """
        columns = attrs.depth + min(attrs.width, COLUMNS)
        blocks = ceil_div(attrs.keys, KEYS)
        rounds = ceil_div(blocks, self.groups)
        queries = ceil_div(attrs.queries, self.rows)
        loop = Loop(
            workgroups=queries * prod(attrs.batch) * ceil_div(attrs.width, COLUMNS),
            invocations=TILE_INVOCATIONS * self.groups,
            rounds=rounds,
            round_bytes=blocks / rounds * KEYS * columns * element_bytes,
            round_flops=blocks / rounds * 2 * self.rows * KEYS * columns,
            results=self.rows * min(attrs.width, COLUMNS),
            registers=TILE_REGISTERS,
            shared_bytes=2 * 4 * self.rows * COLUMNS * (self.groups - 1),
            efficiency=TILE_EFFICIENCY,
        )
        return loop_cost(loop, info)


@dataclass(frozen=True, slots=True)
class AttentionRotate:
    """A workgroup is a subgroup of `lanes`, computes `rows` queries and rotates them."""

    rows: kernels.AttentionRotateRows
    lanes: CpuLanes
    codes: bool = False
    family = "rotate"

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        shader = kernels.attention_rotate(
            rows=self.rows,
            lanes=self.lanes,
            aligned=aligned,
            element="c8" if self.codes else encoder.element,
        )
        return shader, kernels.AttentionRotateParams


@dataclass(frozen=True, slots=True)
class AttentionCodes:
    """A workgroup computes a query of codes, and holds its scores in shared memory."""

    rows: int = 1
    family = "codes"

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return what to dispatch."""
        return kernels.attention_codes(aligned=aligned), kernels.AttentionCodesParams


@vulkan_execution("StridedAttention")
class StridedAttentionExecution(VulkanExecution[StridedAttentionAttrs]):
    """One dispatch; no score ever reaches memory."""

    fp16_rule = Fp16Rule.TAKES
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse what takes too many iterations, and heads without elements."""
        attrs = self.attrs
        if attrs.depth == 0:
            raise Rejection("the queries have no elements")
        if attrs.codes is not None and attrs.keys > MAX_CODED_KEYS:
            raise Rejection(f"codes of {attrs.keys} keys")
        if attrs.codes and attrs.keys * ceil_div(attrs.width, CODED_COLUMNS) > MAX_LOOP_ROUNDS:
            raise Rejection(f"codes of {attrs.keys} keys, and values of {attrs.width} elements")
        vectors = ceil_div(attrs.depth, 4)
        steps = max(vectors, 11 * ceil_div(vectors, 16)) + KEYS // 4 + 1
        steps *= ceil_div(attrs.keys, KEYS)
        if steps > MAX_LOOP_ROUNDS:
            raise Rejection(f"{attrs.keys} keys of {attrs.depth} elements take {steps} iterations")

    def fp16_operands(self) -> Fp16Operands:
        """Take fp16, except for the mask: the value that hides a key may lie beyond its range."""
        rule = Fp16Rule.FULL if self.attrs.codes else self.fp16_rule
        return self.by_rule(rule, wide=MASK)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        q, k, v = (self.operand(index) for index in range(3))
        mask, length = self.optional(MASK), self.optional(LENGTH)
        if 0 in output.shape:
            return
        views = (*attrs.views, attrs.result)
        aligned = _aligned(attrs.depth, attrs.width, views)
        kernel = encoder.choose("attention", (attrs, aligned), _kernels(attrs, encoder))
        shader, make_params = kernel.call(aligned, encoder)
        q_at, k_at, v_at, y_at = (_in_units(view, aligned) for view in views)
        seen = attrs.mask or View(0, (0, 0, 0, 0))
        params = make_params(
            batch_size=attrs.batch[1:],
            queries=attrs.queries,
            keys=attrs.keys,
            depth=attrs.depth,
            width=attrs.width,
            scale=attrs.scale,
            q_start=q_at.offset,
            q_batch=q_at.strides[:3],
            q_row=q_at.strides[3],
            k_start=k_at.offset,
            k_batch=k_at.strides[:3],
            k_row=k_at.strides[3],
            v_start=v_at.offset,
            v_batch=v_at.strides[:3],
            v_row=v_at.strides[3],
            mask_batch=seen.strides[:3],
            mask_row=seen.strides[3],
            y_batch=y_at.strides[:3],
            y_row=y_at.strides[3],
        )
        spec: dict[str, int | bool] = {
            "MASK": 0 if mask is None else 2 if seen.strides[3] else 1,
            "CAUSAL": attrs.causal,
            "ZERO_FULLY_MASKED": attrs.zero_fully_masked,
            "COUNTED": length is not None,
        }
        groups = (
            ceil_div(attrs.queries, kernel.rows),
            prod(attrs.batch),
            ceil_div(attrs.width, COLUMNS),
        )
        # A binding that the specialization leaves out still needs a buffer; any will do.
        seen_by = _rounding(attrs.codes, encoder) if attrs.codes else mask or q
        tensors = [q, k, v, seen_by, length or q, output]
        if isinstance(kernel, AttentionCodes):
            groups = (*groups[:2], 1)
        encoder.dispatch(shader, tensors, params, groups, spec)
        if isinstance(kernel, AttentionTile):
            width = 2 if encoder.fp16 else 4
            info, made = encoder.info, kernel
            encoder.expect(lambda: Expected(made.time(attrs, info, width)))


def _rounding(codes: CodeAttention, encoder: VulkanEncoder) -> Tensor:
    """Return what kernels of codes bind in place of a mask (`include/attention_codes.glsl.j2`)."""
    high = codes.low + len(codes.table) - 1
    numbers = (codes.low, high, codes.unit, *codes.weights, codes.factor, *codes.made)
    packed = np.array([*numbers, codes.decoded, *codes.table], np.float32)
    return encoder.literal(f"attention:{codes}", packed)


def _kernels(
    attrs: StridedAttentionAttrs, encoder: VulkanEncoder
) -> list[AttentionTile | AttentionRotate | AttentionCodes]:
    """Return the kernels that can do it, the likely fastest first."""
    if attrs.codes:
        return _code_kernels(attrs, encoder)
    info = encoder.info
    fp16 = encoder.fp16
    every = (AttentionTile(groups=groups) for groups in TILE_GROUPS)
    tiles = [tile for tile in every if tile.fits(info, fp16)]
    if is_gpu(info):
        tiles.sort(key=lambda tile: tile.time(attrs, info, 2 if fp16 else 4).total)
    if "texel" not in encoder.loads:
        return [*tiles]
    rotations = []
    for lanes in rotate_lanes(info):
        rows = ROTATE_ROWS[lanes]
        sizes = rows if attrs.queries > rows[1] else rows[::-1]
        rotations += [AttentionRotate(size, lanes) for size in sizes]
    return [*tiles, *rotations] if is_gpu(info) else [*rotations, *tiles]


def _code_kernels(
    attrs: StridedAttentionAttrs, encoder: VulkanEncoder
) -> list[AttentionTile | AttentionRotate | AttentionCodes]:
    """Return the kernels of codes that can do it, the likely fastest first."""
    rotations: list[AttentionTile | AttentionRotate | AttentionCodes] = []
    if "texel" in encoder.loads and 8 in rotate_lanes(encoder.info):
        rows = ROTATE_ROWS[8]
        sizes = rows if attrs.queries > rows[1] else rows[::-1]
        rotations += [AttentionRotate(size, 8, codes=True) for size in sizes]
    gpu = is_gpu(encoder.info)
    return [AttentionCodes(), *rotations] if gpu else [*rotations, AttentionCodes()]


def _aligned(depth: int, width: int, views: Sequence[View]) -> Literal[1, 4]:
    """Return 4 when every row consists of whole vec4s."""
    numbers = [depth, width]
    for view in views:
        numbers += [view.offset, *view.strides]
    return 4 if all(number % 4 == 0 for number in numbers) else 1


def _in_units(view: View, unit: int) -> View:
    return View(view.offset // unit, tuple(stride // unit for stride in view.strides))
