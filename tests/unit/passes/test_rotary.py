from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.converter.passes.rotary import FuseRotary

FUSE = FuseRotary()
HEADS, ROWS, DEPTH = 3, 5, 8


def cut(net, x, start, stop, axis=-1, step=None):
    steps = [net.ints(step)] if step is not None else []
    return net.op("Slice", x, net.ints(start), net.ints(stop), net.ints(axis), *steps)


def halves(net, x, width, way):
    """Return the columns before and after the middle."""
    if way == "split":
        first = net.op("Split", x, net.ints(width // 2, width // 2), outputs=2, axis=-1)
        return first, net.graph.ops[-1].outputs[1]
    if way == "from_the_end":
        return cut(net, x, 0, -(width // 2), 3, 1), cut(net, x, -(width // 2), 2**31 - 1, 3, 1)
    return cut(net, x, 0, width // 2), cut(net, x, width // 2, 2**63 - 1)


def negated(net, x, way):
    return net.binary("MUL", x, net.const(-1.0)) if way == "split" else net.unary("NEG", x)


def spelled(net, x, tables=(1, 1, ROWS, DEPTH), width=DEPTH, way="slice", swap=False):
    cos, sin = net.input(*tables), net.input(*tables)
    first, second = halves(net, x, width, way)
    turned = net.op("Concat", negated(net, second, way), first, axis=-1)
    pairs = [(cos, x), (sin, turned)] if swap else [(x, cos), (turned, sin)]
    products = [net.binary("MUL", *pair) for pair in pairs]
    return net.binary("ADD", *(products[::-1] if swap else products))


@pytest.mark.parametrize("way", ["slice", "split", "from_the_end"])
@pytest.mark.parametrize("swap", [False, True])
def test_a_sum_of_products(net, check, way, swap):
    x = net.input(2, HEADS, ROWS, DEPTH)
    done = check(spelled(net, x, way=way, swap=swap), FUSE)
    assert done.types == ["Rotary"]
    assert done.only.attrs.width == DEPTH


@pytest.mark.parametrize("tables", [(ROWS, DEPTH), (1, ROWS, DEPTH), (2, 1, ROWS, DEPTH)])
def test_tables_of_fewer_axes(net, check, tables):
    x = net.input(2, HEADS, ROWS, DEPTH)
    done = check(spelled(net, x, tables), FUSE)
    assert done.types[-1] == "Rotary"
    assert set(done.types) <= {"Rotary", "Unsqueeze"}


def test_some_columns(net, check):
    x = net.input(2, HEADS, ROWS, DEPTH)
    head = cut(net, x, 0, 4)
    turned = spelled(net, head, (1, 1, ROWS, 4), 4)
    done = check(net.op("Concat", turned, cut(net, x, 4, DEPTH), axis=3), FUSE)
    assert done.types == ["Rotary"]
    assert (done.only.attrs.width, done.only.inputs[0]) == (4, x)


def test_columns_cut_from_the_whole_at_once(net, check):
    x = net.input(1, HEADS, ROWS, DEPTH)
    cos, sin = net.input(1, 1, ROWS, 4), net.input(1, 1, ROWS, 4)
    turned = net.op("Concat", net.unary("NEG", cut(net, x, 2, 4)), cut(net, x, 0, 2), axis=-1)
    head = net.binary("MUL", cut(net, x, 0, 4), cos)
    head = net.binary("ADD", head, net.binary("MUL", turned, sin))
    done = check(net.op("Concat", head, cut(net, x, 4, DEPTH), axis=-1), FUSE)
    assert done.types == ["Rotary"]


def in_pairs(net, x, swap=False):
    cos, sin = net.input(1, 1, ROWS, DEPTH // 2), net.input(1, 1, ROWS, DEPTH // 2)
    first, second = halves(net, x, DEPTH, "split")
    low = net.binary("SUB", net.binary("MUL", first, cos), net.binary("MUL", second, sin))
    terms = [net.binary("MUL", second, cos), net.binary("MUL", first, sin)]
    high = net.binary("ADD", *(terms[::-1] if swap else terms))
    return low, high


@pytest.mark.parametrize("swap", [False, True])
def test_half_by_half(net, check, swap):
    low, high = in_pairs(net, net.input(2, HEADS, ROWS, DEPTH), swap)
    assert check(net.op("Concat", low, high, axis=-1), FUSE).types == ["Rotary"]


def test_halves_the_other_way_round(net, check):
    low, high = in_pairs(net, net.input(2, HEADS, ROWS, DEPTH))
    assert check(net.op("Concat", high, low, axis=-1), FUSE).rewrites == 0


def test_the_wrong_half_is_negated(net, check):
    x = net.input(1, HEADS, ROWS, DEPTH)
    cos, sin = net.input(1, 1, ROWS, DEPTH), net.input(1, 1, ROWS, DEPTH)
    first, second = halves(net, x, DEPTH, "slice")
    turned = net.op("Concat", second, net.unary("NEG", first), axis=-1)
    out = net.binary("ADD", net.binary("MUL", x, cos), net.binary("MUL", turned, sin))
    assert check(out, FUSE).rewrites == 0


def test_columns_of_another_tensor(net, check):
    x, other = net.input(1, HEADS, ROWS, DEPTH), net.input(1, HEADS, ROWS, DEPTH)
    cos, sin = net.input(1, 1, ROWS, DEPTH), net.input(1, 1, ROWS, DEPTH)
    first, second = halves(net, other, DEPTH, "slice")
    turned = net.op("Concat", net.unary("NEG", second), first, axis=-1)
    out = net.binary("ADD", net.binary("MUL", x, cos), net.binary("MUL", turned, sin))
    assert check(out, FUSE).rewrites == 0


@pytest.mark.parametrize("edges", [(0, 3, 3), (0, 4, 3), (1, 4, 4)])
def test_halves_that_are_not_halves(net, check, edges):
    start, stop, second = edges
    x = net.input(1, HEADS, ROWS, DEPTH)
    low, high = cut(net, x, start, stop), cut(net, x, second, DEPTH)
    turned = net.op("Concat", net.unary("NEG", high), low, axis=-1)
    width = stop - start + DEPTH - second
    out = net.binary("MUL", turned, net.input(1, 1, ROWS, width))
    if width == DEPTH:
        out = net.binary("ADD", net.binary("MUL", x, net.input(1, 1, ROWS, DEPTH)), out)
    assert check(out, FUSE).rewrites == 0


@pytest.mark.parametrize(
    "tables", [(1, HEADS, ROWS, DEPTH), (1, 1, 1, DEPTH), (1, 1, ROWS, 1), (DEPTH,)]
)
def test_tables_that_are_not_rows_and_columns(net, check, tables):
    x = net.input(1, HEADS, ROWS, DEPTH)
    assert check(spelled(net, x, tables), FUSE).rewrites == 0


def test_a_value_within_is_used_elsewhere(net, check):
    out = spelled(net, net.input(1, HEADS, ROWS, DEPTH))
    product = net.graph.ops[-2].outputs[0]
    assert check([out, net.unary("RELU", product)], FUSE).rewrites == 0


def test_steps_of_two(net, check):
    x = net.input(1, HEADS, ROWS, DEPTH)
    cos, sin = net.input(1, 1, ROWS, DEPTH), net.input(1, 1, ROWS, DEPTH)
    even, odd = cut(net, x, 0, DEPTH, step=2), cut(net, x, 1, DEPTH, step=2)
    turned = net.op("Concat", net.unary("NEG", odd), even, axis=-1)
    out = net.binary("ADD", net.binary("MUL", x, cos), net.binary("MUL", turned, sin))
    assert check(out, FUSE).rewrites == 0


def test_rows_are_not_columns(net, check):
    x = net.input(1, HEADS, 4, 4)
    cos, sin = net.input(1, 1, 4, 4), net.input(1, 1, 4, 4)
    first, second = cut(net, x, 0, 2, axis=2), cut(net, x, 2, 4, axis=2)
    turned = net.op("Concat", net.unary("NEG", second), first, axis=2)
    out = net.binary("ADD", net.binary("MUL", x, cos), net.binary("MUL", turned, sin))
    assert check(out, FUSE).rewrites == 0


def test_unknown_shapes(net, check):
    assert check(spelled(net, net.input(1, 2, ROWS, DEPTH)), FUSE, infos=False).rewrites == 0


def test_named_sizes(net, check):
    x = net.input(1, HEADS, ROWS, DEPTH)
    out = spelled(net, x)
    dims = dict.fromkeys(("x1", "x2"), (1, 1, "S", DEPTH))
    done = check(out, RefineShapes(), FUSE, dims={"x0": (1, HEADS, "S", DEPTH), **dims})
    assert done.types == ["Rotary"]


def test_constant_tables(net, check):
    x = net.input(1, HEADS, ROWS, DEPTH)
    cos, sin = net.weights(ROWS, DEPTH), net.weights(ROWS, DEPTH)
    first, second = halves(net, x, DEPTH, "slice")
    turned = net.op("Concat", net.unary("NEG", second), first, axis=-1)
    out = net.binary("ADD", net.binary("MUL", x, cos), net.binary("MUL", turned, sin))
    done = check(out, FUSE)
    assert done.types == ["Rotary"]
    assert np.shape(done.graph.constants[done.only.inputs[1]]) == (1, 1, ROWS, DEPTH)
