"""Maximum pooling and the 1 x 1 convolution after it, in one dispatch: pairs, and the choice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.base.elements import FloatElement
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Graph, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device import open_profile
from vkmnn.runtime.device_info import DeviceType
from vkmnn.testing.case import Case
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.pooled import PooledProblem, PooledShared, candidates_of
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn_suite.cases.pooled import pooled_case


class Taking:
    """A chooser that picks the smallest tile for both, if it can."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[Any]) -> Any:
        """Return it."""
        if what != "pooled":
            return candidates[0]
        self.asked += 1
        tiles = [one for one in candidates if isinstance(one, PooledShared)]
        return min(tiles, key=lambda kernel: kernel.tile.results)


def run(case: Case) -> tuple[int, list[str]]:
    """Compare a case with numpy; return the number of fused pairs, and the kernels."""
    chooser, shaders = Taking(), list[str]()
    backend = VulkanBackend(device(), chooser=chooser)
    encode = backend.encode

    def noted(segments: Any) -> Any:
        recording, ends = encode(segments)
        shaders.extend(dispatch.shader.name for dispatch in recording.dispatches)
        return recording, ends

    cast("Any", backend).encode = noted
    plan = Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)
    try:
        results = plan.execute(case.feeds)
    finally:
        plan.close()
        backend.close()
    for info, want in zip(case.graph.outputs, case.expected(), strict=True):
        np.testing.assert_array_equal(results[info.name], want)
    return chooser.asked, shaders


def test_one_dispatch_does_both() -> None:
    for strides in ((1, 1), (2, 2), (2, 3)):
        case = pooled_case((2, 19, 11, 13), 23, strides=strides, pads=(1, 0, 1, 2), residual=True)
        asked, shaders = run(case)
        assert asked == 1
        assert not any(name.startswith("pool") for name in shaders)


def test_windows_that_leave_the_image() -> None:
    """What lies outside is no zero: every number of the image is negative."""
    assert run(pooled_case((1, 5, 6, 6), 3, pads=(2, 2, 2, 2), low=-20))[0] == 1
    assert run(pooled_case((1, 5, 6, 8), 3, ceil=True, low=-20))[0] == 1


def with_more(case: Case, *ops: Op, outputs: Sequence[str]) -> Case:
    """Return a case with more ops, all of whose results have the shape of the input."""
    graph, info = case.graph, case.graph.outputs[0]
    shapes = {"out": info.shape}
    shape = (*info.shape[:1], case.graph.inputs[0].shape[1], *info.shape[2:])
    infos = [TensorInfo(name, info.dtype, shapes.get(name, shape)) for name in outputs]
    return replace(
        case, graph=Graph("more", graph.inputs, infos, [*graph.ops, *ops], graph.constants)
    )


def test_maxima_that_others_read_stay() -> None:
    case = pooled_case((1, 8, 7, 7), 8)
    negated = Op("UnaryOp", "negated", ["largest"], ["more"], UnaryAttrs("NEG"))
    for other in (
        with_more(case, outputs=["out", "largest"]),
        with_more(case, negated, outputs=["out", "more"]),
    ):
        asked, shaders = run(other)
        assert asked == 0
        assert any(name.startswith("pool") for name in shaders)


def changed(case: Case, number: int, **attrs: Any) -> Case:
    """Return a case with other attributes of op `number`, whose shapes stay."""
    ops = list(case.graph.ops)
    ops[number] = replace(ops[number], attrs=replace(cast("Any", ops[number].attrs), **attrs))
    return replace(case, graph=replace(case.graph, ops=ops))


def test_what_stays_apart() -> None:
    case = pooled_case((1, 8, 9, 9), 8)
    average = replace(changed(case, 0, kind="AVERAGE"), rtol=0.0)
    apart = changed(pooled_case((1, 8, 9, 9), 8, strides=(1, 1)), 0, dilations=(1, 1))
    grouped = changed(case, 1, group=2)
    weights = {**grouped.graph.constants, "w": grouped.graph.constants["w"][:, :4]}
    grouped = replace(grouped, graph=replace(grouped.graph, constants=weights))
    assert run(apart)[0] == 1
    assert run(grouped)[0] == 0
    chooser = Taking()
    backend = VulkanBackend(device(), chooser=chooser)
    plan = Plan(average.graph, average.infos, {}, backend, CpuBackend(), run_op)
    plan.close()
    backend.close()
    assert chooser.asked == 0


# --- the choice -----------------------------------------------------------------------------------


def problem_of(channels: int, outputs: int, size: int, **more: Any) -> PooledProblem:
    """Return the ops between two stages of a SqueezeNet."""
    after, one = (1, size, size), (1, 1, 1)
    pixels = size * size
    product = ConvProblem(
        *(1, 1, channels, outputs, after, after, one, one, one, (0, 0, 0)),
        *((pixels, pixels, size, 1), 0, pixels),
    )
    before = (1, 2 * size + 1, 2 * size + 1)
    return PooledProblem(replace(product, **more), before, (1, 2, 2), (0, 0, 0))


def offered(problem: PooledProblem, profile: str, element: FloatElement = "f32") -> list[Any]:
    """Return the candidates on a device of a profile."""
    opened = open_profile(profile)
    try:
        encoder = VulkanEncoder(opened.info, element=element)
        return candidates_of(problem, Target.of(encoder), encoder)
    finally:
        opened.close()


@pytest.mark.parametrize("profile", ["nvidia-h200", "radeon-rx-7900-xtx"])
@pytest.mark.parametrize("stage", [(64, 16, 55), (128, 32, 27), (256, 48, 13)])
def test_stages_of_squeezenet_are_one_dispatch(stage: tuple[int, int, int], profile: str) -> None:
    first, *others = offered(problem_of(*stage), profile)
    assert isinstance(first, PooledShared)
    assert Apart() in others


def test_many_columns_stay_apart() -> None:
    """Every tile of columns would take the same maxima again."""
    assert offered(problem_of(512, 4096, 56), "nvidia-h200")[0] == Apart()


def test_what_has_no_kernel() -> None:
    usual = problem_of(64, 16, 13)
    assert usual.fits
    for odd in (
        problem_of(64, 16, 13, group=2),
        problem_of(64, 16, 13, kernel=(1, 3, 3)),
        problem_of(64, 16, 13, pad=(0, 1, 1)),
        problem_of(64, 0, 13),
        replace(usual, stride=(1, 3, 2)),  # the last window lies outside
        replace(usual, pad=(0, 3, 3)),  # and the first
        replace(usual, in_size=(2, 27, 27)),
    ):
        assert not odd.fits
        assert offered(odd, "nvidia-h200") == []


def test_cpu_devices_are_not_asked() -> None:
    """Where shared memory is emulated, neither rules nor the tuner meet these kernels."""
    info = device().info
    if info.type is not DeviceType.CPU:
        pytest.skip("not a CPU device")
    encoder = VulkanEncoder(info)
    assert candidates_of(problem_of(64, 16, 13), Target.of(encoder), encoder) == []
