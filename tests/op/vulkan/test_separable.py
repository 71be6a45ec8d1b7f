"""Depthwise convolutions inside the projections after them: kernels, pairs, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import count, product
from typing import Any, cast

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.core.backend import Backend, Tuning
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Activation, Graph, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device import open_profile
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.testing.case import Case
from vkmnn.vulkan import tuning
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.cost.chunks import Chunks, chunks_cost
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.separable import (
    SeparableKernel,
    SeparableProblem,
    candidates_of,
    separable_kernels,
)
from vkmnn.vulkan.gemm.target import Target
from vkmnn_suite.cases.separable import HARD_SWISH, NONE, RELU6, Maker

SAME = (1, 1, 1, 1)


class Taking:
    """A chooser that picks a kernel for pairs, whether or not it is a candidate."""

    def __init__(self, kernel: SeparableKernel | None) -> None:
        self.kernel = kernel
        self.asked = 0

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[Any]) -> Any:
        """Return the kernel."""
        if what != "separable":
            return candidates[0]
        self.asked += 1
        return self.kernel or candidates[0]


def run(case: Case, kernel: SeparableKernel | None) -> tuple[int, list[str]]:
    """Compare a case with numpy; return the fused pairs, and the kernels."""
    chooser = Taking(kernel)
    backend = VulkanBackend(device(), chooser=chooser)
    shaders: list[str] = []
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
        np.testing.assert_allclose(results[info.name], want, rtol=case.rtol, atol=case.atol)
    return chooser.asked, shaders


# Every way in which invocations come out even, chunks of one round and of many.
KERNELS = (
    SeparableKernel(4, 4, 2, 64, 32),
    SeparableKernel(4, 8, 4, 64, 8),
    SeparableKernel(8, 8, 2, 64, 64),
    SeparableKernel(8, 32, 8, 32, 1),
    SeparableKernel(4, 16, 16, 128, 2),
    SeparableKernel(8, 64, 4, 64, 4),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_tiles_and_chunks(kernel: SeparableKernel) -> None:
    make = Maker()
    cases = (
        make((2, 37, 7, 11), (3, 3), 41, pads=SAME, residual=True),
        make((1, 67, 9, 5), (5, 5), 13, strides=(2, 2), pads=(2, 1, 1, 2)),
    )
    for case in cases:
        asked, shaders = run(case, kernel)
        assert asked == 1
        assert [name for name in shaders if name.startswith("conv_")] == [
            f"conv_separable_{kernel.rows}_f32"
        ]


@pytest.mark.parametrize("between", [NONE, RELU6, HARD_SWISH, Activation("LEAKY_RELU", 0.125)])
def test_activations_between(between: Activation) -> None:
    case = Maker()((1, 6, 5, 7), (3, 3), 5, pads=SAME, between=between, after=HARD_SWISH)
    run(replace(case, rtol=1e-5, atol=1e-3), KERNELS[0])


def test_what_is_not_finite_stays_where_it_is() -> None:
    """Neither pads nor filler elements of tiles spread infinities of x over other pixels."""
    case = Maker()((1, 5, 6, 7), (3, 3), 3, pads=SAME, between=NONE, after=NONE)
    x = case.feeds["x"].copy()
    x[0, 2, 5, 6] = np.inf
    case = replace(case, feeds={"x": x})
    with np.errstate(invalid="ignore"):
        run(case, KERNELS[1])


def with_more(case: Case, *ops: Op, outputs: Sequence[str]) -> Case:
    graph = case.graph
    shape = graph.outputs[0].shape
    infos = [TensorInfo(name, graph.outputs[0].dtype, shape) for name in outputs]
    return replace(
        case, graph=Graph("more", graph.inputs, infos, [*graph.ops, *ops], graph.constants)
    )


def test_results_that_others_read_stay() -> None:
    """A depthwise convolution with another reader, or whose result the host reads, is not fused."""
    case = Maker()((1, 8, 5, 7), (3, 3), 8, pads=SAME, between=RELU6, after=NONE)
    read = with_more(case, outputs=["out", "between"])
    negated = Op("UnaryOp", "negated", ["between"], ["more"], UnaryAttrs("NEG"))
    read_twice = with_more(case, negated, outputs=["out", "more"])
    for other in (read, read_twice):
        asked, shaders = run(other, KERNELS[0])
        assert asked == 0
        assert not any("separable" in name for name in shaders)


def test_software_devices_keep_two_dispatches() -> None:
    case = Maker()((1, 32, 14, 14), (3, 3), 16, pads=SAME)
    asked, shaders = run(case, None)
    assert asked == 1
    assert not any("separable" in name for name in shaders)


def tuned(patch: pytest.MonkeyPatch, made_up: Callable[[set[str], int], float]) -> Tuning:
    """Tune a pair on the device; the times of its projection are made up.

    `made_up` gets the ops that have dispatches in a trial, and the number of the measurement. All
    other ops take 10 µs.
    """
    case = Maker()((1, 8, 5, 7), (3, 3), 8, pads=SAME)
    numbers = count()
    measure = tuning._measure

    def measured(*given: Any) -> list[dict[str, float]]:
        number = next(numbers)
        return [
            {**dict.fromkeys(spent, 10.0), "projection": made_up(set(spent), number)}
            for spent in measure(*given)
        ]

    patch.setattr(tuning, "_measure", measured)
    patch.setattr(tuning, "WARM_S", 0.0)

    def plan(on: Backend) -> Plan:
        return Plan(case.graph, case.infos, {}, on, CpuBackend(), run_op)

    backend = VulkanBackend(device(), tuning="off")
    try:
        return backend.tune(plan, case.feeds, 1, None)
    finally:
        backend.close()


def test_the_tuner_counts_the_time_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dispatches of two ops against one of the second op, which takes longer alone."""

    def projection(ops: set[str], _: int) -> float:
        return 10.0 + 5.0 * ("depthwise" not in ops) + 10.0 * ("out:convert" not in ops)

    (choice,) = (one for one in tuned(monkeypatch, projection).choices if one.what == "separable")
    assert set(choice.ops) == {"depthwise", "projection"}
    assert choice.rule == repr(Apart())
    assert choice.taken.startswith("SeparableKernel")
    assert (choice.rule_us, choice.taken_us) == (10.0, 7.5)


