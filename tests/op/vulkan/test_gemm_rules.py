"""The rules that seed matrix products and convolutions on GPUs, for a device that is not here."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import get_args

import numpy as np
import pytest

from tests.device_infos import LARGE_GPU
from vkmnn.base.elements import FloatElement
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import DType, TensorInfo
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.runtime.device_profiles import load_profile
from vkmnn.shaders import kernels
from vkmnn.testing.emulation import BYTES_SHAPE
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, SHUFFLES
from vkmnn.vulkan.encoder import TEXEL_LOADS, VulkanEncoder
from vkmnn.vulkan.gemm.coop_tiles import (
    AMD_BYTES,
    BYTE_FEATURES,
    LARGE_BYTES,
    LLVMPIPE_BYTES,
    XE_BYTES,
    Matrix,
    byte_matrix_of,
)
from vkmnn.vulkan.gemm.cpu_tiles import TileFamily, cpu_cost, tiles_of
from vkmnn.vulkan.gemm.families.codes_coop import ConvCodesCoop, MatMulCodesCoop
from vkmnn.vulkan.gemm.families.dot import MAX_K, ConvDot, MatMulDot
from vkmnn.vulkan.gemm.families.gemv import timed_gemv
from vkmnn.vulkan.gemm.families.half import ConvHalf, MatMulHalf
from vkmnn.vulkan.gemm.families.row import ConvRow
from vkmnn.vulkan.gemm.families.shared import ConvShared
from vkmnn.vulkan.gemm.family import ConvKernel, rank
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.rewrites.winograd import choose_winograd
from vkmnn.vulkan.gemm.shared_tiles import (
    NARROW,
    TILES,
    SharedKernel,
    Tile,
    rank_shared,
    shared_cost,
    workgroups,
)
from vkmnn.vulkan.gemm.split import MAX_PARTS, MIN_PART, parts_of
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import Weights, bias_tensor

FLOOR = replace(
    LARGE_GPU,
    limits=replace(
        LARGE_GPU.limits,
        max_workgroup_size=(128, 128, 64),
        max_workgroup_invocations=128,
        max_shared_memory=16384,
    ),
    multiprocessors=0,
)
"""The least that Vulkan asks of a device."""

# Rows, columns and K of the layers of networks, and squares.
SIZES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (3136, 64, 576),
    (784, 512, 128),
    (784, 128, 1152),
    (196, 256, 2304),
    (49, 512, 2048),
    (49, 2048, 512),
    (49, 512, 4608),
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (64, 50257, 768),
)


def first(product: Gemm, info: DeviceInfo = LARGE_GPU) -> SharedKernel:
    return rank_shared(product, info)[0]


@pytest.mark.parametrize("sizes", SIZES)
def test_a_large_device_is_neither_idle_nor_flooded(sizes: tuple[int, int, int]) -> None:
    product = Gemm(*sizes)
    kernel = first(product)
    count = workgroups(kernel.tile, product) * kernel.parts
    assert count >= 96
    # What shares tiles fills the device, and not many times over.
    assert kernel.parts == 1 or count <= 3 * 132


def fastest_gemv(gemm: Gemm, info: DeviceInfo) -> list[tuple[int, int, int]]:
    """Return rows, width and local of the fastest kernel for few rows, when a product has few."""
    return [sizes for _, sizes in timed_gemv(gemm, info)[:1]]


def test_few_rows_are_bound_by_loads() -> None:
    for rows, variant in ((1, 1), (2, 4), (4, 4), (5, 8), (8, 8)):
        (sizes,) = fastest_gemv(Gemm(rows, 1000, 2048), LARGE_GPU)
        assert sizes == (variant, 2, 256)
    assert not list(fastest_gemv(Gemm(9, 1000, 2048), LARGE_GPU))
    ((_, wide, _),) = fastest_gemv(Gemm(1, 50257, 768), LARGE_GPU)
    assert wide == 8
    assert not list(fastest_gemv(Gemm(1, 8, 8, 70_000), LARGE_GPU))
    ((_, narrow, local),) = fastest_gemv(Gemm(1, 10, 84), LARGE_GPU)
    assert (narrow, local) == (2, 64)


def test_batches_count_as_workgroups() -> None:
    assert first(Gemm(128, 128, 256, 1)).tile == Tile(16, 16, 16)
    assert first(Gemm(512, 512, 512, 32)).tile == Tile(128, 128)


@pytest.mark.parametrize("k", [64, 511, 512, 1000, 1024, 4608, 100_000])
@pytest.mark.parametrize("step", [16, 128, 256])
def test_parts(step: int, k: int) -> None:
    steps = -(-k // step)
    found = list(parts_of(steps, k))
    assert all(1 < parts <= min(MAX_PARTS, steps) and k // parts >= MIN_PART for parts in found)
    assert bool(found) == (k >= 2 * MIN_PART and steps > 1)


@pytest.mark.parametrize("k", [1, 16, 33, 1023, 4097])
def test_every_part_has_steps(k: int) -> None:
    for kernel in rank_shared(Gemm(40, 40, k), LARGE_GPU):
        walk = kernel.walk(Gemm(40, 40, k))
        steps = kernel.tile.steps(k)
        assert (kernel.parts - 1) * walk["steps"] < steps <= kernel.parts * walk["steps"]


def test_all_tiles_are_candidates() -> None:
    offered = {kernel.tile for kernel in rank_shared(Gemm(300, 300, 300), LARGE_GPU)}
    assert offered == {*TILES}


def test_the_least_device_gets_tiles_that_fit() -> None:
    offered = {kernel.tile for kernel in rank_shared(Gemm(4096, 4096, 4096), FLOOR)}
    assert offered == {Tile(128, 64), Tile(64, 64), Tile(64, 32, 2), Tile(32, 32)}
    for tile in offered:
        assert tile.shared_bytes(tile.buffers(FLOOR)) <= 16384
    ((rows, _, local),) = fastest_gemv(Gemm(8, 4096, 4096), FLOOR)
    assert local * rows * 16 <= 16384
    assert local <= 128


def test_nothing_to_load_is_not_offered() -> None:
    assert rank_shared(Gemm(3, 4, 0), LARGE_GPU) == []


def test_long_loops_are_not_offered() -> None:
    assert rank_shared(Gemm(1000, 1000, 1 << 24), LARGE_GPU) == []
    for kernel in rank_shared(Gemm(1000, 1000, 100_000), LARGE_GPU):
        assert kernel.tile.iterations(100_000) <= MAX_LOOP_ROUNDS


@pytest.mark.parametrize("tile", [*TILES, *NARROW])
def test_sizes_are_those_of_the_shaders(tile: Tile) -> None:
    shader = kernels.conv_shared(tile=tile.name, split=0, element="f32")
    assert shader.local_size == (tile.invocations, 1, 1)


# --- convolutions ---------------------------------------------------------------------------------


def convolution(
    inputs: int, outputs: int, size: int, kernel: int = 1, stride: int = 1, batch: int = 1
) -> ConvProblem:
    """Return a convolution of an image whose output is size x size."""
    pad = kernel // 2
    return ConvProblem(
        batch=batch,
        group=1,
        inputs=inputs,
        outputs=outputs,
        in_size=(1, size * stride, size * stride),
        out_size=(1, size, size),
        kernel=(1, kernel, kernel),
        stride=(1, stride, stride),
        dilation=(1, 1, 1),
        pad=(0, pad, pad),
        out_strides=(size * size, size * size, size, 1),
        out_offset=0,
        out_block=batch * size * size,
    )


# Kinds of layers of ResNet-50.
RESNET_50 = (
    convolution(3, 64, 112, 7, 2),
    convolution(64, 64, 56),
    convolution(64, 64, 56, 3),
    convolution(64, 256, 56),
    convolution(256, 64, 56),
    convolution(256, 512, 28, 1, 2),
    convolution(128, 128, 28, 3),
    convolution(128, 512, 28),
    convolution(512, 1024, 14, 1, 2),
    convolution(256, 256, 14, 3),
    convolution(256, 1024, 14),
    convolution(1024, 256, 14),
    convolution(1024, 2048, 7, 1, 2),
    convolution(512, 512, 7, 3),
    convolution(2048, 512, 7),
)


@pytest.mark.parametrize("problem", RESNET_50)
def test_layers_of_resnet_50(problem: ConvProblem) -> None:
    kernel = best(problem)
    assert isinstance(kernel, ConvShared)
    # Weights are packed for the columns of a tile.
    assert 4 * kernel.panel == kernel.tile.columns
    # Where K is long, workgroups share it rather than leave the device idle.
    gemm = problem.gemm()
    assert workgroups(kernel.tile, gemm) * kernel.parts >= 66


@pytest.mark.parametrize("problem", RESNET_50)
def test_the_first_takes_the_least_time(problem: ConvProblem) -> None:
    target = Target(LARGE_GPU)
    predicted = [
        expected.cost.total
        for kernel in rank(problem, target)
        if (expected := kernel.predict(problem, target)) is not None
    ]
    assert len(predicted) > 10
    # Of nearly equal ones, what pads less comes first.
    assert predicted[0] <= 1.1 * min(predicted)


def best(problem: ConvProblem, info: DeviceInfo = LARGE_GPU) -> ConvKernel:
    return rank(problem, Target(info))[0]


def test_one_pixel_is_a_vector() -> None:
    assert best(convolution(1152, 48, 1)).family == "gemv"
    whole = replace(convolution(512, 4096, 1, 7), pad=(0, 0, 0), in_size=(1, 7, 7))
    assert best(whole).family == "gemv"
    assert best(convolution(1152, 48, 1, batch=2)).family == "shared"


def test_other_families_stay() -> None:
    depthwise = replace(convolution(1, 1, 56, 3), group=96)
    assert best(depthwise).family in ("depthwise", "strip")
    odd = replace(convolution(6, 6, 56, 3), group=2)
    assert best(odd).family == "gather"


@pytest.mark.parametrize("lanes", [8, 16])
def test_times_that_rank_are_those_that_are_predicted(lanes: int) -> None:
    """What is kept of a layer, whatever its pixels, changes no digit of a time."""
    target = Target(replace(LARGE_GPU, type=DeviceType.CPU, subgroup_size=lanes))
    for problem in (*RESNET_50, convolution(7, 5, 13, 3, batch=3), convolution(3, 1, 1, 1)):
        for family in get_args(TileFamily):
            for cost, tile in tiles_of(family, problem, target):
                assert cost == cpu_cost(problem, tile, target).total


def test_cpu_devices_keep_their_ranking() -> None:
    cpu = replace(LARGE_GPU, type=DeviceType.CPU, subgroup_size=8)
    target = Target(cpu, load="texel", loads=("texel",))
    ranked = rank(convolution(64, 64, 56, 3), target)
    families = [kernel.family for kernel in ranked]
    start = families.index("shared")
    assert families[0] == "tile"
    assert set(families[start:]) == {"shared"}


# --- Winograd -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "element", "m"),
    [
        # A layer of ResNet-50 is bound by latency, one of VGG-16 or of a batch by products.
        (convolution(64, 64, 56, 3), "f32", 0),
        (convolution(512, 512, 7, 3), "f32", 0),
        # Where K is as short as 64, every workgroup of its product waits too long for a start.
        (convolution(64, 64, 224, 3), "f32", 0),
        (convolution(64, 128, 112, 3), "f32", 4),
        (convolution(256, 256, 56, 3), "f32", 4),
        (convolution(64, 64, 56, 3, batch=32), "f32", 4),
        (convolution(64, 64, 224, 3), "f16", 0),
        (convolution(3, 64, 224, 3), "f32", 0),
    ],
)
def test_winograd_where_products_take_long(
    problem: ConvProblem, element: FloatElement, m: int
) -> None:
    info = replace(LARGE_GPU, features=frozenset(TEXEL_LOADS["f16"] | {"storage16"}))
    encoder = VulkanEncoder(info, element=element)
    assert choose_winograd(problem, weights_of(problem), encoder) == m


def weights_of(problem: ConvProblem) -> Weights:
    """Return constant weights; their values do not matter."""
    shape = (problem.outputs, problem.inputs, *problem.kernel)
    value = np.broadcast_to(np.float32(0), shape)
    tensor = Tensor(TensorInfo("w", DType.FLOAT32, shape), Usage.CONSTANT, value=value)
    assert prod(shape) == value.size
    return Weights(tensor, "plain", lambda plain: plain)


DOT = {True: Trait.INT8_DOT, False: Trait.NONE}


def of_bytes(info: DeviceInfo, allows: Trait = Trait.INT8_DOT) -> Target:
    """Return the problem for which kernels are ranked if weights are bytes."""
    return Target(info, needs=Trait.INT8_WEIGHTS, allows=allows)


DOTS = replace(LARGE_GPU, features=frozenset({"integer_dot", "integer_dot_accelerated"}))


@pytest.mark.parametrize("problem", RESNET_50)
def test_codes_go_to_dot_products_where_these_are_fast(problem: ConvProblem) -> None:
    ranked = rank(problem, of_bytes(DOTS))
    assert isinstance(ranked[0], ConvDot)


@pytest.mark.parametrize(
    ("features", "dots", "offered"),
    [({"integer_dot"}, True, True), (set(), True, False), (DOTS.features, False, False)],
)
def test_dot_products_come_late_elsewhere(features: set[str], dots: bool, offered: bool) -> None:
    info = replace(LARGE_GPU, features=frozenset(features))
    ranked = rank(RESNET_50[3], of_bytes(info, DOT[dots]))
    assert not isinstance(ranked[0], ConvDot)
    assert any(isinstance(kernel, ConvDot) for kernel in ranked) == offered


@pytest.mark.parametrize("name", ["mali-g610", "adreno-740", "radeon-rx-6800"])
def test_float16_arithmetic_is_faster_where_tiles_are_full(name: str) -> None:
    profile = load_profile(name)
    info = replace(LARGE_GPU, type=profile.type, vendor_id=profile.vendor_id)
    info = replace(info, features=profile.features, limits=profile.limits)
    info = replace(info, multiprocessors=profile.multiprocessors)
    low, normal = Target(info, "f16", allows=Trait.FP16_MATH), Target(info, "f16")
    for problem in (convolution(64, 64, 56, 3), convolution(256, 128, 28, 1)):
        taken = rank(problem, low)[0]
        assert isinstance(taken, ConvHalf)
        before = rank(problem, normal)[0]
        assert not isinstance(before, ConvHalf)
        times = [kernel.predict(problem, low) for kernel in (taken, before)]
        assert times[0] is not None
        assert times[1] is not None
        assert 0.4 < times[0].cost.total / times[1].cost.total < 1.0
    product = MatMulProblem((), (), (), 197, 768, 768)
    assert isinstance(rank(product, low)[0], MatMulHalf)
    assert not any(isinstance(kernel, MatMulHalf) for kernel in rank(product, normal))


def test_float16_arithmetic_is_not_faster_everywhere() -> None:
    """GeForces multiply as many numbers in float16 as in float32, but for their matrices."""
    info = replace(LARGE_GPU, vendor_id=0x10DE, memory_bytes=8 << 30)
    gemm, device = Gemm(3136, 256, 576), class_of(info)
    assert device.half_flops == device.core_flops
    half = shared_cost(MatMulHalf(Tile(64, 64)), gemm, info, element_bytes=2)
    assert half.total > shared_cost(SharedKernel(Tile(64, 64)), gemm, info, element_bytes=2).total


MATRICES = replace(
    DOTS,
    features=DOTS.features | BYTE_FEATURES,
    cooperative_matrices=(BYTES_SHAPE,),
)


# The first layer has three channels, of which matrices would make sixteen.
@pytest.mark.parametrize("problem", RESNET_50[1:])
def test_codes_go_to_matrices_of_bytes_where_there_are_some(problem: ConvProblem) -> None:
    """The device's list decides: of these sizes and types, not saturating."""
    ranked = rank(problem, of_bytes(MATRICES))
    assert isinstance(ranked[0], ConvCodesCoop)
    assert ranked[0].tile.matrix == LARGE_BYTES
    unlike = (
        *(replace(BYTES_SHAPE, saturating=True), replace(BYTES_SHAPE, c="u32", result="u32")),
        *(replace(BYTES_SHAPE, a="u8"), replace(BYTES_SHAPE, k=64)),
    )
    for shape in unlike:
        info = replace(MATRICES, cooperative_matrices=(shape,))
        ranked = rank(problem, of_bytes(info))
        assert not any(isinstance(kernel, ConvCodesCoop) for kernel in ranked)
    floats = rank(problem, Target(MATRICES))
    assert not any(isinstance(kernel, ConvCodesCoop) for kernel in floats)


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("nvidia-h200", LARGE_BYTES),
        ("radeon-rx-7900-xtx", AMD_BYTES),
        ("intel-arc-a770", XE_BYTES),
        ("radeon-rx-6800", None),
        ("lavapipe-26.2", LLVMPIPE_BYTES),
    ],
)
def test_devices_have_matrices_of_bytes(name: str, matrix: Matrix | None) -> None:
    profile = load_profile(name)
    matrices, features = profile.cooperative_matrices, profile.features
    described = replace(LARGE_GPU, features=features, cooperative_matrices=matrices)
    assert byte_matrix_of(replace(described, limits=profile.limits)) == matrix


