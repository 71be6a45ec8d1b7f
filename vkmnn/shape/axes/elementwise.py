"""Axes of ops that compute element by element."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import OP_TYPES, Dim, Op
from vkmnn.ir.ops import ImageToTensorAttrs, StridedBinaryAttrs
from vkmnn.shape.axes.loops import AXES, Known, Loop, Numbering, Shape, axes_of, mixed, parallel


def aligned(rank: int, shape: Shape | None, axis: int) -> int | None:
    """Return the axis of an operand that broadcasting aligns with an axis of the result."""
    own = axis - rank + len(shape) if shape is not None else -1
    return own if own >= 0 else None


@axes_of(
    *("UnaryOp", "BinaryOp", "Elementwise", "Select", "Cast", "BitCast", "Identity"), numbering={}
)
def elementwise(op: Op, known: Known) -> list[Loop]:
    """Return the loops of an op whose inputs broadcast to its result, independent of contents."""
    if isinstance(op.attrs, StridedBinaryAttrs):
        raise ShapeError("the axes of a view do not match its input's")
    content = OP_TYPES[op.type].content
    shapes = [None if n in content else shape for n, shape in enumerate(known.inputs)]
    given = [shape for shape in shapes if shape is not None]
    result = known.outputs[0]
    rank = max(map(len, given)) if result is None else len(result)
    every = frozenset(range(len(shapes)))
    loops = []
    for axis in range(rank):
        reads = [aligned(rank, shape, axis) for shape in shapes]
        size = _size(shapes, reads) if result is None else result[axis]
        loops.append(parallel(size, reads, axis, broadcast=every))
    return loops


def elementwise_same_shape(op: Op, known: Known) -> list[Loop]:
    """Return the loops of an op whose inputs have the shape of its result, and never broadcast."""
    return [
        parallel(loop.size, loop.reads, axis) for axis, loop in enumerate(elementwise(op, known))
    ]


def is_elementwise(op: Op) -> bool:
    """Return whether an op computes element by element, in any order of axes."""
    declared = AXES.get(op.kernel)
    if declared is None or declared.numbering != {}:
        return False
    return declared.make in (elementwise, elementwise_same_shape)


def _size(shapes: list[Shape | None], reads: list[int | None]) -> Dim:
    """Return the size that axes broadcast to."""
    sizes = {
        shape[axis]
        for shape, axis in zip(shapes, reads, strict=True)
        if shape is not None and axis is not None
    }
    sizes = sizes - {1} or {1}
    return sizes.pop() if len(sizes) == 1 else None


@axes_of("Expand", numbering={1: Numbering.SIZES})
def _expand(op: Op, known: Known) -> list[Loop]:
    known.result()  # its rank is that of a content
    return elementwise(op, known)


@axes_of("Rotary")
def _rotary(op: Op, known: Known) -> list[Loop]:
    """Any axis but the columns, which are rotated in pairs."""
    *rows, columns = elementwise(op, known)
    tables = frozenset({1, 2})
    return [
        *(parallel(loop.size, loop.reads, loop.writes, broadcast=tables) for loop in rows),
        mixed(columns.size, columns.reads, columns.writes),
    ]


@axes_of("Scale")
def _scale(op: Op, known: Known) -> list[Loop]:
    shape = known.shape()
    return [
        parallel(size, [1, 0, 0] if axis == 1 else [axis], axis) for axis, size in enumerate(shape)
    ]


@axes_of("ImageToTensor")
def _images(op: Op[ImageToTensorAttrs], known: Known) -> list[Loop]:
    """Images, rows and columns; channels are numbered among the attributes."""
    single, moved, shape = op.attrs.single, op.attrs.channels_last, known.shape()
    rank = len(shape) + single
    loops = []
    for axis in range(single, rank):
        own = axis - single - (moved and axis > 0)
        if axis == 1:
            own = len(shape) - 1 if moved else 1 - single
        loop = mixed if axis == 1 else parallel
        loops.append(loop(shape[own], [own], axis))
    return loops
