from __future__ import annotations

import pytest

from vkmnn.converter.passes.common_subexpression import MergeCommonSubexpressions
from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.converter.passes.selection import RaiseSelection

RAISE, SAME = RaiseSelection(), MergeCommonSubexpressions()


def row(net, x, place=0, axis=1):
    return net.op("Gather", x, net.const(place, "int64"), axis=axis)


def rows(net, x, *bounds):
    return net.op("Slice", x, *(net.ints(bound) for bound in bounds))


def norm(net, x, **attrs):
    return net.op("LayerNorm", x, net.weights(4), net.weights(4), **attrs)


def linear(net, x, *rest):
    return net.op("MatMul", x, net.weights(4, 4), net.weights(4), *rest)


@pytest.mark.parametrize("axis", [-1, 2])
def test_a_row_of_a_norm(net, check, axis):
    done = check(row(net, norm(net, net.input(2, 5, 4), axis=axis), 3), RAISE)
    assert done.types == ["Gather", "LayerNorm"]


def test_a_whole_layer(net, check):
    x = net.input(2, 5, 4)
    y = linear(net, net.unary("EXP", x), x)
    y = linear(net, net.unary("TANH", linear(net, norm(net, y))), y)
    done = check(row(net, norm(net, y)), RAISE, SAME, RAISE)
    assert done.types == [
        *("Gather", "UnaryOp", "Gather", "MatMul", "LayerNorm", "MatMul", "UnaryOp", "MatMul"),
        "LayerNorm",
    ]


@pytest.mark.parametrize(
    ("select", "moved"),
    [
        (lambda net, x: row(net, x, [1, 4]), True),
        (lambda net, x: row(net, x, -1), True),
        (lambda net, x: row(net, x, 1, 0), True),
        (lambda net, x: rows(net, x, 1, 3, 1, 1), True),
        (lambda net, x: rows(net, x, -1, -6, -2, -1), False),  # along the columns
        (lambda net, x: rows(net, x, -1, -9, -2, 3), False),  # two rows of four
        (lambda net, x: row(net, x, [0, 2, 1]), False),  # most rows
        (lambda net, x: row(net, x, [[0]]), False),
        (lambda net, x: row(net, x, 0, 2), False),
    ],
)
def test_what_selects_rows(net, check, select, moved):
    if select is None:
        return
    x = linear(net, net.input(3, 5, 4), net.input(3, 5, 4))
    assert bool(check(select(net, x), RAISE).rewrites) == moved


def test_operands_that_are_broadcast(net, check):
    x = net.binary("ADD", net.input(3, 5, 4), net.weights(5, 4))
    x = net.binary("MUL", x, net.weights(4))
    done = check(row(net, x, 2), RAISE)
    assert done.kinds == ["Gather", "Gather", "ADD", "MUL"]  # one of a constant


def test_places_that_are_computed(net, check):
    place = net.input(name="place", dtype="int64")
    out = net.op("Gather", norm(net, net.input(2, 5, 4)), place, axis=1)
    assert check(out, RAISE).rewrites == 0


def test_other_readers(net, check):
    y = norm(net, net.input(2, 5, 4))
    assert check((row(net, y), y), RAISE).rewrites == 0


def test_rows_that_depend_on_one_another(net, check):
    x = net.input(2, 5, 4)
    across = net.op("MatMul", x, net.input(2, 4, 4))
    mean = net.op("LayerNorm", x, axis=1)
    sums = net.binary("ADD", x, net.input(2, 5, 4))  # two selections for one
    for y in (across, mean, sums):
        assert check(row(net, y), RAISE).rewrites == 0


def attention(net, mask=(), **attrs):
    q, k, v = (net.input(2, 3, size, 4) for size in (6, 7, 7))
    masks = [net.input(*mask)] if mask else []
    y = net.op("Attention", q, k, v, *masks, scale=0.5, **attrs)
    y = net.op("Transpose", y, perm=(0, 2, 1, 3))
    return net.op("Reshape", y, net.ints(0, 0, -1))


@pytest.mark.parametrize("mask", [(), (7,), (2, 1, 1, 7)])
def test_a_query_of_attention(net, check, mask):
    done = check(row(net, attention(net, mask), 4), RAISE)
    assert done.types == ["Gather", "Attention", "Reshape"]


def test_queries_that_differ(net, check):
    out = row(net, attention(net, causal=True)), row(net, attention(net, (6, 7)))
    assert check(out, RAISE).rewrites == 0


@pytest.mark.parametrize(("length", "moved"), [("length", True), (None, False)])
def test_named_sizes(net, check, length, moved):
    x, y = (net.input(2, 5, 4, name=name) for name in "xy")
    out = row(net, net.op("MatMul", x, net.weights(4, 4), "", y))
    dims = dict.fromkeys("xy", ("batch", length, 4))
    done = check(out, RefineShapes(), RAISE, dims=dims)
    assert done.types == (["Gather", "Gather", "MatMul"] if moved else ["MatMul", "Gather"])
