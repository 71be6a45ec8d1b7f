"""precision="fast": float32 products as three products of float16 limbs, on emulated matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.device_infos import COOPMAT_GPU, LARGE_GPU
from tests.op.vulkan.harness import device
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir.ops import MatMulAttrs
from vkmnn.opening import possible_precision
from vkmnn.shaders.library import BUILTIN
from vkmnn.testing.case import Variant, op_case
from vkmnn.testing.emulation import bench_for
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.gemm.coop_tiles import LIMB_TILES_OF, TILES_OF, limb_matrix_of
from vkmnn.vulkan.gemm.families.limbs import ConvLimbs, MatMulLimbs
from vkmnn.vulkan.gemm.family import rank
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait

Array = npt.NDArray[np.float32]
NAME = "matmul_coop_32x32w16x16k2l2_64_0_0_4"
ERROR = 2.0**-19
"""The stated error of a product, of the largest numbers of its row and column times the others."""


class _First:
    """Chooses float32 by matrices wherever it is offered."""

    def __call__(self, what: str, problem: Any, candidates: Any) -> Any:
        limbs = [one for one in candidates if isinstance(one, MatMulLimbs | ConvLimbs)]
        return (limbs or candidates)[0]


def product(a: Array, b: Array) -> Array:
    """Return a @ b as the kernels for limbs compute it."""
    template, axes = next((t, a) for n, t, a in BUILTIN.variants() if n == NAME)
    bench = bench_for(Variant(NAME, template, axes, BUILTIN), device())
    if isinstance(bench, str):
        pytest.skip(bench)
    if limb_matrix_of(bench.device.info) is None:
        pytest.skip("the driver lacks a feature of matrices that emulation does not replace")
    case = op_case("MatMul", MatMulAttrs(), [a, b], constant=[1])
    backend = VulkanBackend(bench.device, chooser=_First(), arithmetic="limbs")
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        assert any(isinstance(choice.taken, MatMulLimbs) for choice in backend.choices)
        (y,) = plan.execute(case.feeds).values()
        return np.array(y)
    finally:
        plan.close()
        backend.close()


def within(y: Array, a: Array, b: Array) -> bool:
    """Return whether a product has at most the stated error, beside that of float32 sums."""
    x, w = a.astype(np.float64), b.astype(np.float64)
    rows, columns = np.abs(x).max(1)[:, None], np.abs(w).max(0)
    room = ERROR * (rows * np.abs(w).sum(0) + np.abs(x).sum(1)[:, None] * columns)
    sums = a.shape[1] * 2.0**-24 * (np.abs(x) @ np.abs(w))
    smallest = 2.0**-126  # of normal numbers
    return bool((np.abs(y - x @ w) <= room + sums + smallest).all())


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("of_rows", "of_columns"),
    [
        ((0,), (0,)),
        ((9, -10), (6, -13)),
        ((60, -60, 0, 10, -11), (-14, 7, 0)),
        ((100, -90), (-100, 15)),
        ((0, -126), (0, 60)),
    ],
    ids=["usual", "edges", "mixed", "far", "smallest"],
)
def test_the_error_is_as_stated(of_rows: tuple[int, ...], of_columns: tuple[int, ...]) -> None:
    """With rows and columns of all magnitudes, next to each other in a tile."""
    a = normal(37, 200) * np.resize(2.0 ** np.array(of_rows), 37).astype(np.float32)[:, None]
    b = normal(200, 36, seed=1) * np.resize(2.0 ** np.array(of_columns), 36).astype(np.float32)
    y = product(a, b)
    assert within(y, a, b)
    if of_rows == (0,):
        error = np.abs(y - a.astype(np.float64) @ b).max() / np.abs(a @ b).max()
        assert error < 2e-6


def test_numbers_of_a_row_differ() -> None:
    """A large number takes digits from small ones of its row, not from other rows."""
    a, b = normal(33, 136), normal(136, 32, seed=1)
    a[:, ::3] *= 1e-6
    a[::2, 5] = 3e4
    a[7] = 0.0
    a[9] *= np.float32(1e-30)
    b[::5] *= 1e-3
    assert within(product(a, b), a, b)


def test_infinities_and_nan_propagate() -> None:
    a, b = normal(40, 72), normal(72, 36, seed=1)
    b[:, 3] = 0.0
    b[1, 7] = 1.0  # its low limb is zero
    a[2, 1], a[3, 1], a[4, 1] = np.inf, -np.inf, np.nan
    a[5, 1], a[5, 2] = np.inf, 1e10
    b[6, 9], b[1, 10], b[6, 11] = np.inf, -np.inf, np.nan
    a[12, 6] = -np.inf
    y = product(a, b)
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b.astype(np.float64)
    finite = np.isfinite(want)
    assert (~finite).sum() > 150
    np.testing.assert_array_equal(y[~finite], want[~finite].astype(np.float32))
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    y, want = np.where(finite, y, 0), np.where(finite, want, 0)
    assert (np.abs(y - want) <= 1e-4 * (np.abs(a).max(1)[:, None] + 1)).all()


def test_largest_numbers_overflow_as_in_float32() -> None:
    a, b = np.full((4, 8), 3e38, np.float32), np.full((8, 4), 2.0**-3, np.float32)
    np.testing.assert_allclose(product(a, b), 3e38, rtol=1e-6)
    assert np.isposinf(product(a, 2 * b)).all()
    assert np.isneginf(product(-a, 2 * b)).all()


def test_only_sessions_that_ask_get_limbs() -> None:
    problem = MatMulProblem((), (), (), 197, 768, 3072)
    ranked = rank(problem, Target(COOPMAT_GPU, allows=Trait.LIMBS))
    assert isinstance(ranked[0], MatMulLimbs)
    assert not any(isinstance(one, MatMulLimbs) for one in rank(problem, Target(COOPMAT_GPU)))
    half = rank(problem, Target(COOPMAT_GPU, "f16", allows=Trait.LIMBS))
    assert not any(isinstance(one, MatMulLimbs) for one in half)
    assert not any(
        isinstance(one, MatMulLimbs) for one in rank(problem, Target(LARGE_GPU, allows=Trait.LIMBS))
    )


def test_devices_without_matrices_run_high() -> None:
    assert possible_precision("fast", COOPMAT_GPU) == "fast"
    assert possible_precision("fast", LARGE_GPU) == "high"
    assert limb_matrix_of(COOPMAT_GPU) in LIMB_TILES_OF
    assert {*LIMB_TILES_OF} <= {*TILES_OF}
    names = {name for name, _, _ in BUILTIN.variants()}
    for tile in (tile for table in LIMB_TILES_OF.values() for same in table for tile in same):
        for split in range(1 + tile.splits):
            assert f"matmul_coop_{tile.name}_{tile.step}_{split}_0_4" in names
            assert f"conv_coop_{tile.name}_{tile.step}_{split}" in names


@pytest.mark.parametrize("sizes", [(197, 768, 3072), (128, 3072, 768), (1024, 1024, 1024)])
def test_limbs_are_predicted_to_gain(sizes: tuple[int, int, int]) -> None:
    problem = MatMulProblem((), (), (), *sizes)
    times = []
    for allows in (Trait.NONE, Trait.LIMBS):
        target = Target(COOPMAT_GPU, allows=allows)
        expected = rank(problem, target)[0].predict(problem, target)
        assert expected is not None
        times.append(expected.cost.total)
    assert 0.25 < times[1] / times[0] < 0.75