@pytest.mark.parametrize("sizes", [(256, 2304, 768), (256, 768, 3072), (1024, 1024, 1024)])
def test_products_of_codes_go_to_matrices_of_bytes(sizes: tuple[int, int, int]) -> None:
    problem = MatMulProblem((), (), (), *sizes)
    target = Target(
        MATRICES, needs=Trait.INT8_WEIGHTS, allows=Trait.INT8_DOT | Trait.SIGNED_WEIGHTS
    )
    assert isinstance(rank(problem, target)[0], MatMulCodesCoop)
    for other in (
        replace(target, allows=Trait.INT8_DOT),
        replace(target, allows=Trait.SIGNED_WEIGHTS),
        Target(MATRICES),
    ):
        ranked = rank(problem, other)
        assert not any(isinstance(kernel, MatMulCodesCoop) for kernel in ranked)


def test_narrow_layers_leave_matrices_alone() -> None:
    few = convolution(3, 8, 112, 3)
    ranked = rank(few, of_bytes(MATRICES))
    assert not isinstance(ranked[0], ConvCodesCoop)


def test_dot_products_leave_narrow_layers_alone() -> None:
    few = convolution(3, 8, 112, 3)
    assert not isinstance(rank(few, of_bytes(DOTS))[0], ConvDot)


