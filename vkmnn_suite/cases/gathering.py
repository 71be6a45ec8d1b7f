"""Cases of the gathering and scattering kernels, and of `one_hot`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, cast

import numpy as np

from vkmnn.base.packed_rows import pack_rows
from vkmnn.cpu_fallback.registry import AnyArray, run_op
from vkmnn.ir import Array, Graph, Op, OpAttrs
from vkmnn.ir.ops import (
    AppendAttrs,
    AxisAttrs,
    GatherNDAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
    UnaryAttrs,
    UnpackRowsAttrs,
)
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases, tensor_info
from vkmnn.testing.shapes import floats, integers, whole
from vkmnn.vulkan.sorting.scatter import AtOnce, InOrder
from vkmnn_suite.cases.rows import taking

Shape = tuple[int, ...]
PackedRows = Literal["f16", "i8"]

_OUTSIDE = "outside"
_REDUCTIONS = ("none", "add", "mul", "max", "min")
# Data, indices and axis, by the words that move at a time.
_GATHERS: dict[int, tuple[tuple[Shape, Shape, int], ...]] = {
    1: (((1,), (), 0), ((7,), (5,), 0), ((5, 3), (2, 2), 0), ((5, 3), (4,), 1),
        ((2, 5, 3), (7,), 1), ((3, 2, 5), (3, 11), -1), ((4, 3), (0,), 0),
        ((4, 0), (3,), 0), ((11, 13), (17,), 0)),
    4: (((5, 4), (), 0), ((7, 8), (5,), 0), ((2, 5, 4), (7,), 1), ((3, 2, 3, 4), (2, 3), 1),
        ((4, 4), (0,), 0), ((11, 12), (37,), 0)),
}  # fmt: skip
_ELEMENTS: tuple[tuple[Shape, Shape, int], ...] = (
    ((1,), (1,), 0),
    ((7,), (5,), 0),
    ((5, 3), (5, 3), 0),
    ((5, 3), (4, 2), 1),
    ((2, 5, 3), (2, 7, 3), 1),
    ((3, 2, 5), (2, 2, 4), -1),
    ((5, 3), (0, 3), 0),
    ((3, 4, 5), (2, 11, 3), 1),
    ((3, 2, 3, 2, 3, 4), (2, 2, 2, 2, 2, 3), 2),
    ((3, 2, 3, 2, 3, 2), (2, 1, 2, 2, 2, 5), 5),
    ((3, 4, 5, 4, 3, 5), (2, 3, 4, 3, 2, 4), 0),
    ((4, 3, 5, 3, 4, 2), (3, 2, 4, 2, 3, 7), 5),
    ((3, 2, 3, 2, 3, 2), (5, 2, 2, 1, 2, 1), 0),
)
# Data, indices without their last axis, size of a tuple, batch axes.
_TUPLES: tuple[tuple[Shape, Shape, int, int], ...] = (
    ((7,), (5,), 1, 0),
    ((5, 3), (4,), 2, 0),
    ((5, 3), (2, 3), 1, 0),
    ((3, 4, 5), (7,), 2, 0),
    ((3, 4, 5), (), 3, 0),
    ((2, 5, 3), (2, 4), 1, 1),
    ((2, 3, 4, 5), (2, 3, 2), 1, 2),
    ((2, 3, 4, 5), (2, 7), 2, 1),
    ((5, 3), (0,), 2, 0),
    ((2, 3, 2, 3, 2, 4), (13,), 6, 0),
    ((2, 3, 2, 3, 2, 4), (5,), 4, 0),
)


def _data(number: int, *shape: int) -> AnyArray:
    """Return data of one of the types that move as words."""
    made = integers(*shape, low=0, high=99)
    dtypes = (np.float32, np.int32, np.int64, np.uint8, np.float16, np.bool_)
    dtype = dtypes[number % len(dtypes)]
    return made % 2 == 1 if dtype is np.bool_ else made.astype(dtype)


def _indices(size: int, *shape: int, seed: int = 0) -> AnyArray:
    """Return indices of an axis, negative ones among them."""
    if size == 0:
        return np.zeros(shape, np.int64)
    return integers(*shape, seed=seed, low=-size, high=size - 1).astype(np.int64)


def _ends(index: AnyArray, size: int) -> AnyArray:
    """Let indices include both ends of their range."""
    for place, end in zip(range(index.size), (size - 1, -size, 0, -1), strict=False):
        index.flat[place] = end
    return index


def _computed(case: Case) -> Case:
    """Return a case whose input 1 comes from an op on the device, which negates the fed value."""
    graph = case.graph
    (op,) = graph.ops
    before = Op("UnaryOp", "before", ["in1"], ["computed"], UnaryAttrs("NEG"))
    names = [op.inputs[0], "computed", *op.inputs[2:]]
    after = Op(op.type, op.name, names, op.outputs, op.attrs)
    made = Graph(graph.name, graph.inputs, graph.outputs, [before, after], graph.constants)
    return replace(case, graph=made, feeds={**case.feeds, "in1": np.negative(case.feeds["in1"])})


def _refused(case: Case, place: int, index: int) -> Case:
    """Return a case in which one number of input 1 is an index outside of its axis."""
    bad = case.feeds["in1"].copy()
    bad.flat[place] = index
    return replace(case, feeds={**case.feeds, "in1": bad}, raises=_OUTSIDE)


def _exact(op_type: str, attrs: OpAttrs, inputs: Sequence[Array | None]) -> Case:
    return op_case(op_type, attrs, inputs, rtol=0, atol=0)


@op_cases
def gathers() -> Iterator[Case]:
    """Every axis, indices from both ends; scalars, none; bools and narrow integers."""
    for shape, axis in product(((5, 7, 8), (3, 11, 13), (5, 5, 1)), (0, 1, 2, -1)):
        yield _exact("Gather", AxisAttrs(axis), [floats(*shape), _indices(shape[axis], 2, 6)])
    for where in (3, [3], [], [[0], [-1]]):
        yield _exact("Gather", AxisAttrs(0), [floats(5), np.array(where, np.int64)])
    swapped = np.array([1, 0], np.int64)
    for data in (np.array([True, False]), np.array([[7], [250]], np.uint8)):
        yield _exact("Gather", AxisAttrs(0), [data, swapped])


@op_cases
def gathers_of_elements() -> Iterator[Case]:
    """Indices over part of the data; eight axes, there and back; tuples of indices."""
    for axis in (0, 1, 2):
        index = _indices(5, 3, 4, 5)
        yield _exact("GatherElements", AxisAttrs(axis), [floats(5, 7, 8), index])
    for axis in (0, 3, 7, -1):
        shape = [2, 3, 1, 2, 2, 1, 3, 2]
        data, size = floats(*shape), shape[axis]
        shape[axis] = 1
        index = _indices(size, *shape)
        yield _exact("GatherElements", AxisAttrs(axis), [data, index])
        attrs = ScatterElementsAttrs(axis, "add")
        yield op_case("ScatterElements", attrs, [data, index, floats(*shape, seed=1)])
    index = _indices(2, 1, 2, 1, 2, 1, 2, 1)
    yield _exact("GatherElements", AxisAttrs(0), [floats(2, 3, 2, 3, 2, 3, 2), index])
    tuples: tuple[tuple[int, Shape, Shape], ...] = (
        (0, (5, 7, 8), (3, 2)), (1, (3, 7, 8), (3, 4, 1)), (0, (5, 7, 8), (3, 3)), (0, (5,), (1,)),
    )  # fmt: skip
    for batch, data_shape, indices in tuples:
        low = min(data_shape[batch : batch + indices[-1]])
        inputs = [floats(*data_shape), _indices(low, *indices)]
        yield _exact("GatherND", GatherNDAttrs(batch), inputs)


@op_cases
def scatters() -> Iterator[Case]:
    """Every reduction, repeated rows; more updates than a loop can count: the last wins."""
    for reduction, dtype in product(_REDUCTIONS, (np.float32, np.int32)):
        rows = [[1, 2]] * 2 + [[0, 0], [1, 2]]
        data, updates = (10 * floats(5, 7, 8)).astype(dtype), 10 * floats(len(rows), 8)
        inputs: list[Array | None] = [data, np.array(rows, np.int64), updates.astype(dtype)]
        yield op_case("ScatterND", ScatterNDAttrs(reduction), inputs)
    rng = np.random.default_rng(0)
    for reduction in _REDUCTIONS:
        index = np.array([[rng.permutation(7)[:4] - 3 for _ in range(6)] for _ in range(3)])
        index = np.ascontiguousarray(index.swapaxes(1, 2), np.int64)
        inputs = [floats(5, 7, 8), index, floats(3, 4, 6)]
        yield op_case("ScatterElements", ScatterElementsAttrs(1, reduction), inputs)
    index = integers(70_001, 1, low=0, high=2).astype(np.int64)
    inputs = [np.zeros(3, np.int32), index, np.ones(70_001, np.int32)]
    yield _exact("ScatterND", ScatterNDAttrs("add"), inputs)
    inputs = [np.zeros(3, np.int32), index, np.arange(70_001, dtype=np.int32)]
    for constant in ((), (1,)):
        attrs = ScatterNDAttrs()
        yield op_case("ScatterND", attrs, inputs, constant=constant, rtol=0, atol=0)
    index = integers(70_001, low=-3, high=2).astype(np.int64)
    inputs = [np.zeros(3, np.int32), index, np.arange(70_001, dtype=np.int32)]
    for reduction in ("none", "max"):
        yield _exact("ScatterElements", ScatterElementsAttrs(0, reduction), inputs)


@op_cases
def one_hots() -> Iterator[Case]:
    """Every axis, indices outside, depths as numbers and as lists of one."""
    index = np.array([[1, -1], [9, 0]], np.int64)
    for axis in (-1, 0, 1):
        for depth, values in ((5, floats(2)), ([5], np.array([2, 7], np.int64))):
            inputs = [index, np.array(depth, np.int64), values]
            yield op_case("OneHot", AxisAttrs(axis), inputs, constant={1})


@shader_cases("gather")
def gather(variant: Variant) -> Iterator[Case]:
    """Indices that are fed, constant, or computed and then checked on the device."""
    width = int(variant.axes["width"])
    for number, (shape, indices, axis) in enumerate(_GATHERS[width]):
        index = _ends(_indices(shape[axis], *indices), shape[axis])
        data = _data(number, *shape)
        yield _exact("Gather", AxisAttrs(axis), [data, index])
        yield op_case("Gather", AxisAttrs(axis), [data, index], constant={1}, rtol=0, atol=0)
        if index.size:
            yield _computed(_exact("Gather", AxisAttrs(axis), [data, index.astype(np.int32)]))
    case = _computed(
        _exact("Gather", AxisAttrs(1), [floats(3, 5, 2 * width), np.array([0, 4, -5, 1])])
    )
    # The fed values are negated: -5 is the first index past the end of the axis.
    for place, bad in ((0, 6), (1, -5), (3, 900), (2, -900)):
        yield _refused(case, place, bad)
    yield replace(case, feeds={**case.feeds, "in1": np.array([5, -4, 1, 0])})


@shader_cases("gather_elements")
def gather_elements(variant: Variant) -> Iterator[Case]:
    """Shapes that alternate over up to six axes."""
    for number, (shape, indices, axis) in enumerate(_ELEMENTS):
        index = _ends(_indices(shape[axis], *indices), shape[axis])
        case = _exact("GatherElements", AxisAttrs(axis), [_data(number, *shape), index])
        yield case
        if index.size:
            yield _computed(case)
    case = _computed(
        _exact("GatherElements", AxisAttrs(1), [floats(2, 5), np.array([[0, 4, -5], [1, 2, 3]])])
    )
    for place, bad in ((0, 6), (1, -5), (5, -6), (2, 900)):
        yield _refused(case, place, bad)


@shader_cases("gather_nd")
def gather_nd(variant: Variant) -> Iterator[Case]:
    """Tuples of one to six indices, with and without batch axes."""
    for number, (shape, indices, depth, batch) in enumerate(_TUPLES):
        sizes = shape[batch : batch + depth]
        columns = [_ends(_indices(s, *indices, seed=k), s) for k, s in enumerate(sizes)]
        index = np.stack(columns, -1)
        yield _exact("GatherND", GatherNDAttrs(batch), [_data(number, *shape), index])
    case = _exact("GatherND", GatherNDAttrs(), [floats(3, 5, 2), np.array([[0, 4], [-3, -5]])])
    yield case
    for place, bad in ((0, 3), (0, -4), (1, 5), (3, -6), (2, 900)):
        yield _refused(case, place, bad)


def _updates(reduction: str, dtype: str, *shape: int, seed: int) -> AnyArray:
    """Return numbers that combine exactly, in the dtypes that a kernel serves."""
    if reduction == "mul":
        made = whole(*shape, seed=seed, low=-2, high=2)
    else:
        made = whole(*shape, seed=seed, low=-50, high=50)
    return made if dtype == "f32" else made.astype(np.int32)


_AT_ONCE = {"scatter": AtOnce()}


@shader_cases("scatter_nd")
def scatter_nd(variant: Variant) -> Iterator[Case]:
    """Tuples of one to six indices, many of them repeated."""
    for reduction in _REDUCTIONS:
        for case in _scattered_tuples(reduction, variant.dtype):
            yield taking(case, {"scatter": InOrder()})


@shader_cases("scatter_place")
def scatter_place(variant: Variant) -> Iterator[Case]:
    """The same, and indices along an axis, when all are gathered at once."""
    cases = _scattered_tuples if variant.axes["kind"] == "tuples" else _scattered_elements
    for reduction in ("none", "add"):
        for case in cases(reduction, "i32"):
            yield taking(case, _AT_ONCE)


# Rows, updates, elements of a row.
_SCATTERS = ((1, 1, 1), (1, 300, 3), (3, 64, 1), (16, 65, 5), (17, 127, 1), (2, 1_001, 7),
             (5_000, 129, 1), (300, 1_000, 1), (70_001, 257, 3))  # fmt: skip


@shader_cases("scatter_claim")
def scatter_claim(variant: Variant) -> Iterator[Case]:
    """Rows of one update, of none, of many."""
    for rows, count, inner in _SCATTERS:
        yield _many("none", "f32", rows, count, inner)


@shader_cases("scatter_write")
def scatter_write(variant: Variant) -> Iterator[Case]:
    """The same, of whole vectors and others, by indices that are given with the run or before."""
    width = int(variant.axes["width"])
    for rows, count, inner in _SCATTERS:
        case = _many("none", "f32", rows, count, width * inner)
        yield case
        yield _many("none", "f32", rows, count, width * inner, constant=True)


@shader_cases("scatter_runs")
def scatter_runs(variant: Variant) -> Iterator[Case]:
    """Runs within a block and across many, alone and with others; none; single elements."""
    for reduction in _REDUCTIONS[1:]:
        for rows, count, inner in _SCATTERS:
            for constant in (False, True):
                yield _many(reduction, variant.dtype, rows, count, inner, constant=constant)
    if variant.dtype == "f32":
        special = np.array([np.nan, np.inf, -np.inf, 1, -0.0], np.float32)
        index = integers(200, 1, low=0, high=4).astype(np.int64)
        for reduction in ("max", "min"):
            case = _exact("ScatterND", ScatterNDAttrs(reduction), [special, index, floats(200)])
            yield taking(case, _AT_ONCE)
    yield _many("add", variant.dtype, 4, 0, 2)
    yield _many("add", variant.dtype, 4, 3, 0)


def _many(
    reduction: str, dtype: str, rows: int, count: int, inner: int, *, constant: bool = False
) -> Case:
    """Return a case of updates to rows, half of which go to the first row."""
    index = integers(count, 1, low=-rows, high=rows - 1).astype(np.int64)
    index[::2] = 0
    updates = _updates(reduction, dtype, count, inner, seed=2)
    if reduction == "mul":
        updates = np.where(updates < 0, -1, 1).astype(updates.dtype)
    inputs: list[Array | None] = [_updates(reduction, dtype, rows, inner, seed=1), index, updates]
    attrs = ScatterNDAttrs(reduction)
    if constant:
        return op_case("ScatterND", attrs, inputs, constant={1}, rtol=0, atol=0)
    return taking(_exact("ScatterND", attrs, inputs), _AT_ONCE)


def _scattered_tuples(reduction: str, dtype: str) -> Iterator[Case]:
    attrs = ScatterNDAttrs(reduction)
    for shape, indices, depth, batch in _TUPLES:
        if batch:
            continue
        sizes = shape[:depth]
        columns = [_ends(_indices(s, *indices, seed=k), s) for k, s in enumerate(sizes)]
        index = np.stack(columns, -1)
        data = _updates(reduction, dtype, *shape, seed=1)
        updates = _updates(reduction, dtype, *index.shape[:-1], *shape[depth:], seed=2)
        wide = np.float16 if dtype == "f32" else np.int64
        for kind in (data.dtype, wide):
            yield _exact("ScatterND", attrs, [data.astype(kind), index, updates.astype(kind)])
    data = _updates(reduction, dtype, 3, 5, 2, seed=1)
    updates = _updates(reduction, dtype, 2, 2, seed=2)
    case = _exact("ScatterND", attrs, [data, np.array([[0, 4], [-3, -4]]), updates])
    yield case
    for place, number in ((0, 3), (0, -4), (1, 5), (3, -6), (2, 900)):
        yield _refused(case, place, number)
    index = np.array([[1, 2, 1, 2, 1, 3], [-1, -1, -1, -1, -1, -1]])
    data = _updates(reduction, dtype, 2, 3, 2, 3, 2, 4, seed=1)
    case = _exact("ScatterND", attrs, [data, index, updates[0]])
    yield case
    for place in range(6):
        yield _refused(case, place, data.shape[place])
        yield _refused(case, 6 + place, -1 - data.shape[place])


@shader_cases("scatter_elements")
def scatter_elements(variant: Variant) -> Iterator[Case]:
    """Shapes that alternate over up to six axes; repeated indices apply in order."""
    for reduction in _REDUCTIONS:
        for case in _scattered_elements(reduction, variant.dtype):
            yield taking(case, {"scatter": InOrder()})


def _scattered_elements(reduction: str, dtype: str) -> Iterator[Case]:
    # Lines leave out their own axis: this one has six others.
    for shape, indices, axis in (*_ELEMENTS, ((3,) * 7, (2,) * 7, 3)):
        index = _ends(_indices(shape[axis], *indices), shape[axis])
        data = _updates(reduction, dtype, *shape, seed=1)
        updates = _updates(reduction, dtype, *indices, seed=2)
        attrs = ScatterElementsAttrs(axis, reduction)
        wide = np.float16 if dtype == "f32" else np.int64
        case = _exact("ScatterElements", attrs, [data, index, updates])
        yield case
        if index.size:
            yield _computed(case)
        yield _exact("ScatterElements", attrs, [data.astype(wide), index, updates.astype(wide)])
    if dtype == "f32" and reduction in ("max", "min"):
        data = np.array([np.nan, 1, 2, np.inf, -np.inf, np.nan, -1], np.float32)
        updates = np.array([1, np.nan, 3, np.nan, 0, np.nan, -np.inf], np.float32)
        attrs = ScatterElementsAttrs(0, reduction)
        yield _exact("ScatterElements", attrs, [data, np.arange(7), updates])
    data = _updates(reduction, dtype, 2, 5, seed=1)
    updates = _updates(reduction, dtype, 2, 3, seed=2)
    index = np.array([[0, 4, -5], [1, 2, 3]])
    attrs = ScatterElementsAttrs(1, reduction)
    case = _computed(_exact("ScatterElements", attrs, [data, index, updates]))
    for place, number in ((0, 6), (1, -5), (5, -6), (2, 900)):
        yield _refused(case, place, number)


@shader_cases("one_hot")
def one_hot(variant: Variant) -> Iterator[Case]:
    """Indices in and out of range, along every axis, with values of several types."""
    dtype = variant.dtype
    shapes: tuple[tuple[Shape, int], ...] = (
        ((), 0), ((1,), 0), ((0,), 0), ((7,), -1), ((5, 3), 0), ((5, 3), 1), ((5, 3), 2),
        ((2, 3, 11), 1), ((4,), 0),
    )  # fmt: skip
    for number, (shape, axis) in enumerate(shapes):
        for depth in (1, 5):
            index = _ends(integers(*shape, low=-7, high=7), depth)
            kinds = (np.float32, np.float16) if dtype == "f32" else (np.int32, np.int64, np.int8)
            values = _data(number, 2)
            if values[0] == values[1]:
                values = np.array([0, 1]).astype(values.dtype)
            for kind in kinds:
                many = np.array(depth, np.int64)
                inputs: list[Array | None] = [index.astype(kind), many, values]
                yield op_case("OneHot", AxisAttrs(axis), inputs, constant={1}, rtol=0, atol=0)
    if dtype == "f32":  # a number that no integer type holds
        index = np.array([np.nan, np.inf, -np.inf, 4294967296.0, -3e9, 1.0, -1.0], np.float32)
        inputs = [index, np.array(5, np.int64), np.array([2.0, 3.0], np.float32)]
        with np.errstate(invalid="ignore"):
            yield op_case("OneHot", AxisAttrs(0), inputs, constant={1}, rtol=0, atol=0)


@shader_cases("append")
def append(variant: Variant) -> Iterator[Case]:
    """Every axis, up to the end and beyond, nothing, and words of all kinds."""
    sizes: tuple[tuple[Shape, Shape, int, int], ...] = (
        ((5,), (2,), 0, 1), ((1,), (1,), 0, 0), ((2, 7, 3), (2, 1, 3), 1, 5),
        ((2, 7, 3), (2, 4, 3), 1, 3), ((3, 4, 11), (3, 4, 5), 2, 2), ((4, 3), (2, 3), 0, 3),
        ((4, 3), (1, 3), 0, 4), ((4, 3), (0, 3), 0, 1), ((4, 3), (2, 3), 0, 0),
        ((0, 3, 2), (0, 1, 2), 1, 1), ((2, 4, 3), (2, 1, 3), 1, 4), ((3, 70, 5), (3, 41, 5), 1, 29),
    )  # fmt: skip
    for number, (shape, rows, axis, length) in enumerate(sizes):
        for kind in (np.float32, np.int64, np.bool_)[: 1 + 2 * (number == 2)]:
            whole, new = (
                integers(*size, low=0, high=2, seed=n).astype(kind)
                for n, size in ((0, shape), (1, rows))
            )
            inputs: list[Array | None] = [whole, new, np.array([length], np.int64)]
            yield op_case("Append", AppendAttrs(axis), inputs, rtol=0, atol=0)


# Rows before and after the axis of a cache, its capacity, new rows, where they go, and elements.
_PACKED = (
    (2, 3, 7, 2, 3, 8),
    (1, 1, 5, 4, 3, 12),  # past the end
    (2, 2, 4, 1, 0, 5),  # a broken word
    (1, 2, 3, 1, 2, 3),
    (3, 1, 66, 33, 17, 260),  # more words than invocations
    (1, 1, 2, 0, 1, 4),
)


@shader_cases("append_packed")
def append_packed(variant: Variant) -> Iterator[Case]:
    """Rows of large and small numbers, of zeros only, and past the largest half."""
    packing = cast(PackedRows, variant.axes["packing"])
    for outer, inner, capacity, rows, at, depth in _PACKED:
        new = floats(outer, rows, inner, depth, seed=1)
        new[:, :1] *= 1e5
        new[:, 1:2, :1] = 0
        words = pack_rows(floats(outer, capacity, inner, depth), packing)
        inputs: list[Array | None] = [words, new, np.array([at], np.int64)]
        yield op_case("Append", AppendAttrs(1, packing), inputs, rtol=0, atol=0)


@shader_cases("unpack_rows")
def unpack_rows(variant: Variant) -> Iterator[Case]:
    """The rows that are valid; those past them are poison."""
    packing = cast(PackedRows, variant.axes["packing"])
    for outer, inner, capacity, _, valid, depth in _PACKED:
        words = pack_rows(floats(outer, capacity, inner, depth), packing)
        attrs = UnpackRowsAttrs(1, packing, depth)
        rows = np.array([valid], np.int64)
        unpack = Op("UnpackRows", "unpack", ["words", "rows"], ["floats"], attrs)
        edges = ["start", "valid", "axis"]
        cut = Op("Slice", "cut", ["floats", *edges], ["y"], OpAttrs())
        constants = {"start": np.array([0]), "valid": rows, "axis": np.array([1])}
        (whole,) = run_op(unpack, [words, rows])
        feeds = {"words": words, "rows": rows}
        infos = [tensor_info(name, array) for name, array in feeds.items()]
        result = tensor_info("y", whole[:, :valid])
        graph = Graph("UnpackRows", infos, [result], [unpack, cut], constants)
        yield Case(graph, feeds, rtol=0, atol=0)
