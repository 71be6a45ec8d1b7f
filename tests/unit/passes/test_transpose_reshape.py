from __future__ import annotations

import pytest

from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.converter.passes.transpose_reshape import (
    Group,
    MergeTransposesAroundReshape,
    axis_groups,
)

MERGE = MergeTransposesAroundReshape()


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((2, 3), (2, 3), [((0,), (0,)), ((1,), (1,))]),
        ((2, 12), (2, 3, 4), [((0,), (0,)), ((1,), (1, 2))]),
        ((2, 3, 4), (6, 4), [((0, 1), (0,)), ((2,), (1,))]),
        ((4, 6), (2, 12), [((0, 1), (0, 1))]),
        (("N", 6), ("N", 2, 3), [((0,), (0,)), ((1,), (1, 2))]),
        ((1, "N", 3), ("N", 3, 1), [((0,), ()), ((1,), (0,)), ((2,), (1,)), ((), (2,))]),
        ((3,), (1, 3, 1), [((), (0,)), ((0,), (1,)), ((), (2,))]),
        ((2, 1, 3), (6,), [((0, 1, 2), (0,))]),
        ((), (1,), [((), (0,))]),
        (("N", 3), ("3*N",), None),
        ((None,), (None,), None),
        ((0, 2), (0, 3), None),
        ((2, 0), (0, 2), None),
        ((5,), (3, 2), None),
    ],
)
def test_groups(before, after, groups):
    wanted = None if groups is None else [Group(*group) for group in groups]
    assert axis_groups(before, after) == wanted


def build(net, shape, first, target, second):
    x = net.op("Transpose", net.input(*shape), perm=first)
    return net.op("Transpose", net.op("Reshape", x, net.ints(*target)), perm=second)


def test_heads_that_are_joined_and_moved_back(net, check):
    out = build(net, (2, 3, 5, 4), (2, 0, 1, 3), (5, 2, 12), (1, 0, 2))
    done = check(out, MERGE)
    assert done.types == ["Transpose", "Reshape"]
    assert done.attrs(0).perm == (0, 2, 1, 3)


def test_heads_that_are_split_and_moved(net, check):
    out = build(net, (2, 5, 24), (1, 0, 2), (1, 5, 2, 3, 8), (3, 1, 2, 0, 4))
    done = check(out, MERGE)
    assert done.types == ["Reshape", "Transpose"]


def test_everything_cancels(net, check):
    out = build(net, (2, 3, 12), (1, 0, 2), (3, 2, 3, 4), (1, 0, 2, 3))
    done = check(out, MERGE)
    assert sorted(done.types) == ["Reshape", "Transpose"]
    (transpose,) = (op for op in done.graph.ops if op.type == "Transpose")
    assert transpose.attrs.perm == tuple(range(len(transpose.attrs.perm)))


@pytest.mark.parametrize("kind", ["Squeeze", "Unsqueeze"])
def test_axes_of_size_one(net, check, kind):
    x = net.op("Transpose", net.input(2, 1, 5), perm=(2, 1, 0))
    inner = net.op(kind, x, net.ints(1))
    out = net.op("Transpose", inner, perm=(1, 0) if kind == "Squeeze" else (3, 0, 2, 1))
    assert sorted(check(out, MERGE).types) == ["Reshape", "Transpose"]


def test_axes_that_are_joined_in_another_order(net, check):
    out = build(net, (2, 3, 4), (2, 1, 0), (4, 6), (1, 0))
    assert check(out, MERGE).types == ["Transpose", "Reshape"]


def test_both_take_the_reshape_apart(net, check):
    out = build(net, (4, 6), (1, 0), (3, 8), (1, 0))
    assert check(out, MERGE).rewrites == 0


def test_symbols(net, check):
    x = net.input(2, 3, 5, 4)
    inner = net.op("Transpose", x, perm=(2, 0, 1, 3))
    joined = net.op("Reshape", inner, net.ints(0, 0, 12))
    out = net.op("Transpose", joined, perm=(1, 0, 2))
    done = check(out, RefineShapes(), MERGE, dims={x: ("B", 3, "L", 4)})
    assert done.types == ["Transpose", "Reshape"]


def test_the_reshaped_value_is_used(net, check):
    inner = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    joined = net.op("Reshape", inner, net.ints(3, 2, 2, 2))
    out = net.op("Transpose", joined, perm=(1, 0, 2, 3))
    assert check((out, net.unary("EXP", joined)), MERGE).rewrites == 0


def test_unknown_shapes(net, check):
    out = build(net, (2, 3, 12), (1, 0, 2), (3, 2, 3, 4), (1, 0, 2, 3))
    assert check(out, MERGE, infos=False).rewrites == 0
