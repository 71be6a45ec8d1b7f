"""Operators that move elements, and that compute shapes."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import BOOL, INT32, INT64
from vkmnn.converter.nodes.composed import mirrored
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.nodes.strided_slice import END, MASKS, strided
from vkmnn.converter.tensorflow.nodes import TfNode, reads


@reads("Shape")
def shape(op: TfNode) -> None:
    """Shape; a constant where all sizes are known."""
    op.need(1)
    dtype = op.dtype("out_type") if "out_type" in op.attrs else INT32
    sizes = op.shape_of(op.inputs[0])
    op.model.shaped[op.outputs[0]] = op.model.origins.get(op.inputs[0], op.inputs[0])
    if sizes is not None:
        op.elements[op.outputs[0]] = list(sizes)
        if None not in sizes:
            op.scope.set_constant(op.outputs[0], np.array(sizes, NUMPY_TYPES[dtype]))
            return
    op.finish_as(dtype, op.make("Shape", op.inputs[0], dtype=INT64))


@reads("Rank", "Size")
def count(op: TfNode) -> None:
    """The number of axes, or of elements."""
    op.need(1)
    if op.type == "Rank":
        op.scope.set_constant(op.outputs[0], np.array(op.known_rank(), np.int32))
        return
    dtype = op.dtype("out_type") if "out_type" in op.attrs else INT32
    op.finish_as(dtype, op.make("Size", op.inputs[0], dtype=INT64))


@reads("Reshape")
def reshape(op: TfNode) -> None:
    """Reshape; a size of 0 is none, not a copy."""
    op.need(2)
    sizes = op.elements_of(op.inputs[1])
    if sizes is not None and sum(size in (None, -1) for size in sizes) <= 1 and 0 not in sizes:
        given = op.constant([-1 if size is None else size for size in sizes])
    else:
        given = op.vector(1)
    op.finish("Reshape", op.inputs[0], given, allowzero=1)


@reads("Transpose")
def transpose(op: TfNode) -> None:
    """Transpose."""
    op.need(2)
    order = op.settled(1, "an order of axes")
    if sorted(order) != list(range(len(order))):
        raise op.damaged(f"the order of axes {order}")
    op.finish("Transpose", op.inputs[0], perm=order)


@reads("ExpandDims")
def expand(op: TfNode) -> None:
    """Unsqueeze."""
    op.need(2)
    op.finish("Unsqueeze", op.inputs[0], op.constant(op.settled(1, "an axis")))


@reads("Squeeze")
def squeeze(op: TfNode) -> None:
    """Squeeze of stated axes, or of all of size 1."""
    op.need(1)
    axes = op.listed("squeeze_dims") or op.listed("axis")
    more = [op.constant(axes)] if axes else []
    op.finish("Squeeze", op.inputs[0], *more)


@reads("Pack")
def pack(op: TfNode) -> None:
    """Concat along a new axis."""
    op.need(1)
    axis = op.integer("axis")
    axis = axis + op.known_rank() + 1 if axis < 0 else axis
    parts = [op.make("Unsqueeze", name, op.constant([axis])) for name in op.inputs]
    if op.rank(0) == 0:
        known = [op.elements_of(name) for name in op.inputs]
        op.elements[op.outputs[0]] = [None if one is None else one[0] for one in known]
    op.finish("Concat", *parts, axis=axis)


@reads("Unpack")
def unpack(op: TfNode) -> None:
    """Split, without the axis."""
    op.need(1)
    axis, many = op.integer("axis"), len(op.outputs)
    if many != op.integer("num", many):
        raise op.damaged(f"it has {many} outputs")
    parts = op.make_several("Split", many, op.inputs[0], axis=axis, num_outputs=many)
    for part, name in zip(parts, op.outputs, strict=True):
        op.scope.emit("Squeeze", [part, op.constant([axis])], [name], op.name)


@reads("ConcatV2", "Concat")
def concat(op: TfNode) -> None:
    """Concat; the axis is the last input, or the first of the older operator."""
    op.need(2)
    last = len(op.inputs) - 1
    number, names = (last, op.inputs[:-1]) if op.type == "ConcatV2" else (0, op.inputs[1:])
    (axis,) = op.settled(number, "an axis")[:1] or [0]
    known = [op.elements_of(name) for name in names]
    if all(one is not None for one in known) and all(len(op.sizes(name)) == 1 for name in names):
        op.elements[op.outputs[0]] = [item for one in known if one for item in one]
    op.finish("Concat", *names, axis=axis)


@reads("Split", "SplitV")
def split(op: TfNode) -> None:
    """Split into equal parts, or into parts of stated sizes."""
    op.need(2)
    sized = op.type == "SplitV"
    (axis,) = op.settled(2 if sized else 0, "an axis")[:1] or [0]
    x, many = op.inputs[0 if sized else 1], len(op.outputs)
    axis = op.axis(axis, len(op.sizes(x)))
    if not sized:
        op.scope.emit("Split", [x], op.outputs, op.name, axis=axis, num_outputs=many)
        return
    sizes = op.settled(1, "sizes of parts")
    whole = op.sizes(x)[axis]
    if -1 in sizes and whole is not None:
        sizes[sizes.index(-1)] = whole - sum(sizes) - 1
    if min(sizes, default=0) < 0 or len(sizes) != many:
        raise op.unreadable(f"parts of {sizes} elements for {many} outputs")
    op.scope.emit("Split", [x, op.constant(sizes)], op.outputs, op.name, axis=axis)


@reads("Slice")
def slices(op: TfNode) -> None:
    """Slice of a size from a start; -1 is all that follows."""
    op.need(3)
    begin, size = op.integers(1), op.integers(2)
    if begin is not None and size is not None and len(begin) == len(size):
        ends = [END if n == -1 else at + n for at, n in zip(begin, size, strict=True)]
        axes = op.constant(list(range(len(begin))))
        op.finish("Slice", op.inputs[0], op.constant(begin), op.constant(ends), axes)
        return
    starts, sizes = op.vector(1), op.vector(2)
    rest = op.make("Equal", sizes, op.constant([-1]), dtype=BOOL)
    end = op.make("Where", rest, op.constant([END]), op.make("Add", starts, sizes), dtype=INT64)
    op.finish("Slice", op.inputs[0], starts, end)


@reads("StridedSlice")
def strided_slice(op: TfNode) -> None:
    """Slice, then Squeeze of single indices, then Unsqueeze of new axes."""
    op.need(4)
    masks = {name: op.integer(f"{name}_mask") for name in MASKS}
    known, begin, end = op.elements_of(op.inputs[0]), op.integers(1), op.integers(2)
    if begin == [0] and masks["shrink_axis"] and op.inputs[0] in op.model.shaped:
        op.model.lengths[op.outputs[0]] = op.model.shaped[op.inputs[0]]
    if known is not None and begin is not None and end is not None and len(begin) == 1:
        if masks["shrink_axis"] and -len(known) <= begin[0] < len(known):
            op.elements[op.outputs[0]] = [known[begin[0]]]
        elif not any(masks[name] for name in MASKS[2:]) and op.settled(3, "strides") == [1]:
            first = None if masks["begin"] else begin[0]
            op.elements[op.outputs[0]] = known[first : None if masks["end"] else end[0]]
    op.finish("Identity", strided(op, masks))


@reads("Tile")
def tile(op: TfNode) -> None:
    """Tile."""
    op.need(2)
    op.finish("Tile", op.inputs[0], op.vector(1))


@reads("Fill", "BroadcastTo")
def fill(op: TfNode) -> None:
    """Expand of a value to a shape; of BroadcastTo, the shape is the second input."""
    op.need(2)
    value, sizes = (1, 0) if op.type == "Fill" else (0, 1)
    op.finish("Expand", op.inputs[value], op.vector(sizes))


@reads("Range")
def numbers(op: TfNode) -> None:
    """Range."""
    op.need(3)
    if op.integers(0) == [0] and op.integers(2) == [1]:
        op.model.ranges[op.outputs[0]] = op.inputs[1]
    op.finish("Range", *op.inputs[:3])


@reads("Pad", "PadV2", "MirrorPad")
def pad(op: TfNode) -> None:
    """Pad; pads are pairs by axis."""
    op.need(2)
    pads = op.value(1)
    if pads is None or pads.ndim != 2 or pads.shape[1] != 2:
        raise op.unreadable("pads computed at run time")
    given = op.constant(pads.T.reshape(-1))
    if op.type != "MirrorPad":
        value = op.inputs[2:3] if op.type == "PadV2" else []
        op.finish("Pad", op.inputs[0], given, *value)
    elif op.text("mode") == "REFLECT":
        op.finish("Pad", op.inputs[0], given, mode="reflect")
    else:
        op.finish("Identity", mirrored(op, op.inputs[0], [int(one) for one in pads.reshape(-1)]))


@reads("ReverseV2")
def reverse(op: TfNode) -> None:
    """Slice backwards."""
    op.need(2)
    rank = op.known_rank()
    axes = [op.axis(axis, rank) for axis in op.settled(1, "axes")]
    if not axes:
        op.finish("Identity", op.inputs[0])
        return
    bounds = [[-1] * len(axes), [-END] * len(axes), axes, [-1] * len(axes)]
    op.finish("Slice", op.inputs[0], *(op.constant(one) for one in bounds))


@reads("SpaceToBatchND", "BatchToSpaceND")
def batches(op: TfNode) -> None:
    """Blocks of pixels as pictures, and back."""
    op.need(3)
    block, pads, shape = op.settled(1, "a block"), op.value(2), op.sizes(op.inputs[0])
    if pads is None or pads.shape != (len(block), 2) or len(shape) < len(block) + 1:
        raise op.unreadable(f"blocks of {block} with pads that are computed, or of other axes")
    count, rank, x = len(block), len(shape), op.inputs[0]
    rest = list(shape[count + 1 :])
    if None in shape[1:] or min(block) < 1:
        raise op.unreadable("blocks of pictures of unknown sizes")
    sizes = [size for size in shape[1 : count + 1] if size is not None]
    inner = list(range(1, 2 * count + 1))
    if op.type == "SpaceToBatchND":
        wide = np.zeros((rank, 2), np.int64)
        wide[1 : count + 1] = pads
        x = op.make("Pad", x, op.constant(wide.T.reshape(-1))) if wide.any() else x
        sizes = [size + int(both.sum()) for size, both in zip(sizes, pads, strict=True)]
        if any(size % one for size, one in zip(sizes, block, strict=True)):
            raise op.damaged(f"sizes {sizes} in blocks of {block}")
        parts = [n for size, one in zip(sizes, block, strict=True) for n in (size // one, one)]
        x = op.make("Reshape", x, op.constant([-1, *parts, *rest]))
        order = [*inner[1::2], 0, *inner[::2], *range(2 * count + 1, rank + count)]
        x = op.make("Transpose", x, perm=order)
        op.finish("Reshape", x, op.constant([-1, *parts[::2], *rest]))
        return
    x = op.make("Reshape", x, op.constant([*block, -1, *sizes, *rest]))
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    x = op.make("Transpose", x, perm=[*order, *range(2 * count + 1, rank + count)])
    sizes = [size * one for size, one in zip(sizes, block, strict=True)]
    x = op.make("Reshape", x, op.constant([-1, *sizes, *rest]))
    ends = [size - int(both[1]) for size, both in zip(sizes, pads, strict=True)]
    limits = [pads[:, 0], ends, list(range(1, count + 1))]
    op.finish("Slice", x, *(op.constant(one) for one in limits))
