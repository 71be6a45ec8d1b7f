from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkmnn.geometry import fuse_rasters, view_source
from vkmnn.geometry.regions import MAX_REGIONS, copy_region, row_major
from vkmnn.ir import Array, DType, Op, OpAttrs, Region, TensorInfo, View
from vkmnn.ir.ops import (
    AxisAttrs,
    PadAttrs,
    RasterAttrs,
    ReshapeAttrs,
    SplitAttrs,
    TransposeAttrs,
    UnaryAttrs,
)

Infos = Mapping[str, TensorInfo]
Interpret = Callable[[Sequence[Op], Infos, Mapping[str, Array]], dict[str, Array]]

F32 = DType.FLOAT32


def info(name: str, *shape: int, dtype: DType = F32) -> TensorInfo:
    return TensorInfo(name, dtype, shape)


def raster(
    output: str,
    inputs: Sequence[str],
    regions: Sequence[Region],
    fill: float = 0,
    ordered: bool = False,
) -> Op:
    attrs = RasterAttrs(tuple(regions), fill, ordered)
    return Op("Raster", f"make {output}", list(inputs), [output], attrs)


def shifted(size: int, src: int = 0, dst: int = 0, origin: int = 0) -> Region:
    return Region(View(src, (1,)), View(dst, (1,)), (size,), origin)


def transposition(rows: int, columns: int, origin: int = 0) -> Region:
    """From [rows, columns] to [columns, rows]."""
    return Region(View(0, (1, columns)), View(0, (rows, 1)), (columns, rows), origin)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# --- random networks ---------------------------------------------------------------------------


