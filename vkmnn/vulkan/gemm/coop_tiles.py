"""Which tile of cooperative matrices computes a float16 product: a table, and the rules over it.

Convolutions are products too, as in `shared_tiles`. docs/decisions/gemm-families.md
says where the numbers come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import multiprocessors
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.gemm.problem import Gemm
from vkmnn.vulkan.gemm.shared_tiles import FEW, LONG_K, MAX_GRID, MAX_PADDING, MIN_PART

# The smallest k that operands are padded to: elements of a uvec4.
VECTOR = 8
# A tile is large enough when it still makes as many workgroups per multiprocessor.
FILLED = 96 / 132
# The largest tile pays from this many results on.
LARGE_RESULT = 2048 * 2048
# With fewer workgroups per multiprocessor, groups of subgroups share the K of a tile.
GROUPED_BELOW = 2.0
# Longer steps pay for weights that come from memory: large ones, in networks whose weights do not
# stay in the cache.
COLD_BYTES = 30_000_000
COLD_WEIGHT_BYTES = 500_000

FEATURES = frozenset(
    {
        *("cooperative_matrix", "float16", "vulkan_memory_model", "storage16"),
        *("subgroup_basic", "subgroup_size_control", "full_subgroups"),
    }
)
_KINDS = ("f16", "f16", "f32", "f32", "subgroup")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrices M x K by K x N that a subgroup of `subgroup` invocations multiplies at a time."""

    m: int
    n: int
    k: int
    subgroup: int

    def runs_on(self, info: DeviceInfo) -> bool:
        """Return whether a device lists these sizes, for float16 summed in float32."""
        smallest, largest = info.limits.subgroup_size_range
        return smallest <= self.subgroup <= largest and any(
            (shape.m, shape.n, shape.k) == (self.m, self.n, self.k) and _has_kinds(shape)
            for shape in info.cooperative_matrices
        )


LARGE_MATRIX = Matrix(16, 16, 16, 32)
"""NVIDIA, AMD."""
XE2_MATRIX = Matrix(8, 16, 16, 16)
"""Intel from Xe2 on."""
XE_MATRIX = Matrix(8, 8, 16, 8)
"""Intel before that."""
LLVMPIPE_MATRIX = Matrix(8, 8, 8, 8)
"""Mesa's llvmpipe from 26 on, where vectors have 256 bits."""


