"""The kernels of attention, and the predicted time of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Literal, cast

from vkmnn.base.records import dataclass
from vkmnn.ir.ops import StridedAttentionAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.device_rules import CpuLanes, is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.coop_tiles import (
    LARGE_MATRIX,
    LLVMPIPE_MATRIX,
    WIDE_MATRIX,
    XE2_MATRIX,
    XE_MATRIX,
    Matrix,
    matrix_of,
)
from vkmnn.vulkan.storage import FLOAT_BYTES

Aligned = Literal[1, 4, 8]
"""Elements that all rows of queries, keys, values and results are whole multiples of."""
KEYS = 32  # minimum keys that a kernel processes at a time
COLUMNS = 64  # columns of the result that a workgroup computes
# Queries of the rotation kernel's workgroups by the size of its subgroup, the faster ones first.
ROTATE_ROWS: dict[CpuLanes, tuple[kernels.AttentionRotateRows, ...]] = {
    8: (16, 8),
    16: (32, 16),
}
ROTATE_CODES: CpuLanes = 8  # its subgroups for quantised values
KEPT_WORDS = 1 << 18  # quantised scores, which are computed twice if there are more
MAX_BYTE_CODES = 256
COOP_MATRICES = (LARGE_MATRIX, WIDE_MATRIX, XE2_MATRIX, XE_MATRIX, LLVMPIPE_MATRIX)
"""Matrices that attention has kernels for."""
# Keys that a workgroup processes at once, by matrices.
COOP_KEYS: tuple[kernels.AttentionCoopKeys, ...] = (64, 128, 256)
MORE_KEYS: Mapping[Matrix, int] = {LARGE_MATRIX: 256, WIDE_MATRIX: 128}  # of others 64
# Queries and groups, by whether tiles hold halves: those of float16 do, all others float32.
# Twenty-four are for grids of which sixteen leave a second wave of workgroups nearly empty.
TILES: Mapping[bool, tuple[tuple[kernels.AttentionTileRows, kernels.AttentionTileGroups], ...]] = {
    False: ((16, 1), (16, 2), (24, 2)),
    True: ((16, 1), (16, 2), (16, 4)),
}
TILE_INVOCATIONS = 8  # of a group, for each query
TILE_REGISTERS = 96  # of an invocation, at a guess
# The part of the arithmetic rate that is left beside the reads of shared memory.
TILE_EFFICIENCY = 0.65
# Vec4s of queries, and of keys or values of a group, in shared memory; bytes of scores, maxima and
# factors of a group; the first and the last per query.
TILE_QUERIES, TILE_KEYS, TILE_SCORES = 17, 32 * 17, 16 * 9 + 32 + 4

# For `attention_coop`: invocations of a group, and estimated registers of each.
COOP_INVOCATIONS = 128
COOP_REGISTERS = 128
# Instructions of an invocation as AMD's compiler has them: for a block of keys, and in addition for
# each 64 of them, each without and for every 64 elements of a key; for splitting rows that are no
# whole uvec4s.
COOP_BLOCK, COOP_BLOCK_PIECE, COOP_STEP, COOP_STEP_PIECE, COOP_SPLIT_ROWS = 60, 60, 320, 45, 210
# The part of the device's rate that this code reaches, as it waits at barriers: fitted to the times
# of its predecessor on an H100 (docs/decisions/attention-matrices.md).
COOP_EFFICIENCY = 0.78


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A workgroup computes `rows` queries; queries, keys and values pass through shared memory.

    The blocks of keys go in turn to `groups` of invocations.
    """

    rows: kernels.AttentionTileRows = 16
    groups: kernels.AttentionTileGroups = 1
    family = "tile"

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return TILE_INVOCATIONS * self.rows * self.groups

    def call(self, aligned: Aligned, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.attention_tile(
            rows=self.rows,
            groups=self.groups,
            element=encoder.element,
            load=encoder.load if self.groups == 1 else "buffer",
            aligned=_vec4s(aligned),
        )
        return shader, kernels.AttentionTileParams

    def fits(self, info: DeviceInfo, halves: bool) -> bool:
        """Return whether a device has the shared memory and the invocations."""
        limits = info.limits
        room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        held = (8 if halves else 16) * (self.rows * TILE_QUERIES + self.groups * TILE_KEYS)
        shared_bytes = held + self.groups * self.rows * TILE_SCORES
        return self.invocations <= room and shared_bytes <= limits.max_shared_memory

    def time(self, attrs: StridedAttentionAttrs, info: DeviceInfo, element_bytes: int) -> Cost:
        """Return the predicted time.

        A round has as many blocks of keys as there are groups: it uses loads issued by the round
        before, so it waits once.
        """
        columns = attrs.depth + min(attrs.width, COLUMNS)
        blocks = ceil_div(attrs.keys, KEYS)
        rounds = ceil_div(blocks, self.groups)
        queries = ceil_div(attrs.queries, self.rows)
        loop = Loop(
            workgroups=queries * prod(attrs.batch) * ceil_div(attrs.width, COLUMNS),
            invocations=self.invocations,
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
class AttentionCoop:
    """A workgroup computes `rows` queries by cooperative matrices, for float16.

    It processes `keys` at once: one block, or two if 256, each by a group of invocations.
    """

    matrix: Matrix
    keys: kernels.AttentionCoopKeys = 64
    rows: int = 16
    family = "coop"

    @property
    def groups(self) -> int:
        """Groups of invocations."""
        return 2 if self.keys == COOP_KEYS[-1] else 1

    @property
    def block(self) -> int:
        """Keys that a group processes at once."""
        return self.keys // self.groups

    def call(self, aligned: Aligned, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.attention_coop(
            matrix=cast(kernels.AttentionCoopMatrix, self.matrix.name),
            keys=self.keys,
            aligned=_uvec4s(aligned),
        )
        return shader, kernels.AttentionCoopParams

    def fits(self, info: DeviceInfo) -> bool:
        """Return whether a device has the shared memory and the invocations."""
        limits = info.limits
        room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return COOP_INVOCATIONS * self.groups <= room and self.shared <= limits.max_shared_memory

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a workgroup: queries, keys, probabilities, and the exchange."""
        vectors = 16 * 9 + self.groups * (9 * self.block + 16 * (self.block // 8 + 1))
        return 16 * vectors + (8 * 16 * self.groups if self.groups > 1 else 0)

    def time(self, attrs: StridedAttentionAttrs, info: DeviceInfo, aligned: Aligned) -> Cost:
        """Return the predicted time, by the instructions of all blocks.

        The matrices and shared memory are busy for a part of the time that these take.
        """
        columns = attrs.depth + min(attrs.width, COLUMNS)
        blocks = ceil_div(attrs.keys, self.block)
        rounds = ceil_div(blocks, self.groups)
        a_round = blocks / rounds
        queries = ceil_div(attrs.queries, self.rows)
        pieces = ceil_div(attrs.depth, COLUMNS)
        a_step = COOP_STEP + COOP_STEP_PIECE * pieces
        if _uvec4s(aligned) == 1:
            a_step += COOP_SPLIT_ROWS * (pieces + 1)
        instructions = COOP_BLOCK + COOP_BLOCK_PIECE * pieces + self.block // COLUMNS * a_step
        loop = Loop(
            workgroups=queries * prod(attrs.batch) * ceil_div(attrs.width, COLUMNS),
            invocations=COOP_INVOCATIONS * self.groups,
            rounds=rounds,
            round_bytes=a_round * self.block * columns * 2,
            round_flops=self.groups * 2 * COOP_INVOCATIONS * instructions,  # idle ones compute, too
            results=self.rows * min(attrs.width, COLUMNS),
            registers=COOP_REGISTERS,
            shared_bytes=2 * 4 * self.rows * COLUMNS * (self.groups - 1),
            efficiency=COOP_EFFICIENCY,
            steps=pieces + 1,
        )
        return loop_cost(loop, info)


@dataclass(frozen=True, slots=True)
class AttentionRotate:
    """A workgroup is a subgroup of `lanes` that computes `rows` queries and rotates them.

    `keeps`: quantised scores are kept in memory, not computed twice.
    """

    rows: kernels.AttentionRotateRows
    lanes: CpuLanes
    codes: bool = False
    keeps: bool = False
    family = "rotate"

    def call(self, aligned: Aligned, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.attention_rotate(
            rows=self.rows,
            lanes=self.lanes,
            aligned=_vec4s(aligned),
            element="c8" if self.codes else encoder.element,
        )
        return shader, kernels.AttentionRotateParams

    def kept_words(self, attrs: StridedAttentionAttrs) -> int:
        """Return the words of all quantised scores, contiguous for each invocation."""
        queries = ceil_div(attrs.queries, self.rows) * self.rows * prod(attrs.batch)
        columns = ceil_div(attrs.width, COLUMNS)
        return queries * columns * ceil_div(attrs.keys, 4 * self.lanes) * self.lanes


@dataclass(frozen=True, slots=True)
class AttentionCodes:
    """A workgroup computes one quantised query, with its scores in shared memory."""

    rows: int = 1
    family = "codes"

    def call(self, aligned: Aligned, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        return kernels.attention_codes(aligned=_vec4s(aligned)), kernels.AttentionCodesParams


Kernel = AttentionTile | AttentionCoop | AttentionRotate | AttentionCodes


def _vec4s(aligned: Aligned) -> Literal[1, 4]:
    return 1 if aligned == 1 else 4


def _uvec4s(aligned: Aligned) -> Literal[1, 8]:
    return 8 if aligned == 8 else 1


def unit_of(kernel: Kernel, aligned: Aligned) -> Literal[1, 4, 8]:
    """Return the elements that a kernel reads at once, in which it counts strides."""
    return _uvec4s(aligned) if isinstance(kernel, AttentionCoop) else _vec4s(aligned)


def time_of(
    kernel: AttentionTile | AttentionCoop,
    attrs: StridedAttentionAttrs,
    info: DeviceInfo,
    aligned: Aligned,
    width: int,
) -> Cost:
    """Return the predicted time of a kernel; `width` is the bytes of an element."""
    if isinstance(kernel, AttentionCoop):
        return kernel.time(attrs, info, aligned)
    return kernel.time(attrs, info, width)


def kernels_of(
    attrs: StridedAttentionAttrs,
    aligned: Aligned,
    encoder: VulkanEncoder,
    *,
    in_bytes: bool = False,
) -> list[Kernel]:
    """Return the possible kernels, the likely fastest first.

    Args:
        attrs: the attributes of the op.
        aligned: elements that all rows are whole multiples of.
        encoder: knows the device.
        in_bytes: some tensors are 8-bit quantised values in memory.
    """
    if attrs.codes:
        return _code_kernels(attrs, encoder, in_bytes)
    info = encoder.info
    halves = encoder.element == "f16"
    every = (AttentionTile(rows, groups) for rows, groups in TILES[halves])
    tiles: list[AttentionTile | AttentionCoop] = [tile for tile in every if tile.fits(info, halves)]
    if halves:
        tiles += _coop_kernels(info, aligned)
    if is_gpu(info):
        width = FLOAT_BYTES[encoder.element]
        tiles.sort(key=lambda tile: time_of(tile, attrs, info, aligned, width).total)
    if "texel" not in encoder.loads:
        return [*tiles]
    rotations = []
    for lanes in rotate_lanes(info):
        rows = ROTATE_ROWS[lanes]
        sizes = rows if attrs.queries > rows[1] else rows[::-1]
        rotations += [AttentionRotate(size, lanes) for size in sizes]
    return [*tiles, *rotations] if is_gpu(info) else [*rotations, *tiles]


def _coop_kernels(info: DeviceInfo, aligned: Aligned) -> list[AttentionCoop]:
    """Return the kernels for the device's matrices: one for whole uvec4s in all sizes but one."""
    matrix = matrix_of(info)
    if matrix not in COOP_MATRICES or "subgroup_shuffle" not in info.features:
        return []
    if matrix != LARGE_MATRIX and _uvec4s(aligned) == 1:
        return []
    sizes = (keys for keys in COOP_KEYS if keys <= MORE_KEYS.get(matrix, 64))
    return [kernel for keys in sizes if (kernel := AttentionCoop(matrix, keys)).fits(info)]


def _may_keep(kernel: AttentionRotate, attrs: StridedAttentionAttrs) -> bool:
    """Return whether the quantised scores are bytes, and small enough to be stored."""
    few = attrs.codes is not None and len(attrs.codes.table) <= MAX_BYTE_CODES
    return few and kernel.kept_words(attrs) <= KEPT_WORDS


def _code_kernels(
    attrs: StridedAttentionAttrs, encoder: VulkanEncoder, in_bytes: bool
) -> list[Kernel]:
    """Return the quantised kernels for a problem, the likely fastest first."""
    rotations: list[Kernel] = []
    if "texel" in encoder.loads and ROTATE_CODES in rotate_lanes(encoder.info):
        rows = ROTATE_ROWS[ROTATE_CODES]
        sizes = rows if attrs.queries > rows[1] else rows[::-1]
        every = [AttentionRotate(size, ROTATE_CODES, codes=True) for size in sizes]
        keeping = [replace(kernel, keeps=True) for kernel in every if _may_keep(kernel, attrs)]
        rotations += [*keeping, *every]
    if in_bytes:
        return rotations
    gpu = is_gpu(encoder.info)
    return [AttentionCodes(), *rotations] if gpu else [*rotations, AttentionCodes()]
