from __future__ import annotations

from itertools import product

import pytest

from vkmnn.converter.passes.layer_norm import FuseLayerNorm
from vkmnn.ir.ops import LayerNormAttrs

FUSE = FuseLayerNorm()
EPSILON = 9.999999747378752e-06


def mean(net, x, *axes, **attrs):
    return net.op("Reduction", x, net.ints(*(axes or (-1,))), kind="MEAN", **attrs)


def square(net, x, form):
    if form == 0:
        return net.binary("POW", x, net.const(2.0))
    return net.binary("MUL", x, x) if form == 1 else net.unary("SQUARE", x)


def divided(net, value, variance, form):
    total = net.binary("ADD", variance, net.const(1e-5))
    if form == 1:
        return net.binary("MUL", net.unary("RSQRT", total), value)
    root = net.unary("SQRT", total)
    if form == 0:
        return net.binary("DIV", value, root)
    if form == 2:
        return net.binary("MUL", value, net.unary("RECIPROCAL", root))
    return net.binary("MUL", value, net.binary("DIV", net.const(1.0), root))


def normed(net, x, *axes, squares=0, division=0):
    centred = net.binary("SUB", x, mean(net, x, *axes))
    variance = mean(net, square(net, centred, squares), *axes)
    return divided(net, centred, variance, division)


@pytest.mark.parametrize(("squares", "division"), [*product(range(3), range(4))])
def test_layer_norm(net, check, squares, division):
    out = normed(net, net.input(3, 5, 7), squares=squares, division=division)
    assert check(out, FUSE).only.attrs == LayerNormAttrs(-1, EPSILON)


@pytest.mark.parametrize(("squares", "division"), [*product(range(3), range(4))])
def test_rms_norm(net, check, squares, division):
    x = net.unary("EXP", net.input(3, 5, 7))
    out = divided(net, x, mean(net, square(net, x, squares)), division)
    assert check(out, FUSE).attrs(1) == LayerNormAttrs(-1, EPSILON, rms=True)


def test_rms_norm_of_a_difference(net, check):
    x = net.binary("SUB", net.input(3, 7), net.input(3, 7))
    out = divided(net, x, mean(net, square(net, x, 0)), 0)
    assert check(out, FUSE).attrs(1) == LayerNormAttrs(-1, EPSILON, rms=True)


def test_several_axes(net, check):
    out = normed(net, net.input(2, 3, 5, 7), 1, 3, 2)
    assert check(out, FUSE).only.attrs.axis == -3


def test_positive_axes_need_the_rank(net, check):
    out = normed(net, net.unary("EXP", net.input(3, 5)), 1)
    assert check(out, FUSE, infos=False).rewrites == 0


@pytest.mark.parametrize("axes", [(1,), (0, 2)])
def test_other_axes_than_the_last(net, check, axes):
    assert check(normed(net, net.input(3, 5, 7), *axes), FUSE).rewrites == 0


def test_variance_over_other_axes_than_the_mean(net, check):
    x = net.input(3, 5, 7)
    centred = net.binary("SUB", x, mean(net, x, -1, -2))
    variance = mean(net, square(net, centred, 0))
    done = check(divided(net, centred, variance, 0), FUSE)
    assert done.types.count("Reduction") == 1
    assert done.graph.ops[-1].attrs.rms


def test_variance_of_something_else(net, check):
    x, y = net.input(3, 5), net.input(3, 5)
    out = divided(net, x, mean(net, square(net, y, 0)), 0)
    assert check(out, FUSE).rewrites == 0


def test_inner_values_that_are_used(net, check):
    x = net.input(3, 5)
    centred = net.binary("SUB", x, mean(net, x))
    out = divided(net, centred, mean(net, square(net, centred, 0)), 0)
    done = check((out, centred), FUSE)
    assert done.rewrites == 0


def test_sums_that_are_no_means(net, check):
    x = net.input(3, 5)
    total = net.op("Reduction", square(net, x, 0), net.ints(-1), kind="SUM")
    assert check(divided(net, x, total, 0), FUSE).rewrites == 0
