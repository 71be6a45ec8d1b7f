"""Attention on the device against numpy, with every kernel that the device can run."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pytest

from tests.op.vulkan.harness import device, run_graph
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import AttentionAttrs, OpAttrs, ReshapeAttrs, SplitAttrs, TransposeAttrs
from vkmnn.vulkan.backend import VulkanBackend

T = TypeVar("T")
KERNELS = ["rotate-32", "rotate-16", "rotate-8", "tile-16", "tile-16x2"]


class Forced:
    """Chooses the named attention kernel; skips the test if the device lacks it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        if what != "attention":
            return candidates[0]
        for candidate in candidates:
            groups = getattr(candidate, "groups", 1)
            name = f"{candidate.family}-{candidate.rows}"  # type: ignore[attr-defined]
            if name + (f"x{groups}" if groups > 1 else "") == self.name:
                return candidate
        pytest.skip(f"no {self.name} here")


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def check(
    kernel: str, attrs: AttentionAttrs, inputs: list[Array], tolerance: float = 2e-5
) -> Array:
    """Run one Attention; all inputs are the graph's."""
    names = ["q", "k", "v", "mask"][: len(inputs)]
    op = Op("Attention", "op", names, ["y"], attrs)
    expected = run_op(op, inputs)[0]
    infos = {
        name: TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    }
    output = TensorInfo("y", DType.from_numpy(expected.dtype), expected.shape)
    graph = Graph("test", list(infos.values()), [output], [op])
    backend = VulkanBackend(device(), chooser=Forced(kernel))
    plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
    try:
        assert not plan.placement().off_device, str(plan.placement())
        (result,) = plan.execute(dict(zip(names, inputs, strict=True))).values()
    finally:
        plan.close()
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
    return result


# batch, heads, queries, keys, depth, width
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (1, 2, 16, 32, 8, 8),
    (2, 3, 5, 7, 64, 64),
    (1, 2, 37, 41, 13, 11),
    (1, 12, 128, 128, 64, 64),
    (2, 2, 33, 70, 24, 72),
    (1, 2, 3, 300, 130, 150),
    (1, 3, 65, 31, 5, 4),
]


MASKS = ["none", "keys", "batch", "queries", "all", "one"]
# One in eight meets every pair of two axes' values, and each kernel every mask, causal and not.
OF_ALL = [pytest.mark.soak, pytest.mark.elsewhere("test: every pair of values")]


def combined() -> Iterator[tuple[int, int, int, tuple[str, bool, tuple[int, ...], str]]]:
    """Yield every combination of a mask, whether it is causal, sizes and a kernel, and numbers."""
    for (m, mask), causal, (s, size), (k, kernel) in itertools.product(
        enumerate(MASKS), (False, True), enumerate(SIZES), enumerate(KERNELS)
    ):
        yield m, s, k, (mask, causal, size, kernel)


