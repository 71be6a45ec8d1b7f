from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.transpose import MergeTransposes
from vkmnn.converter.passes.transpose_region import MoveTransposes
from vkmnn.ir import DType

PASSES = (MoveTransposes(), MergeTransposes())
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def last(net, *shape):
    """A tensor with channels last, as an exporter derives it from a convolution's result."""
    return net.op("Transpose", net.unary("EXP", net.input(*shape)), perm=TO_LAST)


def first(net, value):
    return net.op("Transpose", value, perm=TO_FIRST)


def between(net, middle):
    return net.unary("ABS", first(net, middle(last(net, 2, 3, 5, 7))))


MIDDLES = {
    "unary": lambda net, v: net.unary("TANH", v),
    "cast": lambda net, v: net.op(
        "Cast", net.op("Cast", v, to=DType("float64")), to=DType("float32")
    ),
    "scalar": lambda net, v: net.binary("SUB", net.const([2.0]), v),
    "scalar of rank 0": lambda net, v: net.binary("MUL", v, net.const(0.5)),
    "vector": lambda net, v: net.binary("ADD", v, net.weights(3)),
    "matrix": lambda net, v: net.binary("MUL", net.weights(7, 1), v),
    "whole": lambda net, v: net.binary("DIV", v, net.weights(2, 5, 1, 3)),
    "select": lambda net, v: net.op(
        "Select", net.binary("GREATER", v, net.weights(3)), v, net.const(0.25)
    ),
    "itself": lambda net, v: net.binary("MUL", v, net.unary("SIGMOID", v)),
    "softmax": lambda net, v: net.op("Softmax", v, axis=-1),
    "split": lambda net, v: (
        net.op("Split", v, net.ints(1, 2), axis=3, outputs=2, out="half") and "half"
    ),
    "split in parts": lambda net, v: (
        net.op("Split", v, axis=-2, num_outputs=3, outputs=3, out="part") and "part"
    ),
    "concat": lambda net, v: net.op("Concat", v, net.weights(2, 5, 7, 4), v, axis=-1),
    "gate": lambda net, v: net.binary(
        "MUL", v, net.op("Reduction", v, net.ints(1, -2), kind="MEAN", keepdims=True)
    ),
    "pad": lambda net, v: net.op(
        "Pad", v, net.ints(0, 1, 2, 0, 0, 3, 0, 1), net.const(0.5), mode="constant"
    ),
    "resize": lambda net, v: net.op(
        "Interp", v, "", net.const([1.0, 2.0, 3.0, 1.0]), mode="nearest"
    ),
    "slice": lambda net, v: net.op(
        "Slice", v, net.ints(1, 0), net.ints(3, 2), net.ints(-2, 1), net.ints(1, 1)
    ),
    "slice of all axes": lambda net, v: net.op(
        "Slice", v, net.ints(0, 1, 2, 0), net.ints(2, 5, 7, 2)
    ),
    "tile": lambda net, v: net.op("Tile", v, net.ints(1, 2, 1, 3)),
    "place of the largest": lambda net, v: net.op(
        "Cast", net.op("ArgMax", v, axis=-1), to=DType("float32")
    ),
    "the largest": lambda net, v: net.op("TopK", v, net.ints(2), axis=3, outputs=2),
    "pad of axes": lambda net, v: net.op(
        "Pad", v, net.ints(1, 0, 0, 2), "", net.ints(3, 1), mode="edge"
    ),
    "resize of axes": lambda net, v: net.op(
        "Interp", v, "", "", net.ints(4, 9), mode="linear", axes=(2, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIDDLES)
def test_nothing_is_transposed(net, check, name):
    done = check(between(net, lambda value: MIDDLES[name](net, value)), *PASSES)
    assert "Transpose" not in done.types


def test_names_of_dimensions_stay(net, check):
    x = net.input(2, 3, 5, 7, name="x")
    value = net.binary("ADD", net.op("Transpose", x, perm=TO_LAST), net.weights(3))
    out = net.unary("ABS", first(net, value))
    done = check(out, *PASSES, dims={"x": ("N", 3, "H", "W")})
    assert done.types.count("Transpose") == 0


def test_residuals_of_convolutions(net, check):
    value, convolutions = last(net, 1, 4, 6, 6), 3
    for _ in range(convolutions):
        product = net.conv(first(net, value), net.weights(4, 4, 3, 3), pads=1)
        branch = net.binary("ADD", net.op("Transpose", product, perm=TO_LAST), net.weights(4))
        value = net.binary("ADD", value, net.unary("RELU", branch))
    mean = net.op("Reduction", value, net.ints(1, 2), kind="MEAN", keepdims=False)
    done = check(mean, *PASSES, atol=1e-4)
    assert "Transpose" not in done.types
    assert done.types.count("Convolution") == convolutions


def test_a_sum_keeps_the_order_of_its_axes(net, check):
    value = net.op("Reduction", last(net, 2, 3, 5, 7), net.ints(0), kind="SUM", keepdims=False)
    assert check(value, *PASSES).types.count("Transpose") == 1


def test_results_that_are_used_outside(net, check):
    value = net.unary("TANH", last(net, 2, 3, 5, 7))
    done = check((first(net, value), value), *PASSES)
    assert done.types.count("Transpose") == 1


def test_two_tensors_one_of_them_not_transposed(net, check):
    value = net.binary("ADD", last(net, 2, 3, 5, 7), net.input(2, 5, 7, 3))
    assert check(first(net, value), *PASSES).types.count("Transpose") == 1


def test_where_nothing_is_gained(net, check):
    value = net.binary("ADD", last(net, 2, 3, 5, 7), net.input(2, 5, 7, 3))
    assert check(value, *PASSES).rewrites == 0


@pytest.mark.parametrize(
    "middle",
    [
        lambda net, v: net.op("Softmax", v, axis=1, flatten=True),
        lambda net, v: net.binary("ADD", v, net.input(3)),
        lambda net, v: net.op("CumSum", v, net.ints(1)),
        lambda net, v: net.op("Reduction", v, kind="MAX"),
    ],
)
def test_ops_that_cannot_be_moved(net, check, middle):
    assert check(first(net, middle(net, last(net, 2, 3, 5, 7))), *PASSES).rewrites == 0


def test_a_constant_that_raises_the_rank(net, check):
    one = net.const(np.ones((1, 1, 1, 1, 1), np.float32))
    value = net.binary("ADD", last(net, 2, 3, 5, 7), one)
    assert check(net.op("Transpose", value, perm=(0, 1, 4, 2, 3)), *PASSES).rewrites == 0


def test_transposes_that_do_not_cancel_become_one(net, check):
    value = net.unary("TANH", last(net, 2, 3, 5, 7))
    done = check(net.op("Transpose", value, perm=(0, 2, 1, 3)), *PASSES)
    assert done.types.count("Transpose") == 1
