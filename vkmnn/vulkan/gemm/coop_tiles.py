"""Tiles of cooperative matrices: a table, ranked by predicted time.

Operands are float16 with float32 sums, or signed bytes with int32 sums.

Convolutions are treated as products, as in `shared_tiles`. The constants are explained in
docs/decisions/gemm-families.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any, ClassVar, Literal, cast

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo
from vkmnn.shader_files.tiles import CoopTileSize, MatrixSize
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import AMD, class_of
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.cost.tiles import MAX_REGISTERS, Tiling, tiles_cost, weighed_us
from vkmnn.vulkan.device_rules import refused_sizes
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.gemm.problem import Gemm
from vkmnn.vulkan.gemm.split import parts_of, used_parts

VECTOR_BYTES = 16
"""Operands are loaded, and padded along k, in units of uvec4."""
VECTOR = 8
"""float16 elements per unit."""

_FEATURES = frozenset(
    {
        *("cooperative_matrix", "vulkan_memory_model"),
        *("subgroup_basic", "subgroup_size_control", "full_subgroups"),
    }
)
FEATURES = _FEATURES | {"float16", "storage16"}
"""Fragment sizes of float16 matrices that kernels use."""
BYTE_FEATURES = _FEATURES | {"int8"}
"""Fragment sizes of signed-byte matrices that kernels use."""
# Keys: bytes per operand element.
_KINDS = {
    1: ("i8", "i8", "i32", "i32", "subgroup"),
    2: ("f16", "f16", "f32", "f32", "subgroup"),
}


@dataclass(frozen=True, slots=True)
class Matrix(MatrixSize):
    """Sizes of cooperative matrices that a device may support."""

    def runs_on(self, info: DeviceInfo) -> bool:
        """Return whether a device supports these sizes with 32-bit sums."""
        smallest, largest = info.limits.subgroup_size_range
        return smallest <= self.subgroup <= largest and any(
            (shape.m, shape.n, shape.k) == (self.m, self.n, self.k)
            and _has_kinds(shape, self.element_bytes)
            for shape in info.cooperative_matrices
        )


LARGE_MATRIX = Matrix(16, 16, 16, 32)
"""NVIDIA, AMD."""
WIDE_MATRIX = Matrix(16, 16, 16, 64)
"""AMD, with drivers that have subgroups of 64 only."""
NARROW_MATRIX = Matrix(16, 8, 16, 32)
"""The instruction's own size on NVIDIA; for devices that list no wider one."""
XE2_MATRIX = Matrix(8, 16, 16, 16)
"""Intel, Xe2 and later."""
XE_MATRIX = Matrix(8, 8, 16, 8)
"""Intel before Xe2."""
LLVMPIPE_MATRIX = Matrix(8, 8, 8, 8)
"""Mesa's llvmpipe 26 and later, with 256-bit vectors."""

LARGE_BYTES = Matrix(16, 16, 32, 32, 1)
"""NVIDIA, for signed bytes; the sizes above also exist for bytes."""
AMD_BYTES = Matrix(16, 16, 16, 32, 1)
XE2_BYTES = Matrix(8, 16, 32, 16, 1)
XE_BYTES = Matrix(8, 8, 32, 8, 1)
LLVMPIPE_BYTES = Matrix(8, 8, 8, 8, 1)


