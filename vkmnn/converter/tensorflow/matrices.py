"""Matrices: diagonals and bands; rolls and running products."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import BOOL, INT64
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tensorflow.nodes import TfNode, reads

_MOST = 1 << 13


def _sizes(op: TfNode, count: int) -> list[int]:
    """Return the last sizes of the first input."""
    sizes = op.sizes(op.inputs[0])[-count:]
    known = [size for size in sizes if size is not None]
    if len(known) < count or max(known) > _MOST:
        raise op.unreadable("matrices of unknown sizes, or of very large ones")
    return known


def _main_diagonal(op: TfNode, number: int) -> None:
    """Check that the diagonal that an input names is the main one, of square matrices."""
    if op.has(number) and any(op.settled(number, "a diagonal")):
        raise op.unreadable("other diagonals than the main one")


@reads("Diag", "MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def diagonal(op: TfNode) -> None:
    """Square matrices with vectors on their diagonals."""
    op.need(1)
    if op.type == "Diag" and op.known_rank() != 1:
        raise op.unreadable("a diagonal of several axes")
    _main_diagonal(op, 1)
    for number in (2, 3):
        if op.has(number) and op.settled(number, "a size") != [-1]:
            raise op.unreadable("matrices that are not square")
    (size,) = _sizes(op, 1)
    dtype = op.type_of(op.inputs[0])
    eye = op.constant(np.eye(size), bool)
    line = op.make("Unsqueeze", op.inputs[0], op.constant([-1]))
    op.finish("Where", eye, line, op.constant(0, NUMPY_TYPES[dtype]), dtype=dtype)


@reads("Cross")
def cross_product(op: TfNode) -> None:
    """Cross products of vectors of three elements."""
    op.need(2)
    turned = [
        [op.make("Gather", name, op.constant(order), axis=-1) for order in ([1, 2, 0], [2, 0, 1])]
        for name in op.inputs[:2]
    ]
    (left, last), (right, most) = turned
    op.finish("Sub", op.make("Mul", left, most), op.make("Mul", last, right))


@reads("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def part(op: TfNode) -> None:
    """The diagonals of matrices."""
    op.need(1)
    _main_diagonal(op, 1)
    rows, columns = _sizes(op, 2)
    dtype = op.type_of(op.inputs[0])
    zero = op.constant(0, NUMPY_TYPES[dtype])
    eye = op.constant(np.eye(rows, columns), bool)
    alone = op.make("Where", eye, op.inputs[0], zero, dtype=dtype)
    longer = -1 if columns >= rows else -2
    op.finish("ReduceSum", alone, op.constant([longer]), keepdims=0)


@reads("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def with_diagonal(op: TfNode) -> None:
    """Matrices whose diagonals are replaced."""
    op.need(2)
    _main_diagonal(op, 2)
    rows, columns = _sizes(op, 2)
    eye = op.constant(np.eye(rows, columns), bool)
    line = op.make("Unsqueeze", op.inputs[1], op.constant([-1 if rows <= columns else -2]))
    op.finish("Where", eye, line, op.inputs[0], dtype=op.type_of(op.inputs[0]))


@reads("MatrixBandPart", "BatchMatrixBandPart")
def band(op: TfNode) -> None:
    """Matrices that are zero outside a band around the diagonal."""
    op.need(3)
    (lower,), (upper,) = (op.settled(n, "the width of a band")[:1] or [0] for n in (1, 2))
    columns, rows = _places(op, -1), op.make("Unsqueeze", _places(op, -2), op.constant([1]))
    inside = []
    if lower >= 0:
        first = op.make("Sub", rows, op.constant(lower))
        inside.append(op.make("GreaterOrEqual", columns, first, dtype=BOOL))
    if upper >= 0:
        last = op.make("Add", rows, op.constant(upper))
        inside.append(op.make("LessOrEqual", columns, last, dtype=BOOL))
    if not inside:
        op.alias(op.inputs[0], op.outputs[0])
        return
    dtype = op.type_of(op.inputs[0])
    both = op.make("And", *inside, dtype=BOOL) if len(inside) > 1 else inside[0]
    op.finish("Where", both, op.inputs[0], op.constant(0, NUMPY_TYPES[dtype]), dtype=dtype)


def _places(op: TfNode, axis: int) -> str:
    """Return the numbers of the rows or columns of the first input."""
    sizes = op.sizes(op.inputs[0])
    if len(sizes) < 2:
        raise op.damaged(f"matrices of {len(sizes)} axes")
    size = sizes[axis]
    if size is not None and size <= _MOST:
        return op.constant(np.arange(size))
    shape = op.make("Shape", op.inputs[0], dtype=INT64)
    limit = op.make("Gather", shape, op.constant(len(sizes) + axis), axis=0)
    return op.make("Range", op.constant(0), limit, op.constant(1))


@reads("MatrixDeterminant")
def determinant(op: TfNode) -> None:
    """Det."""
    op.need(1)
    op.finish("Det", op.inputs[0])


@reads("Roll")
def roll(op: TfNode) -> None:
    """Both parts of a tensor along an axis, the last one first."""
    op.need(3)
    name, sizes = op.inputs[0], op.sizes(op.inputs[0])
    steps, axes = op.settled(1, "a distance"), op.settled(2, "an axis")
    if len(steps) != len(axes):
        raise op.damaged(f"it moves {len(axes)} axes by {len(steps)} distances")
    for step, axis in zip(steps, axes, strict=True):
        place = op.axis(axis, len(sizes))
        size = sizes[place]
        if size is None and abs(step) > 1:
            raise op.unreadable("an axis of unknown size")
        step = step % size if size else step
        if not step:
            continue
        cut = -step
        ends = [(cut, 2**31 - 1), (0, cut)] if step > 0 else [(-step, 2**31 - 1), (0, -step)]
        parts = [
            op.make("Slice", name, *(op.constant([one]) for one in (begin, end, place)))
            for begin, end in ends
        ]
        name = op.make("Concat", *parts, axis=place)
    op.finish("Identity", name)


@reads("Cumprod")
def running_product(op: TfNode) -> None:
    """Products with what lies 1, 2, 4, … places before."""
    op.need(2)
    (axis,) = op.settled(1, "an axis")[:1] or [0]
    sizes = op.sizes(op.inputs[0])
    axis = op.axis(axis, len(sizes))
    size = sizes[axis]
    if size is None:
        raise op.unreadable("an axis of unknown size")
    reverse, exclusive = op.flag("reverse"), op.flag("exclusive")
    one = op.constant(1, NUMPY_TYPES[op.type_of(op.inputs[0])])

    def moved(name: str, step: int) -> str:
        """Return a tensor, moved along the axis, with ones where there was nothing."""
        bounds = (step, 2**31 - 1) if reverse else (0, size - step)
        part = op.make("Slice", name, *(op.constant([n]) for n in (*bounds, axis)))
        pads = [0] * (2 * len(sizes))
        pads[axis + len(sizes) * reverse] = step
        return op.make("Pad", part, op.constant(pads), one)

    name = moved(op.inputs[0], 1) if exclusive else op.inputs[0]
    step = 1
    while step < size:
        name = op.make("Mul", name, moved(name, step))
        step *= 2
    op.finish("Identity", name)


@reads("BroadcastArgs")
def broadcast_shape(op: TfNode) -> None:
    """The shape that tensors of two shapes broadcast to."""
    op.need(2)
    dtype = op.type_of(op.inputs[0])
    parts = [op.make("ConstantOfShape", op.vector(number)) for number in range(2)]
    made = op.make("Shape", op.make("Add", *parts), dtype=7)
    op.finish_as(dtype, made)


@reads("ShapeN")
def shapes(op: TfNode) -> None:
    """Shapes."""
    dtype = op.dtype("out_type") if "out_type" in op.attrs else 6
    for name, output in zip(op.inputs, op.outputs, strict=False):
        op.scope.emit("Cast", [op.make("Shape", name, dtype=7)], [output], op.name, dtype, to=dtype)


@reads("SoftmaxCrossEntropyWithLogits")
def cross_entropy(op: TfNode) -> None:
    """The loss of each row."""
    op.need(2)
    if len(op.outputs) > 1:
        raise op.unreadable("gradients")
    product = op.make("Mul", op.make("LogSoftmax", op.inputs[0], axis=-1), op.inputs[1])
    op.finish("Neg", op.make("ReduceSum", product, op.constant([-1]), keepdims=0))


@reads("ApproximateEqual")
def nearly_equal(op: TfNode) -> None:
    """Whether two tensors differ by less than a tolerance."""
    op.need(2)
    dtype = NUMPY_TYPES[op.type_of(op.inputs[0])]
    distance = op.make("Abs", op.make("Sub", *op.inputs[:2]))
    op.finish("Less", distance, op.constant(op.real("tolerance", 1e-5), dtype), dtype=BOOL)