@pytest.mark.parametrize(
    ("mask", "causal", "size", "kernel"),
    [
        pytest.param(*values, marks=OF_ALL if (m + 4 * values[1] + s + k) % 8 else [])
        for m, s, k, values in combined()
    ],
)
def test_sizes(kernel: str, size: tuple[int, ...], causal: bool, mask: str) -> None:
    b, h, length, keys, depth, width = size
    inputs = [floats(b, h, length, depth), floats(b, h, keys, depth), floats(b, h, keys, width)]
    shapes: dict[str, tuple[int, ...]] = {
        "keys": (keys,),
        "batch": (b, 1, 1, keys),
        "queries": (length, keys),
        "all": (b, h, length, keys),
        "one": (1,),
    }
    if mask != "none":
        inputs.append(3 * floats(*shapes[mask], seed=5))
    check(kernel, AttentionAttrs(0.3, causal, zero_fully_masked=False), inputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("zero_fully_masked", [False, True])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_queries_that_see_nothing(kernel: str, zero_fully_masked: bool) -> None:
    mask = np.random.default_rng(1).random((2, 1, 19, 37)) > 0.5
    mask[:, :, 3] = False
    mask[1, :, 8] = False
    inputs = [floats(2, 2, 19, 8), floats(2, 2, 37, 8), floats(2, 2, 37, 8), mask]
    result = check(kernel, AttentionAttrs(0.5, zero_fully_masked=zero_fully_masked), inputs)
    blind = result[:, :, 3]
    assert (blind == 0).all() if zero_fully_masked else np.isnan(blind).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_largest_scores_come_late_and_the_mask_is_as_low_as_floats_go(kernel: str) -> None:
    rising = np.linspace(-80, 80, 200, dtype=np.float32)[:, None] * np.ones(8, np.float32)
    mask = np.where(np.arange(200) % 3 == 0, np.finfo(np.float32).min, np.float32(0))
    check(kernel, AttentionAttrs(0.5), [floats(9, 8) + 1, rising, floats(200, 8), mask], 1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_masks_of_other_types(kernel: str) -> None:
    q, k, v = floats(2, 5, 8), floats(2, 9, 8), floats(2, 9, 4)
    fp16 = floats(5, 9).astype(np.float16)
    check(kernel, AttentionAttrs(0.5), [q, k, v, fp16])
    check(kernel, AttentionAttrs(0.5, True), [q, k, v, floats(2, 1, 9) > 0])
    halves = [x.astype(np.float16) for x in (q, k, v)]
    check(kernel, AttentionAttrs(0.5), [*halves, fp16], 2e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_keys(kernel: str) -> None:
    """More loop iterations than 65,535 would be, were all loops not short."""
    check(kernel, AttentionAttrs(0.1), [floats(3, 12), floats(40_009, 12), floats(40_009, 8)], 1e-4)


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8)])
def test_empty(shape: tuple[int, ...]) -> None:
    result = check("tile-16", AttentionAttrs(0.5), [floats(*shape)] * 3)
    assert result.shape == shape


def test_without_keys() -> None:
    op = Op("Attention", "op", ["q", "k", "v"], ["y"], AttentionAttrs(0.5))
    arrays = {"q": floats(2, 5, 8), "k": floats(2, 0, 8), "v": floats(2, 0, 4)}
    infos = [TensorInfo(name, DType.FLOAT32, array.shape) for name, array in arrays.items()]
    graph = Graph("test", infos, [TensorInfo("y", DType.FLOAT32, (2, 5, 4))], [op])
    np.testing.assert_array_equal(run_graph(graph, arrays)[0], np.zeros((2, 5, 4), np.float32))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("heads", "depth"), [(3, 8), (5, 7)])
def test_heads_side_by_side(kernel: str, heads: int, depth: int) -> None:
    """Queries, keys and values in one tensor: read and written through strides."""
    batch, length, width = 2, 21, heads * depth
    swap = TransposeAttrs((0, 2, 1, 3))
    ops = [Op("Split", "split", ["x"], ["q", "k", "v"], SplitAttrs(-1, 3))]
    for name in "qkv":
        ops.append(Op("Reshape", f"r{name}", [name, "split_shape"], [f"{name}1"], ReshapeAttrs()))
        ops.append(Op("Transpose", f"t{name}", [f"{name}1"], [f"{name}2"], swap))
    ops += [
        Op("Attention", "a", ["q2", "k2", "v2"], ["y2"], AttentionAttrs(0.4, True)),
        Op("Transpose", "ty", ["y2"], ["y1"], swap),
        Op("Reshape", "ry", ["y1", "merged_shape"], ["y"], ReshapeAttrs()),
    ]
    constants: dict[str, Array] = {
        "split_shape": np.array([batch, length, heads, depth], np.int64),
        "merged_shape": np.array([batch, length, width], np.int64),
    }
    x = floats(batch, length, 3 * width)
    infos = {"x": TensorInfo("x", DType.FLOAT32, x.shape)}
    output = TensorInfo("y", DType.FLOAT32, (batch, length, width))
    graph = Graph("test", list(infos.values()), [output], ops, constants)
    plan = Plan(
        graph, infos, {}, VulkanBackend(device(), chooser=Forced(kernel)), CpuBackend(), run_op
    )
    try:
        assert [command.op.type for command in plan.commands] == ["StridedAttention"]
        (result,) = plan.execute({"x": x}).values()
    finally:
        plan.close()
    parts = [p.reshape(batch, length, heads, depth).swapaxes(1, 2) for p in np.split(x, 3, -1)]
    (expected,) = run_op(
        Op("Attention", "a", ["q", "k", "v"], ["y"], AttentionAttrs(0.4, True)), parts
    )
    expected = expected.swapaxes(1, 2).reshape(batch, length, width)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("is_tiled", [False, True])