@pytest.mark.parametrize(
    "sizes", [(256, 2304, 768), (256, 768, 3072), (128, 768, 768), (1024, 1024, 1024)]
)
def test_products_of_codes_go_to_dot_products_where_these_are_fast(
    sizes: tuple[int, int, int],
) -> None:
    problem = MatMulProblem((), (), (), *sizes)
    target = of_bytes(DOTS)
    first, *others = rank(problem, target)
    assert isinstance(first, MatMulDot)
    other = next(kernel for kernel in others if not isinstance(kernel, MatMulDot))
    beside = other.predict(problem, target)
    assert beside is not None
    assert first.predict(problem, target).cost.total < beside.cost.total


def test_products_of_few_rows_stay_with_the_kernel_for_them() -> None:
    problem = MatMulProblem((), (), (), 1, 4096, 4096)
    first = rank(problem, of_bytes(DOTS))[0]
    assert not isinstance(first, MatMulDot)


@pytest.mark.parametrize(
    ("features", "dots", "offered"),
    [({"integer_dot"}, True, True), (set(), True, False), (DOTS.features, False, False)],
)
@pytest.mark.parametrize("narrow", [True, False])
def test_dot_products_of_products_come_late_elsewhere(
    features: set[str], dots: bool, offered: bool, narrow: bool
) -> None:
    info = replace(LARGE_GPU, features=frozenset(features))
    problem = MatMulProblem((), (), (), 256, 768, 768)
    for device in (info, replace(info, type=DeviceType.CPU)):
        target = of_bytes(device, DOT[dots])
        ranked = rank(problem, target if narrow else replace(target, needs=Trait.NONE))
        assert not isinstance(ranked[0], MatMulDot)
        assert any(isinstance(kernel, MatMulDot) for kernel in ranked) == offered


