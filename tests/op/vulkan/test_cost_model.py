"""The cost model compared with measurements on two GPUs, and its predictions for other devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.device_infos import COOPMAT_GPU, LARGE_GPU
from vkmnn.ir import View
from vkmnn.ir.ops import StridedAttentionAttrs
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.runtime.device_profiles import load_profile, profile_names
from vkmnn.shaders import kernels
from vkmnn.testing.profile_driver import ProfileDriver
from vkmnn.vulkan.attention.kernels import COOP_KEYS, AttentionCoop
from vkmnn.vulkan.cost.devices import CPU, SERVER, class_of, cores_of
from vkmnn.vulkan.cost.passes import Loop, loop_cost, pass_cost
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.cost.tiles import HUGE_BYTES, Tiling, lanes_used, tiles_cost
from vkmnn.vulkan.gemm import families
from vkmnn.vulkan.gemm.coop_tiles import (
    LARGE_MATRIX,
    TILES,
    CoopKernel,
    CoopTile,
    coop_cost,
    rank_coop,
)
from vkmnn.vulkan.gemm.families.gemv import MatMulGemv, gemv_cost
from vkmnn.vulkan.gemm.families.registers import MatMulTile
from vkmnn.vulkan.gemm.family import rank
from vkmnn.vulkan.gemm.problem import Gemm, MatMulProblem
from vkmnn.vulkan.gemm.shared_tiles import SharedKernel, Tile, rank_shared, shared_cost
from vkmnn.vulkan.gemm.target import Target

families.load_all()

COLD = 200_000_000
ACCURACY = 0.2
WITHIN = 0.05
# How much slower the first may be, by whether the measured best is among the tiles.
SLOWER = {True: WITHIN, False: 0.06}

T128 = CoopTile(128, 128, 64, 64, 64)
T64X128 = CoopTile(64, 128, 64, 32, 64)
T64 = CoopTile(64, 64, 64, 32, 32)
T64K2 = CoopTile(64, 64, 128, 32, 32, 2)
T64X32 = CoopTile(64, 32, 128, 32, 32, 4)
T32 = CoopTile(32, 32, 128, 16, 16, 2)
T32K8 = CoopTile(32, 32, 256, 32, 32, 8)
T16X32 = CoopTile(16, 32, 128, 16, 32, 4)
T32S64 = CoopTile(32, 32, 64, 16, 16)
# Measured to be best, and not built: others come near them.
T32X64 = CoopTile(32, 64, 128, 16, 32, 2)
T32X128 = CoopTile(32, 128, 64, 32, 32)
T64K2S64 = CoopTile(64, 64, 64, 32, 32, 2)
T64W16 = CoopTile(64, 64, 64, 32, 16)
# Built since the times were taken.
NOT_MEASURED = frozenset(
    {
        CoopTile(32, 48, 128, 32, 48, 4),
        CoopTile(48, 96, 64, 48, 32),
        CoopTile(64, 48, 96, 64, 16, 2),
        CoopTile(48, 64, 96, 16, 64, 2),
    }
)

Measured = tuple[float, CoopTile, int]
# Rows, columns, K: microseconds in a chain of dependent dispatches, tile and parts; with weights
# in the caches, and from memory.
MEASURED: dict[tuple[int, int, int], tuple[Measured, Measured | None]] = {
    (512, 512, 512): ((5.8, T64, 1), None),
    (1024, 1024, 1024): ((14.2, T64X128, 1), None),
    (2048, 2048, 2048): ((70.2, T128, 1), None),
    (4096, 4096, 4096): ((528.0, T128, 1), None),
    (8192, 8192, 8192): ((4005.0, T128, 1), None),
    (3136, 64, 64): ((3.47, T32S64, 1), (3.43, T32S64, 1)),
    (3136, 64, 256): ((4.36, T16X32, 1), (4.34, T16X32, 1)),
    (3136, 256, 64): ((4.45, T64W16, 1), (4.45, T64W16, 1)),
    (3136, 64, 576): ((6.07, T16X32, 1), (6.06, T16X32, 1)),
    (784, 128, 512): ((4.52, T32, 1), (4.50, T32, 1)),
    (784, 512, 128): ((4.40, T64K2, 1), (4.39, T64K2, 1)),
    (784, 128, 1152): ((6.43, T32, 1), (6.41, T32, 1)),
    (196, 256, 1024): ((5.57, T16X32, 1), (5.53, T16X32, 1)),
    (196, 1024, 256): ((4.53, T32X64, 1), (4.51, T32X64, 1)),
    (196, 256, 2304): ((7.96, T32, 2), (8.29, T32K8, 2)),
    (49, 512, 2048): ((6.26, T32, 4), (6.88, T32K8, 4)),
    (49, 2048, 512): ((4.68, T32, 1), (5.40, T32K8, 1)),
    (49, 512, 4608): ((7.99, T32, 4), (9.32, T32K8, 4)),
    (128, 768, 768): ((5.30, T32K8, 1), (5.45, T32K8, 1)),
    (128, 2304, 768): ((8.26, T64K2S64, 1), (8.91, T64K2, 1)),
    (128, 3072, 768): ((8.37, T64K2S64, 1), (9.08, T64K2, 1)),
    (128, 768, 3072): ((10.9, T32K8, 1), (12.3, T64K2, 4)),
    (197, 768, 768): ((6.76, T64X32, 1), (6.89, T16X32, 1)),
    (197, 2304, 768): ((10.1, T32X128, 1), (11.6, T32S64, 1)),
    (197, 3072, 768): ((12.4, T64X128, 1), (13.0, T64X128, 1)),
    (197, 768, 3072): ((15.7, T64K2S64, 2), (16.4, T64K2, 2)),
    (64, 50257, 768): ((43.8, T64, 1), (43.6, T64, 1)),
    (1, 1000, 2048): ((5.75, T16X32, 4), (7.4, T16X32, 4)),
}
CHAINS = [
    pytest.param(shape, measured, weight_bytes, id=f"{'x'.join(map(str, shape))} {kind}")
    for shape, both in MEASURED.items()
    for kind, measured, weight_bytes in zip(("hot", "cold"), both, (0, COLD), strict=True)
    if measured is not None
]


def chain_us(kernel: CoopKernel, shape: tuple[int, int, int], weight_bytes: int) -> float:
    """Return the time of a step of a chain: the dispatch, and the gap before it."""
    return coop_cost(kernel, Gemm(*shape), COOPMAT_GPU, weight_bytes).total + SERVER.gap_us


@pytest.mark.parametrize(("shape", "measured", "weight_bytes"), CHAINS)
def test_measured_times(shape: tuple[int, int, int], measured: Measured, weight_bytes: int) -> None:
    us, tile, parts = measured
    assert chain_us(CoopKernel(tile, parts), shape, weight_bytes) == pytest.approx(us, rel=ACCURACY)


@pytest.mark.parametrize(("shape", "measured", "weight_bytes"), CHAINS)
def test_the_measured_best_is_first_or_nearly(
    shape: tuple[int, int, int], measured: Measured, weight_bytes: int
) -> None:
    us, tile, parts = measured
    best = chain_us(CoopKernel(tile, parts), shape, weight_bytes)
    ranked = rank_coop(Gemm(*shape), COOPMAT_GPU, weight_bytes)
    first = next(kernel for kernel in ranked if kernel.tile not in NOT_MEASURED)
    taken = chain_us(first, shape, weight_bytes)
    assert best <= (1 + WITHIN) * taken, "another tile is said to be faster than the fastest"
    built = {tile for same in TILES for tile in same}
    assert taken <= (best if tile in built else max(best, us)) * (1 + SLOWER[tile in built])


def test_matrices_from_memory_are_assumed_to_take_a_quarter_of_the_lines() -> None:
    """Measured with rows K apart: 77 TFLOP/s, 64 × 64 results a subgroup, both operands loaded."""
    flops, loaded = 2 * 64 * 64 * 16, 2 * 2 * 64 * 16
    measured = 77e6 / 132 / flops * loaded
    assert SERVER.core_bytes * SERVER.direct_part == pytest.approx(4 * measured, rel=0.01)


# In float32: size, tile, microseconds.
MEASURED_FULL = (
    (512, Tile(64, 64), 22.0),
    (1024, Tile(128, 64), 61.5),
    (2048, Tile(128, 128), 424.0),
    (4096, Tile(128, 128), 3346.0),
)


@pytest.mark.parametrize(("size", "tile", "us"), MEASURED_FULL)
def test_measured_times_of_float32(size: int, tile: Tile, us: float) -> None:
    gemm = Gemm(size, size, size)
    predicted = shared_cost(SharedKernel(tile), gemm, LARGE_GPU).total
    assert predicted + SERVER.gap_us == pytest.approx(us, rel=ACCURACY)
    # At 512, groups that share K were not measured; above, they are not far from what was.
    if size > 512:
        first = rank_shared(gemm, LARGE_GPU)[0]
        assert predicted <= (1 + WITHIN) * shared_cost(first, gemm, LARGE_GPU).total


# In float32 on an H100, in chains of dependent dispatches: rows, columns, K; whether the rows are
# those of a product, pixels, or pixels of which some are pads; tile, "/" and parts, microseconds.
# Two runs: the first had timestamps, and 1.22 us are taken off where it alone has a time. Where the
# runs differ by more than 8 %, neither is here.
ON_H100 = (
    (
        *((49, 512, 2048), "product"),
        "32x32x8/4 11.0, 64x32x2/8 12.8, 16x16x16 13.0, 40x32x8/4 14.3, 16x16x8/2 14.7",
    ),
    (
        *((49, 2048, 512), "product"),
        "32x32x8 8.9, 32x32x8/2 11.2, 40x32x8 12.2, 16x16x16 12.8, 16x16x8 13",
    ),
    (
        *((128, 768, 768), "product"),
        "32x32x8 11.7, 32x32x8/2 14.0, 40x32x8 16.4, 16x16x16 16.7, 16x16x8 16.8",
    ),
    ((128, 768, 3072), "product", "64x32x2/8 29.1, 32x32x8/4 39.0, 40x32x8/4 48.8, 16x16x16 52.6"),
    ((128, 2304, 768), "product", "64x32x2/2 27.5, 16x16x8 37.3, 16x16x16 37.6, 40x32x8 44"),
    (
        *((128, 3072, 768), "product"),
        "64x32x2/2 27.7, 32x32x8 34.6, 16x16x8 43.7, 40x32x8 44.7, 16x16x16 45.2",
    ),
    ((196, 256, 1024), "product", "16x16x16 11.6, 16x16x8 12.4, 64x32x2/4 13.2, 32x32x8/2 13.7"),
    ((196, 256, 2304), "product", "40x32x8/3 20.0, 16x16x16 21.7, 16x16x8 23.7"),
    ((196, 1024, 256), "product", "32x32x8 8.9, 40x32x8 13.5, 16x16x8 14.1, 16x16x16 14.8"),
    (
        *((197, 768, 768), "product"),
        "40x32x8 16.4, 40x32x8/2 21.8, 16x16x8 22.2, 32x32x8/2 23.4, 16x16x16 23.7",
    ),
    (
        *((197, 768, 3072), "product"),
        "40x32x8 54.7, 40x32x8/3 59.9, 32x32x8/2 66.7, 16x16x8 74, 16x16x16 76.3",
    ),
    (
        *((197, 2304, 768), "product"),
        "32x32x8 35.6, 32x32 38.6, 40x32x8 44.4, 16x16x8 56.3, 16x16x16 58.6",
    ),
    (
        *((197, 3072, 768), "product"),
        "64x32x2 45.5, 32x32x8 50.3, 40x32x8 58.0, 16x16x8 70.9, 16x16x16 73.8",
    ),
    (
        *((512, 512, 512), "product"),
        "32x32x8 13.6, 64x32x2 14.6, 40x32x8 22.7, 16x16x8 23.2, 16x16x16 23.6",
    ),
    (
        *((784, 128, 512), "product"),
        "32x32x8 9.0, 32x32x8/2 11.2, 40x32x8 12, 16x16x8 12.3, 16x16x16 12.8",
    ),
    ((784, 128, 1152), "product", "32x32x8 15.6, 32x32x8/3 20.5, 40x32x8/3 21.6, 16x16x16 22.5"),
    (
        *((784, 512, 128), "product"),
        "64x32x2 8.7, 32x32x8 10.4, 40x32x8 12.8, 16x16x8 15.4, 16x16x16 16.0",
    ),
    ((1024, 1024, 1024), "product", "128x64 66.3, 64x64 72.0, 64x32x2 102.6"),
    ((2048, 2048, 2048), "product", "128x128 455.5, 128x64 567.5, 64x32x2 632.6, 32x32x8 662.4"),
    ((3136, 64, 576), "product", "32x32x8 15.2, 64x32x2 15.7, 32x32x8/2 20, 16x16x8 22.1"),
    ((4096, 4096, 4096), "product", "128x128 3883"),
    ((49, 512, 2048), "pixels", "32x32x8/4 10.8, 16x16x16 11.0, 16x16x8/2 12.7"),
    ((49, 2048, 512), "pixels", "32x32x8 8.5, 16x16x16 10.0, 16x16x8 11"),
    ((196, 256, 1024), "pixels", "16x16x16 9.1, 16x16x8 10.2, 40x32x8/3 11.9"),
    ((196, 1024, 256), "pixels", "32x32x8 8.2, 16x16x16 11.7, 16x16x8 12.4"),
    ((196, 1024, 512), "pixels", "32x32x8 13.5, 16x16x16 18.1, 16x16x8 21.0"),
    ((784, 128, 512), "pixels", "32x32x8 8.6, 16x16x16 9.7, 16x16x8 10.9"),
    ((784, 256, 512), "pixels", "32x32x8 12.7, 16x16x16 13.9, 16x16x8 15.5"),
    ((784, 512, 128), "pixels", "40x32x8 13.2, 16x16x16 13.8, 16x16x8 13.8"),
    ((784, 512, 256), "pixels", "16x16x16 19.3, 40x32x8 19.6, 16x16x8 21.1"),
    ((3136, 64, 64), "pixels", "64x32x2 4.7, 32x32x8 5.2, 128x16x2 5.3"),
    ((3136, 64, 256), "pixels", "32x32x8 8.3, 16x16x16 10.2, 16x16x8 10.9"),
    ((3136, 128, 256), "pixels", "32x32x8 14.1, 16x16x16 17.2, 16x16x8 19.0"),
    ((3136, 256, 64), "pixels", "64x32x2 7.3, 32x32x8 10.9, 40x32x8 15.8"),
    ((49, 512, 4608), "padded", "32x32x8/8 18.1, 16x16x16 22.9, 16x16x8/3 31.4"),
    ((196, 256, 2304), "padded", "16x16x16 17.0, 40x32x8/3 19.3, 16x16x8 21.1"),
    ((784, 128, 1152), "padded", "16x16x16 17.7, 16x16x8 22.4, 40x32x8/3 23.5"),
    ((3136, 64, 576), "padded", "32x32x8 15.1, 16x16x16 18.2, 16x16x8 21.6"),
    ((12544, 64, 196), "padded", "128x16 23.8, 128x16x2 30.6"),
    ((16384, 32, 144), "padded", "64x32x2 10.2, 128x16x2 12.3, 128x16 12.4"),
    ((16384, 32, 288), "padded", "64x32x2 14.6, 32x32x8 17.0, 128x16x2 18.9"),
    ((65536, 16, 36), "padded", "128x16 9.3, 128x16x2 12.1, 32x32x8 22.3"),
    ((65536, 16, 144), "padded", "128x16 19.5, 128x16x2 22.3"),
    ((65536, 16, 432), "padded", "128x16 49.6, 128x16x2 52.9, 16x16x8 85.7"),
)
SHARED_ACCURACY = 0.26
MOSTLY = 0.2
FIRST_WITHIN = 0.06


def read(cells: str) -> dict[SharedKernel, float]:
    """Return the microseconds of the kernels in a line of ON_H100."""
    found = {}
    for cell in cells.split(", "):
        name, us = cell.split()
        sizes, _, parts = name.partition("/")
        found[SharedKernel(Tile(*map(int, sizes.split("x"))), int(parts or 1))] = float(us)
    return found


def on_h100(kernel: SharedKernel, shape: tuple[int, int, int], kind: str) -> float:
    """Return the predicted time of a step of a chain."""
    pixels, padded = kind != "product", kind == "padded"
    cost = shared_cost(kernel, Gemm(*shape), LARGE_GPU, pixels=pixels, padded=padded)
    return cost.total + SERVER.gap_us


@pytest.mark.parametrize(("shape", "kind", "cells"), ON_H100)
def test_measured_times_of_float32_tiles(
    shape: tuple[int, int, int], kind: str, cells: str
) -> None:
    """The first of those measured is hardly slower than the fastest of them."""
    measured = read(cells)
    expected = {kernel: on_h100(kernel, shape, kind) for kernel in measured}
    assert expected == pytest.approx(measured, rel=SHARED_ACCURACY)
    first = min(expected, key=expected.__getitem__)
    assert measured[first] <= (1 + FIRST_WITHIN) * min(measured.values())


def test_most_float32_tiles_take_what_is_expected() -> None:
    off = [
        abs(on_h100(kernel, shape, kind) / us - 1)
        for shape, kind, cells in ON_H100
        for kernel, us in read(cells).items()
    ]
    assert len(off) > 150
    assert sum(each <= MOSTLY for each in off) >= 0.95 * len(off)


# In float16 on the same device: convolutions as rows, columns and K, of which the model knows what
# products take; their taps take more, most of all where a subgroup has many fragments.
CONVOLUTIONS = (
    ((12544, 64, 392), CoopTile(48, 64, 96, 16, 64, 2), 10.4),
    ((3136, 64, 64), T32S64, 4.12),
    ((3136, 64, 576), CoopTile(48, 64, 96, 16, 64, 2), 8.02),
    ((3136, 64, 256), T64X32, 5.24),
    ((3136, 256, 64), T64, 5.79),
    ((3136, 128, 256), T64, 6.36),
    ((784, 128, 1152), T32, 7.55),
    ((784, 256, 512), T64X32, 6.43),
    ((784, 512, 256), T64, 6.77),
    ((784, 128, 512), T32, 4.85),
    ((196, 256, 2304), T16X32, 8.57),
    ((196, 1024, 256), T32, 4.91),
    ((196, 256, 1024), T16X32, 5.36),
    ((49, 2048, 512), T32, 4.98),
    ((16384, 32, 288), CoopTile(64, 48, 96, 64, 16, 2), 7.58),
    ((65536, 16, 432), CoopTile(64, 16, 64, 16, 16), 18.0),
)


@pytest.mark.parametrize(("shape", "tile", "us"), CONVOLUTIONS)
def test_measured_times_of_convolutions(
    shape: tuple[int, int, int], tile: CoopTile, us: float
) -> None:
    assert 0.94 <= us / chain_us(CoopKernel(tile), shape, 0) <= 1.38


# Vectors by a matrix in a cache on the same device: rows, columns, K; bytes of an element, rows,
# width and invocations of the kernel, microseconds.
VECTORS = (
    ((1, 1000, 2048), 2, (1, 2, 256), 4.93),
    ((1, 1000, 2048), 4, (1, 2, 256), 5.54),
    ((1, 1000, 2048), 4, (1, 1, 256), 7.34),
    ((1, 4096, 4096), 2, (1, 8, 256), 11.1),
    ((4, 4096, 4096), 2, (4, 8, 256), 14.7),
    ((8, 4096, 4096), 2, (8, 8, 256), 19.9),
    ((8, 768, 768), 2, (8, 2, 256), 5.95),
    ((8, 768, 768), 4, (8, 2, 256), 6.03),
    ((8, 768, 768), 4, (8, 1, 128), 6.66),
)


@pytest.mark.parametrize(("shape", "element_bytes", "sizes", "us"), VECTORS)
def test_measured_times_of_vectors(
    shape: tuple[int, int, int],
    element_bytes: int,
    sizes: tuple[kernels.MatmulGemvRows, int, int],
    us: float,
) -> None:
    cost = gemv_cost(Gemm(*shape), sizes, LARGE_GPU, element_bytes, cold=False)
    assert cost.total + SERVER.gap_us == pytest.approx(us, rel=0.15)


# Queries and keys of 12 heads of 64 numbers in float16: microseconds of a kernel with 713
# instructions for a block of 64 keys, on an H100, and keys at once of the one that follows it.
ATTENTION: dict[int, tuple[float, kernels.AttentionCoopKeys]] = {
    64: (4.6, 64),
    128: (5.7, 128),
    197: (10.6, 256),
    512: (23.0, 128),
    1024: (89.0, 256),
}


@pytest.mark.parametrize("size", ATTENTION)
def test_attention_takes_what_its_instructions_take(size: int) -> None:
    """Not longer than before, nor less than its share of the instructions."""
    before, keys = ATTENTION[size]
    info = replace(COOPMAT_GPU, multiprocessors=132)
    view = View(0, (0, 0, size * 64, 64))
    sizes = (1, 1, 12), size, size, 64, 64
    attrs = StridedAttentionAttrs(*sizes, (view, view, view), None, view, 0.125)
    times = {
        kernel.keys: kernel.time(attrs, info, 8).total + SERVER.gap_us
        for kernel in (AttentionCoop(LARGE_MATRIX, each) for each in COOP_KEYS)
    }
    assert min(times, key=lambda each: times[each]) == keys
    assert 0.55 <= times[keys] / before <= 1.05


def test_few_invocations_do_not_stream() -> None:
    """197 workgroups of 32 took 215 us for a matrix of 154 MB, 1,571 of 256 took 114."""
    logits = MatMulProblem((), (), (), 1, 50_257, 768)
    target = Target(LARGE_GPU, weight_bytes=4 * 50_257 * 768)
    kernel = MatMulTile(1)
    assert kernel.predict(logits, target).cost.total == pytest.approx(215, rel=ACCURACY)
    assert isinstance(rank(logits, target)[0], MatMulGemv)


def test_eight_rows_in_float16_fill_half_a_matrix() -> None:
    """Eight by 768 by 768 took 6.0 us by loops over vectors, and 4.5 by matrices."""
    for rows, expected in ((1, {"gemv"}), (4, {"gemv"}), (8, {"coop", "fragments"})):
        problem = MatMulProblem((), (), (), rows, 768, 768)
        assert rank(problem, Target(COOPMAT_GPU, "f16"))[0].family in expected


def test_terms_add_up() -> None:
    both = Cost(1.0, 2.0) + Cost(loads=3.0, split=4.0)
    assert both == Cost(1.0, 2.0, 3.0, 0.0, 0.0, 4.0)
    assert both.total == 10.0
    assert list(both.terms()) == ["start", "latency", "loads", "arithmetic", "stores", "split"]
    assert (both / 2).total == 5.0


def test_weights_from_memory_take_what_memory_takes() -> None:
    wide = Gemm(64, 50257, 768)
    nbytes = 2 * wide.columns * wide.k
    assert nbytes > HUGE_BYTES
    cost = coop_cost(CoopKernel(T64), wide, COOPMAT_GPU)
    assert cost.total - cost.start == pytest.approx(nbytes / SERVER.stream_bytes)


def test_subgroups_are_dealt_out_workgroup_by_workgroup() -> None:
    assert lanes_used(160, 3) == 160 / 256
    assert lanes_used(64, 1) < lanes_used(64, 2) < lanes_used(64, 3) == lanes_used(256, 1) == 1


def test_a_split_pays_only_where_workgroups_are_few() -> None:
    few, many = Gemm(49, 512, 4608), Gemm(3136, 512, 4608)
    assert rank_coop(few, COOPMAT_GPU)[0].parts > 1
    assert rank_coop(many, COOPMAT_GPU)[0].parts == 1
    assert rank_shared(few, LARGE_GPU)[0].parts > 1
    assert rank_shared(many, LARGE_GPU)[0].parts == 1


@pytest.mark.parametrize("info", [COOPMAT_GPU, LARGE_GPU])
def test_more_work_never_takes_less(info: DeviceInfo) -> None:
    for k in (64, 512, 4096):
        for rows in (1, 40, 500):
            kernel = SharedKernel(Tile(64, 64))
            costs = [
                shared_cost(kernel, Gemm(rows, columns, k), info).total
                for columns in (8, 64, 100, 1000, 10_000)
            ]
            assert costs == sorted(costs)


def described(name: str) -> DeviceInfo:
    (info,) = ProfileDriver(load_profile(name)).enumerate()
    return info


def test_devices_that_do_not_tell_their_cores() -> None:
    silent = replace(LARGE_GPU, multiprocessors=0)
    assert cores_of(LARGE_GPU) == 132
    assert cores_of(silent) == 16
    assert cores_of(replace(silent, type=DeviceType.INTEGRATED)) == 16
    assert cores_of(replace(silent, type=DeviceType.OTHER)) == 16
    assert cores_of(described("adreno-740")) == cores_of(described("adreno-610")) == 8
    assert cores_of(described("intel-iris-xe")) == 16
    assert cores_of(described("radeon-rx-7900-xtx")) == 96


def test_every_profile_has_a_class() -> None:
    classes = {name: class_of(described(name)).name for name in profile_names()}
    assert classes["nvidia-h200"] == SERVER.name
    assert classes["geforce-rtx-3060-laptop"] == "GeForce"
    assert classes["radeon-rx-6800"] == "Radeon"
    assert classes["intel-arc-a770"] == "Arc"
    assert classes["intel-iris-xe"] == "integrated GPU"
    assert classes["adreno-740"] == "Adreno"
    assert classes["mali-g78"] == "Mali"
    assert classes["lavapipe-22.3"] == classes["swiftshader"] == CPU.name


def test_small_devices_take_larger_tiles_and_split_less() -> None:
    """What fills a server with small tiles is many waves of them on a phone."""
    layer = Gemm(196, 256, 2304)
    phone = rank_shared(layer, described("adreno-740"))[0]
    server = rank_shared(layer, LARGE_GPU)[0]
    assert phone.parts <= server.parts
    assert phone.tile.results * phone.tile.groups >= server.tile.results


def test_loops_wait_for_their_loads() -> None:
    short = Loop(workgroups=4, invocations=64, rounds=4, round_bytes=1024)
    long = replace(short, rounds=40)
    assert loop_cost(long, LARGE_GPU).latency == 10 * loop_cost(short, LARGE_GPU).latency
    many = replace(short, workgroups=40_000)
    assert loop_cost(many, LARGE_GPU).total > loop_cost(short, LARGE_GPU).total
    weights = replace(short, weight_bytes=1e8)
    assert loop_cost(weights, LARGE_GPU, cold=True).total > 1e8 / SERVER.stream_bytes
    assert pass_cost(1e6, LARGE_GPU, workgroups=4).total > pass_cost(1e6, LARGE_GPU).total


def test_a_product_of_no_elements_has_a_cost() -> None:
    """Malformed models have them planned for."""
    tiling = Tiling(0, 1, 0, 64.0, 64.0, 64.0, 128.0, 64, 64, 32, 4096, 1, 2, 0.0)
    assert tiles_cost(tiling, LARGE_GPU, cold=False).total >= 0
