"""Shapes of operators that move elements: Transpose, Concat, Slice, Pad and their like."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, Op
from vkmnn.ir.ops import AxisAttrs, BlockAttrs, PadAttrs, SplitAttrs, TransposeAttrs, TriluAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    broadcast_shapes,
    check_axis_lengths,
    dtype_of,
    has_input,
    int_list,
    int_scalar,
    normalize_axes,
    normalize_axis,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.dims import DimAlgebra
from vkmnn.shape.symbolic.facts import MAX_ELEMENTS, Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import (
    broadcast,
    is_absent,
    like_first,
    shape_rule,
    value_rule,
    with_dim,
)

_END = 2**31 - 1
"""Ends of slices from here on mean "to the end": no axis is as long."""

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def transpose_perm(rank: int, perm: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation, counted from the front; an empty one reverses the axes.

    Raises:
        ShapeError: `perm` is not a permutation of the axes.
    """
    if not perm:
        return tuple(range(rank))[::-1]
    if len(perm) != rank:
        raise ShapeError(f"perm {tuple(perm)} has {len(perm)} entries for a rank-{rank} tensor")
    return tuple(normalize_axes(perm, rank, "perm entry"))


def split_sizes(
    size: int, given: Sequence[int] | None, num_outputs: int, outputs: int
) -> list[int]:
    """Return the sizes that ONNX Split cuts an axis of `size` into.

    `given` are the sizes themselves; else there are `outputs` parts of ceil(size / outputs), the
    last one smaller. `num_outputs` is the attribute, 0 where there is none.

    Raises:
        ShapeError: the sizes do not add up, or `num_outputs` is another number.
    """
    if num_outputs not in (0, outputs):
        raise ShapeError(f"num_outputs is {num_outputs}, but the node has {outputs} outputs")
    if given is None:
        count = outputs
        if count < 1:
            raise ShapeError(f"cannot split into {count} parts")
        part = -(-size // count)
        given = [part] * (count - 1) + [size - part * (count - 1)]
    if any(item < 0 for item in given) or sum(given) != size:
        raise ShapeError(f"parts {list(given)} do not make up an axis of {size}")
    return list(given)


def slice_ranges(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> list[tuple[int, int, int]]:
    """Return (start, step, count) for every axis of `shape` (ONNX Slice 13).

    `start` is a valid index whenever `count` > 0. Axes that are not sliced get (0, 1, size).

    Raises:
        ShapeError: lengths differ, an axis is out of range or repeated, or a step is 0.
    """
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    check_axis_lengths("starts, ends, axes and steps", starts, ends, axes, steps)
    result = [(0, 1, size) for size in shape]
    for axis, start, end, step in zip(
        normalize_axes(axes, len(shape)), starts, ends, steps, strict=True
    ):
        if step == 0:
            raise ShapeError("a slice's step is 0")
        size = shape[axis]
        first = start + size if start < 0 else start
        last = end + size if end < 0 else end
        if step > 0:
            first, last = min(max(first, 0), size), min(max(last, 0), size)
        else:
            first, last = min(max(first, 0), size - 1), min(max(last, -1), size - 1)
        count = max(-((first - last) // step), 0)
        result[axis] = (first if count else 0, step, count)
    return result


def pad_widths(
    shape: Sequence[int], pads: Sequence[int], axes: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Return (begin, end) for every axis of `shape`; negative numbers crop (ONNX Pad).

    Raises:
        ShapeError: the lengths differ, an axis is out of range or repeated, or more is cropped than
            there is.
    """
    named = list(range(len(shape))) if axes is None else normalize_axes(axes, len(shape))
    if len(pads) != 2 * len(named):
        raise ShapeError(f"pads {list(pads)} must have two entries for each of {len(named)} axes")
    result = [(0, 0)] * len(shape)
    for i, axis in enumerate(named):
        begin, end = pads[i], pads[i + len(named)]
        if shape[axis] + begin + end < 0:
            raise ShapeError(f"pads ({begin}, {end}) crop more than axis {axis} of {tuple(shape)}")
        result[axis] = (begin, end)
    return result


@shape_rule("Transpose", exact=True)
def _transpose(op: Op[TransposeAttrs], facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is not None:
        perm = transpose_perm(len(shape), op.attrs.perm)
        shape = tuple(shape[axis] for axis in perm)
    return [(facts.dtype(op), shape)]


@size_computer("Concat")
def _concat(op: Op[AxisAttrs], inputs: Infos, values: Values) -> Outputs:
    shapes = [shape_of(inputs, index) for index in range(len(inputs))]
    axis = normalize_axis(op.attrs.axis, len(shapes[0]))
    for shape in shapes[1:]:
        if len(shape) != len(shapes[0]) or any(
            dim != first and i != axis
            for i, (dim, first) in enumerate(zip(shape, shapes[0], strict=True))
        ):
            raise ShapeError(f"{shape} and {shapes[0]} differ outside axis {axis}")
    total = sum(shape[axis] for shape in shapes)
    output = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    return [(same_dtype(inputs, *range(len(inputs))), output)]


@shape_rule("Concat")
def _named_concat(op: Op[AxisAttrs], facts: Facts) -> list[Found]:
    places = range(len(op.inputs))
    shapes = [facts.shape(op, place) for place in places]
    known = [shape for shape in shapes if shape]
    if not known:
        return [(facts.dtype(op, *places), None)]
    axis = normalize_axis(op.attrs.axis, len(known[0]))
    total: Dim = 0
    for shape in shapes:
        total = facts.algebra.add(total, shape[axis] if shape else None)
    equal = [  # the shapes are, outside the axis: an int says most, then a name
        next((dim for dim in dims if isinstance(dim, int)), next(filter(None, dims), None))
        for dims in zip(*known, strict=True)
    ]
    return [(facts.dtype(op, *places), with_dim(tuple(equal), axis, total))]


@value_rule("Concat")
def _concat_values(op: Op, facts: Facts) -> NamedShape | None:
    joined: list[Dim] = []
    for place in range(len(op.inputs)):
        values = facts.values(op, place)
        if values is None:
            shape = facts.shape(op, place)
            length = shape[0] if shape and len(shape) == 1 else None
            if not isinstance(length, int) or not 0 <= length <= MAX_ELEMENTS:
                return None
            values = (None,) * length
        joined.extend(values)
        if len(joined) > MAX_ELEMENTS:
            return None
    return tuple(joined)


@size_computer("Split")
def _split(op: Op[SplitAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    shape = shape_of(inputs, 0)
    axis = normalize_axis(attrs.axis, len(shape))
    given = int_list(values, 1, "split") if has_input(inputs, 1) else None
    sizes = split_sizes(shape[axis], given, attrs.num_outputs, len(op.outputs))
    if len(sizes) != len(op.outputs):
        raise ShapeError(f"{len(sizes)} parts for {len(op.outputs)} outputs")
    dtype = dtype_of(inputs, 0)
    return [(dtype, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]


@shape_rule("Split")
def _named_split(op: Op[SplitAttrs], facts: Facts) -> list[Found]:
    attrs, shape, count = op.attrs, facts.shape(op), len(op.outputs)
    if shape is None:
        return [(facts.dtype(op), None)] * count
    axis = normalize_axis(attrs.axis, len(shape))
    dim, sizes = shape[axis], facts.values(op, 1)
    if sizes is None and is_absent(op, 1) and isinstance(dim, int):
        sizes = tuple(split_sizes(dim, None, attrs.num_outputs, count))
    return [(facts.dtype(op), with_dim(shape, axis, size)) for size in sizes or (None,) * count]


@size_computer("Slice")
def _slice(op: Op, inputs: Infos, values: Values) -> Outputs:
    ranges = slice_ranges(
        shape_of(inputs, 0),
        int_list(values, 1, "starts"),
        int_list(values, 2, "ends"),
        int_list(values, 3, "axes") if has_input(inputs, 3) else None,
        int_list(values, 4, "steps") if has_input(inputs, 4) else None,
    )
    return [(dtype_of(inputs, 0), tuple(count for _, _, count in ranges))]


@shape_rule("Slice")
def _named_slice(op: Op, facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is None:
        return [(facts.dtype(op), None)]
    starts, ends = facts.values(op, 1), facts.values(op, 2)
    axes = facts.ints(op, 3)
    if is_absent(op, 3):
        listed = starts or facts.vector(op, 1)
        axes = None if listed is None else tuple(range(len(listed)))
    touched = range(len(shape)) if axes is None else normalize_axes(axes, len(shape))
    steps = (1,) * len(touched) if is_absent(op, 4) else facts.ints(op, 4)
    dims = list(shape)
    if axes is None or starts is None or ends is None or steps is None:
        for axis in touched:
            dims[axis] = None
    else:
        for axis, start, end, step in zip(touched, starts, ends, steps, strict=True):
            dims[axis] = _named_slice_size(shape[axis], start, end, step, facts.algebra)
    return [(facts.dtype(op), tuple(dims))]


def _named_slice_size(dim: Dim, start: Dim, end: Dim, step: int, algebra: DimAlgebra) -> Dim:
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        return slice_ranges((dim,), (start,), (end,), None, (step,))[0][2]
    if step != 1 or not isinstance(start, int):
        return None
    if start == 0 and end == dim:
        return dim
    if isinstance(dim, int):
        return algebra.minimum(dim, end) if start == 0 and isinstance(end, str) else None
    if dim is None or not isinstance(end, int) or not algebra.is_natural(dim):
        return None
    if end >= _END:
        return algebra.minimum(-start, dim) if start < 0 else _less(dim, start, algebra)
    if end < 0 <= start:
        return _less(dim, start - end, algebra)
    return algebra.minimum(end, dim) if start == 0 else None


def _less(dim: Dim, count: int, algebra: DimAlgebra) -> Dim:
    return algebra.clipped(algebra.subtract(dim, count))


@value_rule("Slice")
def _slice_values(op: Op, facts: Facts) -> NamedShape | None:
    data, starts, ends = facts.values(op, 0), facts.ints(op, 1), facts.ints(op, 2)
    steps = (1,) if is_absent(op, 4) else facts.ints(op, 4)
    if data is None or not starts or not ends or not steps or len(facts.shape(op) or ()) != 1:
        return None
    ((start, step, count),) = slice_ranges((len(data),), starts, ends, None, steps)
    return tuple(data[start + number * step] for number in range(count))


@size_computer("Pad")
def _pad(op: Op[PadAttrs], inputs: Infos, values: Values) -> Outputs:
    mode = op.attrs.mode
    if mode not in PAD_MODES:
        raise ShapeError(f"pad mode '{mode}' is not one of {', '.join(PAD_MODES)}")
    if has_input(inputs, 2) and prod(shape_of(inputs, 2)) != 1:
        raise ShapeError(f"the pad value must be one element, got shape {shape_of(inputs, 2)}")
    shape = shape_of(inputs, 0)
    widths = pad_widths(
        shape,
        int_list(values, 1, "pads"),
        int_list(values, 3, "axes") if has_input(inputs, 3) else None,
    )
    for size, (begin, end) in zip(shape, widths, strict=True):
        kept = size + min(begin, 0) + min(end, 0)
        if mode != "constant" and kept <= 0 and max(begin, end) > 0:
            raise ShapeError(f"mode '{mode}' has nothing to repeat: {kept} elements of {shape}")
    output = tuple(size + begin + end for size, (begin, end) in zip(shape, widths, strict=True))
    return [(dtype_of(inputs, 0), output)]


@shape_rule("Pad")
def _named_pad(op: Op, facts: Facts) -> list[Found]:
    shape, pads = facts.shape(op), facts.values(op, 1)
    if shape is None:
        return [(facts.dtype(op), None)]
    axes = tuple(range(len(shape))) if is_absent(op, 3) else facts.ints(op, 3)
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [(facts.dtype(op), (None,) * len(shape))]
    dims, add = list(shape), facts.algebra.add
    for place, axis in enumerate(normalize_axes(axes, len(shape))):
        dims[axis] = add(dims[axis], add(pads[place], pads[place + len(axes)]))
    return [(facts.dtype(op), tuple(dims))]


def _target(values: Values, what: str) -> Shape:
    target = int_list(values, 1, what)
    if any(dim < 0 for dim in target):
        raise ShapeError(f"{what} {target} holds a negative number")
    return tuple(target)


@size_computer("Expand")
def _expand(op: Op, inputs: Infos, values: Values) -> Outputs:
    output = broadcast_shapes(shape_of(inputs, 0), _target(values, "the target shape"))
    return [(dtype_of(inputs, 0), output)]


@shape_rule("Expand")
def _named_expand(op: Op, facts: Facts) -> list[Found]:
    return [(facts.dtype(op), broadcast(facts, facts.shape(op), facts.vector(op, 1)))]


@size_computer("Tile")
def _tile(op: Op, inputs: Infos, values: Values) -> Outputs:
    shape, repeats = shape_of(inputs, 0), _target(values, "repeats")
    if len(repeats) != len(shape):
        raise ShapeError(f"repeats {list(repeats)} must have one entry per axis of {shape}")
    output = tuple(dim * count for dim, count in zip(shape, repeats, strict=True))
    return [(dtype_of(inputs, 0), output)]


@shape_rule("Tile")
def _named_tile(op: Op, facts: Facts) -> list[Found]:
    shape, repeats = facts.shape(op), facts.values(op, 1)
    if shape is None or repeats is None:
        return [(facts.dtype(op), None if shape is None else (None,) * len(shape))]
    dims = zip(shape, repeats, strict=True)
    return [(facts.dtype(op), tuple(facts.algebra.multiply(dim, count) for dim, count in dims))]


def _block(op: Op[BlockAttrs], facts: Facts) -> tuple[Dim, Dim, Dim, Dim] | None:
    """Return the shape of the input [N, C, H, W], None when it is unknown."""
    attrs, shape = op.attrs, facts.shape(op)
    if attrs.block_size < 1:
        raise ShapeError(f"block_size is {attrs.block_size}, must be at least 1")
    if attrs.mode not in ("DCR", "CRD"):
        raise ShapeError(f"mode '{attrs.mode}' is neither DCR nor CRD")
    if shape is None:
        return None
    if len(shape) != 4:
        raise ShapeError(f"the input must have shape [N, C, H, W], got {shape}")
    n, c, h, w = shape
    return n, c, h, w


@shape_rule("DepthToSpace", exact=True)
def _depth_to_space(op: Op[BlockAttrs], facts: Facts) -> list[Found]:
    shape, block, algebra = _block(op, facts), op.attrs.block_size, facts.algebra
    if shape is None:
        return [(facts.dtype(op), None)]
    n, c, h, w = shape
    if isinstance(c, int) and c % (block * block):
        raise ShapeError(f"{c} channels do not divide by block_size {block} squared")
    rows, columns = algebra.multiply(h, block), algebra.multiply(w, block)
    return [(facts.dtype(op), (n, algebra.divide(c, block * block), rows, columns))]


@shape_rule("SpaceToDepth", exact=True)
def _space_to_depth(op: Op[BlockAttrs], facts: Facts) -> list[Found]:
    shape, block, algebra = _block(op, facts), op.attrs.block_size, facts.algebra
    if shape is None:
        return [(facts.dtype(op), None)]
    n, c, h, w = shape
    if any(isinstance(dim, int) and dim % block for dim in (h, w)):
        raise ShapeError(f"height {h} and width {w} do not divide by block_size {block}")
    # They divide, so that the quotient is whole for names, too.
    rows, columns = algebra.floor_divide(h, block), algebra.floor_divide(w, block)
    return [(facts.dtype(op), (n, algebra.multiply(c, block * block), rows, columns))]


shape_rule("Trilu")(like_first)


@size_computer("Trilu")
def _trilu(op: Op[TriluAttrs], inputs: Infos, values: Values) -> Outputs:
    shape = shape_of(inputs, 0)
    if len(shape) < 2:
        raise ShapeError(f"a triangle needs a matrix, got shape {shape}")
    if has_input(inputs, 1):
        int_scalar(values, 1, "k")
    return [(dtype_of(inputs, 0), shape)]
