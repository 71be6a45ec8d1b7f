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
from vkmnn.runtime.device import DeviceType
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.cached_kernels import (
    PARTS,
    CachedKernel,
    CachedProblem,
    CachedSubgroup,
    Kernel,
    kernels_of,
)
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


@pytest.mark.parametrize("kernel", [*map(CachedKernel, PARTS), CachedSubgroup(8)], ids=kernel_name)
@pytest.mark.parametrize("held", [0, 1, 64, 65, 130, 1000, ROOM - 4])
@pytest.mark.parametrize("how", [{}, {"window": 100, "softcap": 2.0}])
def test_long_caches(kernel: Kernel, held: int, how: dict[str, Any]) -> None:
    if isinstance(kernel, CachedSubgroup) and kernel.lanes not in rotate_lanes(device().info):
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
    assert kernels_of(few, gpu, texel=True)[0].parts > 1
    assert kernels_of(many, gpu, texel=True)[0] == CachedKernel()
    assert kernels_of(replace(few, keys=64), gpu, texel=True)[0] == CachedKernel()
    for problem in (few, many):
        assert {kernel.parts > 1 for kernel in kernels_of(problem, gpu, texel=True)} == {
            False,
            True,
        }


def test_devices_that_are_no_gpus_stay_within_subgroups() -> None:
    info = replace(device().info, type=DeviceType.CPU)
    lanes = rotate_lanes(info)
    if not lanes:
        pytest.skip("no shuffles")
    few = CachedProblem(8, 8192, 64, 64)
    assert kernels_of(few, info, texel=True)[0] == CachedSubgroup(lanes[0])
    assert all(isinstance(kernel, CachedKernel) for kernel in kernels_of(few, info, texel=False))
