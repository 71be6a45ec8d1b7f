"""Products through shared memory, and of few rows: cases that the shader suite leaves out."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import ConvolutionAttrs, MatMulAttrs
from vkmnn.testing.case import Case, op_case
from vkmnn.testing.runner import Picker
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.gemm.families.gemv import MatMulGemv
from vkmnn.vulkan.gemm.families.shared import ConvShared, MatMulShared
from vkmnn.vulkan.gemm.shared_tiles import NARROW, TILES, SharedKernel, Tile

RNG = np.random.default_rng(5)
PARTS = 3
SPLIT = [SharedKernel(tile, PARTS) for tile in TILES if tile.splits]
UNSPLIT = [SharedKernel(tile) for tile in TILES]
REPLAYS = 30


def floats(*shape: int) -> AnyArray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*shape: int) -> AnyArray:
    return RNG.integers(-9, 9, shape).astype(np.float32)


def name_of(kernel: SharedKernel) -> str:
    return f"{kernel.tile.name}/{kernel.parts}"


@contextmanager
def plan_of(case: Case, kernel: Hashable) -> Iterator[Plan]:
    """Open a plan of a case that uses a kernel for its product or convolution."""
    if not isinstance(kernel, SharedKernel):
        takes = {"matmul": kernel}
    else:
        product = MatMulShared(kernel.tile, kernel.parts)
        takes = {"matmul": product, "convolution": ConvShared(kernel.tile, kernel.parts)}
    backend = VulkanBackend(device(), chooser=Picker({}, {**takes, "winograd": 0}))
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        taken = [choice.taken for choice in backend.choices]
        assert takes["matmul"] in taken or takes["convolution"] in taken
        yield plan
    finally:
        plan.close()


def product(a: AnyArray, b: AnyArray) -> Case:
    return op_case("MatMul", MatMulAttrs(), [a, b], constant=[1])


def result(plan: Plan, case: Case) -> AnyArray:
    return plan.execute(case.feeds)[case.graph.outputs[0].name]


@pytest.mark.parametrize("kernel", SPLIT, ids=name_of)
def test_parts_meet_in_order(kernel: SharedKernel) -> None:
    """Sums of floats depend on their order; here it is the same in every run."""
    case = product(floats(70, 1000), floats(1000, 90))
    with plan_of(case, kernel) as plan:
        first = result(plan, case)
        for _ in range(REPLAYS):
            np.testing.assert_array_equal(result(plan, case), first)
    np.testing.assert_allclose(first, case.expected()[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", SPLIT, ids=name_of)
def test_parts_make_the_whole(kernel: SharedKernel) -> None:
    """Sums of whole numbers are exact, so splits change no bit; nor do runs with other inputs."""
    weights = whole(1000, 90)
    first, second = (product(whole(70, 1000), weights) for _ in range(2))
    whole_kernel = SharedKernel(kernel.tile)
    with plan_of(first, kernel) as split, plan_of(first, whole_kernel) as unsplit:
        for case in (first, second) * 10:
            got = result(split, case)
            np.testing.assert_array_equal(got, result(unsplit, case))
            np.testing.assert_array_equal(got, case.expected()[0])


@pytest.mark.parametrize("kernel", [*SPLIT, SharedKernel(NARROW[1], PARTS)], ids=name_of)
def test_convolution_in_parts(kernel: SharedKernel) -> None:
    attrs = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1)
    inputs = [whole(2, 60, 7, 9), whole(70, 60, 3, 3), whole(70)]
    case = op_case("Convolution", attrs, inputs, constant=[1, 2])
    with plan_of(case, kernel) as plan:
        for _ in range(REPLAYS):
            np.testing.assert_array_equal(result(plan, case), case.expected()[0])


def test_two_plans_at_once() -> None:
    """Each has counters of its own."""
    cases = [product(whole(70, 1000), whole(1000, 90)) for _ in range(2)]
    with plan_of(cases[0], SPLIT[0]) as one, plan_of(cases[1], SPLIT[1]) as two:

        def run(plan: Plan, case: Case) -> None:
            for _ in range(REPLAYS):
                np.testing.assert_array_equal(result(plan, case), case.expected()[0])

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(run, one, cases[0]), pool.submit(run, two, cases[1])]:
                done.result()


@pytest.mark.parametrize("kernel", [*UNSPLIT, *SPLIT], ids=name_of)
def test_infinite_and_missing_numbers_stay_in_their_rows_and_columns(kernel: SharedKernel) -> None:
    """Tiles are filled up with zeros, not with numbers from elsewhere: these may be infinite."""
    a, b = whole(70, 331), whole(331, 90)
    a[69, 330] = np.inf
    a[3, 0] = np.nan
    b[330, 89] = -np.inf
    b[0, 1] = np.nan
    case = product(a, b)
    with plan_of(case, kernel) as plan:
        np.testing.assert_array_equal(result(plan, case), case.expected()[0])


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_infinite_and_missing_numbers_of_few_rows(rows: int) -> None:
    a, b = whole(rows, 203), whole(203, 90)
    a[rows - 1, 202] = np.inf
    b[202, 89] = -np.inf
    b[0, 1] = np.nan
    case = product(a, b)
    variant = next(count for count in (1, 4, 8) if rows <= count)
    kernel = MatMulGemv(variant, 1, 64)
    with plan_of(case, kernel) as plan:
        np.testing.assert_array_equal(result(plan, case), case.expected()[0])


@pytest.mark.parametrize("kernel", [*UNSPLIT, *map(SharedKernel, NARROW)], ids=name_of)
def test_pads_are_no_products(kernel: SharedKernel) -> None:
    """Elements that a window meets outside the input count as zero, whatever the weights are."""
    x, w = whole(1, 5, 6, 7), whole(6, 5, 3, 3)
    x[0, 0, 0, 0] = np.inf
    x[0, 4, 5, 6] = np.nan
    attrs = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1, 2, 2, 1), 1)
    case = op_case("Convolution", attrs, [x, w, None], constant=[1])
    with plan_of(case, kernel) as plan:
        np.testing.assert_array_equal(result(plan, case), case.expected()[0])


def test_more_steps_than_a_loop_may_make() -> None:
    """Kernels are not offered for such an inner axis; the others make it."""
    case = product(whole(9, 250_000), whole(250_000, 1))
    backend = VulkanBackend(device())
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        (choice,) = [choice for choice in backend.choices if choice.what == "matmul"]
        assert MatMulShared(Tile(128, 128)) not in choice.candidates
        np.testing.assert_allclose(result(plan, case), case.expected()[0])
    finally:
        plan.close()
