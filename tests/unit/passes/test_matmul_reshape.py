from __future__ import annotations

import pytest

from vkmnn.converter.passes.matmul_reshape import UnwrapMatMul
from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.ir.ops import Activation

UNWRAP = UnwrapMatMul()


def build(net, x, *target, w=(5, 7), bias=True, **attrs):
    flat = net.op("Reshape", x, net.ints(-1, 5))
    inputs = [flat, net.weights(*w), *([net.weights(7)] if bias else [])]
    return net.op("Reshape", net.op("MatMul", *inputs, **attrs), net.ints(*target))


@pytest.mark.parametrize("bias", [False, True])
def test_rows_that_are_flattened_and_restored(net, check, bias):
    attrs = {"alpha": 0.5, "activation": Activation("TANH")}
    out = build(net, net.input(2, 3, 5), 2, 3, 7, bias=bias, **attrs)
    done = check(out, UNWRAP)
    assert done.types == ["MatMul"]
    assert done.only.attrs.activation == Activation("TANH")


def test_a_transposed_matrix(net, check):
    out = build(net, net.input(2, 3, 5), 2, 3, 7, w=(7, 5), transpose_b=True)
    assert check(out, UNWRAP).types == ["MatMul"]


def test_a_reshape_that_also_joins_columns(net, check):
    out = build(net, net.input(2, 3, 5, 1), 3, 2, 7)
    assert check(out, UNWRAP).types == ["Reshape", "MatMul"]


def test_flatten(net, check):
    flat = net.op("Flatten", net.input(2, 3, 5), axis=2)
    out = net.op("Reshape", net.op("MatMul", flat, net.weights(5, 7)), net.ints(2, 3, 7))
    assert check(out, UNWRAP).types == ["MatMul"]


def test_symbols(net, check):
    x = net.input(2, 3, 5)
    shape = net.op("Shape", x, start=0, end=2)
    flat = net.op("Reshape", x, net.ints(-1, 5))
    product = net.op("MatMul", flat, net.weights(5, 7))
    out = net.op("Reshape", product, net.op("Concat", shape, net.ints(7)))
    done = check(out, RefineShapes(), UNWRAP, dims={x: ("N", "L", 5)})
    assert done.types == ["MatMul"]


def test_columns_that_are_split(net, check):
    out = build(net, net.input(2, 3, 5), 6, 7, 1)
    assert check(out, UNWRAP).rewrites == 0


def test_a_single_row(net, check):
    out = build(net, net.input(1, 1, 5), 7)
    assert check(out, UNWRAP).rewrites == 0


def test_no_reshape_before(net, check):
    product = net.op("MatMul", net.input(6, 5), net.weights(5, 7))
    assert check(net.op("Reshape", product, net.ints(2, 3, 7)), UNWRAP).rewrites == 0


def test_other_reader(net, check):
    flat = net.op("Reshape", net.input(2, 3, 5), net.ints(-1, 5))
    product = net.op("MatMul", flat, net.weights(5, 7))
    out = net.op("Reshape", product, net.ints(2, 3, 7))
    assert check((out, product), UNWRAP).rewrites == 0


def test_a_residual(net, check):
    flat = net.op("Reshape", net.input(2, 3, 5), net.ints(-1, 5))
    product = net.op("MatMul", flat, net.weights(5, 7), "", net.input(6, 7))
    assert check(net.op("Reshape", product, net.ints(2, 3, 7)), UNWRAP).rewrites == 0


def test_a_batch_of_matrices(net, check):
    stacked = net.op("Reshape", net.input(2, 3, 4, 5), net.ints(6, 4, 5))
    product = net.op("MatMul", stacked, net.weights(6, 5, 7))
    assert check(net.op("Reshape", product, net.ints(2, 3, 4, 7)), UNWRAP).rewrites == 0


def test_unknown_shapes(net, check):
    assert check(build(net, net.input(2, 3, 5), 2, 3, 7), UNWRAP, infos=False).rewrites == 0
