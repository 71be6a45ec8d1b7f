"""Concats and slices without a copy: producers write in place, parts are views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.ir import Array, Graph, Op, OpAttrs
from vkmnn.ir.ops import AxisAttrs, PoolingAttrs, UnaryAttrs
from vkmnn.testing.case import Case, tensor_info
from vkmnn.testing.runner import Picker, dispatched_by, run_case
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder

POOL = PoolingAttrs("AVERAGE", (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))


def floats(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def unary(kind: str, source: str, target: str) -> Op:
    return Op("UnaryOp", target, [source], [target], UnaryAttrs(kind))


def concat(sources: Sequence[str], target: str, axis: int = 1) -> Op:
    return Op("Concat", target, list(sources), [target], AxisAttrs(axis))


def slice_op(source: str, target: str, numbers: Sequence[int]) -> tuple[Op, dict[str, Array]]:
    """Return a slice with (start, end, axis), and its constants."""
    names = [f"{target}.{what}" for what in ("start", "end", "axis")]
    values = {n: np.array([v], np.int64) for n, v in zip(names, numbers, strict=True)}
    return Op("Slice", target, [source, *names], [target], OpAttrs()), values


def run(
    feeds: dict[str, Array],
    ops: Sequence[Op],
    shapes: dict[str, tuple[int, ...]],
    constants: dict[str, Array] | None = None,
) -> int:
    """Compare with numpy on the device; return how many kinds of copies were dispatched."""
    graph = Graph(
        "views",
        [tensor_info(name, array) for name, array in feeds.items()],
        [tensor_info(name, np.zeros(shape, np.float32)) for name, shape in shapes.items()],
        list(ops),
        constants or {},
    )
    case = Case(graph, feeds)
    run_case(case, device(), {})
    names = dispatched_by(case, device(), Picker({}))
    return sum(name.startswith(("raster", "copy")) for name in names)


def blocked(*names: str) -> list[Op]:
    """Return poolings of one pixel, whose results are channel-blocked."""
    return [Op("Pooling", f"{n}.pool", [n], [f"{n}.pool"], POOL) for n in names]


def copies() -> int:
    """Return the kinds of copies that parts of whole 256 bytes need: none if they can be bound."""
    limits = device().info.limits
    return int(limits.whole_buffers or limits.storage_offset_alignment > 256)


@pytest.mark.parametrize("channels", [(4, 8), (8, 4, 12), (16, 5)])
@pytest.mark.parametrize("batch", [1, 3])
def test_concat_of_blocked_tensors(channels: tuple[int, ...], batch: int) -> None:
    feeds = {f"x{i}": floats(batch, c, 4, 8) for i, c in enumerate(channels)}
    ops = [*blocked(*feeds), concat([f"{n}.pool" for n in feeds], "all"), *blocked("all")]
    assert run(feeds, ops, {"all.pool": (batch, sum(channels), 4, 8)}) == copies()


def test_concat_of_plain_tensors() -> None:
    feeds = {"a": floats(4, 16), "b": floats(12, 16)}
    ops = [unary("NEG", "a", "c"), unary("ABS", "b", "d"), concat(["c", "d"], "all", 0)]
    assert run(feeds, ops, {"all": (16, 16)}) == copies()


def test_parts_that_are_read_and_returned_as_well() -> None:
    feeds = {"a": floats(4, 16), "b": floats(12, 16)}
    ops = [
        *(unary("NEG", "a", "c"), unary("ABS", "b", "d")),
        concat(["c", "d"], "all", 0),
        *(unary("EXP", "c", "e"), unary("NEG", "all", "f")),
    ]
    run(feeds, ops, {"c": (4, 16), "all": (16, 16), "e": (4, 16), "f": (16, 16)})


def test_growing_concats() -> None:
    feeds = {"x0": floats(1, 8, 4, 4), "x1": floats(1, 4, 4, 4), "x2": floats(1, 4, 4, 4)}
    ops = [
        *blocked("x0", "x1", "x2"),
        concat(["x0.pool", "x1.pool"], "first"),
        *blocked("first"),
        concat(["first", "x2.pool"], "second"),
        *blocked("second"),
    ]
    shapes = {"first.pool": (1, 12, 4, 4), "second.pool": (1, 16, 4, 4)}
    assert run(feeds, ops, shapes) == copies()


@pytest.mark.parametrize(
    ("sources", "shape"),
    [
        (("c", "c"), (8, 16)),  # the same tensor twice
        (("a", "c"), (8, 16)),  # an input of the network
        (("c", "odd"), (9, 16)),  # reaches to the end, with 16 elements
    ],
)
def test_concat_that_needs_copies(sources: tuple[str, ...], shape: tuple[int, int]) -> None:
    feeds = {"a": floats(4, 16), "b": floats(5, 16)}
    ops = [unary("NEG", "a", "c"), unary("NEG", "b", "odd"), concat(sources, "all", 0)]
    run(feeds, ops, {"all": shape, "c": (4, 16), "odd": (5, 16)})


@pytest.mark.parametrize("rows", [(3, 5), (7, 2), (1, 1)])
def test_rows_that_end_inside_a_vec4(rows: tuple[int, int]) -> None:
    feeds = {"a": floats(rows[0], 3), "b": floats(rows[1], 3)}
    ops = [unary("NEG", "a", "c"), unary("ABS", "b", "d"), concat(["d", "c"], "all", 0)]
    run(feeds, ops, {"all": (sum(rows), 3)})


@pytest.mark.parametrize("channel", [0, 4, 8])
def test_slice_of_whole_blocks(channel: int) -> None:
    feeds = {"x": floats(2, 12, 4, 8)}
    cut, constants = slice_op("x.pool", "part", (channel, channel + 4, 1))
    ops = [*blocked("x"), cut, *blocked("part")]
    assert run(feeds, ops, {"part.pool": (2, 4, 4, 8)}, constants) == copies()


@pytest.mark.parametrize(("start", "end"), [(0, 3), (1, 4), (2, 7), (4, 8), (0, 7)])
def test_slice_of_rows(start: int, end: int) -> None:
    feeds = {"x": floats(8, 5)}
    cut, constants = slice_op("y", "part", (start, end, 0))
    ops = [unary("NEG", "x", "y"), cut, unary("EXP", "part", "z")]
    run(feeds, ops, {"z": (end - start, 5), "y": (8, 5)}, constants)


def test_slice_concat_back_to_front() -> None:
    feeds = {"x": floats(8, 16)}
    first, constants = slice_op("y", "first", (0, 4, 0))
    second, more = slice_op("y", "second", (4, 8, 0))
    ops = [
        *(unary("NEG", "x", "y"), first, second),
        *(unary("EXP", "first", "e"), unary("ABS", "second", "a")),
        concat(["a", "e", "first"], "all", 0),
    ]
    run(feeds, ops, {"all": (12, 16)}, constants | more)


def test_narrow_pieces_are_moved_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU devices, where finding an element takes longer than moving it."""
    if is_gpu(device().info):
        pytest.skip("GPUs want neighbours to write side by side")
    counts: list[int] = []
    dispatch = VulkanEncoder.dispatch_linear

    def counted(
        self: VulkanEncoder, shader: Any, tensors: Any, params: Any, *more: Any, **how: Any
    ) -> None:
        if shader.name.startswith("raster_1"):
            counts.append(params.count)
        dispatch(self, shader, tensors, params, *more, **how)

    monkeypatch.setattr(VulkanEncoder, "dispatch_linear", counted)
    names = [f"x{place}" for place in range(13)]
    feeds = {name: floats(1500 + place, 3)[:1500] for place, name in enumerate(names)}
    run(feeds, [concat(names, "y")], {"y": (1500, 39)})
    assert len(counts) >= 13
    assert set(counts) == {1500}
