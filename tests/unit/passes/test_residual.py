from __future__ import annotations

import pytest

from vkmnn.converter.passes.activation import FuseActivation
from vkmnn.converter.passes.refine_shapes import RefineShapes
from vkmnn.converter.passes.residual import FuseLateResidual, FuseResidual
from vkmnn.ir.ops import Activation

FUSE = FuseResidual()
LATE = FuseLateResidual()


@pytest.mark.parametrize("left", [False, True])
def test_into_a_convolution(net, check, left):
    x = net.input(1, 3, 5, 7)
    conv = net.conv(x, net.weights(3, 3, 3, 3), net.weights(3), pads=1)
    out = net.binary("ADD", *((x, conv) if left else (conv, x)), activation=Activation("RELU"))
    done = check(out, FUSE)
    assert done.only.inputs[3] == x
    assert done.only.attrs.activation == Activation("RELU")


def test_into_a_matrix_product_without_bias(net, check):
    product = net.op("MatMul", net.input(2, 3, 5), net.weights(5, 7))
    done = check(net.binary("ADD", product, net.input(2, 3, 7)), FUSE)
    assert done.only.inputs[2] == ""


def test_a_constant_of_the_same_shape(net, check):
    product = net.op("MatMul", net.input(2, 3, 5), net.weights(5, 7))
    assert check(net.binary("ADD", product, net.weights(2, 3, 7)), FUSE).types == ["MatMul"]


def test_the_later_operand_takes_the_other(net, check):
    x = net.input(1, 3, 5)
    first = net.conv(x, net.weights(3, 3, 1))
    second = net.conv(x, net.weights(3, 3, 1))
    done = check(net.binary("ADD", second, first), FUSE)
    assert done.types == ["Convolution", "Convolution"]
    assert done.graph.ops[1].inputs[3] == first


@pytest.mark.parametrize("first", ["branch", "shortcut"])
def test_the_longer_branch_takes_the_shortcut(net, check, first):
    x = net.input(1, 3, 5)
    made = {}
    for name in ("branch", "shortcut") if first == "branch" else ("shortcut", "branch"):
        inner = net.conv(x, net.weights(3, 3, 1)) if name == "branch" else x
        made[name] = net.conv(inner, net.weights(3, 3, 1))
    done = check(net.binary("ADD", made["branch"], made["shortcut"]), FUSE)
    assert done.graph.ops[-1].inputs[3] == made["shortcut"]


def test_the_other_operand_may_come_after_the_convolution(net, check):
    x = net.input(1, 3, 5)
    conv = net.conv(x, net.weights(3, 3, 1))
    assert check(net.binary("ADD", conv, net.unary("EXP", x)), FUSE).kinds == ["EXP", "Convolution"]


def test_the_earlier_operand_when_the_later_is_used_elsewhere(net, check):
    x = net.input(1, 3, 5)
    first = net.conv(x, net.weights(3, 3, 1))
    second = net.conv(x, net.weights(3, 3, 1))
    done = check((net.binary("ADD", second, first), second), FUSE)
    assert done.graph.ops[1].inputs[3] == second


@pytest.mark.parametrize("shape", [(1, 3, 1), (3, 5), (1, 1, 5), (2, 3, 5)])
def test_operands_that_broadcast(net, check, shape):
    conv = net.conv(net.input(1, 3, 5), net.weights(3, 3, 1))
    assert check(net.binary("ADD", conv, net.input(*shape)), FUSE).rewrites == 0


def test_symbols_prove_shapes_equal(net, check):
    x = net.input(2, 3, 11, 7)
    strided = net.op("Identity", net.conv(x, net.weights(5, 3, 1, 1), strides=(2, 2)))
    conv = net.conv(x, net.weights(5, 3, 3, 3), pads=1, strides=(2, 2))
    out = net.binary("ADD", conv, strided)
    done = check(out, RefineShapes(), FUSE, dims={x: ("N", 3, None, "W")})
    assert done.types == ["Convolution", "Identity", "Convolution"]


def test_symbols_that_may_differ(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(3, 3, 1))
    other = net.input(1, 3, 5, name="other")
    dims = {"x0": ("N", 3, "L"), "other": ("M", 3, "L")}
    assert check(net.binary("ADD", conv, other), FUSE, dims=dims).rewrites == 0


def test_unknown_shapes(net, check):
    x = net.input(1, 3, 5)
    out = net.binary("ADD", net.conv(x, net.weights(3, 3, 1)), x)
    assert check(out, FUSE, infos=False).rewrites == 0


def test_both_operands_are_one(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(3, 3, 1))
    assert check(net.binary("ADD", conv, conv), FUSE).rewrites == 0


def test_another_residual_or_activation_or_reader_or_kind(net, check):
    x = net.input(1, 3, 5)
    w = net.weights(3, 3, 1)
    twice = net.binary("ADD", net.conv(x, w, "", x), x)
    active = net.binary("ADD", net.conv(x, w, activation=Activation("RELU")), x)
    conv = net.conv(x, w)
    read = net.binary("ADD", conv, x)
    product = net.binary("MUL", net.conv(x, w), x)
    assert check((twice, active, conv, read, product), FUSE).rewrites == 0


def test_integers(net, check):
    a, b = net.input(3, 5, dtype="int32"), net.input(5, 7, dtype="int32")
    out = net.binary("ADD", net.op("MatMul", a, b), net.input(3, 7, dtype="int32"))
    assert check(out, FUSE).rewrites == 0


@pytest.mark.parametrize("kind", ["ADD", "MUL"])
@pytest.mark.parametrize("left", [False, True])
def test_behind_the_activation_of_a_convolution(net, check, kind, left):
    x = net.input(1, 3, 5, 7)
    conv = net.conv(x, net.weights(3, 3, 3, 3), pads=1, activation=Activation("SILU"))
    done = check(net.binary(kind, *((x, conv) if left else (conv, x))), LATE)
    assert done.only.inputs[3] == x
    assert done.only.attrs.residual == f"{kind}_AFTER"


def test_a_gate_and_what_it_lets_through(net, check):
    x = net.input(2, 3, 5)
    gate = net.op("MatMul", x, net.weights(5, 7), activation=Activation("SILU"))
    up = net.op("MatMul", x, net.weights(5, 7))
    done = check(net.binary("MUL", gate, up), LATE)
    assert done.types == ["MatMul", "MatMul"]
    assert done.attrs(1).residual == "MUL_AFTER"


def test_late_residuals_that_stay(net, check):
    x, w = net.input(1, 3, 5), net.weights(3, 3, 1)
    silu = Activation("SILU")
    followed = net.binary("ADD", net.conv(x, w, activation=silu), x, activation=Activation("RELU"))
    taken = net.binary("ADD", net.conv(x, w, "", x, activation=silu), x)
    smaller = net.binary("MUL", net.conv(x, w), net.input(1, 3, 1))
    difference = net.binary("SUB", net.conv(x, w), x)
    conv = net.conv(x, w)
    read = net.binary("MUL", conv, x)
    outputs = (followed, taken, smaller, difference, conv, read)
    assert check(outputs, LATE).rewrites == 0


def test_nothing_goes_behind_a_late_residual(net, check):
    x, w = net.input(1, 3, 5), net.weights(3, 3, 1)
    late = net.conv(x, w, "", x, residual="ADD_AFTER")
    assert check(net.unary("RELU", late), FuseActivation()).rewrites == 0
