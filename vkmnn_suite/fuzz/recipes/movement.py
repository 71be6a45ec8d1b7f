"""Reshapes, transposes, concatenation, slices, pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE


def list_input(
    s: Sketch, op_since: int, name: str, values: Sequence[int]
) -> tuple[list[Value], dict[str, Any]]:
    """Return integers as an input from an opset on, as an attribute before."""
    if s.since(op_since):
        return [s.parameter(list(values))], {}
    return [], {name: list(values)}


def factors(s: Sketch, size: int, rank: int) -> list[int]:
    """Return a shape with this many elements."""
    sizes = [1] * rank
    rest = size
    for divisor in (2, 2, 2, 3, 3, 5, 7, 11, 13, 2, 3, 2):
        if rank and rest % divisor == 0 and rest >= divisor:
            sizes[s.rng.randrange(rank)] *= divisor
            rest //= divisor
    if rank:
        sizes[s.rng.randrange(rank)] *= rest
    elif rest != 1:
        raise Skip
    return sizes


@recipe("Reshape")
def _reshape(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    size = x.array.size
    target = factors(s, size, s.rng.randint(0 if size == 1 else 1, 5))
    allow_zero = s.choose(None, 0, 1) if s.since(14) else None
    if target and size and s.chance(0.5):
        target[s.rng.randrange(len(target))] = -1
    elif size and not allow_zero:
        for axis in range(min(len(target), x.rank)):
            if target[axis] == x.shape[axis] and s.chance(0.5):
                target[axis] = 0
    s.one(op, x, s.parameter(np.array(target, np.int64)), allowzero=allow_zero)


@recipe("Flatten")
def _flatten(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    axis = s.rng.randint(-x.rank if s.since(11) else 0, x.rank)
    s.one(op, x, axis=s.choose(axis, axis, None))


@recipe("Transpose")
def _transpose(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    perm = s.rng.sample(range(x.rank), x.rank)
    s.one(op, x, perm=perm if x.rank and s.chance(0.85) else None)


@recipe("Concat")
def _concat(s: Sketch, op: str) -> None:
    first = s.pick(s.dtype(op), min_rank=1)
    axis = s.rng.randrange(first.rank)
    parts = [first]
    for _ in range(s.choose(0, 1, 1, 2, 3)):
        shape = list(first.shape)
        shape[axis] = s.choose(shape[axis], s.size(7), s.size(7))
        parts.append(s.choose(first, s.pick(first.dtype, shape), s.pick(first.dtype, shape)))
    s.rng.shuffle(parts)
    s.one(op, *parts, axis=axis - (first.rank if s.since(11) and s.chance(0.3) else 0))


@recipe("Squeeze")
def _squeeze(s: Sketch, op: str) -> None:
    dtype = s.dtype(op)
    x = s.pick(dtype, accept=lambda v: 1 in v.shape)
    if 1 not in x.shape:
        shape = list(x.shape)[:5]
        shape.insert(s.rng.randint(0, len(shape)), 1)
        x = s.fresh(dtype, shape)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    axes = s.rng.sample(ones, s.rng.randint(1, len(ones)))
    if s.since(11):
        axes = [axis - x.rank if s.chance(0.3) else axis for axis in axes]
    if s.chance(0.2):
        s.one(op, x)
        return
    inputs, attributes = list_input(s, 13, "axes", axes)
    s.one(op, x, *inputs, **attributes)


@recipe("Unsqueeze")
def _unsqueeze(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), max_rank=4)
    count = s.choose(1, 1, 2)
    axes = s.rng.sample(range(x.rank + count), count)
    if s.since(11):
        axes = [axis - x.rank - count if s.chance(0.3) else axis for axis in axes]
    inputs, attributes = list_input(s, 13, "axes", axes)
    s.one(op, x, *inputs, **attributes)


@recipe("Expand")
def _expand(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    target = [s.size(5) if size == 1 else s.choose(size, size, 1) for size in x.shape]
    target = [s.size(3) for _ in range(s.choose(0, 0, 1, 2))] + target
    target = target[s.choose(0, 0, 0, s.rng.randint(0, len(target))) :]
    s.one(op, x, s.parameter(np.array(target, np.int64)))


@recipe("Tile")
def _tile(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    s.one(op, x, s.parameter(np.array([s.choose(1, 1, 2, 3) for _ in x.shape], np.int64)))


@recipe("Slice")
def _slice(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    axes = s.rng.sample(range(x.rank), s.rng.randint(1, x.rank))
    steps = [s.choose(1, 1, 1, 2, 3, -1, -2) if s.since(10) else 1 for _ in axes]
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        size = x.shape[axis]
        a, b = sorted(s.rng.randint(-size - 1, size + 1) for _ in range(2))
        if s.chance(0.6):  # usually not empty
            a, b = sorted(s.rng.sample(range(size + 1), 2)) if size else (0, 0)
        start, end = (a, b) if step > 0 else (b - 1, a - 1 if a else -(2**31) + 1)
        starts.append(start)
        ends.append(s.choose(end, end, 2**31 - 1) if step > 0 else end)
    if not s.since(10):
        s.one(op, x, starts=starts, ends=ends, axes=axes)
        return
    axes = [axis - x.rank if s.chance(0.3) else axis for axis in axes]
    dtype = s.choose("int64", "int64", "int32")
    lists = [s.parameter(values, dtype) for values in (starts, ends, axes, steps)]
    if axes == list(range(len(axes))) and s.chance(0.3):
        lists[2:] = []
        if any(step != 1 for step in steps):
            raise Skip
    s.one(op, x, *lists)


@recipe("Split")
def _split(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1)
    axis = s.rng.randrange(x.rank)
    size = x.shape[axis]
    count = s.rng.randint(1, min(4, max(1, size)))
    named = axis - (x.rank if s.since(11) and s.chance(0.3) else 0)
    if s.chance(0.4):
        if size % count and not s.since(18):
            count = 1
        number = count if s.since(18) else None
        s.node(op, [x], count, axis=named, num_outputs=number)
        return
    cuts = sorted(s.rng.randint(0, size) for _ in range(count - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    inputs, attributes = list_input(s, 13, "split", sizes)
    s.node(op, [x, *inputs], count, axis=named, **attributes)


@recipe("Pad")
def _pad(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    modes = ["constant", "constant", "reflect", "edge"] + (["wrap"] if s.since(19) else [])
    mode = s.rng.choice(modes)
    axes = list(range(x.rank))
    if s.since(18) and s.chance(0.4):
        axes = s.rng.sample(axes, s.rng.randint(1, x.rank))
    pads = [_padding(s, mode, x.shape[axis]) for _ in range(2) for axis in axes]
    if not s.since(11):
        value = s.choose(None, 0.5, -1.0) if mode == "constant" else None
        s.one(op, x, pads=pads, mode=mode, value=value)
        return
    fill = s.parameter(s.choose(1, 3), x.dtype) if mode == "constant" and s.chance(0.6) else None
    named = None
    if len(axes) < x.rank or (s.since(18) and s.chance(0.1)):
        named = s.parameter([axis - x.rank if s.chance(0.3) else axis for axis in axes])
    s.one(
        op,
        x,
        s.parameter(pads),
        fill,
        named,
        mode=s.choose(mode, mode, None if mode == "constant" else mode),
    )


def _padding(s: Sketch, mode: str, size: int) -> int:
    if mode == "constant":
        return int(s.choose(0, 0, 1, 2, 3, -1 if size > 2 else 0))
    if mode == "edge":
        return int(s.choose(0, 1, 2, 3)) if size else 0
    most = size - 1 if mode == "reflect" else size
    return s.rng.randint(0, max(0, min(3, most)))


@recipe("DepthToSpace")
def _depth_to_space(s: Sketch, op: str) -> None:
    block = s.choose(1, 2, 2, 3)
    shape = [s.choose(1, 2), block * block * s.choose(1, 2, 3), s.size(5), s.size(5)]
    mode = s.choose(None, "DCR", "CRD") if s.since(11) else None
    s.one(op, s.pick(s.dtype(op), shape), blocksize=block, mode=mode)


@recipe("SpaceToDepth")
def _space_to_depth(s: Sketch, op: str) -> None:
    block = s.choose(1, 2, 2, 3)
    shape = [s.choose(1, 2), s.choose(1, 2, 3, 5), block * s.size(4), block * s.size(4)]
    s.one(op, s.pick(s.dtype(op), shape), blocksize=block)


@recipe("Trilu")
def _trilu(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=2)
    k = s.parameter(s.rng.randint(-4, 4)) if s.chance(0.6) else None
    s.one(op, x, k, upper=s.choose(None, 0, 1))


@recipe("CenterCropPad")
def _center_crop_pad(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, max_rank=4)
    axes = s.axes(x.rank)
    named = axes if s.chance(0.6) else None
    count = len(axes) if named else x.rank
    sizes = [s.size(7) for _ in range(count)]
    s.one(op, x, s.parameter(sizes, s.choose("int32", "int64")), axes=named)


@recipe("ReverseSequence")
def _reverse_sequence(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=2)
    batch = s.choose(0, 1)
    lengths = [
        s.rng.randint(min(1, x.shape[1 - batch]), x.shape[1 - batch]) for _ in range(x.shape[batch])
    ]
    s.one(op, x, s.parameter(lengths), batch_axis=batch, time_axis=1 - batch)
