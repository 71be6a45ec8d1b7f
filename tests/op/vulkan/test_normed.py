"""A normalisation and the product after it, in one dispatch: pairs, and the choice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.device_infos import COOPMAT_GPU
from tests.op.vulkan.harness import device
from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device import Device, open_profile
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.testing.case import Case
from vkmnn.testing.emulation import bench_for
from vkmnn.testing.runner import compare
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.normed import (
    NormedCoop,
    NormedProblem,
    NormedShared,
    candidates_of,
)
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn_suite import mutation
from vkmnn_suite.cases.normed import normed_case


@pytest.fixture(scope="module")
def matrices() -> Device:
    """Return a device with cooperative matrices, its own or emulated."""
    bench = bench_for(mutation.find("matmul_coop_16x32w16x32k4_128_0_0_4"), device())
    if isinstance(bench, str):
        pytest.skip(bench)
    return bench.device


class Taking:
    """A chooser that picks one kernel for both if it can; records the candidates."""

    def __init__(self, kind: type[NormedCoop | NormedShared]) -> None:
        self.kind = kind
        self.problems: list[NormedProblem] = []

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[Any]) -> Any:
        """Return the smallest tile: it has the shortest compile time."""
        if what != "normed":
            return candidates[0]
        self.problems.append(problem[1] if isinstance(problem, tuple) else cast("Any", problem))
        return next(one for one in candidates if isinstance(one, self.kind) and one.tile.rows < 32)


def run(
    case: Case, on: Device, *, element: FloatElement = "f16"
) -> tuple[list[NormedProblem], list[str]]:
    """Compare a case with numpy; return the fused pairs, and the kernels."""
    chooser, shaders = Taking(NormedShared if element == "f32" else NormedCoop), list[str]()
    backend = VulkanBackend(on, chooser=chooser, element=element, narrow_inputs=element != "f32")
    encode = backend.encode

    def noted(segments: Any) -> Any:
        recording, ends = encode(segments)
        shaders.extend(dispatch.shader.name for dispatch in recording.dispatches)
        return recording, ends

    cast("Any", backend).encode = noted
    case = replace(case, floats=element)
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        results = plan.execute(case.feeds)
    finally:
        plan.close()
        backend.close()
    for info, want in zip(case.graph.outputs, case.expected(), strict=True):
        compare(results[info.name], want, case)
    return chooser.problems, shaders


@pytest.mark.parametrize("number", range(4))
def test_one_dispatch_in_float32(number: int) -> None:
    case = normed_case((2, 9, 76), 35 + number, keeps=False, number=number, rms=number == 3)
    problems, shaders = run(case, device(), element="f32")
    assert len(problems) == 1
    assert not any("norm" in name for name in shaders)
    assert sum("matmul" in name for name in shaders) == 1


@pytest.mark.parametrize("mean", [-30.0, 1e3, 1e4])
def test_float32_rows_far_from_zero(mean: float) -> None:
    """Squares lose no digits to the mean: rows are staged less a pivot."""
    case = normed_case((3, 64), 40, keeps=False, mean=mean)
    problems, _ = run(case, device(), element="f32")
    assert len(problems) == 1


def test_float32_rows_that_others_read_stay_apart() -> None:
    problems, shaders = run(normed_case((3, 64), 40, keeps=True), device(), element="f32")
    assert problems == []
    assert any("norm" in name for name in shaders)
    kept = normed_case((3, 64), 40, keeps=False)
    seen = changed(kept, *kept.graph.ops, outputs=("normed", "out"))
    assert run(seen, device(), element="f32")[0] == []


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_one_dispatch_does_both(number: int, keeps: bool, matrices: Device) -> None:
    case = normed_case((2, 9, 72), 35 + number, keeps=keeps, number=number, rms=number == 3)
    problems, shaders = run(case, matrices)
    assert [problem.keeps for problem in problems] == [keeps]
    assert not any("norm" in name for name in shaders)
    assert sum("matmul" in name for name in shaders) == 1


def test_rows_far_from_zero(matrices: Device) -> None:
    """Their means cancel against sums of the very weights, as float16 holds them."""
    run(normed_case((3, 64), 40, mean=40.0), matrices)


def test_rows_that_hardly_deviate_stay_finite(matrices: Device) -> None:
    case = normed_case((3, 64), 40, keeps=False)
    run(replace(case, feeds={**case.feeds, "x": np.full((3, 64), 3.7, np.float32)}), matrices)


def changed(case: Case, *ops: Op, outputs: Sequence[str] = ("out",), **constants: Any) -> Case:
    """Return a case with other ops and constants."""
    known: dict[str, Any] = {**case.feeds, **case.graph.constants, **constants}
    for op in ops:
        known[op.outputs[0]] = run_op(op, [known.get(name) for name in op.inputs])[0]
    infos = [TensorInfo(name, case.graph.outputs[0].dtype, known[name].shape) for name in outputs]
    graph = replace(
        case.graph,
        ops=list(ops),
        outputs=infos,
        constants={**case.graph.constants, **constants},
    )
    return replace(case, graph=graph)


REFUSED = ("broken vectors", "read before", "scaled", "all axes", "weights beyond float16")


def refused() -> dict[str, Case]:
    plain = normed_case((5, 16), 8, keeps=False, extra=False)
    norm, product = plain.graph.ops
    early = Op("UnaryOp", "early", ["normed"], ["rows"], UnaryAttrs("NEG"))
    return {
        "broken vectors": normed_case((5, 12), 8),
        "read before": changed(plain, norm, early, product, outputs=("rows", "out")),
        "scaled": changed(plain, norm, replace(product, attrs=replace(product.attrs, alpha=2.0))),
        "all axes": changed(plain, replace(norm, attrs=replace(norm.attrs, axis=0)), product),
        "weights beyond float16": changed(
            plain, norm, product, w=np.full((16, 8), 6e4, np.float32)
        ),
    }


@pytest.mark.parametrize("what", REFUSED)
def test_what_stays_apart(what: str, matrices: Device) -> None:
    problems, shaders = run(refused()[what], matrices)
    assert problems == []
    assert any("norm" in name for name in shaders)


def first(problem: NormedProblem, info: DeviceInfo, *, element: FloatElement = "f16") -> Any:
    encoder = VulkanEncoder(info)
    found = candidates_of(problem, Target(info, element), encoder)
    return found[0] if found else None


def product(m: int, n: int, k: int, **more: Any) -> MatMulProblem:
    return MatMulProblem((), (), (), m, n, k, **more)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(197, 2304), (128, 3072), (64, 2304), (64, 3072)])
def test_layers_of_transformers(rows: int, columns: int, keeps: bool) -> None:
    problem = NormedProblem(product(rows, columns, 768), True, keeps)
    assert isinstance(first(problem, open_profile("nvidia-h200").info), NormedCoop)


def test_large_products_stay_apart() -> None:
    """A dispatch more is little, and what the rows cost is much."""
    large = NormedProblem(product(4096, 16_384, 4096), True)
    assert first(large, open_profile("nvidia-h200").info) == Apart()


@pytest.mark.parametrize(
    "odd",
    [
        product(64, 64, 10),
        product(64, 64, 64, constant=False),
        MatMulProblem((2,), (True,), (True,), 64, 64, 64),
        product(0, 64, 64),
    ],
)
def test_what_no_kernel_takes(odd: MatMulProblem) -> None:
    assert first(NormedProblem(odd, True), COOPMAT_GPU) is None


@pytest.mark.parametrize(("rows", "columns"), [(197, 2304), (197, 3072), (64, 2304)])
def test_layers_of_transformers_in_float32(rows: int, columns: int) -> None:
    info = open_profile("nvidia-h200").info
    problem = NormedProblem(product(rows, columns, 768), True)
    assert isinstance(first(problem, info, element="f32"), NormedShared)
    assert first(replace(problem, keeps=True), info, element="f32") is None


def test_matrices_come_before_shared_memory() -> None:
    problem = NormedProblem(product(64, 64, 64), True)
    encoder = VulkanEncoder(COOPMAT_GPU)
    for element in FLOATS:
        found = candidates_of(problem, Target(COOPMAT_GPU, element), encoder)
        assert any(isinstance(one, NormedCoop) for one in found) is (element == "f16")
        assert any(isinstance(one, NormedShared) for one in found)


def test_cpu_devices_are_not_asked() -> None:
    """Where shared memory is emulated, neither rules nor the tuner meet these kernels."""
    info = device().info
    if info.type is not DeviceType.CPU:
        pytest.skip("not a CPU device")
    assert first(NormedProblem(product(64, 64, 64), True), info, element="f32") is None
