from __future__ import annotations

from vkmnn.converter.passes.transpose_matmul import LowerTranspose, RaiseTranspose

RAISE, LOWER = RaiseTranspose(), LowerTranspose()


def linear(net, x, *rest, **attrs):
    return net.op("MatMul", x, net.weights(4, 7), *rest, **attrs)


def test_raise_to_a_transpose(net, check):
    x = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    done = check(net.op("Transpose", linear(net, x, net.weights(7)), perm=(1, 0, 2)), RAISE, LOWER)
    assert done.types == ["Transpose", "Transpose", "MatMul"]


def test_raise_to_a_reshaped_transpose(net, check):
    x = net.op("Transpose", net.input(2, 2, 3, 2), perm=(2, 0, 1, 3))
    x = net.op("Reshape", x, net.ints(3, 2, 4))
    done = check(net.op("Transpose", linear(net, x), perm=(1, 0, 2)), RAISE)
    assert done.types == ["Transpose", "Reshape", "Transpose", "MatMul"]


def test_no_transpose_to_raise_to(net, check):
    x = net.unary("EXP", net.input(2, 3, 4))
    assert check(net.op("Transpose", linear(net, x), perm=(1, 0, 2)), RAISE).rewrites == 0


def test_lower_to_a_transpose(net, check):
    x = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    split = net.op("Reshape", linear(net, x), net.ints(3, 2, 7, 1))
    done = check(net.op("Transpose", split, perm=(1, 2, 0, 3)), LOWER, RAISE)
    assert done.types == ["MatMul", "Transpose", "Reshape", "Transpose"]


def test_no_transpose_to_lower_to(net, check):
    x = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    assert check(net.unary("EXP", linear(net, x)), LOWER).rewrites == 0


def test_the_last_axis_moves(net, check):
    x = net.op("Transpose", net.input(2, 4, 3), perm=(0, 2, 1))
    out = net.op("Transpose", linear(net, x), perm=(0, 2, 1))
    assert check(out, LOWER, RAISE).rewrites == 0


def test_a_batch_of_matrices(net, check):
    x = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    product = net.op("MatMul", x, net.weights(3, 4, 7))
    assert check(net.op("Transpose", product, perm=(1, 0, 2)), LOWER, RAISE).rewrites == 0


def test_a_residual(net, check):
    x = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    product = linear(net, x, "", net.input(3, 2, 7))
    assert check(net.op("Transpose", product, perm=(1, 0, 2)), LOWER, RAISE).rewrites == 0


def test_other_readers(net, check):
    x = net.op("Transpose", net.input(2, 3, 4), perm=(1, 0, 2))
    product = linear(net, x)
    out = net.op("Transpose", product, perm=(1, 0, 2))
    assert check((out, product, x), LOWER, RAISE).rewrites == 0
