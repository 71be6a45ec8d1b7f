"""Operators that gather values by index, or scatter them."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.converter.nodes import BOOL, FLOAT, INT32, INT64
from vkmnn.converter.nodes.composed import filled_up, gather_by_batches, one_hot, suppressed
from vkmnn.converter.nodes.quantized import decode
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.nodes import LiteOp, reads


@reads("GATHER")
def gather(op: LiteOp) -> None:
    """Gather along an axis; with axes of batches, GatherND."""
    op.need(2)
    axis, batches = op.integer("axis"), op.integer("batch_dims")
    indexes = op.cast(op.inputs[1], INT64) if op.type_of(op.inputs[1]) != INT32 else op.inputs[1]
    if not batches:
        op.pass_on(op.make("Gather", op.inputs[0], indexes, axis=axis))
        return
    op.pass_on(gather_by_batches(op, op.inputs[0], op.long(1), axis, batches))


@reads("GATHER_ND")
def gather_nd(op: LiteOp) -> None:
    """GatherND."""
    op.need(2)
    op.pass_on(op.make("GatherND", op.inputs[0], op.long(1)))


@reads("EMBEDDING_LOOKUP")
def embedding(op: LiteOp) -> None:
    """Gather of rows of a table, the second input, which may be quantised."""
    op.need(2)
    by = op.quantization(1)
    if by is not None and by.per_axis:
        op.give(op.make("Gather", op.real(1), op.inputs[0], axis=0))
        return
    rows = op.make("Gather", op.inputs[1], op.inputs[0], axis=0)
    op.give(rows if by is None else decode(op, rows, by))


@reads("WHERE")
def where(op: LiteOp) -> None:
    """Coordinates of non-zero elements, a row for each."""
    op.need(1)
    op.give(op.make("Transpose", op.make("NonZero", op.inputs[0], dtype=INT64), perm=[1, 0]))


@reads("ONE_HOT")
def indicators(op: LiteOp) -> None:
    """One value at an index, another elsewhere; indices out of range have none."""
    op.need(4)
    depth = op.integers(1) or [0]
    op.charge(8 * max(depth[0], 0))
    op.pass_on(one_hot(op, op.integer("axis")), source=2)


@reads("SCATTER_ND")
def scatter_nd(op: LiteOp) -> None:
    """ScatterND into zeros of the shape in the third input; repeated indices are summed."""
    op.need(3)
    updates = op.inputs[1]
    zero = op.constant(0, NUMPY_TYPES[op.type_of(updates)])
    zeros = op.make("Expand", zero, op.vector(2))
    if op.type_of(updates) == BOOL:
        op.finish("ScatterND", zeros, op.long(0), updates)
    else:
        op.pass_on(op.make("ScatterND", zeros, op.long(0), updates, reduction="add"), source=1)


@reads("SPARSE_TO_DENSE")
def sparse_to_dense(op: LiteOp) -> None:
    """ScatterND into a tensor of one value."""
    op.need(4)
    rank = op.known_rank(0)
    places = op.long(0)
    if rank < 2:
        places = op.make("Reshape", places, op.constant([-1, 1]))
    values = op.inputs[2]
    if not op.rank(2):
        count = op.make("Shape", places, dtype=INT64, end=1)
        values = op.make("Expand", op.make("Reshape", values, op.constant([1])), count)
    base = op.make("Expand", op.inputs[3], op.vector(1))
    op.pass_on(op.make("ScatterND", base, places, values), source=3)


@reads("DYNAMIC_UPDATE_SLICE")
def update_slice(op: LiteOp) -> None:
    """ScatterND of a slice; its start is clamped so that the slice is inside."""
    op.need(3)
    whole, part = op.shape(0), op.shape(1)
    if whole is None or part is None or None in whole or None in part:
        raise op.unreadable("parts of dynamic size")
    sizes, inner = ([size or 0 for size in one] for one in (whole, part))
    if len(sizes) != len(inner) or any(a < b for a, b in zip(sizes, inner, strict=True)):
        raise op.damaged(f"a part of {inner} does not fit into {sizes}")
    moved = [axis for axis, pair in enumerate(zip(sizes, inner, strict=True)) if len({*pair}) > 1]
    if not moved:
        op.pass_on(op.inputs[1], source=1)
        return
    depth = moved[-1] + 1
    op.charge(8 * depth * prod(inner[:depth]))
    grid = np.indices(inner[:depth], dtype=np.int64)
    starts = op.make("Slice", op.vector(2), op.constant([0]), op.constant([depth]))
    limits = [size - one for size, one in zip(sizes[:depth], inner, strict=False)]
    starts = op.make("Min", op.make("Max", starts, op.constant([0])), op.constant(limits))
    places = op.make("Add", op.constant(np.moveaxis(grid, 0, -1)), starts)
    op.pass_on(op.make("ScatterND", op.inputs[0], places, op.inputs[1]))


@reads("UNIQUE")
def unique(op: LiteOp) -> None:
    """Distinct values in order of first occurrence, and the index of each value among them."""
    op.need(1, 2)
    values, _, places, _ = op.make_several("Unique", 4, op.inputs[0], sorted=0)
    op.scope.types[places] = INT64
    op.pass_on(values)
    op.give(places, 1)


@reads("BUCKETIZE")
def bucketize(op: LiteOp) -> None:
    """Number of boundaries less than or equal to each value."""
    op.need(1)
    limits = [] if op.options is None else op.options.vector("boundaries").tolist()
    x = op.make("Unsqueeze", op.cast(op.real(0), FLOAT), op.constant([-1]))
    above = op.make("GreaterOrEqual", x, op.constant(limits, np.float32), dtype=BOOL)
    total = op.make("ReduceSum", op.cast(above, INT32), op.constant([-1]), keepdims=0)
    op.give(total)


@reads("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def suppression(op: LiteOp) -> None:
    """NonMaxSuppression; results are padded with zeros, and their number is an output."""
    op.need(5, 2)
    if op.type.endswith("V5") and op.has(5):
        sigma = op.value(5)
        if sigma is None or sigma.reshape(-1)[:1].tolist() != [0.0]:
            raise op.unreadable("scores that overlaps lower (soft NMS)")
    most = op.vector(2)
    chosen = suppressed(op, op.real(0), op.real(1), most, op.inputs[3:5])
    number = op.make("Shape", chosen, dtype=INT64)
    op.give(filled_up(op, chosen, most))
    last = len(op.outputs) - 1
    op.give(op.make("Squeeze", number, op.constant([0])), last)
    if last == 2:
        op.give(filled_up(op, op.make("Gather", op.real(1), chosen, axis=0), most), 1)