class Builder:
    """Builds a random network of data movement, with numpy alongside."""

    KINDS = (
        "transpose",
        "slice",
        "reshape",
        "concat",
        "pad",
        "expand",
        "split",
        "gather",
        "tile",
        "flip",
    )

    def __init__(self, net: Any, draw: st.DrawFn) -> None:
        self.net = net
        self.draw = draw
        self.values: dict[str, Array] = {}

    def input(self) -> str:
        shape = tuple(self.draw(st.lists(st.integers(0, 5), max_size=4)))
        count = sum(array.size for array in self.values.values())
        array = np.arange(count + 1, count + 1 + int(np.prod(shape)), dtype=np.int32)
        name: str = self.net.add(array.reshape(shape))
        self.values[name] = array.reshape(shape)
        return name

    def constant(self, array: Array) -> str:
        name: str = self.net.add(array, constant=True)
        return name

    def add(self, op_type: str, attrs: OpAttrs, inputs: list[str], *results: Array) -> None:
        names = self.net.op(op_type, attrs, inputs, len(results))
        for name, result in zip(names, results, strict=True):
            assert self.net.infos[name].dims == result.shape
            self.values[name] = result

    def step(self) -> None:
        name = self.draw(st.sampled_from(sorted(self.values)[-4:]))
        kind = self.draw(st.sampled_from(self.KINDS))
        getattr(self, kind)(name, self.values[name])

    def transpose(self, name: str, x: Array) -> None:
        perm = tuple(self.draw(st.permutations(range(x.ndim))))
        self.add("Transpose", TransposeAttrs(perm), [name], x.transpose(perm))

    def slice(self, name: str, x: Array) -> None:
        starts = [self.draw(st.integers(0, dim)) for dim in x.shape]
        ends = [self.draw(st.integers(0, dim)) for dim in x.shape]
        steps = [self.draw(st.integers(1, 3)) for _ in x.shape]
        index = tuple(map(slice, starts, ends, steps))
        axes = ints(*range(x.ndim))
        inputs = [self.constant(i) for i in (ints(*starts), ints(*ends), axes, ints(*steps))]
        self.add("Slice", OpAttrs(), [name, *inputs], x[index])

    def flip(self, name: str, x: Array) -> None:
        if x.ndim:
            numbers = (ints(-1), ints(-(2**62)), ints(0), ints(-1))
            self.add("Slice", OpAttrs(), [name, *map(self.constant, numbers)], x[::-1])

    def reshape(self, name: str, x: Array) -> None:
        if x.size and self.draw(st.booleans()):
            factors = [f for f in (2, 3, 4, 5, 6) if x.size % f == 0]
            first = self.draw(st.sampled_from([1, *factors]))
            target = (first, x.size // first)
        else:
            target = (x.size,)
        allowzero = ReshapeAttrs(allowzero=True)
        self.add("Reshape", allowzero, [name, self.constant(ints(*target))], x.reshape(target))

    def concat(self, name: str, x: Array) -> None:
        if not x.ndim or x.size > 500:
            return
        axis = self.draw(st.integers(0, x.ndim - 1))
        rest = x.shape[:axis] + x.shape[axis + 1 :]
        fitting = [
            other
            for other, y in self.values.items()
            if y.ndim == x.ndim and y.shape[:axis] + y.shape[axis + 1 :] == rest
        ]
        chosen = self.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=4))
        result = np.concatenate([self.values[other] for other in chosen], axis)
        self.add("Concat", AxisAttrs(axis), chosen, result)

    def split(self, name: str, x: Array) -> None:
        if not x.ndim:
            return
        axis = self.draw(st.integers(0, x.ndim - 1))
        middle = self.draw(st.integers(0, x.shape[axis]))
        sizes = self.constant(ints(middle, x.shape[axis] - middle))
        self.add("Split", SplitAttrs(axis), [name, sizes], *np.split(x, [middle], axis))

    def pad(self, name: str, x: Array) -> None:
        if not x.ndim or x.size > 500:
            return
        mode = self.draw(st.sampled_from(["constant", "constant", "reflect", "edge", "wrap"]))
        if 0 in x.shape:
            mode = "constant"
        widths = [(self.draw(st.integers(0, 2)), self.draw(st.integers(0, 3))) for _ in x.shape]
        value = np.array(self.draw(st.sampled_from([0, 0, -7])), np.int32)
        result = (
            np.pad(x, widths, constant_values=value)
            if mode == "constant"
            else np.pad(x, widths, mode=mode)  # type: ignore[call-overload]
        )
        pads = self.constant(ints(*np.array(widths, int).reshape(-1, 2).T.reshape(-1)))
        self.add("Pad", PadAttrs(mode), [name, pads, self.constant(value)], result)

    def expand(self, name: str, x: Array) -> None:
        if x.size > 500:
            return
        target = tuple(self.draw(st.integers(0, 3)) if dim == 1 else dim for dim in (1, *x.shape))
        self.add(
            "Expand",
            OpAttrs(),
            [name, self.constant(ints(*target))],
            np.broadcast_to(x, target),
        )

    def tile(self, name: str, x: Array) -> None:
        if x.size > 200:
            return
        repeats = [self.draw(st.integers(1, 2)) for _ in x.shape]
        self.add("Tile", OpAttrs(), [name, self.constant(ints(*repeats))], np.tile(x, repeats))

    def gather(self, name: str, x: Array) -> None:
        if not x.ndim or not x.shape[0]:
            return
        indices = ints(*self.draw(st.lists(st.integers(0, x.shape[0] - 1), min_size=1, max_size=4)))
        inputs = [name, self.constant(indices)]
        self.add("Gather", AxisAttrs(0), inputs, np.take(x, indices, 0))


@settings(max_examples=250, deadline=None)
@given(draw=st.data())
def test_random_networks_give_the_same_when_fused(network: type, draw: st.DataObject) -> None:
    builder = Builder(network(), draw.draw)
    for _ in range(draw.draw(st.integers(1, 2))):
        builder.input()
    for _ in range(draw.draw(st.integers(1, 7))):
        builder.step()
    made = [name for op in builder.net.ops for name in op.outputs]
    if not made:
        return
    keep = draw.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    results, fused = builder.net.run(keep)  # compares fused with plain
    for name, result in zip(keep, results, strict=True):
        np.testing.assert_array_equal(result, builder.values[name])
    assert len(fused) <= len(made)
    assert all(len(op.attrs.regions) <= 4 * MAX_REGIONS for op in fused)


