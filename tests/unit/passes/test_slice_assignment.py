"""ScatterND to a box: `x[:, 1:, 2:5] = y` as exporters write it, and lookalikes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from vkmnn.converter.passes.constant_folding import FoldConstants
from vkmnn.converter.passes.slice_assignment import GRID_BYTES, AssignSlices
from vkmnn.cpu_fallback import run_op


def grid(*ranges):
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1).astype(np.int64)


def scattered(net, shape, indices, reduction="none"):
    data = net.unary("NEG", net.input(*shape))
    updates = net.input(*indices.shape[:-1], *shape[indices.shape[-1] :])
    return net.op("ScatterND", data, net.const(indices), updates, reduction=reduction)


def spelled(net, shape, ranges):
    """Return the same with the indices as an exporter writes them."""
    sizes = [len(one) for one in ranges]
    parts = []
    for axis, one in enumerate(ranges):
        line = np.array(one, np.int64).reshape([-1 if i == axis else 1 for i in range(len(ranges))])
        wide = net.op("Expand", net.const(line), net.ints(*sizes))
        parts.append(net.op("Unsqueeze", wide, net.ints(-1)))
    indices = net.op("Concat", *parts, axis=-1)
    data = net.unary("NEG", net.input(*shape))
    return net.op("ScatterND", data, indices, net.input(*sizes, *shape[len(ranges) :]))


_PARTS = {n: [(a, b) for a in range(n) for b in range(a + 1, n + 1)] for n in (2, 3)}
BOXES = [
    ((5,), [(0, 1)]),
    ((7,), [(2, 7)]),
    ((3, 5, 4), [(0, 3), (1, 5)]),
    ((3, 5, 4), [(1, 2), (0, 5), (1, 3)]),
    ((2, 1, 7, 6), [(0, 2), (0, 1), (1, 7), (1, 6)]),
    ((4, 4), [(0, 4), (0, 4)]),
    ((1,), [(0, 1)]),
]


@pytest.mark.parametrize(("shape", "ranges"), BOXES)
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_boxes(net, check, shape, ranges, reduction):
    result = scattered(net, shape, grid(*(range(a, b) for a, b in ranges)), reduction)
    assert "ScatterND" not in check(result, AssignSlices()).types


@pytest.mark.parametrize(("shape", "ranges"), BOXES)
def test_as_exporters_write_it(net, check, shape, ranges):
    result = spelled(net, shape, [range(a, b) for a, b in ranges])
    assert "ScatterND" not in check(result, AssignSlices()).types


def test_from_the_end(net, check):
    result = scattered(net, (6, 5), grid([-3, -2], [-1]))
    assert "ScatterND" not in check(result, AssignSlices()).types


@pytest.mark.parametrize(
    "indices",
    [
        grid([0, 2, 4], [0, 1]),  # steps
        grid([1, 0], [0, 1]),  # backwards
        grid([1, 1], [0, 1]),  # the last of two wins
        grid([-1, 0], [0, 1]),  # around the end
        grid([0, 1], [0, 1])[:, ::-1],
        grid([0, 1], [0, 1]).reshape(4, 2),  # places in a row
        np.array([[0, 1], [1, 2]]),  # a diagonal
        np.zeros((0, 2), np.int64),
    ],
)
def test_other_indices(net, check, indices):
    assert check(scattered(net, (6, 5), indices), AssignSlices()).rewrites == 0


@pytest.mark.parametrize("reduction", ["mul", "max"])
def test_other_reductions(net, check, reduction):
    result = scattered(net, (6, 5), grid([1, 2], [0, 1]), reduction)
    assert check(result, AssignSlices()).rewrites == 0


def test_unknown_shapes(net, check):
    assert check(scattered(net, (6, 5), grid([1, 2])), AssignSlices(), infos=False).rewrites == 0


def test_large_indices_are_not_made(net, check):
    side = 1 + int((GRID_BYTES // 8) ** 0.5)
    result = spelled(net, (side + 1, side), [range(1, side + 1), range(side)])
    found = check(result, FoldConstants(run_op))
    assert found.types.count("Expand") == 2
    assert sum(array.nbytes for array in found.graph.constants.values()) < GRID_BYTES


def test_large_indices_that_are_no_box_are_made_once(net, check):
    side = 1 + int((GRID_BYTES // 8) ** 0.5)
    result = spelled(net, (2 * side, side), [range(0, 2 * side, 2), range(side)])
    # One part is a range, and could be of a box; the other is none.
    assert check(result, FoldConstants(run_op)).types.count("Expand") == 1


@pytest.mark.parametrize(("rows", "columns"), [*product(_PARTS[3], _PARTS[2])])
def test_every_box_of_a_small_tensor(net, check, rows, columns):
    result = scattered(net, (3, 2), grid(range(*rows), range(*columns)))
    assert "ScatterND" not in check(result, AssignSlices()).types
