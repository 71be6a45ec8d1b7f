"""Shapes of operators that split tensors and pad them: Split, Slice, Pad."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.errors import ShapeError, plural
from vkmnn.ir import Dim, Op
from vkmnn.ir.ops import PadAttrs, SplitAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    check_axis_lengths,
    dtype_of,
    has_input,
    int_list,
    normalize_axes,
    normalize_axis,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.dims import DimAlgebra
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import (
    is_absent,
    shape_rule,
    value_rule,
    with_dim,
)

_END = 2**31 - 1
"""Ends of slices from here on mean "to the end": no axis is as long."""

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def split_sizes(
    size: int, given: Sequence[int] | None, num_outputs: int, outputs: int
) -> list[int]:
    """Return the sizes into which ONNX Split divides an axis of `size`.

    `given` are the sizes themselves; otherwise there are `outputs` parts of ceil(size / outputs),
    the last one smaller. `num_outputs` is the attribute, 0 if absent.

    Raises:
        ShapeError: the sizes do not add up, or `num_outputs` is another number.
    """
    if num_outputs not in (0, outputs):
        raise ShapeError(
            f"num_outputs is {num_outputs}, but the node has {plural(outputs, 'output')}"
        )
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
    """Return (begin, end) padding for every axis of `shape`; negative numbers crop (ONNX Pad).

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


@size_computer("Split")
def _split(op: Op[SplitAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    shape = shape_of(inputs, 0)
    axis = normalize_axis(attrs.axis, len(shape))
    given = int_list(values, 1, "split") if has_input(inputs, 1) else None
    sizes = split_sizes(shape[axis], given, attrs.num_outputs, len(op.outputs))
    if len(sizes) != len(op.outputs):
        raise ShapeError(f"{plural(len(sizes), 'part')} for {plural(len(op.outputs), 'output')}")
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
