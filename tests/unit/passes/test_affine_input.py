from __future__ import annotations

import pytest

from vkmnn.converter.passes.affine_input import FoldAffineInput
from vkmnn.ir.ops import Activation

FOLD = FoldAffineInput()


def scale(net, value, channels, **attrs):
    return net.op("Scale", value, net.weights(channels), net.weights(channels), **attrs)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_scale_before_an_unpadded_convolution(net, check, group, biased):
    value = scale(net, net.input(2, 4, 5, 7), 4)
    bias = [net.weights(6)] if biased else []
    out = net.conv(value, net.weights(6, 4 // group, 3, 2), *bias, group=group)
    assert check(out, FOLD).types == ["Convolution"]


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "DIV"])
def test_constants_before_an_unpadded_convolution(net, check, kind):
    value = net.binary(kind, net.input(1, 3, 5), net.weights(3, 1))
    done = check(net.conv(value, net.weights(5, 3, 2), auto_pad="VALID"), FOLD)
    assert done.types == ["Convolution"]


@pytest.mark.parametrize("kind", ["MUL", "DIV"])
def test_factors_before_a_padded_convolution(net, check, kind):
    value = net.binary(kind, net.input(1, 3, 5), net.const(255.0))
    assert check(net.conv(value, net.weights(5, 3, 3), pads=1), FOLD).types == ["Convolution"]


@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_factors_that_bring_values_into_range(net, check, factor):
    """16-bit quantised values by their scale: unscaled, float16 cannot hold them."""
    value = net.binary("MUL", net.input(1, 3, 5), net.const(factor))
    assert check(net.conv(value, net.weights(5, 3, 3), pads=1), FOLD).rewrites == 0


@pytest.mark.parametrize("attrs", [{"pads": 1}, {"auto_pad": "SAME_UPPER"}])
def test_shifts_before_a_padded_convolution(net, check, attrs):
    value = net.binary("SUB", net.input(1, 3, 5), net.const(0.5))
    assert check(net.conv(value, net.weights(5, 3, 3), **attrs), FOLD).rewrites == 0


def test_an_activation_between(net, check):
    value = scale(net, net.input(1, 4, 5), 4, activation=Activation("RELU"))
    assert check(net.conv(value, net.weights(5, 4, 1)), FOLD).rewrites == 0


def test_the_scaled_value_is_used_elsewhere(net, check):
    value = scale(net, net.input(1, 4, 5), 4)
    assert check((net.conv(value, net.weights(5, 4, 1)), value), FOLD).rewrites == 0


def test_weights_that_are_not_constant(net, check):
    value = scale(net, net.input(1, 4, 5), 4)
    out = net.op(
        "Convolution",
        value,
        net.input(3, 4, 1),
        kernel=(1,),
        strides=(1,),
        dilations=(1,),
        pads=(0, 0),
    )
    assert check(out, FOLD).rewrites == 0


def test_channels_that_broadcast(net, check):
    value = net.binary("MUL", net.input(1, 1, 5), net.weights(3, 1))
    assert check(net.conv(value, net.weights(5, 3, 1)), FOLD).rewrites == 0


def test_unknown_shapes(net, check):
    value = net.binary("MUL", net.unary("EXP", net.input(1, 3, 5)), net.weights(3, 1))
    assert check(net.conv(value, net.weights(5, 3, 1)), FOLD, infos=False).rewrites == 0