# --- what must become of known chains ----------------------------------------------------------


def chain(net: Any, x: Array, *steps: tuple[str, OpAttrs, list[Array]]) -> tuple[str, str]:
    """Append ops, each reading the last one's output and constants; return first and last name."""
    first = name = net.add(x)
    for op_type, attrs, constants in steps:
        inputs = [name, *(net.add(array, constant=True) for array in constants)]
        (name,) = net.op(op_type, attrs, inputs)
    return first, name


def test_attention_heads_are_one_copy(network: type) -> None:
    net = network()
    x = np.arange(2 * 5 * 12, dtype=np.float32).reshape(2, 5, 12)
    first, last = chain(
        net,
        x,
        ("Reshape", ReshapeAttrs(), [ints(2, 5, 3, 4)]),
        ("Transpose", TransposeAttrs((0, 2, 1, 3)), []),
        ("Reshape", ReshapeAttrs(), [ints(6, 5, 4)]),
    )
    (result,), ops = net.run([last])
    np.testing.assert_array_equal(
        result, x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3).reshape(6, 5, 4)
    )
    assert [op.inputs for op in ops] == [[first]]
    assert len(ops[0].attrs.regions) == 1


def test_split_and_concat_are_a_view(network: type) -> None:
    net = network()
    x = np.arange(35, dtype=np.float32).reshape(7, 5)
    source = net.add(x)
    parts = net.op("Split", SplitAttrs(1, 3), [source], 3)
    net.run(net.op("Concat", AxisAttrs(1), parts))
    ops = net.run(["op1.0"])[1]
    assert len(ops) == 1
    assert view_source(ops[0], net.infos) == source


def test_channel_shuffle_by_slices_is_one_region(network: type) -> None:
    net = network()
    x = np.arange(2 * 6 * 5, dtype=np.float32).reshape(2, 6, 5)
    source = net.add(x)
    order = [0, 3, 1, 4, 2, 5]
    parts = []
    for at in order:
        bounds = [net.add(ints(number), constant=True) for number in (at, at + 1, 1)]
        parts += net.op("Slice", OpAttrs(), [source, *bounds])
    results, ops = net.run(net.op("Concat", AxisAttrs(1), parts))
    np.testing.assert_array_equal(results[0], x[:, order])
    assert len(ops) == 1
    assert len(ops[0].attrs.regions) == 1


def test_a_permuted_padding_keeps_its_fill(network: type) -> None:
    net = network()
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    first, last = chain(
        net,
        x,
        ("Pad", PadAttrs(), [ints(1, 0, 0, 2), np.array(9, np.float32)]),
        ("Transpose", TransposeAttrs((1, 0)), []),
        ("Pad", PadAttrs(), [ints(0, 1, 0, 1), np.array(9, np.float32)]),
    )
    _, ops = net.run([last])
    assert [op.inputs for op in ops] == [[first]]
    assert ops[0].attrs.fill == 9


def test_paddings_with_different_fills_are_two_copies(network: type) -> None:
    net = network()
    _, last = chain(
        net,
        np.ones((3, 5), np.float32),
        ("Pad", PadAttrs(), [ints(1, 0, 0, 2), np.array(9, np.float32)]),
        ("Pad", PadAttrs(), [ints(0, 1, 0, 1), np.array(8, np.float32)]),
    )
    _, ops = net.run([last])
    assert len(ops) == 2


def test_cropping_a_padding_away_leaves_a_view(network: type) -> None:
    net = network()
    first, last = chain(
        net,
        np.ones((3, 5), np.float32),
        ("Pad", PadAttrs(), [ints(1, 2, 3, 4)]),
        ("Pad", PadAttrs(), [ints(-1, -2, -3, -4)]),
    )
    _, ops = net.run([last])
    assert [view_source(op, net.infos) for op in ops] == [first]


