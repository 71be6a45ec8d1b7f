"""Products by cooperative matrices: which tiles the rules pick, and when they are offered."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from tests.device_infos import COOPMAT_GPU
from tests.op.vulkan.harness import device
from vkmnn.base.elements import FloatElement
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Activation, Array, Graph, Op
from vkmnn.ir.ops import ConvolutionAttrs, MatMulAttrs, ReshapeAttrs
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo
from vkmnn.shaders.library import BUILTIN
from vkmnn.testing.case import Case, Variant, tensor_info
from vkmnn.testing.emulation import COOPMAT_SHAPE, Bench, bench_for
from vkmnn.testing.runner import Picker, compare, dispatched_by, run_case
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.cost.devices import AMD
from vkmnn.vulkan.device_rules import STAGED_MATRICES
from vkmnn.vulkan.gemm.coop_tiles import (
    FEATURES,
    FRAGMENT_MARGIN,
    FRAGMENT_TILES,
    LARGE_MATRIX,
    LARGE_TILES,
    LLVMPIPE_MATRIX,
    MAX_SUMS_AMD,
    NARROW_MATRIX,
    TILES,
    TILES_OF,
    WIDE_MATRIX,
    XE2_MATRIX,
    XE_MATRIX,
    CoopKernel,
    CoopTile,
    Matrix,
    matrix_of,
    rank_coop,
)
from vkmnn.vulkan.gemm.families.coop import ConvCoop, MatMulCoop
from vkmnn.vulkan.gemm.families.fragments import MatMulFragments
from vkmnn.vulkan.gemm.family import ConvKernel, rank, spread
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.split import MAX_PARTS, MIN_PART
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.tuning import MAX_CANDIDATES


def test_workgroups_fill_the_device_but_not_many_times() -> None:
    """Where K is long enough to share, and the product not large anyway."""
    for rows in (1, 7, 49, 128, 196, 784):
        for columns in (64, 256, 768, 1000):
            product = Gemm(rows, columns, 4096)
            kernel = rank_coop(product, COOPMAT_GPU)[0]
            made = kernel.tile.workgroups(product) * kernel.parts
            possible = kernel.tile.workgroups(product) * min(product.k // MIN_PART, MAX_PARTS)
            assert min(96, possible) <= made <= 5 * 132, (product, kernel)


@pytest.mark.parametrize("k", [1, 127, 128, 129, 1000, 4608])
def test_every_part_has_steps_to_do(k: int) -> None:
    for kernel in rank_coop(Gemm(49, 512, k), COOPMAT_GPU):
        steps = kernel.tile.steps(k)
        each = kernel.walk(Gemm(49, 512, k))["steps"]
        assert each * (kernel.parts - 1) < steps <= each * kernel.parts


def test_all_that_fits_is_offered() -> None:
    offered = {kernel.tile for kernel in rank_coop(Gemm(128, 768, 768), COOPMAT_GPU)}
    assert offered == {tile for same in TILES for tile in same}
    small = replace(
        COOPMAT_GPU,
        limits=replace(COOPMAT_GPU.limits, max_shared_memory=32 << 10),
    )
    fitting = {kernel.tile for kernel in rank_coop(Gemm(4096, 4096, 4096), small)}
    assert CoopTile(64, 128, 64, 32, 64) in fitting
    assert all(tile.shared_bytes <= 32 << 10 for tile in fitting)


def test_tiles_that_spill_on_radeons_are_not_offered() -> None:
    """RADV's compiler says which: docs/gpu-compilers.md."""
    radeon = replace(COOPMAT_GPU, vendor_id=AMD)
    offered = {kernel.tile for kernel in rank_coop(Gemm(4096, 4096, 4096), radeon)}
    assert offered == {tile for same in TILES for tile in same} - {CoopTile(128, 128, 64, 64, 64)}
    large = MatMulProblem((), (), (), 4096, 4096, 4096)
    tiles = {
        kernel.tile
        for kernel in rank(large, Target(radeon, "f16"))
        if isinstance(kernel, MatMulCoop)
    }
    assert tiles & set(LARGE_TILES) == {CoopTile(128, 128, 32, 64, 32)}


