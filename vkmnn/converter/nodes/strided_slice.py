"""TensorFlow's slices with masks, also used by TFLite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vkmnn.converter.nodes.scope import BOOL, INT64
from vkmnn.converter.nodes.source_op import SourceOp

MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
END = 2**31 - 1
"""The end of any axis."""

Bound = int | str
"""A known bound, or the name of a vector of one number."""


@dataclass
class _Slices:
    """Slices along each axis, and the axes that are added or removed."""

    axes: list[int] = field(default_factory=list)
    starts: list[Bound] = field(default_factory=list)
    ends: list[Bound] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)


def strided(op: SourceOp, masks: Mapping[str, int], offset: bool = False) -> str:
    """Return a slice of the first input, by starts, ends and strides in the next three.

    Args:
        op: the operator.
        masks: bits for each entry, by name: begin, end, ellipsis, new_axis and shrink_axis.
        offset: whether ends count from starts.
    """
    steps = op.settled(3, "strides")
    bounds = _bounds(op, 1, len(steps)), _bounds(op, 2, len(steps))
    found = _slices(op, bounds, steps, masks, offset)
    name = op.inputs[0]
    if found.axes:
        starts, ends = (_vector(op, one) for one in (found.starts, found.ends))
        more = op.constant(found.axes), op.constant(found.steps)
        name = op.make("Slice", name, starts, ends, *more)
    if found.gone:
        name = op.make("Squeeze", name, op.constant(found.gone))
    if found.new:
        name = op.make("Unsqueeze", name, op.constant(found.new))
    return name


def _bounds(op: SourceOp, number: int, count: int) -> list[Bound]:
    found = op.integers(number)
    if found is not None:
        if len(found) != count:
            raise op.damaged(f"it has {len(found)} bounds and {count} strides")
        return list(found)
    wide = op.long(number)
    axis = op.constant([0])
    parts = [(op.constant([n]), op.constant([n + 1])) for n in range(count)]
    return [op.make("Slice", wide, *part, axis) for part in parts]


def _slices(
    op: SourceOp,
    bounds: tuple[list[Bound], list[Bound]],
    steps: list[int],
    masks: Mapping[str, int],
    offset: bool,
) -> _Slices:
    found, axis, place = _Slices(), 0, 0
    for number, step in enumerate(steps):
        is_on = {name: mask >> number & 1 for name, mask in masks.items()}
        if is_on["ellipsis"]:
            later = range(number + 1, len(steps))
            rest = sum(not masks["new_axis"] >> one & 1 for one in later)
            skipped = op.known_rank(0) - axis - rest
            axis, place = axis + skipped, place + skipped
        elif is_on["new_axis"]:
            found.new.append(place)
            place += 1
        else:
            if not step:
                raise op.damaged("it has a stride of 0")
            begin, end = bounds[0][number], bounds[1][number]
            if offset:
                end = _sum(op, begin, end)
            if is_on["shrink_axis"]:
                found.gone.append(axis)
                end, step = _after(op, begin), 1
            else:
                begin = (0 if step > 0 else END) if is_on["begin"] else begin
                end = (END if step > 0 else -END) if is_on["end"] else end
                place += 1
            if (begin, end, step) != (0, END, 1):
                for listed, one in ((found.axes, axis), (found.steps, step)):
                    listed.append(one)
                found.starts.append(begin)
                found.ends.append(end)
            axis += 1
    return found


def _sum(op: SourceOp, a: Bound, b: Bound) -> Bound:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return op.make("Add", *(_one(op, bound) for bound in (a, b)))


def _after(op: SourceOp, begin: Bound) -> Bound:
    """Return the index after another; the end follows the last, -1."""
    if isinstance(begin, int):
        return begin + 1 if begin != -1 else END
    last = op.make("Equal", begin, op.constant([-1]), dtype=BOOL)
    after = op.make("Add", begin, op.constant([1]))
    return op.make("Where", last, op.constant([END]), after, dtype=INT64)


def _one(op: SourceOp, bound: Bound) -> str:
    return op.constant([bound]) if isinstance(bound, int) else bound


def _vector(op: SourceOp, bounds: list[Bound]) -> str:
    known = [bound for bound in bounds if isinstance(bound, int)]
    if len(known) == len(bounds):
        return op.constant(known)
    return op.make("Concat", *(_one(op, bound) for bound in bounds), axis=0)