def test_a_result_that_is_needed_anyway_is_read_unless_regions_stay_as_few(
    interpret: Interpret,
) -> None:
    infos = {i.name: i for i in (info("a", 6), info("b", 6), info("c", 12), info("d", 12))}
    infos |= {i.name: i for i in (info("e", 5), info("f", 12))}
    ops = [
        raster("c", ["a", "b"], [shifted(6), shifted(6, 0, 6, 1)]),
        Op("UnaryOp", "f", ["c"], ["f"], UnaryAttrs("ABS")),
        raster("d", ["c"], [transposition(3, 4)]),  # would be four regions
        raster("e", ["c"], [shifted(5, 7)]),  # one region of b
    ]
    fused = fuse_rasters(ops, infos, {"d", "e", "f"})
    assert {op.outputs[0]: op.inputs for op in fused} == {
        "c": ["a", "b"],
        "f": ["c"],
        "d": ["c"],
        "e": ["b"],
    }
    feeds = {name: np.arange(6, dtype=np.float32) + shift for name, shift in (("a", 0), ("b", 9))}
    plain, after = interpret(ops, infos, feeds), interpret(fused, infos, feeds)
    for name in ("d", "e", "f"):
        np.testing.assert_array_equal(plain[name], after[name])


def test_too_many_regions_are_not_composed() -> None:
    side = 2 * MAX_REGIONS + 1
    infos = {f"x{n}": info(f"x{n}", 3) for n in range(side)}
    infos |= {name: info(name, 3 * side) for name in ("y", "z")}
    ops = [
        raster("y", [f"x{n}" for n in range(side)], [shifted(3, 0, 3 * n, n) for n in range(side)]),
        raster("z", ["y"], [transposition(side, 3)]),
    ]
    assert fuse_rasters(ops, infos, {"z"}) == ops


def test_concats_of_views_may_have_any_number_of_regions() -> None:
    count = 2 * MAX_REGIONS
    infos = {i.name: i for n in range(count) for i in (info(f"x{n}", 3), info(f"v{n}", 3, 1))}
    infos["y"] = info("y", count * 3)
    views = [raster(f"v{n}", [f"x{n}"], [copy_region(3)]) for n in range(count)]
    regions = [shifted(3, 0, 3 * n, n) for n in range(count)]
    concat = raster("y", [f"v{n}" for n in range(count)], regions)
    (op,) = fuse_rasters([*views, concat], infos, {"y"})
    assert op.inputs == [f"x{n}" for n in range(count)]


def test_equal_rasters_become_one(interpret: Interpret) -> None:
    infos = {name: info(name, 3, 2) for name in ("a", "b", "y", "z")}
    infos["x"] = info("x", 2, 3)
    ops = [
        raster("a", ["x"], [transposition(2, 3)]),
        raster("b", ["x", "x"], [transposition(2, 3, 1)]),
        Op("UnaryOp", "u", ["a"], ["y"], UnaryAttrs("ABS")),
        Op("UnaryOp", "v", ["b"], ["z"], UnaryAttrs("SQUARE")),
    ]
    fused = fuse_rasters(ops, infos, {"y", "z"})
    assert [op.inputs for op in fused] == [["x"], ["a"], ["a"]]
    assert [op.outputs for op in fuse_rasters(ops, infos, {"b", "y", "z"})] == [
        ["a"],
        ["b"],
        ["y"],
        ["z"],
    ]


def test_fills_that_compare_equal_but_differ_are_kept_apart() -> None:
    infos = {i.name: i for i in (info("a", 3), info("b", 3), info("y", 3), info("z", 3))}
    ops = [
        raster("a", [], [], 0.0),
        raster("b", [], [], -0.0),
        Op("UnaryOp", "u", ["a"], ["y"], UnaryAttrs("RECIPROCAL")),
        Op("UnaryOp", "v", ["b"], ["z"], UnaryAttrs("RECIPROCAL")),
    ]
    assert [op.outputs[0] for op in fuse_rasters(ops, infos, {"y", "z"})] == ["a", "b", "y", "z"]


def test_nothing_reads_through_an_ordered_raster(interpret: Interpret) -> None:
    infos = {i.name: i for i in (info("x", 5), info("p", 3), info("y", 5), info("z", 5))}
    ops = [
        raster("y", ["x", "p"], [shifted(5), shifted(3, 0, 1, 1)], ordered=True),
        raster("z", ["y"], [Region(View(4, (-1,)), View(0, (1,)), (5,))]),
    ]
    assert fuse_rasters(ops, infos, {"z"}) == ops