def test_large_products_fill_shared_memory_a_step_ahead() -> None:
    """The aim for 4,096 rows, columns and K on a server's GPU: 450 TFLOP/s, as predicted."""
    large = MatMulProblem((), (), (), 4096, 4096, 4096)
    target = Target(COOPMAT_GPU, "f16")
    kernel = rank(large, target)[0]
    assert isinstance(kernel, MatMulCoop)
    assert kernel.tile in LARGE_TILES
    assert kernel.tile.ahead
    expected = kernel.predict(large, target)
    assert 2 * 4096**3 / expected.cost.total / 1e6 >= 450
    small = rank(MatMulProblem((), (), (), 197, 768, 768), target)[0]
    assert isinstance(small, MatMulCoop)
    assert small.tile not in LARGE_TILES


def _constant(m: int, n: int, k: int, *, constant: bool = True) -> MatMulProblem:
    return MatMulProblem((), (), (), m, n, k, constant=constant)


def test_constants_are_stored_matrix_by_matrix_where_it_is_predicted_to_pay() -> None:
    """By more than three percent, as no device has timed it; every tile is offered to the tuner."""
    target = Target(COOPMAT_GPU, "f16", weight_bytes=170_000_000)
    chosen = set()
    for size in [
        (197, 2304, 768),
        (197, 768, 3072),
        (128, 768, 768),
        (64, 768, 768),
        (512, 64, 96),
    ]:
        problem = _constant(*size)
        ranked = [kernel for kernel in rank(problem, target) if isinstance(kernel, MatMulCoop)]
        assert {kernel.tile for kernel in ranked} >= set(FRAGMENT_TILES[LARGE_MATRIX])
        measured = spread(rank(problem, target))[:MAX_CANDIDATES]
        assert {MatMulCoop, MatMulFragments} <= {type(kernel) for kernel in measured}
        best = {
            kind: min(kernel.predict(problem, target).cost.total for kernel in ranked
                      if kernel.tile.fragments is kind)
            for kind in (False, True)
        }  # fmt: skip
        if ranked[0].tile.fragments:
            assert FRAGMENT_MARGIN * best[True] < best[False]
        chosen.add(ranked[0].tile.fragments)
    assert chosen == {False, True}


def test_devices_that_load_matrices_slowly_stage_both_operands() -> None:
    info = replace(COOPMAT_GPU, features=COOPMAT_GPU.features | {STAGED_MATRICES})
    target = Target(info, "f16", weight_bytes=170_000_000)
    families = {kernel.family for kernel in rank(_constant(197, 2304, 768), target)}
    assert "coop" in families
    assert "fragments" not in families


def test_only_constants_of_whole_vec4s_are_stored_matrix_by_matrix() -> None:
    target = Target(COOPMAT_GPU, "f16", weight_bytes=170_000_000)
    for problem in (_constant(197, 2304, 768, constant=False), _constant(197, 2302, 768)):
        tiles = [kernel.tile for kernel in rank(problem, target) if isinstance(kernel, MatMulCoop)]
        assert tiles
        assert not any(tile.fragments for tile in tiles)


@pytest.mark.parametrize("tile", [tile for tiles in FRAGMENT_TILES.values() for tile in tiles])
def test_subgroups_with_matrices_from_memory_have_all_rows_of_their_tile(tile: CoopTile) -> None:
    """None loads what another one does; the left operand has room for more of K at a time."""
    assert tile.subgroups[0] == 1
    assert tile.step >= 128
    assert tile.flight(tile.step) >= 2
    assert tile.sums <= MAX_SUMS_AMD


