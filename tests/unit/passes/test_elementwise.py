from __future__ import annotations

from itertools import product
from math import pi, sqrt

import numpy as np
import pytest

from vkmnn.converter.passes.elementwise import FuseElementwise
from vkmnn.ir.ops import Activation, UnaryAttrs

FUSE = FuseElementwise()
ORDERS = [False, True]


def mul(net, a, b, swap=False):
    return net.binary("MUL", *((b, a) if swap else (a, b)))


def add(net, a, b, swap=False):
    return net.binary("ADD", *((b, a) if swap else (a, b)))


def erf_part(net, x, divide):
    if divide:
        return net.unary("ERF", net.binary("DIV", x, net.const(sqrt(2))))
    return net.unary("ERF", mul(net, net.const(0.70710678), x))


@pytest.mark.parametrize(("divide", "swap", "form"), [*product(ORDERS, ORDERS, range(4))])
def test_gelu(net, check, divide, swap, form):
    x = net.input(3, 5, 7)
    gate = add(net, erf_part(net, x, divide), net.const(1.0), swap)
    half = net.const(0.5)
    out = [
        lambda: mul(net, mul(net, x, half, swap), gate, swap),
        lambda: mul(net, mul(net, x, gate, swap), half, swap),
        lambda: mul(net, x, mul(net, gate, half, swap), swap),
        lambda: net.binary("DIV", mul(net, gate, x, swap), net.const(2.0)),
    ][form]()
    assert check(out, FUSE).kinds == ["GELU"]


def cubic(net, x, form):
    third = net.const(0.044715)
    if form == 0:
        return add(net, x, mul(net, third, net.binary("POW", x, net.const(3.0))))
    if form == 1:
        return add(net, mul(net, third, mul(net, mul(net, x, x), x)), x)
    if form == 2:
        return mul(net, x, add(net, net.const(1.0), mul(net, third, net.unary("SQUARE", x))))
    return mul(net, add(net, net.const(1.0), mul(net, mul(net, x, third), x)), x)


@pytest.mark.parametrize("form", range(4))
def test_gelu_tanh(net, check, form):
    x = net.input(3, 5, 7)
    tanh = net.unary("TANH", mul(net, net.const(sqrt(2 / pi)), cubic(net, x, form)))
    out = mul(net, mul(net, net.const(0.5), x), add(net, net.const(1.0), tanh))
    assert check(out, FUSE).kinds == ["GELU_TANH"]


@pytest.mark.parametrize("swap", ORDERS)
def test_gates(net, check, swap):
    x = net.input(3, 5)
    silu = mul(net, x, net.unary("SIGMOID", x), swap)
    swish = mul(net, silu, net.unary("HARD_SIGMOID", silu, 1 / 6, 0.5), swap)
    mish = mul(net, swish, net.unary("TANH", net.unary("SOFTPLUS", swish)), swap)
    assert check(mish, FUSE).kinds == ["SILU", "HARD_SWISH", "MISH"]


@pytest.mark.parametrize("swap", ORDERS)
def test_quick_gelu(net, check, swap):
    x = net.input(3, 5, 7)
    gate = net.unary("SIGMOID", mul(net, x, net.const(1.702), swap))
    done = check(mul(net, x, gate, swap), FUSE)
    assert done.only.attrs == UnaryAttrs("QUICK_GELU", 1.702)


def test_another_sharpness_is_no_quick_gelu(net, check):
    x = net.input(3, 5)
    gate = net.unary("SIGMOID", mul(net, x, net.const(1.7)))
    assert check(mul(net, x, gate), FUSE).rewrites == 0


@pytest.mark.parametrize("form", range(3))
def test_hard_swish_from_relu6(net, check, form):
    x = net.input(3, 5)
    relu6 = net.unary("CLIP", add(net, x, net.const(3.0)), 0.0, 6.0)
    out = [
        lambda: net.binary("DIV", mul(net, x, relu6), net.const(6.0)),
        lambda: mul(net, x, net.binary("DIV", relu6, net.const(6.0))),
        lambda: mul(net, net.const(1 / 6), mul(net, relu6, x)),
    ][form]()
    assert check(out, FUSE).kinds == ["HARD_SWISH"]


def test_hard_sigmoid_from_relu6(net, check):
    relu6 = net.unary("CLIP", add(net, net.input(3, 5), net.const(3.0)), 0.0, 6.0)
    done = check(net.binary("DIV", relu6, net.const(6.0)), FUSE)
    assert done.kinds == ["HARD_SIGMOID"]


def test_softplus(net, check):
    x = net.input(3, 5)
    out = net.unary("LOG", add(net, net.unary("EXP", x), net.const(1.0)))
    assert check(out, FUSE).kinds == ["SOFTPLUS"]


def test_the_argument_is_itself_a_product(net, check):
    x = mul(net, net.input(3, 5), net.const(3.0))
    gate = add(net, erf_part(net, x, divide=True), net.const(1.0))
    done = check(mul(net, mul(net, x, gate), net.const(0.5)), FUSE)
    assert done.kinds == ["MUL", "GELU"]


@pytest.mark.parametrize(
    ("half", "one", "root"), [(0.4, 1.0, 0.70710678), (0.5, 1.1, 0.70710678), (0.5, 1.0, 0.7)]
)
def test_wrong_constants(net, check, half, one, root):
    x = net.input(3, 5)
    erf = net.unary("ERF", mul(net, x, net.const(root)))
    out = mul(net, mul(net, x, net.const(half)), add(net, erf, net.const(one)))
    assert check(out, FUSE).rewrites == 0


def test_two_different_tensors(net, check):
    x, y = net.input(3, 5), net.input(3, 5)
    assert check(mul(net, x, net.unary("SIGMOID", y)), FUSE).rewrites == 0


def test_a_vector_is_no_number(net, check):
    x = net.input(3, 5)
    gate = add(net, erf_part(net, x, divide=True), net.const(np.ones(5, np.float32)))
    assert check(mul(net, mul(net, x, net.const(0.5)), gate), FUSE).rewrites == 0


def test_constants_that_raise_the_rank(net, check):
    x = net.input(5)
    gate = add(net, erf_part(net, x, divide=True), net.const([[1.0]]))
    assert check(mul(net, mul(net, x, net.const(0.5)), gate), FUSE).rewrites == 0


@pytest.mark.parametrize("which", ["erf", "gate", "half"])
def test_other_reader(net, check, which):
    x = net.input(3, 5)
    erf = erf_part(net, x, divide=True)
    gate = add(net, erf, net.const(1.0))
    half = mul(net, x, net.const(0.5))
    used = {"erf": erf, "gate": gate, "half": half}[which]
    assert check((mul(net, half, gate), net.unary("EXP", used)), FUSE).rewrites == 0


def test_graph_output(net, check):
    x = net.input(3, 5)
    gate = net.unary("SIGMOID", x)
    assert check((mul(net, x, gate), gate), FUSE).rewrites == 0


def test_an_activation_within(net, check):
    x = net.input(3, 5)
    erf = erf_part(net, x, divide=True)
    gate = net.binary("ADD", erf, net.const(1.0), activation=Activation("RELU"))
    assert check(mul(net, mul(net, x, net.const(0.5)), gate), FUSE).rewrites == 0


def test_wrong_parameters(net, check):
    x = net.input(3, 5)
    gate = net.unary("HARD_SIGMOID", x, 0.2, 0.5)
    assert check(mul(net, x, gate), FUSE).rewrites == 0
