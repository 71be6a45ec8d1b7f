"""Sparse constants: expansion of block-compressed tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt

from vkmnn.errors import ModelError
from vkmnn.schema import Table

_DENSE = 0


def dense_places(
    table: Table, shape: list[int], fail: Callable[[str], ModelError]
) -> npt.NDArray[np.int64]:
    """Return the flat index in the dense tensor of every stored value.

    Axes are traversed in the file's order; those after the tensor's own are blocks within an axis.

    Args:
        table: the parameters of sparsity.
        shape: shape of the dense tensor.
        fail: returns the error for a damaged file.

    Raises:
        ModelError: the parameters contradict each other.
    """
    order, blocked = table.integers("traversal_order"), table.integers("block_map")
    levels = table.tables("dim_metadata")
    rank = len(shape)
    if sorted(order) != list(range(rank + len(blocked))) or len(levels) != len(order):
        raise fail("a sparse tensor does not traverse each of its axes once")
    if any(not 0 <= axis < rank for axis in blocked) or len(set(blocked)) != len(blocked):
        raise fail("a sparse tensor has blocks of an axis that it lacks")
    sizes = _block_sizes(order, levels, rank, blocked)
    strides = [prod(shape[axis + 1 :]) for axis in range(rank)]
    places = np.zeros(1, np.int64)
    rows = np.zeros(1, np.int64)  # the position of each within its level
    for axis, level in zip(order, levels, strict=True):
        if axis < rank:
            inner = sizes.get(axis, 1)
            step, extent = strides[axis] * inner, shape[axis] // max(inner, 1)
        else:
            owner = blocked[axis - rank]
            step, extent = strides[owner], sizes[owner]
        places, rows = _level(level, places, rows, step, extent, prod(shape), fail)
    return places


def _block_sizes(
    order: list[int], levels: list[Table], rank: int, blocked: list[int]
) -> dict[int, int]:
    by_axis = dict(zip(order, levels, strict=True))
    return {
        owner: max(by_axis[rank + number].integer("dense_size"), 1)
        for number, owner in enumerate(blocked)
    }


def _level(
    level: Table,
    places: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    step: int,
    extent: int,
    most: int,
    fail: Callable[[str], ModelError],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if level.integer("format") == _DENSE:
        if level.integer("dense_size") != extent or places.size * max(extent, 1) > max(most, 1):
            raise fail(f"a sparse tensor has a dense axis of {level.integer('dense_size')}")
        offsets = np.arange(extent, dtype=np.int64)
        return (
            (places[:, None] + offsets * step).reshape(-1),
            (rows[:, None] * extent + offsets).reshape(-1),
        )
    segments, indices = (_numbers(level, name) for name in ("array_segments", "array_indices"))
    if segments.size != rows.size + 1 or (np.diff(segments) < 0).any() or segments[0] != 0:
        raise fail("a sparse tensor has segments that are not in order")
    if segments[-1] != indices.size or indices.size > most:
        raise fail("a sparse tensor has segments and indices that differ in number")
    if indices.size and (indices.min() < 0 or indices.max() >= extent):
        raise fail("a sparse tensor has an index outside its axis")
    counts = np.diff(segments)
    return np.repeat(places, counts) + indices * step, np.arange(indices.size, dtype=np.int64)


def _numbers(level: Table, name: str) -> npt.NDArray[np.int64]:
    found = level.union(name)
    return np.zeros(0, np.int64) if found is None else found.vector("values").astype(np.int64)