def test_an_ordered_raster_reads_through_others_in_its_order(interpret: Interpret) -> None:
    infos = {i.name: i for i in (info("x", 5), info("v", 5), info("p", 3), info("q", 3, 1))}
    infos["y"] = info("y", 5)
    ops = [
        raster("v", ["x"], [Region(View(4, (-1,)), View(0, (1,)), (5,))]),
        raster("q", ["p"], [copy_region(3)]),
        raster("y", ["v", "q"], [shifted(5), shifted(3, 0, 1, 1)], ordered=True),
    ]
    (op,) = fused = fuse_rasters(ops, infos, {"y"})
    assert op.inputs == ["x", "p"]
    feeds = {"x": np.arange(5, dtype=np.float32), "p": np.arange(10, 13, dtype=np.float32)}
    np.testing.assert_array_equal(
        interpret(ops, infos, feeds)["y"], interpret(fused, infos, feeds)["y"]
    )


def test_an_ordered_raster_does_not_take_over_a_fill() -> None:
    infos = {i.name: i for i in (info("x", 3), info("v", 5), info("w", 5), info("y", 5))}
    ops = [
        raster("v", ["x"], [shifted(3, 0, 1)]),
        raster("y", ["w", "v"], [shifted(5), shifted(5, 0, 0, 1)], ordered=True),
    ]
    assert fuse_rasters(ops, infos, {"y"}) == ops


def test_unread_rasters_go_and_other_ops_stay() -> None:
    infos = {i.name: i for i in (info("x", 3), info("a", 3), info("b", 3), info("y", 3))}
    ops = [
        raster("a", ["x"], [copy_region(3)]),
        raster("b", ["a"], [copy_region(3)]),
        Op("UnaryOp", "u", ["x"], ["y"], UnaryAttrs("ABS")),
    ]
    assert [op.name for op in fuse_rasters(ops, infos, set())] == ["u"]


def test_ops_are_not_changed_in_place() -> None:
    infos = {i.name: i for i in (info("x", 2, 3), info("a", 3, 2), info("y", 6))}
    ops = [
        raster("a", ["x"], [transposition(2, 3)]),
        raster("y", ["a"], [copy_region(6)]),
    ]
    before = [(list(op.inputs), op.attrs) for op in ops]
    fuse_rasters(ops, infos, {"y"})
    assert [(op.inputs, op.attrs) for op in ops] == before


# --- views -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "output", "regions", "expected"),
    [
        (info("x", 2, 3), info("y", 6), [copy_region(6)], "x"),
        (info("x", 2, 3), info("y", 3, 2), [Region(View(0, (3, 1)), View(0, (3, 1)), (2, 3))], "x"),
        (info("x"), info("y", 1, 1), [copy_region(1)], "x"),
        (info("x", 7), info("y", 6), [copy_region(6)], None),
        (info("x", 6), info("y", 7), [copy_region(6)], None),
        (info("x", 6), info("y", 6), [Region(View(5, (-1,)), View(0, (1,)), (6,))], None),
        (info("x", 6), info("y", 6), [copy_region(3), shifted(3, 3, 3)], None),
        (info("x", 6, dtype=DType.INT32), info("y", 6), [copy_region(6)], None),
        (info("x", 0), info("y", 0, 3), [], None),
    ],
)
def test_view_source(
    source: TensorInfo, output: TensorInfo, regions: list[Region], expected: str | None
) -> None:
    op = raster("y", ["x"], regions)
    assert view_source(op, {"x": source, "y": output}) == expected


def test_other_ops_are_no_views() -> None:
    op = Op("UnaryOp", "u", ["x"], ["y"], UnaryAttrs("ABS"))
    assert view_source(op, {"x": info("x", 3), "y": info("y", 3)}) is None


def test_row_major_of_a_scalar() -> None:
    assert row_major(()) == ()
