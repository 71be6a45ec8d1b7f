"""Operators of TensorFlow and TFLite that ONNX has in several nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.converter.nodes.scope import BOOL, FLOAT, INT64, NUMPY_TYPES
from vkmnn.converter.nodes.source_op import SourceOp

_LOWEST = -(2**63)


def gather_by_batches(op: SourceOp, data: str, places: str, axis: int, batches: int) -> str:
    """Return what the second input selects along an axis of the first, batch by batch.

    Args:
        op: the operator; its first input is the data and its second the indices.
        data: the data, as the first input says its rank.
        places: the indices, of 64 bits.
        axis: the axis; negative ones count from the end.
        batches: how many leading axes are those of batches.

    Raises:
        ModelError: the axes contradict each other.
    """
    rank, rows = op.known_rank(0), op.known_rank(1)
    axis, batches = axis % max(rank, 1), batches % max(rows + 1, 1)
    if not 0 < batches <= min(axis, rows):
        raise op.damaged(f"{batches} axes of batches for axis {axis}")
    order = [*range(batches), axis, *(n for n in range(batches, rank) if n != axis)]
    data = data if axis == batches else op.make("Transpose", data, perm=order)
    places = op.make("Unsqueeze", places, op.constant([-1]))
    made = op.make("GatherND", data, places, batch_dims=batches)
    many, before = rows - batches, axis - batches
    if not before:
        return made
    # The indices' own axes go behind those that came before the axis.
    after = range(batches + many + before, rank - 1 + many)
    kept = range(batches + many, batches + many + before)
    order = [*range(batches), *kept, *range(batches, batches + many), *after]
    return op.make("Transpose", made, perm=order)


def mirrored(op: SourceOp, name: str, pairs: Sequence[int]) -> str:
    """Return a tensor padded by itself backwards, edges repeated.

    Args:
        op: the operator.
        name: the tensor.
        pairs: pads before and after each axis, one axis after the other.

    Raises:
        ModelError: a pad is negative.
    """
    for axis in range(len(pairs) // 2):
        before, after = pairs[2 * axis : 2 * axis + 2]
        if before < 0 or after < 0:
            raise op.damaged(f"its pads are {list(pairs[:8])}")
        parts = [name]
        if before:
            parts.insert(0, _backwards(op, name, axis, before - 1, _LOWEST))
        if after:
            parts.append(_backwards(op, name, axis, -1, -1 - after))
        name = op.make("Concat", *parts, axis=axis) if len(parts) > 1 else name
    return name


def _backwards(op: SourceOp, name: str, axis: int, start: int, end: int) -> str:
    bounds = [op.constant([one]) for one in (start, end, axis, -1)]
    return op.make("Slice", name, *bounds)


def one_hot(op: SourceOp, axis: int) -> str:
    """Return one value at indices and another elsewhere; indices out of range have none.

    Args:
        op: the operator; its inputs are indices, depth, the value and the other one.
        axis: position of the new axis; -1 is the end.

    Raises:
        ModelError: the axis or the depth is impossible.
    """
    rank = op.known_rank(0)
    axis = rank if axis < 0 else axis
    if axis > rank:
        raise op.damaged(f"its axis is {axis}")
    depth = op.value(1)
    if depth is not None:
        if depth.size != 1 or not 0 <= int(depth.reshape(-1)[0]) < 1 << 24:
            raise op.damaged("its depth is not a number of values")
        places = op.constant(np.arange(int(depth.reshape(-1)[0])))
    else:
        ends = op.constant(0), op.make("Reshape", op.long(1), op.constant([])), op.constant(1)
        places = op.make("Range", *ends)
    if rank > axis:
        places = op.make("Reshape", places, op.constant([-1, *[1] * (rank - axis)]))
    given = op.make("Unsqueeze", op.long(0), op.constant([axis]))
    found = op.make("Equal", given, places, dtype=BOOL)
    on, off = (op.make("Reshape", name, op.constant([])) for name in op.inputs[2:4])
    return op.make("Where", found, on, off, dtype=op.type_of(on))


def filled_up(op: SourceOp, name: str, length: str) -> str:
    """Return a vector with zeros behind it up to a length."""
    zeros = op.make("Expand", op.constant(0, NUMPY_TYPES[op.type_of(name)]), length)
    joined = op.make("Concat", name, zeros, axis=0)
    return op.make("Slice", joined, op.constant([0]), length)


def suppressed(op: SourceOp, boxes: str, scores: str, most: str, limits: Sequence[str]) -> str:
    """Return the numbers of the boxes that are left where better ones overlap others.

    Args:
        op: the operator.
        boxes: boxes [boxes, 4].
        scores: scores [boxes].
        most: a vector of one number: how many are left at most.
        limits: the overlap from which a box is suppressed, and the minimum score.
    """
    boxes = op.make("Unsqueeze", boxes, op.constant([0]))
    scores = op.make("Unsqueeze", scores, op.constant([0, 1]))
    one = op.constant([1])
    least = [op.make("Reshape", op.cast(name, FLOAT), one) for name in limits]
    found = op.make("NonMaxSuppression", boxes, scores, most, *least, dtype=INT64)
    return op.make("Gather", found, op.constant(2), axis=1)


def reversed_rows(op: SourceOp, batch: int, time: int) -> str:
    """Return the first input with the begin of each sequence backwards.

    Args:
        op: the operator; its second input has the lengths.
        batch: the axis of sequences.
        time: the axis along them.

    Raises:
        ModelError: both are one axis.
    """
    rank = op.known_rank(0)
    batch, time = batch % max(rank, 1), time % max(rank, 1)
    if batch == time:
        raise op.damaged("its batch and its time are one axis")
    if {batch, time} == {0, 1}:
        return op.make(
            "ReverseSequence", op.inputs[0], op.long(1), batch_axis=batch, time_axis=time
        )
    order = [batch, time, *(axis for axis in range(rank) if axis not in (batch, time))]
    moved = op.make("Transpose", op.inputs[0], perm=order)
    made = op.make("ReverseSequence", moved, op.long(1), batch_axis=0, time_axis=1)
    return op.make("Transpose", made, perm=[order.index(axis) for axis in range(rank)])


def arc_tangent(op: SourceOp, y: str, x: str) -> str:
    """Return the angle of y and x, by the arc tangent of their quotient and the quadrant."""
    dtype = NUMPY_TYPES[op.type_of(y)]
    kind = op.type_of(y)
    zero, pi, half = (op.constant(one, dtype) for one in (0, np.pi, np.pi / 2))
    angle = op.make("Atan", op.make("Div", y, x))
    below = op.make("Less", y, zero, dtype=BOOL)
    turn = op.make("Where", below, op.make("Neg", pi), pi, dtype=kind)
    left = op.make("Less", x, zero, dtype=BOOL)
    angle = op.make("Where", left, op.make("Add", angle, turn), angle, dtype=kind)
    quarter = op.make("Where", below, op.make("Neg", half), half, dtype=kind)
    still = op.make("Where", op.make("Equal", y, zero, dtype=BOOL), zero, quarter, dtype=kind)
    upright = op.make("Equal", x, zero, dtype=BOOL)
    return op.make("Where", upright, still, angle, dtype=kind)


def rounded_to_steps(
    op: SourceOp, x: str, low: float, high: float, bits: int, narrow: bool = False
) -> str:
    """Return floats rounded to the steps between two limits, which are moved so that 0 is a step.

    Raises:
        ModelError: there are no steps between the limits.
    """
    first = int(narrow)
    if not 2 <= bits <= 16 or not low < high:
        raise op.damaged(f"it rounds {low} to {high} to {bits} bits")
    last = (1 << bits) - 1
    scale = np.float32(np.float32(high) - np.float32(low)) / np.float32(last - first)
    zero = np.floor(np.clip(first - np.float32(low) / scale, first, last) + np.float32(0.5))
    low, high = (np.float32((end - zero) * scale) for end in (first, last))
    x = op.make("Clip", x, *(op.constant(limit, np.float32) for limit in (low, high)))
    step = op.constant(scale, np.float32)
    steps = op.make("Div", op.make("Sub", x, op.constant(low, np.float32)), step)
    whole = op.make("Floor", op.make("Add", steps, op.constant(0.5, np.float32)))
    return op.make("Add", op.make("Mul", whole, step), op.constant(low, np.float32))