@pytest.mark.parametrize(
    "other",
    [
        replace(COOPMAT_GPU, cooperative_matrices=()),
        replace(COOPMAT_GPU, features=FEATURES - {"storage16"}),
        replace(
            COOPMAT_GPU,
            limits=replace(COOPMAT_GPU.limits, subgroup_size_range=(128, 128)),
        ),
        replace(
            COOPMAT_GPU,
            cooperative_matrices=(
                replace(COOPMAT_SHAPE, m=8),
                replace(COOPMAT_SHAPE, c="f16", result="f16"),
                replace(COOPMAT_SHAPE, scope="workgroup"),
                CooperativeMatrixShape(16, 16, 32, "i8", "i8", "i32", "i32", "subgroup", False),
            ),
        ),
    ],
)
def test_without_the_matrices_there_are_no_kernels(other: DeviceInfo) -> None:
    assert matrix_of(COOPMAT_GPU) is not None
    assert rank_coop(Gemm(64, 64, 64), other) == []


@pytest.mark.parametrize(
    "matrix", [LARGE_MATRIX, WIDE_MATRIX, NARROW_MATRIX, XE2_MATRIX, XE_MATRIX, LLVMPIPE_MATRIX]
)
def test_the_device_s_list_decides_on_the_matrices(matrix: Matrix) -> None:
    """Sizes and subgroups must both be there; tiles of these matrices alone are offered."""
    sizes = replace(COOPMAT_SHAPE, m=matrix.m, n=matrix.n, k=matrix.k)
    limits = replace(COOPMAT_GPU.limits, subgroup_size_range=(matrix.subgroup,) * 2)
    other = replace(COOPMAT_GPU, cooperative_matrices=(replace(sizes, k=64), sizes), limits=limits)
    assert matrix_of(other) == matrix
    offered = {kernel.tile for kernel in rank_coop(Gemm(128, 768, 768), other)}
    assert offered == {tile for same in TILES_OF[matrix] for tile in same}
    narrow = replace(limits, subgroup_size_range=(matrix.subgroup * 4,) * 2)
    assert rank_coop(Gemm(64, 64, 64), replace(other, limits=narrow)) == []


def test_devices_here_do_not_emulate_by_themselves() -> None:
    if matrix_of(device().info) is not None:
        pytest.skip("the device has cooperative matrices")
    assert rank_coop(Gemm(64, 64, 64), device().info) == []


