"""Operators that move values: quantised ones move as they are."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import INT64
from vkmnn.converter.nodes.composed import reversed_rows
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.nodes.strided_slice import END
from vkmnn.converter.tflite.nodes import LiteOp, before_parts, reads
from vkmnn.converter.tflite.vectors import note_cut, note_joined, note_reshaped, replaced_row


@reads("RESHAPE")
def reshape(op: LiteOp) -> None:
    """Reshape to the second input or, without one, to the option."""
    op.need(1)
    if op.has(1):
        note_reshaped(op)
        shape, known = op.vector(1), op.value(1)
        if known is not None and known.dtype.kind not in "iu":
            raise op.damaged("its new shape is not of integers")
    else:
        shape = op.constant(op.listed("new_shape"))
    if op.is_complex(0):
        shape = op.make("Concat", shape, op.constant([2]), axis=0)
    op.pass_on(op.make("Reshape", op.inputs[0], shape, allowzero=1))
    op.note_line()


@reads("TRANSPOSE")
def transpose(op: LiteOp) -> None:
    """Transpose; the order is the second input."""
    op.need(2)
    order = op.settled(1, "an order of axes")
    rank = len(order)
    if sorted(one % max(rank, 1) for one in order) != list(range(rank)):
        raise op.damaged(f"its order of axes is {order}")
    name = op.inputs[0]
    op.pass_on(op.make("Transpose", name, perm=[one % rank for one in order]) if rank else name)


@reads("SQUEEZE")
def squeeze(op: LiteOp) -> None:
    """Squeeze; without axes, all of size 1."""
    op.need(1)
    axes = before_parts(op, op.listed("squeeze_dims"))
    more = [op.constant(axes)] if axes else []
    op.pass_on(op.make("Squeeze", op.inputs[0], *more))
    op.note_line()


@reads("EXPAND_DIMS")
def expand_dims(op: LiteOp) -> None:
    """Unsqueeze; the axis is the second input."""
    op.need(2)
    if op.is_complex(0):
        axes = op.constant(before_parts(op, op.settled(1, "an axis")))
    else:
        axes = op.vector(1)
    op.pass_on(op.make("Unsqueeze", op.inputs[0], axes))
    op.note_line()


@reads("SHAPE", "RANK")
def shape(op: LiteOp) -> None:
    """Shape, and how many axes there are."""
    op.need(1)
    found = op.shape(0)
    if op.type == "RANK" and found is not None:
        op.scope.set_constant(op.outputs[0], np.array(len(found), np.int32))
    elif found is not None and None not in found:
        dtype = NUMPY_TYPES[op.results[0].dtype]
        op.scope.set_constant(op.outputs[0], np.array(found, dtype))
    else:
        sizes = op.make("Shape", op.inputs[0], dtype=INT64)
        op.give(sizes if op.type == "SHAPE" else op.make("Size", sizes, dtype=INT64))


def _alike(op: LiteOp) -> list[str] | None:
    """Return the inputs unchanged if all of them and the output share scale and type."""
    to = op.result_quantization()
    for number in range(len(op.inputs)):
        by = op.quantization(number)
        if (by is None) != (to is None) or (by is not None and not by.same_as(to)):
            return None
    return op.inputs


@reads("CONCATENATION")
def concatenation(op: LiteOp) -> None:
    """Concat; quantised values of other scales are requantised."""
    op.need(1)
    axis, alike = op.integer("axis"), _alike(op)
    note_joined(op)
    replaced = replaced_row(op)
    kind = op.member("ActivationFunctionType", "fused_activation_function")
    if replaced is not None and alike is not None and kind == "NONE":
        source, at, row = replaced
        place = op.make("Reshape", op.cast(at, INT64), op.constant([1, 1]))
        op.finish("ScatterND", source, place, row)
    elif alike is not None and kind == "NONE":
        op.finish("Concat", *alike, axis=axis)
    else:
        op.give_active(op.make("Concat", *op.reals(), axis=axis))


@reads("PACK")
def pack(op: LiteOp) -> None:
    """Concat along a new axis."""
    op.need(1)
    axis = op.integer("axis")
    note_joined(op)
    alike = _alike(op)
    parts = [op.make("Unsqueeze", name, op.constant([axis])) for name in alike or op.reals()]
    made = op.make("Concat", *parts, axis=axis)
    op.give(made) if alike is None else op.finish("Identity", made)


@reads("UNPACK")
def unpack(op: LiteOp) -> None:
    """Slices along an axis, with the axis removed."""
    op.need(1, 0)
    axis = op.integer("axis")
    for number in range(len(op.outputs)):
        op.pass_on(op.make("Gather", op.inputs[0], op.constant(number), axis=axis), number)


@reads("SPLIT", "SPLIT_V")
def split(op: LiteOp) -> None:
    """Split into equal parts, or by sizes; one of them may be -1."""
    equal = op.type == "SPLIT"
    op.need(2 if equal else 3)
    data, at = (1, 0) if equal else (0, 2)
    (axis,) = op.settled(at, "an axis")[:1] or [0]
    count = len(op.outputs)
    if equal:
        parts = op.make_several("Split", count, op.inputs[data], axis=axis, num_outputs=count)
    else:
        sizes = op.settled(1, "sizes of parts")
        if len(sizes) != count or sizes.count(-1) > 1 or min(sizes, default=0) < -1:
            raise op.damaged(f"it has {count} parts of the sizes {sizes[:8]}")
        if -1 in sizes:
            whole = (op.shape(data) or ())[axis] if op.shape(data) else None
            if whole is None:
                raise op.unreadable("a part whose size follows from a dynamic one")
            sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
        parts = op.make_several("Split", count, op.inputs[data], op.constant(sizes), axis=axis)
    for number, part in enumerate(parts):
        op.scope.types[part] = op.type_of(op.inputs[data])
        op.pass_on(part, number, data)


@reads("SLICE")
def slice_by_size(op: LiteOp) -> None:
    """Slice by starts and sizes; a size of -1 extends to the end."""
    op.need(3)
    note_cut(op)
    begins, sizes = op.integers(1), op.integers(2)
    if begins is not None and sizes is not None and len(begins) == len(sizes):
        pairs = zip(begins, sizes, strict=True)
        ends = [END if size == -1 else begin + size for begin, size in pairs]
        bounds = op.constant(begins), op.constant(ends)
    else:
        begin, size = op.vector(1), op.vector(2)
        open_ = op.make("Less", size, op.constant(0))
        end = op.make("Where", open_, op.constant(END), op.make("Add", begin, size), dtype=INT64)
        bounds = begin, end
    op.pass_on(op.make("Slice", op.inputs[0], *bounds))


@reads("TILE", "BROADCAST_TO")
def repeat(op: LiteOp) -> None:
    """Tile and Expand."""
    op.need(2)
    kind = "Tile" if op.type == "TILE" else "Expand"
    op.pass_on(op.make(kind, op.inputs[0], op.vector(1)))


@reads("BROADCAST_ARGS")
def broadcast_shape(op: LiteOp) -> None:
    """The shape that tensors of two shapes broadcast to."""
    op.need(2)
    parts = [op.make("ConstantOfShape", op.vector(number)) for number in range(2)]
    op.give(op.make("Shape", op.make("Add", *parts), dtype=INT64))


@reads("FILL")
def fill(op: LiteOp) -> None:
    """Expand of one value."""
    op.need(2)
    op.pass_on(op.make("Expand", op.inputs[1], op.vector(0)), source=1)


@reads("ZEROS_LIKE")
def zeros(op: LiteOp) -> None:
    """Zeros in the shape of a tensor."""
    op.need(1)
    zero = op.constant(0, NUMPY_TYPES[op.type_of(op.inputs[0])])
    op.finish("Expand", zero, op.make("Shape", op.inputs[0], dtype=INT64))


@reads("RANGE")
def count(op: LiteOp) -> None:
    """Range of scalars."""
    op.need(3)
    scalar = op.constant([])
    parts = [
        op.make("Reshape", name, scalar) if op.rank(n) else name
        for n, name in enumerate(op.inputs[:3])
    ]
    op.finish("Range", *parts)


@reads("REVERSE_V2")
def reverse(op: LiteOp) -> None:
    """Slice backwards along the axes in the second input."""
    op.need(2)
    axes = op.settled(1, "axes")
    many = len(axes)
    bounds = [op.constant([one] * many) for one in (-1, -(2**63))]
    steps = op.constant([-1] * many)
    name = op.inputs[0]
    op.pass_on(op.make("Slice", name, *bounds, op.constant(axes), steps) if axes else name)


@reads("REVERSE_SEQUENCE")
def reverse_sequence(op: LiteOp) -> None:
    """ReverseSequence; other axes than the first two are moved there."""
    op.need(2)
    op.pass_on(reversed_rows(op, op.integer("batch_dim"), op.integer("seq_dim")))


@reads("MATRIX_DIAG")
def diagonal(op: LiteOp) -> None:
    """Square matrices with vectors on their diagonals."""
    op.need(1)
    size = (op.shape(0) or (None,))[-1]
    if size is None:
        raise op.unreadable("a diagonal of a dynamic size")
    op.charge(8 * size * size)
    eye = op.constant(np.eye(size), NUMPY_TYPES[op.type_of(op.inputs[0])])
    op.finish("Mul", op.make("Unsqueeze", op.inputs[0], op.constant([-1])), eye)


@reads("MATRIX_SET_DIAG")
def with_diagonal(op: LiteOp) -> None:
    """Matrices whose diagonals are replaced."""
    op.need(2)
    sizes = (op.shape(0) or (None, None))[-2:]
    if None in sizes or len(sizes) < 2:
        raise op.unreadable("a diagonal of a dynamic size")
    rows, columns = (size or 0 for size in sizes)
    op.charge(8 * rows * columns)
    eye = op.constant(np.eye(rows, columns), bool)
    line = op.make("Unsqueeze", op.inputs[1], op.constant([-1 if rows <= columns else -2]))
    op.finish("Where", eye, line, op.inputs[0], dtype=op.type_of(op.inputs[0]))


@reads("DENSIFY")
def densify(op: LiteOp) -> None:
    """Identity: sparse constants are read as dense ones."""
    op.need(1)
    found = op.value(0)
    if found is None:
        raise op.unreadable("a sparse tensor that is computed")
    op.scope.set_constant(op.outputs[0], found)
