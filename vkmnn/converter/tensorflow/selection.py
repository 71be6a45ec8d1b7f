"""Operators that select by index or value, or scatter."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import BOOL, INT32, INT64
from vkmnn.converter.nodes.composed import gather_by_batches, one_hot, reversed_rows
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tensorflow.nodes import TfNode, reads

_MOST_ROWS = 1 << 20


@reads("GatherV2", "Gather")
def gather(op: TfNode) -> None:
    """Gather along an axis; with axes of batches, GatherND."""
    op.need(2)
    axis = (op.settled(2, "an axis")[:1] or [0])[0] if len(op.inputs) > 2 else 0
    batches = op.integer("batch_dims")
    if batches:
        op.finish("Identity", gather_by_batches(op, op.inputs[0], op.long(1), axis, batches))
        return
    known, where = op.elements_of(op.inputs[0]), op.integers(1)
    if known is not None and where is not None and not axis:
        inside = [known[one] for one in where if -len(known) <= one < len(known)]
        if len(inside) == len(where):
            op.elements[op.outputs[0]] = inside
    op.finish("Gather", op.inputs[0], op.inputs[1], axis=axis)


@reads("GatherNd")
def gather_places(op: TfNode) -> None:
    """GatherND."""
    op.need(2)
    op.finish("GatherND", op.inputs[0], op.long(1), batch_dims=op.integer("batch_dims"))


@reads("ScatterNd")
def scatter(op: TfNode) -> None:
    """ScatterND into zeros of the shape in the third input; repeated indices are summed."""
    op.need(3)
    dtype = op.type_of(op.inputs[1])
    zeros = op.make("Expand", op.constant(0, NUMPY_TYPES[dtype]), op.vector(2))
    how = "none" if dtype == BOOL else "add"
    op.finish("ScatterND", zeros, op.long(0), op.inputs[1], reduction=how)


_SCATTERS = {"Update": "none", "Add": "add", "Sub": "add", "Max": "max", "Min": "min"}


@reads(*(f"TensorScatter{kind}" for kind in _SCATTERS))
def scatter_into(op: TfNode) -> None:
    """ScatterND that replaces elements, or adds, subtracts, keeps the largest or the smallest."""
    op.need(3)
    kind, rows = op.type.removeprefix("TensorScatter"), op.inputs[2]
    rows = op.make("Neg", rows) if kind == "Sub" else rows
    op.finish("ScatterND", op.inputs[0], op.long(1), rows, reduction=_SCATTERS[kind])


@reads("Where")
def where(op: TfNode) -> None:
    """Coordinates of elements that are not zero, a row for each."""
    op.need(1)
    op.finish("Transpose", op.make("NonZero", op.inputs[0], dtype=INT64), perm=[1, 0])


@reads("Unique", "UniqueWithCounts", "UniqueV2", "UniqueWithCountsV2")
def unique(op: TfNode) -> None:
    """Distinct values in order of first occurrence, places among them, and how many there are."""
    op.need(1)
    if len(op.inputs) > 1 and op.settled(1, "an axis") not in ([], [0]):
        raise op.unreadable("distinct parts along an axis")
    values, _, *rest = op.make_several("Unique", 4, op.inputs[0], sorted=0)
    op.scope.emit("Identity", [values], op.outputs[:1], op.name)
    dtype = op.dtype("out_idx") if "out_idx" in op.attrs else INT32
    for name, output in zip(rest, op.outputs[1:], strict=False):
        op.scope.types[name] = INT64
        op.scope.emit("Cast", [name], [output], op.name, dtype, to=dtype)


@reads("OneHot")
def indicators(op: TfNode) -> None:
    """One value at an index, another elsewhere; indices out of range have none."""
    op.need(4)
    op.finish("Identity", one_hot(op, op.integer("axis", -1)))


@reads("TopKV2", "TopK")
def top(op: TfNode) -> None:
    """TopK along the last axis, with int32 indices."""
    op.need(1)
    if op.type == "TopKV2":
        op.need(2)
    most = op.vector(1) if op.type == "TopKV2" else op.constant([op.integer("k")])
    names = op.make_several("TopK", 2, op.inputs[0], most, axis=-1)
    op.scope.types[names[1]] = INT64
    op.scope.emit("Identity", names[:1], op.outputs[:1], op.name)
    dtype = op.dtype("index_type") if "index_type" in op.attrs else INT32
    if len(op.outputs) > 1:
        op.scope.emit("Cast", names[1:], op.outputs[1:2], op.name, dtype, to=dtype)


@reads("InTopK", "InTopKV2")
def among_best(op: TfNode) -> None:
    """Whether fewer than k classes have a larger score than the one that is meant."""
    op.need(2 if op.type == "InTopK" else 3)
    most = op.constant(op.integer("k")) if op.type == "InTopK" else op.long(2)
    places = op.make("Unsqueeze", op.long(1), op.constant([-1]))
    own = op.make("GatherElements", op.inputs[0], places, axis=1)
    above = op.make("Cast", op.make("Greater", op.inputs[0], own, dtype=BOOL), dtype=INT64, to=7)
    count = op.make("ReduceSum", above, op.constant([1]), keepdims=0)
    op.finish("Less", count, most, dtype=BOOL)


@reads("ReverseSequence")
def reverse_sequence(op: TfNode) -> None:
    """ReverseSequence; other axes than the first two are moved there."""
    op.need(2)
    op.finish("Identity", reversed_rows(op, op.integer("batch_dim"), op.integer("seq_dim")))


@reads("InvertPermutation")
def inverted(op: TfNode) -> None:
    """The permutation that undoes another."""
    op.need(1)
    count = op.make("Size", op.inputs[0], dtype=INT64)
    rows = op.cast(
        op.make("Range", op.constant(0), count, op.constant(1)), op.type_of(op.inputs[0])
    )
    op.finish("ScatterElements", op.inputs[0], op.long(0), rows, axis=0)


@reads("LowerBound", "UpperBound")
def bound(op: TfNode) -> None:
    """How many sorted values are smaller than each value, or not larger."""
    op.need(2)
    given = op.make("Unsqueeze", op.inputs[0], op.constant([-2]))
    values = op.make("Unsqueeze", op.inputs[1], op.constant([-1]))
    kind = "Less" if op.type == "LowerBound" else "LessOrEqual"
    _count(op, op.make(kind, given, values, dtype=BOOL))


@reads("Bucketize")
def bucketize(op: TfNode) -> None:
    """Number of boundaries less than or equal to each value."""
    op.need(1)
    limits = list(op.attrs["boundaries"].list.f) if "boundaries" in op.attrs else []
    x = op.make("Unsqueeze", op.inputs[0], op.constant([-1]))
    edges = op.constant(limits, NUMPY_TYPES[op.type_of(op.inputs[0])])
    _count(op, op.make("GreaterOrEqual", x, edges, dtype=BOOL))


def _count(op: TfNode, truths: str) -> None:
    """Count truth values along the last axis."""
    numbers = op.make("Cast", truths, dtype=INT32, to=INT32)
    total = op.make("ReduceSum", numbers, op.constant([-1]), keepdims=0)
    op.finish_as(op.dtype("out_type") if "out_type" in op.attrs else INT32, total)


# --- segments ------------------------------------------------------------------------------------

_SEGMENTS = {"Sum": ("add", 0.0), "Prod": ("mul", 1.0), "Max": ("max", None), "Min": ("min", None)}


@reads(
    *(f"UnsortedSegment{kind}" for kind in _SEGMENTS),
    *(f"Segment{kind}{version}" for kind in (*_SEGMENTS, "Mean") for version in ("", "V2")),
)
def segments(op: TfNode) -> None:
    """ScatterND that adds rows to the segments that they belong to, or multiplies, and so on."""
    op.need(2)
    kind = op.type.removeprefix("Unsorted").removeprefix("Segment").removesuffix("V2")
    rows, places = op.inputs[0], op.long(1)
    if len(op.inputs) > 2:
        count = op.vector(2)
    elif op.type.startswith("Unsorted"):
        raise op.damaged("it has no number of segments")
    else:  # the numbers are sorted
        count = op.make("Add", op.make("Slice", places, *_last(op)), op.constant([1]))
    places_ = op.make("Unsqueeze", places, op.constant([-1]))
    shape = op.make("Shape", rows, dtype=INT64)
    depth = op.known_rank(1)
    inner = op.make("Slice", shape, *(op.constant([one]) for one in (depth, 2**31 - 1, 0)))
    size = op.make("Concat", count, inner, axis=0)
    dtype = NUMPY_TYPES[op.type_of(rows)]
    total = _scattered(op, "Sum" if kind == "Mean" else kind, size, places_, rows)
    if kind == "Mean":
        ones = op.make("Expand", op.constant(1, dtype), shape)
        many = _scattered(op, "Sum", size, places_, ones)
        op.finish("Div", total, op.make("Max", many, op.constant(1, dtype)))
    else:
        op.finish("Identity", total)


def _last(op: TfNode) -> list[str]:
    return [op.constant([one]) for one in (-1, 2**31 - 1, 0)]


def _scattered(op: TfNode, kind: str, size: str, places: str, rows: str) -> str:
    reduction, start = _SEGMENTS[kind]
    dtype = NUMPY_TYPES[op.type_of(rows)]
    if start is None:
        about = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)  # type: ignore[arg-type, unused-ignore]
        start = float(about.min) if kind == "Max" else float(about.max)
    base = op.make("Expand", op.scope.constant(np.array(start).astype(dtype), op.name), size)
    made = op.make("ScatterND", base, places, rows, reduction=reduction)
    if kind in ("Max", "Min") and op.type.startswith("Segment"):  # segments without rows are zero
        empty = op.make("Equal", made, base, dtype=BOOL)
        zero = op.constant(0, dtype)
        return op.make("Where", empty, zero, made, dtype=op.type_of(rows))
    return made


@reads("Bincount", "DenseBincount")
def histogram(op: TfNode) -> None:
    """How often each number occurs in a row, the sum of its weights, or whether it occurs."""
    op.need(3)
    places = op.make("Unsqueeze", op.long(0), op.constant([-1]))
    size = op.make("Range", op.constant(0), op.make("Squeeze", op.vector(1)), op.constant(1))
    found = op.make("Equal", places, size, dtype=BOOL)
    shape = op.shape_of(op.inputs[2])
    dtype = op.type_of(op.inputs[2])
    numbers = op.make("Cast", found, dtype=dtype, to=dtype)
    if op.flag("binary_output"):
        total = op.make("ReduceSum", numbers, op.constant([-2]), keepdims=0)
        op.finish("Min", total, op.constant(1, NUMPY_TYPES[dtype]))
        return
    if shape is None or 0 not in shape:
        numbers = op.make("Mul", numbers, op.make("Unsqueeze", op.inputs[2], op.constant([-1])))
    op.finish("ReduceSum", numbers, op.constant([-2]), keepdims=0)


@reads("DynamicPartition")
def partition(op: TfNode) -> None:
    """Compress: the rows of each part."""
    op.need(2)
    if op.known_rank(1) != 1:
        raise op.unreadable("parts of a tensor by several axes")
    for number, output in enumerate(op.outputs):
        inside = op.make("Equal", op.inputs[1], op.constant(number, np.int32), dtype=BOOL)
        op.scope.emit("Compress", [op.inputs[0], inside], [output], op.name, axis=0)


@reads("DynamicStitch", "ParallelDynamicStitch")
def stitch(op: TfNode) -> None:
    """Gather of rows from several tensors, at places that are constants."""
    op.need(2)
    half = len(op.inputs) // 2
    places = [op.value(number) for number in range(half)]
    known = [one for one in places if one is not None]
    if len(known) < half or len(op.inputs) % 2:
        raise op.unreadable("places computed at run time")
    flat = np.concatenate([one.reshape(-1) for one in known]).astype(np.int64)
    rows = int(flat.max(initial=-1)) + 1
    if flat.size and not (flat.min() >= 0 and rows <= _MOST_ROWS):
        raise op.damaged("its places are out of range")
    order = np.zeros(rows, np.int64)
    order[flat] = np.arange(flat.size)
    parts = []
    for array, name in zip(known, op.inputs[half:], strict=True):
        rest = op.sizes(name)[array.ndim :]
        if rest.count(None) > 1:
            raise op.unreadable("rows of unknown sizes")
        shape = [array.size, *(-1 if size is None else size for size in rest)]
        parts.append(op.make("Reshape", name, op.constant(shape)))
    joined = op.make("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
    op.finish("Gather", joined, op.constant(order), axis=0)
