"""Attention on caches: by workgroups that share rows, and by single subgroups, against numpy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import CachedAttentionAttrs
from vkmnn.runtime.device import DeviceType, open_profile
from vkmnn.vulkan.attention.cached import (
    PARTS,
    CachedKernel,
    CachedProblem,
    CachedSubgroup,
    CachedWide,
    Kernel,
    kernels_of,
    wide_lanes,
)
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.choice import kernel_name
from vkmnn.vulkan.device_rules import rotate_lanes

T = TypeVar("T")
HEADS, SHARED, ROOM, DEPTH = 4, 2, 1100, 8


class Takes:
    """Takes a kernel for attention on caches."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        if what != "cached_attention":
            return candidates[0]
        return self.kernel  # type: ignore[return-value]


def _step(held: int, rows: int, attrs: CachedAttentionAttrs) -> dict[str, Array]:
    rng = np.random.default_rng(held)

    def drawn(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape), np.float32)

    caches = [drawn(1, SHARED, ROOM, DEPTH) for _ in range(2)]
    for cache in caches:
        cache[:, :, held:] = np.nan
        if attrs.window:
            cache[:, :, : max(0, held + 1 - attrs.window)] = np.nan
    triangle = np.where(np.tri(rows, ROOM, held, dtype=np.bool_), 0, -np.inf)
    made = {"q": drawn(1, HEADS, rows, DEPTH), "k": drawn(1, SHARED, rows, DEPTH),
            "v": drawn(1, SHARED, rows, DEPTH), "pk": caches[0], "pv": caches[1],
            "held": np.array([held]), "mask": np.float32(triangle)}  # fmt: skip
    return made | {"sinks": drawn(HEADS, 1, 1)}


KERNELS = (
    *map(CachedKernel, PARTS),
    CachedSubgroup(8),
    *(CachedWide(8, parts) for parts in (1, *PARTS)),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=kernel_name)
@pytest.mark.parametrize(
    ("held", "how"),
    [
        *((held, {}) for held in (0, 1, 64, 65, 130, 1000, ROOM - 4)),
        *((held, {"window": 100, "softcap": 2.0}) for held in (1, 130, ROOM - 4)),
    ],
)
def test_long_caches(kernel: Kernel, held: int, how: dict[str, Any]) -> None:
    if isinstance(kernel, CachedSubgroup) and kernel.lanes not in rotate_lanes(device().info):
        pytest.skip(f"no subgroups of {kernel.lanes}")
    if isinstance(kernel, CachedWide) and kernel.lanes not in wide_lanes(device().info):
        pytest.skip(f"no subgroups of {kernel.lanes}")
    rows = 1 if held % 2 else 4
    attrs = CachedAttentionAttrs(0.4, **how)
    values = _step(held, rows, attrs)
    names = ["q", "k", "v", "", "", "pk", "pv", "held", "mask", "sinks"]
    op = Op("CachedAttention", "op", names, ["y", "nk", "nv"], attrs)
    want = run_op(op, [values[name].copy() if name else None for name in names])
    infos = {n: TensorInfo(n, DType.from_numpy(a.dtype), a.shape) for n, a in values.items()}
    output = TensorInfo("y", DType.FLOAT32, want[0].shape)
    backend = VulkanBackend(device(), chooser=Takes(kernel))
    graph = Graph("test", list(infos.values()), [output], [op])
    plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
    try:
        assert not plan.placement().off_device, str(plan.placement())
        for _ in range(2):  # the counters are zero again
            (got,) = plan.execute(values).values()
            np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-5)
    finally:
        plan.close()


def test_rows_are_shared_where_cores_of_a_gpu_are_idle() -> None:
    info = device().info
    few, many = CachedProblem(8, 8192, 64, 64), CachedProblem(4096, 8192, 64, 64)
    assert kernels_of(few, info, texel=False)[0] == CachedKernel()
    gpu = replace(info, type=DeviceType.DISCRETE)
    narrow = replace(gpu, features=frozenset())
    for found, kind in ((gpu, CachedWide), (narrow, CachedKernel)):
        if kind is CachedWide and not wide_lanes(found):
            continue  # no shuffles
        assert {type(kernels_of(problem, found, texel=True)[0]) for problem in (few, many)} == {
            kind
        }
        assert kernels_of(few, found, texel=True)[0].parts > 1
        assert kernels_of(many, found, texel=True)[0].parts == 1
        assert kernels_of(replace(few, keys=64), found, texel=True)[0].parts == 1
        for problem in (few, many):
            parts = {kernel.parts > 1 for kernel in kernels_of(problem, found, texel=True)}
            assert parts == {False, True}


# Heads, rows of the cache, nearly all of them held, elements of a row; by the number of parts,
# microseconds on an H100 in chains of dependent dispatches.
ON_H100 = (
    (32, 200, 64, {1: 5.93, 2: 8.43, 4: 8.44, 8: 10.19, 16: 14.06}),
    (32, 200, 128, {1: 6.68, 2: 9.20, 4: 9.05, 8: 11.11, 16: 17.99}),
    (32, 2048, 128, {1: 23.0, 2: 17.6, 4: 14.5, 8: 17.0, 16: 24.7}),
)


@pytest.mark.parametrize(("heads", "keys", "depth", "timed"), ON_H100)
def test_the_fastest_number_of_parts_ranks_first(
    heads: int, keys: int, depth: int, timed: dict[int, float]
) -> None:
    info = open_profile("nvidia-h200").info
    problem = CachedProblem(heads, keys, depth, depth)
    first = kernels_of(problem, info, texel=True)[0]
    assert timed[first.parts] <= 1.05 * min(timed.values())
    for parts, us in timed.items():
        assert CachedWide(32, parts).time(problem, info).total == pytest.approx(us, rel=0.4)


def test_devices_that_are_no_gpus_stay_within_subgroups() -> None:
    info = replace(device().info, type=DeviceType.CPU)
    lanes = rotate_lanes(info)
    if not lanes:
        pytest.skip("no shuffles")
    few = CachedProblem(8, 8192, 64, 64)
    assert kernels_of(few, info, texel=True)[0] == CachedSubgroup(lanes[0])
    without = kernels_of(few, info, texel=False)
    assert not any(isinstance(kernel, CachedSubgroup) for kernel in without)
    assert isinstance(without[0], CachedKernel)