def test_a_refused_choice_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection that stores plain numbers has no pair: its choice opens once that is refused."""
    joined: list[int] = []

    def projection(ops: set[str], number: int) -> float:
        if "out:convert" in ops:
            return 10.0 + 5.0 * ("depthwise" not in ops)
        joined.append(number)
        return 1.0 if number == joined[0] else 99.0

    taken = {one.what: one.taken for one in tuned(monkeypatch, projection).choices}
    assert taken["plain end"] == "False"
    assert taken["separable"].startswith("SeparableKernel")


# --- the choice -----------------------------------------------------------------------------------


def problem_of(
    channels: int, outputs: int, size: int, kernel: int = 3, stride: int = 1, batch: int = 1
) -> SeparableProblem:
    """Return a block of a MobileNet."""
    out = -(-size // stride)
    before, after = (1, size, size), (1, out, out)
    ones, pad = (1, 1, 1), (0, kernel // 2, kernel // 2)
    places = (out * out, out * out, out, 1)
    window, strides = (1, kernel, kernel), (1, stride, stride)
    block = batch * out * out
    first = ConvProblem(
        batch, channels, 1, 1, before, after, window, strides, ones, pad, places, 0, block
    )
    second = ConvProblem(
        batch, 1, channels, outputs, after, after, ones, ones, ones, (0, 0, 0), places, 0, block
    )
    return SeparableProblem(first, second)


def offered(problem: SeparableProblem, profile: str, element: FloatElement = "f32") -> list[Any]:
    opened = open_profile(profile)
    try:
        encoder = VulkanEncoder(opened.info, element=element)
        return candidates_of(problem, Target.of(encoder), encoder)
    finally:
        opened.close()


BLOCKS = ((384, 64, 14), (576, 96, 14), (192, 32, 28), (960, 160, 7))
PROFILES = ("nvidia-h200", "radeon-rx-7900-xtx")
# In float32, the projection alone takes nearly as short a time there.
NEARLY = ((576, 96, 14), "radeon-rx-7900-xtx")


@pytest.mark.parametrize(("block", "profile"), [*product(BLOCKS, PROFILES)])
def test_blocks_of_mobilenets_are_one_dispatch(block: tuple[int, ...], profile: str) -> None:
    for element in FLOATS:
        first, *others = offered(problem_of(*block), profile, element)
        assert isinstance(first, SeparableKernel) or (
            element == "f32" and (block, profile) == NEARLY
        )
        assert Apart() in (first, *others)
        assert {k.rows for k in (first, *others) if isinstance(k, SeparableKernel)} == {4, 8}


def test_much_work_stays_apart() -> None:
    """Where the gap is nothing beside the work, columns would compute the same again and again."""
    assert offered(problem_of(512, 1024, 112, batch=4), "nvidia-h200")[0] == Apart()
    assert offered(problem_of(960, 960, 28, kernel=7), "intel-arc-a770")[0] == Apart()


def test_what_has_no_kernel() -> None:
    usual = problem_of(32, 16, 14)
    first, second = usual.depthwise, usual.projection
    assert usual.fits
    for other in (
        SeparableProblem(replace(first, kernel=(1, 9, 9)), second),
        SeparableProblem(replace(first, kernel=(3, 3, 3), in_size=(3, 14, 14)), second),
        SeparableProblem(first, replace(second, stride=(1, 2, 2), out_size=(1, 7, 7))),
        SeparableProblem(first, replace(second, group=2, inputs=16, outputs=8)),
        SeparableProblem(first, replace(second, inputs=36)),
        SeparableProblem(replace(first, batch=0), replace(second, batch=0)),
    ):
        assert not other.fits


def least(info: DeviceInfo) -> DeviceInfo:
    limits = replace(
        info.limits,
        max_shared_memory=16_384,
        max_workgroup_invocations=128,
        max_workgroup_size=(128, 128, 64),
    )
    return replace(info, limits=limits)


def test_the_least_that_vulkan_requires() -> None:
    """16 KiB of shared memory and 128 invocations; long inner axes take several chunks."""
    opened = open_profile("nvidia-h200")
    target = Target(least(opened.info))
    problem = problem_of(2048, 64, 14)
    found = separable_kernels(problem, target, 1e9)
    opened.close()
    kernels = [kernel for kernel in found if isinstance(kernel, SeparableKernel)]
    assert kernels
    for kernel in kernels:
        assert kernel.room * 16 <= 16_384
        assert kernel.local <= 128
        assert kernel.chunk % kernel.groups == 0
        assert kernel.chunks(problem) * kernel.chunk >= problem.inner_blocks


def test_chunks_cost_adds_up() -> None:
    """More work takes longer, and so do more workgroups than multiprocessors."""
    opened = open_profile("nvidia-h200")
    info = opened.info
    opened.close()
    work = Chunks(
        workgroups=100,
        invocations=256,
        chunks=1,
        waits=1,
        rounds=2,
        made_bytes=50_000,
        made_flops=60_000,
        right_bytes=20_000,
        flops=100_000,
        staged_bytes=30_000,
        results=256,
        groups=8,
        registers=80,
        shared=16_384,
        weight_bytes=1 << 20,
        efficiency=0.65,
    )
    one = chunks_cost(work, info).total
    assert chunks_cost(replace(work, workgroups=100_000), info).total > 100 * (one - 2)
    for name in ("chunks", "waits", "rounds", "made_bytes", "right_bytes", "results", "groups"):
        more = replace(work, **{name: 10 * getattr(work, name)})
        assert chunks_cost(more, info).total > one
    assert chunks_cost(replace(work, weight_bytes=1e9), info, cold=True).total > 500