def test_sums_that_32_bits_may_not_hold_are_no_dot_products() -> None:
    problem = MatMulProblem((), (), (), 64, 64, MAX_K + 1)
    ranked = rank(problem, of_bytes(DOTS))
    assert not any(isinstance(kernel, MatMulDot) for kernel in ranked)


def _first_on_a_processor(problem: ConvProblem, *, dots: bool = True) -> ConvKernel:
    info = replace(
        LARGE_GPU,
        type=DeviceType.CPU,
        subgroup_size=8,
        features=LARGE_GPU.features | SHUFFLES,
        limits=replace(LARGE_GPU.limits, subgroup_size_range=(8, 8)),
    )
    target = Target(info, "f32", "texel", ("texel",), needs=Trait.INT8_WEIGHTS, allows=DOT[dots])
    return rank(problem, target)[0]


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14), (512, 7)])
def test_processors_go_along_rows_of_codes(channels: int, size: int) -> None:
    problem = convolution(channels, channels, size, 3)
    assert isinstance(_first_on_a_processor(problem), ConvRow)
    assert not isinstance(_first_on_a_processor(problem, dots=False), ConvRow)
    others = (
        replace(problem, stride=(1, 2, 2)),
        replace(problem, dilation=(1, 1, 2)),
        replace(problem, kernel=(1, 3, 5)),
    )
    assert not any(isinstance(_first_on_a_processor(other), ConvRow) for other in others)


def test_zeros_for_a_bias_are_the_same_in_all_plans():
    # More than `MAX_SHARED_BYTES`, so that only their identity says that they are there already.
    first, second = (bias_tensor(None, 9216, VulkanEncoder(LARGE_GPU)) for _ in range(2))
    assert first.value is second.value
    assert not first.value.any()


def test_what_follows_from_a_problem_follows_its_copies():
    problem = convolution(6, 16, 14, 3)
    assert (problem.pixels, problem.channels, problem.taps, problem.in_blocks) == (196, 16, 9, 2)
    assert (problem.grouping, problem.weight_groups) == ("blocks", 1)
    grouped = replace(problem, group=2, batch=3, phases=(((0, 0, 0), 0), ((0, 0, 1), 1)))
    assert (grouped.pixels, grouped.channels, grouped.weight_groups) == (588, 32, 4)
    assert grouped.grouping == "odd"
    assert "pixels" not in repr(problem)  # which names what the tuner has measured