@dataclass(frozen=True, slots=True)
class CoopTile:
    """A tile of results; sizes follow as in `include/coop.glsl.j2`.

    A subgroup makes `sub_rows` by `sub_columns` of them, as products of `matrix`; `groups` of
    subgroups share each `step` along K.
    """

    rows: int
    columns: int
    step: kernels.MatmulCoopStep
    sub_rows: int
    sub_columns: int
    groups: int = 1
    matrix: Matrix = LARGE_MATRIX

    @property
    def name(self) -> kernels.MatmulCoopTile:
        """The value of the axis `tile`."""
        sub = f"w{self.sub_rows}x{self.sub_columns}"
        of = self.matrix
        sizes = "" if of == LARGE_MATRIX else f"m{of.m}x{of.n}x{of.k}s{of.subgroup}"
        return cast(kernels.MatmulCoopTile, f"{self.rows}x{self.columns}{sub}k{self.groups}{sizes}")

    @property
    def splits(self) -> bool:
        """Whether there is a kernel whose K is shared by workgroups."""
        return self.groups > 1

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        subgroups = self.rows // self.sub_rows * (self.columns // self.sub_columns) * self.groups
        return self.matrix.subgroup * subgroups

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        stage = 16 * (self.rows + self.columns) * (self.step // VECTOR + 1)
        buffers = 2 if 2 * stage <= self.max_shared else 1
        rows = self.groups * (self.rows // self.sub_rows) * self.matrix.m
        sums = rows * (self.columns // 4 + 1) * 16
        return max(buffers * stage, sums) + 16

    @property
    def max_shared(self) -> int:
        """The most that the template asks for; devices with small matrices have less."""
        return MAX_SHARED if self.matrix == LARGE_MATRIX else MAX_SHARED_SMALL

    @property
    def part_elements(self) -> int:
        """Numbers that a workgroup leaves of a tile that is shared; room for idle invocations."""
        return max(
            self.rows * self.columns, 4 * self.invocations * (self.sub_rows // self.matrix.m)
        )

    def fits(self, info: DeviceInfo) -> bool:
        """Return whether a device has the memory and the invocations."""
        limits = info.limits
        room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        return self.shared_bytes <= limits.max_shared_memory and self.invocations <= room

    def workgroups(self, gemm: Gemm) -> int:
        """Return how many tiles a product has."""
        down, across = ceil_div(gemm.rows, self.rows), ceil_div(gemm.columns, self.columns)
        return down * across * gemm.batches

    def padded(self, gemm: Gemm) -> int:
        """Return how many results the tiles of a product have."""
        return self.workgroups(gemm) * self.rows * self.columns

    def steps(self, k: int) -> int:
        """Return how many steps an inner axis takes."""
        return ceil_div(k, self.step)


MAX_SHARED = 49_152
MAX_SHARED_SMALL = 32_768

# Tiles of one size lie side by side: with whole subgroups, and with groups that share K. Of these,
# the first is for weights that come from the cache.
LARGEST = CoopTile(128, 128, 64, 64, 64)
TILES: tuple[tuple[CoopTile, ...], ...] = (
    (LARGEST,),
    (CoopTile(64, 128, 64, 32, 64),),
    (CoopTile(64, 64, 64, 32, 32), CoopTile(64, 64, 128, 32, 32, 2)),
    (CoopTile(64, 32, 128, 32, 32, 4),),
    (CoopTile(32, 32, 128, 16, 16, 2), CoopTile(32, 32, 256, 32, 32, 8)),
    (CoopTile(16, 32, 128, 16, 32, 4),),
)


def _small(matrix: Matrix, sub_columns: int) -> tuple[tuple[CoopTile, ...], ...]:
    return (
        (CoopTile(64, 64, 64, 16, sub_columns, 1, matrix),),
        (CoopTile(32, 32, 128, 16, sub_columns, 2, matrix),),
    )


# By matrix; the first that a device has is taken.
TILES_OF: dict[Matrix, tuple[tuple[CoopTile, ...], ...]] = {
    LARGE_MATRIX: TILES,
    XE2_MATRIX: _small(XE2_MATRIX, 32),
    XE_MATRIX: _small(XE_MATRIX, 16),
    LLVMPIPE_MATRIX: _small(LLVMPIPE_MATRIX, 16),
}


@dataclass(frozen=True)
class CoopKernel:
    """A tile; K split over `parts` workgroups, of which the last to arrive adds."""

    tile: CoopTile
    parts: int = 1
    family = "coop"

    @property
    def split(self) -> Literal[0, 1]:
        """The value of the axis `split`."""
        return 1 if self.parts > 1 else 0

    def walk(self, gemm: Gemm) -> dict[str, Any]:
        """Return the parameters that say how workgroups go over a gemm."""
        steps = ceil_div(self.tile.steps(gemm.k), self.parts)
        return {"tiles": self.tile.workgroups(gemm), "steps": steps, "parts": self.parts}


def has_coopmat(info: DeviceInfo) -> bool:
    """Return whether a device has what the kernels need."""
    return matrix_of(info) is not None


def matrix_of(info: DeviceInfo) -> Matrix | None:
    """Return the matrices that the kernels use on a device, None where there are no kernels."""
    if not info.features >= FEATURES:
        return None
    return next((matrix for matrix in TILES_OF if matrix.runs_on(info)), None)


def _has_kinds(shape: CooperativeMatrixShape) -> bool:
    kinds = (shape.a, shape.b, shape.c, shape.result, shape.scope)
    return kinds == _KINDS and not shape.saturating


def rank_coop(gemm: Gemm, info: DeviceInfo, weight_bytes: int = 0) -> list[CoopKernel]:
    """Return the kernels that fit the device, the likely fastest first; all of them last.

    The largest tile that fills the device without much padding. Where none does, a small one whose
    K workgroups share, if it is long, else the smallest one.

    Args:
        gemm: what to compute.
        info: the device; without the matrices there are no kernels.
        weight_bytes: of all constants of the network.
    """
    matrix = matrix_of(info)
    if matrix is None or gemm.k == 0:
        return []
    processors = multiprocessors(info)
    tiles = TILES_OF[matrix]
    sizes = [size for size in ([t for t in same if t.fits(info)] for same in tiles) if size]
    fewest = min((size[0].padded(gemm) for size in sizes), default=0)
    lean = [size for size in sizes if size[0].padded(gemm) <= MAX_PADDING * fewest]
    if gemm.rows * gemm.columns < LARGE_RESULT:
        lean = [size for size in lean if size[0] != LARGEST]
    filling = [size for size in lean if size[0].workgroups(gemm) >= FILLED * processors]
    mine = 2 * gemm.columns * gemm.k * gemm.batches
    cold = weight_bytes > COLD_BYTES and mine > COLD_WEIGHT_BYTES
    ranked: list[CoopKernel] = []
    if not filling:
        ranked += _shared_by_workgroups(lean, gemm, info, cold)
    for size in [*filling, *reversed(lean)]:
        ranked += map(CoopKernel, _by_step(size, gemm, processors, cold))
    for tile in (tile for size in sizes for tile in size):
        ranked.append(CoopKernel(tile))
        if tile.splits and tile.steps(gemm.k) > 1:
            ranked.append(CoopKernel(tile, _used(tile, gemm.k, 3)))
    return list(dict.fromkeys(ranked))


def _by_step(size: list[CoopTile], gemm: Gemm, processors: int, cold: bool) -> list[CoopTile]:
    """Return the tiles of one size, the likely fastest first."""
    few = size[0].workgroups(gemm) < GROUPED_BELOW * processors
    deep = cold or (size[0].groups == 1 and few and gemm.k >= size[-1].step)
    return size[::-1] if deep else size


def _shared_by_workgroups(
    sizes: list[list[CoopTile]], gemm: Gemm, info: DeviceInfo, cold: bool
) -> list[CoopKernel]:
    """Return kernels with a long K in parts, those that fill the device first, then small tiles."""
    processors = multiprocessors(info)
    found: dict[CoopKernel, int] = {}
    for size in reversed(sizes):
        tile = (size[::-1] if cold else size)[0]
        count = tile.workgroups(gemm)
        if not tile.splits or count >= FEW * processors or gemm.k < LONG_K:
            continue
        parts = _used(tile, gemm.k, min(int(MAX_GRID * processors) // count, gemm.k // MIN_PART))
        if parts > 1:
            found[CoopKernel(tile, parts)] = count * parts
    return sorted(found, key=lambda kernel: -min(found[kernel], int(FILLED * processors)))


def _used(tile: CoopTile, k: int, parts: int) -> int:
    """Return how many parts have steps to do when all but the last have the same number."""
    steps = tile.steps(k)
    return ceil_div(steps, ceil_div(steps, max(1, min(parts, steps))))
