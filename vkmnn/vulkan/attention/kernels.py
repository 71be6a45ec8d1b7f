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
from vkmnn.vulkan.gemm.coop_tiles import LARGE_MATRIX, WIDE_MATRIX, Matrix, matrix_of
from vkmnn.vulkan.storage import FLOAT_BYTES

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
COOP_GROUPS: tuple[kernels.AttentionCoopGroups, ...] = (1, 2)
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

# For `attention_coop`: keys that a group processes at a time; bytes of queries, of a group's keys
# or values, of its scores, and of the exchange between its invocations.
COOP_KEYS = 64
COOP_INVOCATIONS = 128  # of a group
COOP_QUERIES, COOP_BLOCK, COOP_SCORES, COOP_PARTS = 16 * 16 * 9, 16 * 64 * 9, 16 * 16 * 17, 576
COOP_REGISTERS = 128  # of an invocation, estimated
COOP_SCORE_FLOPS = 24  # of a score: scale, mask, maximum, exponential, rounding, sum
# Bytes of a block through shared memory. Keys are stored and read once, queries read by every
# column of fragments, scores stored and read. Values are stored transposed, four to a bank, and
# read, probabilities stored and read by every column of fragments, results stored and read.
COOP_STAGED_KEYS = 2 * 64 * 128 + 4 * 16 * 128
COOP_STAGED_VALUES = 2 * 16 * 256 + 5 * 64 * 128 + 5 * 16 * 128 + 2 * 16 * 256


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

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.attention_tile(
            rows=self.rows,
            groups=self.groups,
            element=encoder.element,
            load=encoder.load if self.groups == 1 else "buffer",
            aligned=aligned,
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

    The blocks of keys go in turn to `groups` of invocations.
    """

    matrix: Matrix
    groups: kernels.AttentionCoopGroups = 1
    rows: int = 16
    family = "coop"

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.attention_coop(
            matrix=cast(kernels.AttentionCoopMatrix, self.matrix.name),
            groups=self.groups,
            aligned=aligned,
        )
        return shader, kernels.AttentionCoopParams

    def fits(self, info: DeviceInfo) -> bool:
        """Return whether a device has the shared memory and the invocations."""
        limits = info.limits
        room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return COOP_INVOCATIONS * self.groups <= room and self.shared <= limits.max_shared_memory

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a workgroup."""
        return COOP_QUERIES + self.groups * (COOP_BLOCK + COOP_SCORES + COOP_PARTS)

    def time(self, attrs: StridedAttentionAttrs, info: DeviceInfo) -> Cost:
        """Return the predicted time, by the rounds of tiles.

        Both products read staged operands, as the steps of a product do.
        """
        columns = attrs.depth + min(attrs.width, COLUMNS)
        blocks = ceil_div(attrs.keys, COOP_KEYS)
        rounds = ceil_div(blocks, self.groups)
        a_round = blocks / rounds
        queries = ceil_div(attrs.queries, self.rows)
        pieces = ceil_div(attrs.depth, COLUMNS)
        loop = Loop(
            workgroups=queries * prod(attrs.batch) * ceil_div(attrs.width, COLUMNS),
            invocations=COOP_INVOCATIONS * self.groups,
            rounds=rounds,
            round_bytes=a_round * COOP_KEYS * columns * 2,
            round_flops=a_round * self.rows * COOP_KEYS * COOP_SCORE_FLOPS,
            results=self.rows * min(attrs.width, COLUMNS),
            registers=COOP_REGISTERS,
            shared_bytes=2 * 4 * self.rows * COLUMNS * (self.groups - 1),
            efficiency=TILE_EFFICIENCY,
            steps=pieces + 1,
            matrix_flops=a_round * 2 * self.rows * COOP_KEYS * COLUMNS * (pieces + 1),
            staged_bytes=a_round * (pieces * COOP_STAGED_KEYS + COOP_STAGED_VALUES),
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

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.attention_rotate(
            rows=self.rows,
            lanes=self.lanes,
            aligned=aligned,
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

    def call(self, aligned: Literal[1, 4], encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        return kernels.attention_codes(aligned=aligned), kernels.AttentionCodesParams


Kernel = AttentionTile | AttentionCoop | AttentionRotate | AttentionCodes


def time_of(
    kernel: AttentionTile | AttentionCoop,
    attrs: StridedAttentionAttrs,
    info: DeviceInfo,
    width: int,
) -> Cost:
    """Return the predicted time of a kernel; `width` is the bytes of an element."""
    if isinstance(kernel, AttentionCoop):
        return kernel.time(attrs, info)
    return kernel.time(attrs, info, width)


def kernels_of(
    attrs: StridedAttentionAttrs,
    aligned: Literal[1, 4],
    encoder: VulkanEncoder,
    *,
    in_bytes: bool = False,
) -> list[Kernel]:
    """Return the possible kernels, the likely fastest first.

    Args:
        attrs: the attributes of the op.
        aligned: elements read at once.
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
        tiles.sort(key=lambda tile: time_of(tile, attrs, info, FLOAT_BYTES[encoder.element]).total)
    if "texel" not in encoder.loads:
        return [*tiles]
    rotations = []
    for lanes in rotate_lanes(info):
        rows = ROTATE_ROWS[lanes]
        sizes = rows if attrs.queries > rows[1] else rows[::-1]
        rotations += [AttentionRotate(size, lanes) for size in sizes]
    return [*tiles, *rotations] if is_gpu(info) else [*rotations, *tiles]


def _coop_kernels(info: DeviceInfo, aligned: Literal[1, 4]) -> list[AttentionCoop]:
    """Return the kernels for the device's matrices: one for whole vec4s in all sizes but one."""
    matrix = matrix_of(info)
    if matrix in (None, WIDE_MATRIX) or (matrix != LARGE_MATRIX and aligned == 1):
        return []
    groups = COOP_GROUPS if matrix == LARGE_MATRIX else COOP_GROUPS[:1]
    return [kernel for g in groups if (kernel := AttentionCoop(matrix, g)).fits(info)]


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