def convolution(size: int, channels: int, outputs: int, kernel: int, group: int = 1) -> ConvProblem:
    return ConvProblem(
        batch=1,
        group=group,
        inputs=channels,
        outputs=outputs,
        in_size=(1, size, size),
        out_size=(1, size, size),
        kernel=(1, kernel, kernel),
        stride=(1, 1, 1),
        dilation=(1, 1, 1),
        pad=(0, kernel // 2, kernel // 2),
        out_strides=(size * size, size * size, size, 1),
        out_offset=0,
        out_block=size * size,
    )


def test_convolutions_of_halves_come_first_and_others_keep_their_kernels() -> None:
    problem = convolution(14, 256, 256, 1)
    kernel = best(problem, "f16")
    assert isinstance(kernel, ConvCoop)
    assert 4 * kernel.panel == kernel.tile.columns
    assert best(problem).family not in ("coop", "halo", "taps")
    assert best(convolution(14, 256, 256, 3), "f16").family == "halo"
    assert best(convolution(14, 256, 256, 5), "f16").family == "coop"
    assert best(convolution(64, 1, 64, 5), "f16").family == "taps"
    odd_groups = convolution(14, 3, 3, 3, group=2)
    assert best(odd_groups, "f16").family == "gather"
    depthwise = convolution(14, 1, 1, 3, group=64)
    assert best(depthwise, "f16").family in ("strip", "depthwise")


def best(problem: ConvProblem, element: FloatElement = "f32") -> ConvKernel:
    return rank(problem, Target(COOPMAT_GPU, element))[0]


T = TypeVar("T")


class ByCoopmat(Picker):
    """Chooses kernels of matrices wherever they are offered: CPU devices' rules rank them last."""

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return the first candidate of that kind, else the picker's choice."""
        for candidate in candidates:
            if isinstance(candidate, CoopKernel):
                return candidate
        return super().__call__(what, problem, candidates)


def with_coopmat() -> Bench:
    """Return the device under test; cooperative matrices are emulated if it has none."""
    if matrix_of(device().info) is not None:
        return Bench(device(), False)
    name = "matmul_coop_16x32w16x32k4_128_0_0_4"
    template, axes = next((t, a) for n, t, a in BUILTIN.variants() if n == name)
    bench = bench_for(Variant(name, template, axes, BUILTIN), device())
    if isinstance(bench, str):
        pytest.skip(bench)
    return bench


def test_a_network_by_the_rules() -> None:
    """Convolutions, one with a residual, and a product of their results: all by matrices."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Array:
        fan = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        return (rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)

    def conv(inputs: str, output: str, stride: int, kernel: int) -> Op:
        attrs = ConvolutionAttrs(
            (kernel, kernel),
            (stride, stride),
            (1, 1),
            (kernel // 2,) * 4,
            1,
            activation=Activation("RELU"),
        )
        return Op("Convolution", output, inputs.split(), [output], attrs)

    constants = {
        "w0": floats(24, 3, 7, 7),
        "w1": floats(40, 24, 3, 3),
        "w2": floats(40, 40, 1, 1),
        "b0": floats(24),
        "b1": floats(40),
        "w3": floats(1960, 72),
        "shape": np.array([1, 1960]),
    }
    x = rng.standard_normal((1, 3, 28, 28)).astype(np.float32)
    ops = [
        conv("x w0 b0", "c0", 2, 7),
        conv("c0 w1 b1", "c1", 2, 3),
        Op(
            "Convolution",
            "c2",
            ["c1", "w2", "b1", "c1"],
            ["c2"],
            ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0,) * 4, 1),
        ),
        Op("Reshape", "flat", ["c2", "shape"], ["flat"], ReshapeAttrs()),
        Op("MatMul", "y", ["flat", "w3"], ["y"], MatMulAttrs(activation=Activation("GELU"))),
    ]
    y = tensor_info("y", np.zeros((1, 72), np.float32))
    graph = Graph("net", [tensor_info("x", x)], [y], ops, constants)
    case = Case(graph, {"x": x}, rtol=1e-3, atol=1e-3, floats="f16")
    bench = with_coopmat()
    names = dispatched_by(case, bench.device, ByCoopmat({}))
    assert {name.split("_")[0] for name in names if "_coop_" in name} == {"conv", "matmul"}
    assert not any(name.startswith(("conv_tile", "conv_shared", "matmul_tile")) for name in names)
    backend = VulkanBackend(bench.device, chooser=ByCoopmat({}), element="f16", narrow_inputs=True)
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        for _ in range(2):  # what a run leaves behind must not disturb the next
            compare(plan.execute({"x": x})["y"], case.expected()[0], case)
    finally:
        plan.close()


def test_a_product_larger_than_a_grid_is_wide() -> None:
    """Tiles are folded: the suite's grids are two wide, and this one has tiles to spare."""
    x = np.ones((70, 24), np.float32)
    w = np.ones((24, 3 * 32), np.float32)
    graph = Graph(
        "wide",
        [tensor_info("x", x)],
        [tensor_info("y", np.zeros((70, 96), np.float32))],
        [Op("MatMul", "y", ["x", "w"], ["y"], MatMulAttrs())],
        {"w": w},
    )
    bench = with_coopmat()
    matrix = matrix_of(bench.device.info)
    assert matrix is not None
    tile = TILES_OF[matrix][-1][0]
    case = Case(graph, {"x": x}, floats="f16", takes={"matmul": MatMulCoop(tile)})
    assert f"matmul_coop_{tile.name}_128_0_0_4" in dispatched_by(
        case, bench.device, Picker({}, case.takes)
    )
    assert run_case(case, bench.device, {}).error == 0