@pytest.mark.parametrize(("batch", "shared", "times"), [(1, 2, 3), (2, 3, 2), (2, 1, 4)])
def test_shared_keys_are_read_where_they_lie(
    kernel: str, is_tiled: bool, batch: int, shared: int, times: int
) -> None:
    """Grouped queries: keys and values are repeated head by head, or all of them as one."""
    heads, queries, keys, depth, width = shared * times, 5, 7, 8, 12
    ops = []
    constants: dict[str, Array] = {"axis": np.array([1 if is_tiled else 2], np.int64)}
    for name, columns in (("k", depth), ("v", width)):
        repeated = (times, shared) if is_tiled else (shared, times)
        constants[f"{name}_more"] = np.array([batch, *repeated, keys, columns], np.int64)
        constants[f"{name}_all"] = np.array([batch, heads, keys, columns], np.int64)
        ops += [
            Op("Unsqueeze", f"u{name}", [name, "axis"], [f"{name}1"], OpAttrs()),
            Op("Expand", f"e{name}", [f"{name}1", f"{name}_more"], [f"{name}2"], OpAttrs()),
            Op("Reshape", f"r{name}", [f"{name}2", f"{name}_all"], [f"{name}3"], ReshapeAttrs()),
        ]
    ops.append(Op("Attention", "a", ["q", "k3", "v3", "mask"], ["y"], AttentionAttrs(0.4)))
    feeds = {
        "q": floats(batch, heads, queries, depth),
        "k": floats(batch, shared, keys, depth),
        "v": floats(batch, shared, keys, width),
        "mask": floats(heads, queries, keys),
    }
    infos = {name: TensorInfo(name, DType.FLOAT32, array.shape) for name, array in feeds.items()}
    output = TensorInfo("y", DType.FLOAT32, (batch, heads, queries, width))
    graph = Graph("test", list(infos.values()), [output], ops, constants)
    backend = VulkanBackend(device(), chooser=Forced(kernel))
    plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
    try:
        assert [command.op.type for command in plan.commands] == ["StridedAttention"]
        (result,) = plan.execute(feeds).values()
    finally:
        plan.close()
    k, v = (
        np.tile(feeds[name], (1, times, 1, 1)) if is_tiled else feeds[name].repeat(times, 1)
        for name in "kv"
    )
    attention = Op("Attention", "a", ["q", "k", "v", "mask"], ["y"], AttentionAttrs(0.4))
    (expected,) = run_op(attention, [feeds["q"], k, v, feeds["mask"]])
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


def test_more_keys_than_loops_can_count() -> None:
    op = Op("Attention", "op", ["q", "k", "v"], ["y"], AttentionAttrs(0.1))
    arrays = {"q": floats(1, 4), "k": floats(150_001, 4), "v": floats(150_001, 4)}
    infos = [TensorInfo(name, DType.FLOAT32, array.shape) for name, array in arrays.items()]
    graph = Graph("test", infos, [TensorInfo("y", DType.FLOAT32, (1, 4))], [op])
    (result,) = run_graph(graph, arrays, on_device=False)
    np.testing.assert_allclose(result, run_op(op, list(arrays.values()))[0], rtol=1e-4, atol=1e-4)