@dataclass(frozen=True, slots=True)
class CoopTile(CoopTileSize):
    """A tile of results by cooperative matrices, with its cost model."""

    step: kernels.MatmulCoopStep
    groups: int = 1
    matrix: Matrix = LARGE_MATRIX
    limbs: int = 1
    fragments: bool = False

    @property
    def name(self) -> kernels.MatmulCoopTile:
        """The value of the axis `tile`."""
        return cast(kernels.MatmulCoopTile, self.label)

    @property
    def splits(self) -> bool:
        """Whether a split-K kernel exists; not for bytes."""
        enough = SPLIT_GROUPS if self.fragments else 2
        return self.groups >= enough and self.matrix.element_bytes > 1

    @property
    def is_coded(self) -> bool:
        """Whether there is a kernel with quantised weights."""
        return (self.rows, self.columns, self.step) in CODED_SIZES and not self.fragments

    @property
    def registers(self) -> int:
        """Estimated registers per invocation: sums, loads and operands."""
        matrix, ahead = self.matrix, 0
        if self.fragments:
            # Two float16 elements a register.
            ahead = self.flight(self.step) * self.sub_columns * matrix.k // (2 * matrix.subgroup)
        return min(self.sums + (64 if self.sums < 64 else 90) + ahead, MAX_REGISTERS)

    @property
    def sums(self) -> int:
        """Results per invocation."""
        return self.sub_rows * self.sub_columns // self.matrix.subgroup

    @property
    def shared_bytes(self) -> int:
        """Shared memory per workgroup, in bytes."""
        peaks = 4 * (self.rows + self.columns) * (self.limbs - 1)
        return max(self.buffers * self.stage_bytes, VECTOR_BYTES * self.sum_row) + peaks + 16

    @property
    def operand_bytes(self) -> int:
        """Bytes of an element of the operands in memory."""
        return self.matrix.element_bytes * self.limbs

    @property
    def products(self) -> int:
        """Products of matrices that make one product of elements."""
        return 2 * self.limbs - 1

    @property
    def rounds(self) -> int:
        """How often in a step a subgroup waits for loads."""
        if not self.fragments:
            return 1
        return self.step // (self.matrix.k * self.groups * self.flight(self.step))

    @property
    def norm_bytes(self) -> int:
        """Shared memory for row normalisation, in bytes: means and inverse deviations."""
        return 8 * self.rows

    @property
    def part_elements(self) -> int:
        """Elements that a workgroup writes of a split tile, including idle invocations."""
        bands = self.sub_rows // self.matrix.m
        lines = max(1, self.invocations // (self.columns // 4))
        items = bands * ceil_div(self.rows, bands * lines)
        return max(self.rows * self.columns, 4 * self.invocations * items)

    def fits(self, info: DeviceInfo) -> bool:
        """Return whether the device has enough memory, registers and invocations."""
        limits = info.limits
        room = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
        shared = self.shared_bytes + self.norm_bytes
        if info.vendor_id == AMD and self.sums > MAX_SUMS_AMD:
            return False
        return shared <= limits.max_shared_memory and self.invocations <= room

    def workgroups(self, gemm: Gemm) -> int:
        """Return the number of tiles of a product."""
        down, across = ceil_div(gemm.rows, self.rows), ceil_div(gemm.columns, self.columns)
        return down * across * gemm.batches

    def done(self, gemm: Gemm) -> int:
        """Return the multiplications of a product's tiles, including padding."""
        results = self.workgroups(gemm) * self.rows * self.columns
        return results * self.steps(gemm.k) * self.step

    def steps(self, k: int) -> int:
        """Return the number of steps along an inner axis."""
        return ceil_div(k, self.step)


# Cost of summing an element and its square; an instruction counts two, like a multiply-add.
MOMENT_FLOPS = 6.5
# Cost of turning a quantised value into float16 in shared memory, counted in `coded.glsl.j2`: nine
# integer instructions for eight values, at half the rate, and eight of two float16 each.
VALUE_FLOPS = 6.5

# Cost of making two limbs of a number: eight instructions.
LIMB_FLOPS = 16.0

# The fewest groups of tiles with fragments that have a kernel which splits K further.
SPLIT_GROUPS = 8
# Required speed-up by weights in fragment order, as no device has timed it yet.
FRAGMENT_MARGIN = 1.03

# RDNA3 stores matrix operands twice, so 128 sums spill up to 131 registers (docs/gpu-compilers.md).
MAX_SUMS_AMD = 64

# Tiles of equal size are adjacent, largest first: for equal predicted times, the larger one reads
# less memory.
TILES: tuple[tuple[CoopTile, ...], ...] = (
    (CoopTile(128, 128, 64, 64, 64),),
    (CoopTile(64, 128, 64, 32, 64),),
    (
        CoopTile(64, 64, 64, 32, 32),
        CoopTile(64, 64, 32, 32, 32),
        CoopTile(64, 64, 128, 32, 32, 2),
    ),
    (CoopTile(64, 32, 128, 32, 32, 4),),
    # For a few hundred rows and columns, where power-of-two tiles would need another wave of
    # workgroups.
    (CoopTile(48, 96, 64, 48, 32),),
    (CoopTile(64, 48, 96, 64, 16, 2), CoopTile(48, 64, 96, 16, 64, 2)),
    (CoopTile(32, 48, 128, 32, 48, 4),),
    (CoopTile(32, 32, 128, 16, 16, 2), CoopTile(32, 32, 256, 32, 32, 8)),
    # For short K.
    (CoopTile(32, 32, 64, 16, 16), CoopTile(32, 32, 32, 16, 16)),
    # For few columns.
    (CoopTile(64, 16, 64, 16, 16),),
    (CoopTile(16, 32, 128, 16, 32, 4),),
)

LARGE_TILES = (
    CoopTile(128, 128, 32, 64, 64),
    CoopTile(128, 128, 32, 64, 32),
)
"""Further tiles, for products of thousands of rows and columns."""

FRAGMENT_TILES: dict[Matrix, tuple[CoopTile, ...]] = {
    LARGE_MATRIX: (
        CoopTile(48, 128, 128, 48, 32, 2, fragments=True),
        CoopTile(48, 96, 128, 48, 32, 2, fragments=True),
        CoopTile(48, 64, 192, 48, 32, 3, fragments=True),
        CoopTile(32, 48, 256, 32, 48, 8, fragments=True),
        CoopTile(32, 32, 256, 32, 16, 2, fragments=True),
        CoopTile(16, 32, 384, 16, 32, 3, fragments=True),
    ),
    WIDE_MATRIX: (CoopTile(32, 64, 128, 32, 32, 4, WIDE_MATRIX, fragments=True),),
    NARROW_MATRIX: (CoopTile(48, 64, 192, 48, 32, 3, NARROW_MATRIX, fragments=True),),
    XE2_MATRIX: (CoopTile(32, 64, 128, 32, 16, 2, XE2_MATRIX, fragments=True),),
    XE_MATRIX: (CoopTile(32, 32, 128, 32, 8, 2, XE_MATRIX, fragments=True),),
    LLVMPIPE_MATRIX: (CoopTile(32, 32, 128, 32, 8, 2, LLVMPIPE_MATRIX, fragments=True),),
}
"""Tiles for constants that are stored matrix by matrix.

A subgroup has all rows of its tile, so that none loads what another one does.
"""

CODED_SIZES = frozenset(
    {
        *((128, 128, 32), (128, 128, 64), (64, 128, 64), (64, 64, 64), (64, 64, 128)),
        *((32, 32, 128), (16, 32, 128)),
    }
)
"""Rows, columns and step of tiles whose right operand may be quantised."""


def _derived(matrix: Matrix) -> tuple[tuple[CoopTile, ...], ...]:
    """Return two tiles for any matrices: an invocation has 32 sums, or 8 of a small tile."""
    part = {8: (16, 16), 16: (16, 32)}.get(matrix.subgroup, (32, 32))
    small = min(part, (16, 16)) if matrix.subgroup > 16 else part
    # Two buffers of larger subgroups are to fit 32 KiB, too.
    step: kernels.MatmulCoopStep = 64 if matrix.subgroup <= 16 else 32
    longer: kernels.MatmulCoopStep = 128 if matrix.subgroup <= 16 else 64
    return (
        (CoopTile(64, 64, step, *part, 1, matrix),),
        (CoopTile(32, 32, longer, *small, 2, matrix),),
    )


_WIDE = (
    (CoopTile(64, 64, 64, 32, 32, 1, WIDE_MATRIX),),
    (CoopTile(64, 32, 128, 32, 32, 4, WIDE_MATRIX),),
    (CoopTile(32, 32, 128, 32, 32, 4, WIDE_MATRIX),),
    (CoopTile(32, 32, 64, 16, 16, 1, WIDE_MATRIX),),
)
_SHORT = (CoopTile(32, 32, 32, 16, 16, 1, XE_MATRIX),)


# By matrix; the first one that the device supports is used.
TILES_OF: dict[Matrix, tuple[tuple[CoopTile, ...], ...]] = {
    LARGE_MATRIX: TILES,
    WIDE_MATRIX: _WIDE,
    NARROW_MATRIX: _derived(NARROW_MATRIX),
    XE2_MATRIX: _derived(XE2_MATRIX),
    XE_MATRIX: (_SHORT, *_derived(XE_MATRIX)),
    LLVMPIPE_MATRIX: _derived(LLVMPIPE_MATRIX),
}

_LARGE_BYTES = (
    (CoopTile(128, 128, 64, 64, 64, 1, LARGE_BYTES),),
    (CoopTile(64, 64, 64, 32, 32, 1, LARGE_BYTES), CoopTile(64, 64, 128, 32, 32, 2, LARGE_BYTES)),
    (CoopTile(64, 32, 128, 32, 32, 4, LARGE_BYTES),),
    (CoopTile(32, 32, 128, 16, 16, 2, LARGE_BYTES), CoopTile(32, 32, 256, 32, 32, 8, LARGE_BYTES)),
    (CoopTile(32, 32, 64, 16, 16, 1, LARGE_BYTES),),
)
_AMD_BYTES = (
    (CoopTile(64, 64, 64, 32, 32, 1, AMD_BYTES),),
    (CoopTile(32, 32, 128, 16, 16, 2, AMD_BYTES),),
)
LIMB_TILES_OF: dict[Matrix, tuple[tuple[CoopTile, ...], ...]] = {
    LARGE_MATRIX: (
        (CoopTile(64, 64, 32, 32, 32, 1, limbs=2),),
        (CoopTile(64, 32, 64, 32, 32, 4, limbs=2),),
        (CoopTile(32, 32, 64, 16, 16, 2, limbs=2), CoopTile(32, 32, 64, 32, 32, 4, limbs=2)),
        (CoopTile(16, 32, 64, 16, 32, 4, limbs=2),),
    ),
    WIDE_MATRIX: (
        (CoopTile(64, 64, 32, 32, 32, 1, WIDE_MATRIX, limbs=2),),
        (CoopTile(32, 32, 64, 16, 16, 1, WIDE_MATRIX, limbs=2),),
    ),
}
"""Tiles for float32 as sums of two float16 numbers."""
BYTE_TILES_OF: dict[Matrix, tuple[tuple[CoopTile, ...], ...]] = {
    LARGE_BYTES: _LARGE_BYTES,
    AMD_BYTES: _AMD_BYTES,
    XE2_BYTES: _derived(XE2_BYTES),
    XE_BYTES: _derived(XE_BYTES),
    LLVMPIPE_BYTES: _derived(LLVMPIPE_BYTES),
}
"""Tiles for signed bytes."""


@dataclass(frozen=True, slots=True)
class CoopKernel:
    """A tile; K is split over `parts` workgroups, and the last one to finish adds the parts."""

    tile: CoopTile
    parts: int = 1
    family: ClassVar[str] = "coop"

    @property
    def split(self) -> Literal[0, 1]:
        """The value of the axis `split`."""
        return 1 if self.parts > 1 else 0

    def walk(self, gemm: Gemm) -> dict[str, Any]:
        """Return the parameters of the workgroups' order over a gemm."""
        steps = ceil_div(self.tile.steps(gemm.k), self.parts)
        return {"tiles": self.tile.workgroups(gemm), "steps": steps, "parts": self.parts}


def product_tiles(matrix: Matrix) -> Iterator[CoopTile]:
    """Yield the float16 tiles of matrix products, which convolutions do not all have."""
    yield from chain.from_iterable(TILES_OF[matrix])
    yield from (tile for tile in LARGE_TILES if tile.matrix == matrix)


def matrix_of(info: DeviceInfo) -> Matrix | None:
    """Return the matrices that the kernels use on a device; None if unsupported."""
    return _first_of(TILES_OF, FEATURES, info)


def byte_matrix_of(info: DeviceInfo) -> Matrix | None:
    """Return the signed-byte matrices that the kernels use on a device; None if unsupported."""
    return _first_of(BYTE_TILES_OF, BYTE_FEATURES, info)


def unused_matrices(info: DeviceInfo) -> str | None:
    """Return why a device's float16 matrices are not used, for plans; None if some are.

    The table of drivers has reasons of its own (`device_rules.refusal_reasons`).
    """
    refused = refused_sizes(info)
    listed = {
        (shape.m, shape.n, shape.k)
        for shape in info.cooperative_matrices
        if _has_kinds(shape, 2) and (shape.m, shape.n, shape.k) not in refused
    }
    if not listed or matrix_of(info) is not None:
        return None
    lacking = sorted(FEATURES - info.features)
    if lacking:
        return f"cooperative matrices are not used: the device lacks {', '.join(lacking)}"
    smallest, largest = info.limits.subgroup_size_range
    sizes = ", ".join("x".join(map(str, size)) for size in sorted(listed))
    known = ", ".join(matrix.name for matrix in TILES_OF)
    return (
        f"cooperative matrices {sizes} in subgroups of {smallest} to {largest} are not used: there "
        f"are kernels for {known}"
    )


def limb_matrix_of(info: DeviceInfo) -> Matrix | None:
    """Return the matrices that multiply limbs of float32 on a device; None if unsupported."""
    matrix = matrix_of(info)
    return matrix if matrix in LIMB_TILES_OF else None


def limb_tiles(matrix: Matrix) -> Iterator[CoopTile]:
    """Return the tiles of limbs for these matrices."""
    return chain.from_iterable(LIMB_TILES_OF.get(matrix, ()))


def _first_of(
    matrices: Iterable[Matrix], features: frozenset[str], info: DeviceInfo
) -> Matrix | None:
    refused = refused_sizes(info)
    if not info.features >= features:
        return None
    return next(
        (one for one in matrices if (one.m, one.n, one.k) not in refused and one.runs_on(info)),
        None,
    )


def _has_kinds(shape: CooperativeMatrixShape, element_bytes: int) -> bool:
    kinds = (shape.a, shape.b, shape.c, shape.result, shape.scope)
    return kinds == _KINDS[element_bytes] and not shape.saturating


def rank_coop(gemm: Gemm, info: DeviceInfo, weight_bytes: int = 0) -> list[CoopKernel]:
    """Return the kernels that fit the device, fastest prediction first; all of them last.

    Args:
        gemm: the sizes.
        info: the device; without matrices, no kernels are returned.
        weight_bytes: of all constants of the network.
    """
    return [kernel for _, kernel in timed_coop(gemm, info, weight_bytes)]


def timed_coop(
    gemm: Gemm,
    info: DeviceInfo,
    weight_bytes: int = 0,
    *,
    needed: int = 0,
    of_bytes: bool = False,
    word_flops: float = 0.0,
    weight_bits: float = 0.0,
    tiles: Callable[[Matrix], Iterable[CoopTile]] | None = None,
) -> list[tuple[float, CoopKernel]]:
    """Return kernels with predicted microseconds, including the cost of padding.

    For each tile, only the fastest K split has its predicted time; one further split gets an
    infinite cost, so that every kernel is offered. `needed`: multiplications of the problem if
    `gemm` is padded. `of_bytes`: operands are signed bytes, not float16. `word_flops`,
    `weight_bits`: as for `coop_cost`. `tiles`: instead of those that all kernels have.
    """
    matrix = byte_matrix_of(info) if of_bytes else matrix_of(info)
    if matrix is None or gemm.k == 0:
        return []

    least = needed or gemm.work
    if matrix.m // 2 <= gemm.rows < matrix.m:
        # Every tile pads to the only matrix size, which is no reason to prefer vector loops: they
        # took longer. With fewer rows than half a matrix, vector loops are faster when
        # memory-bound.
        least = least * matrix.m // gemm.rows

    def timed(kernel: CoopKernel) -> tuple[float, CoopKernel]:
        us = coop_cost(
            kernel, gemm, info, weight_bytes, word_flops=word_flops, weight_bits=weight_bits
        ).total
        us *= FRAGMENT_MARGIN if kernel.tile.fragments else 1.0
        return weighed_us(us, kernel.tile.done(gemm), least), kernel

    offered: list[tuple[float, CoopKernel]] = []
    spare: list[tuple[float, CoopKernel]] = []
    common = chain.from_iterable((BYTE_TILES_OF if of_bytes else TILES_OF)[matrix])
    for tile in tiles(matrix) if tiles else common:
        if not tile.fits(info) or (weight_bits and not tile.is_coded):
            continue
        offered.append(timed(CoopKernel(tile)))
        if not tile.splits:
            continue
        steps = tile.steps(gemm.k)
        shared = [timed(CoopKernel(tile, parts)) for parts in parts_of(steps, gemm.k)]
        best = sorted(shared, key=lambda pair: pair[0])[:1]
        offered += best
        three = CoopKernel(tile, used_parts(steps, 3))
        if steps > 1 and three not in [kernel for _, kernel in best]:
            spare.append((inf, three))
    return [*sorted(offered, key=lambda pair: pair[0]), *spare]


def coop_cost(
    kernel: CoopKernel,
    gemm: Gemm,
    info: DeviceInfo,
    weight_bytes: int = 0,
    *,
    normed: bool = False,
    keeps: bool = False,
    word_flops: float = 0.0,
    weight_bits: float = 0.0,
) -> Cost:
    """Return the predicted time of a kernel; other arguments as for `rank_coop`.

    Args:
        kernel: a tile.
        gemm: the sizes.
        info: the device.
        weight_bytes: of all constants of the network.
        normed: the kernel normalises the rows of the left operand.
        keeps: it also stores the normalised rows.
        word_flops: for a float32 left operand, the cost of packing a word of bytes.
        weight_bits: for a quantised right operand, its bits per value with its scales.
    """
    tile, size, loaded = kernel.tile, kernel.tile.matrix.element_bytes, kernel.tile.operand_bytes
    right_size = weight_bits / 8 if weight_bits else loaded
    # In each step, every subgroup reads its rows and columns from shared memory.
    subgroups = tile.invocations // tile.matrix.subgroup
    staged_columns = 0 if tile.fragments else tile.columns
    reads = subgroups * (tile.sub_rows + (tile.sub_columns if staged_columns else 0))
    tiling = Tiling(
        tiles=tile.workgroups(gemm),
        parts=kernel.parts,
        steps=kernel.walk(gemm)["steps"],
        left_bytes=(4 if word_flops else loaded) * tile.rows * tile.step,
        right_bytes=right_size * tile.columns * tile.step,
        staged_bytes=loaded * tile.step * (reads / tile.groups + tile.rows + staged_columns),
        # Bytes run at twice the rate.
        flops=tile.products * size * tile.rows * tile.columns * tile.step,
        results=tile.rows * tile.columns,
        invocations=tile.invocations,
        registers=tile.registers,
        shared=tile.shared_bytes + (tile.norm_bytes if normed else 0),
        groups=tile.groups,
        buffers=tile.buffers,
        weight_bytes=int(right_size * gemm.columns * gemm.k * gemm.batches),
        matrices=True,
        ahead=tile.ahead,
        direct_bytes=loaded * tile.step * subgroups * tile.sub_columns / tile.groups
        if tile.fragments
        else 0.0,
        rounds=tile.rounds,
        lane_flops=tile.step
        * (
            tile.rows * (MOMENT_FLOPS * normed + word_flops / 4)
            + tile.columns * VALUE_FLOPS * (weight_bits > 0)
            + (tile.rows + tile.columns) * LIMB_FLOPS * (tile.limbs - 1)
        ),
        closing=normed + keeps,
    )
    return tiles_cost(tiling, info, weight_bytes > class_of(info).cache_bytes)
