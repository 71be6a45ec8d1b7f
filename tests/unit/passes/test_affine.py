from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.affine import FoldAffine
from vkmnn.ir.ops import Activation


def scale(net, value, channels):
    return net.op("Scale", value, net.weights(channels), net.weights(channels))


def test_batch_norm_into_convolution(net, check):
    conv = net.conv(net.input(2, 3, 5, 7), net.weights(5, 3, 3, 3), net.weights(5), pads=1)
    assert len(check(scale(net, conv, 5), FoldAffine()).only.inputs) == 3


def test_batch_norm_into_convolution_without_bias(net, check):
    conv = net.conv(net.input(2, 4, 5), net.weights(6, 2, 3), group=2)
    assert len(check(scale(net, conv, 6), FoldAffine(), infos=False).only.inputs) == 3


def test_batch_norm_into_grouped_deconvolution(net, check):
    x, w = net.input(1, 6, 5, 3), net.weights(6, 5, 2, 3)
    deconv = net.op(
        "Deconvolution",
        x,
        w,
        kernel=(2, 3),
        strides=(2, 1),
        dilations=(1, 1),
        pads=(0, 1, 0, 1),
        output_padding=(0, 0),
        group=2,
    )
    assert check(scale(net, deconv, 10), FoldAffine()).types == ["Deconvolution"]


@pytest.mark.parametrize("transposed", [False, True])
def test_batch_norm_into_matrix_product(net, check, transposed):
    w = net.weights(7, 5) if transposed else net.weights(5, 7)
    product = net.op("MatMul", net.input(3, 5), w, net.weights(7), transpose_b=transposed)
    assert check(scale(net, product, 7), FoldAffine()).types == ["MatMul"]


def test_batch_norm_over_axis_1_of_a_batched_product(net, check):
    product = net.op("MatMul", net.input(2, 7, 5), net.weights(5, 7))
    assert check(scale(net, product, 7), FoldAffine()).rewrites == 0


def test_scale_after_scale(net, check):
    assert check(scale(net, scale(net, net.input(2, 5, 3), 5), 5), FoldAffine()).types == ["Scale"]


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "DIV"])
@pytest.mark.parametrize("shape", [(5, 1, 1), (1, 5, 1, 1), (), (1,), (1, 1, 1)])
def test_constants_after_convolution(net, check, kind, shape):
    conv = net.conv(net.input(1, 3, 5, 7), net.weights(5, 3, 1, 1), net.weights(5))
    done = check(net.binary(kind, conv, net.weights(*shape)), FoldAffine(), infos=False)
    assert done.types == ["Convolution"]


def test_constant_minus_convolution(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(5, 3, 1))
    assert check(net.binary("SUB", net.weights(5, 1), conv), FoldAffine()).types == ["Convolution"]


def test_constant_over_convolution(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(5, 3, 1))
    assert check(net.binary("DIV", net.weights(5, 1), conv), FoldAffine()).rewrites == 0


def test_the_activation_moves_along(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(5, 3, 1))
    sum_ = net.binary("ADD", conv, net.weights(5, 1), activation=Activation("RELU"))
    assert check(sum_, FoldAffine()).only.attrs.activation == Activation("RELU")


@pytest.mark.parametrize("shape", [(5,), (5, 5), (1, 1, 5, 1, 1), (2, 5, 1, 1), (1, 5, 1, 5)])
def test_constants_that_are_not_per_channel(net, check, shape):
    conv = net.conv(net.input(1, 3, 5, 5), net.weights(5, 3, 1, 1))
    assert check(net.binary("ADD", conv, net.weights(*shape)), FoldAffine()).rewrites == 0


def test_one_channel_and_a_constant_that_broadcasts(net, check):
    conv = net.conv(net.input(1, 3, 5, 5), net.weights(1, 3, 1, 1))
    assert check(net.binary("ADD", conv, net.weights(5, 1, 1)), FoldAffine()).rewrites == 0


@pytest.mark.parametrize("shape", [(7,), (1, 7), (1,), (), (1, 1, 7)])
def test_bias_of_a_matrix_product(net, check, shape):
    product = net.op("MatMul", net.input(2, 3, 5), net.weights(5, 7))
    done = check(net.binary("ADD", net.weights(*shape), product), FoldAffine())
    assert done.graph.constants[done.only.inputs[2]].shape == (7,)


@pytest.mark.parametrize("shape", [(7,), (1,), ()])
def test_bias_of_a_matrix_product_of_unknown_rank(net, check, shape):
    product = net.op("MatMul", net.input(2, 3, 5), net.weights(5, 7))
    done = check(net.binary("ADD", product, net.weights(*shape)), FoldAffine(), infos=False)
    assert done.types == ["MatMul"]


def test_bias_that_may_raise_an_unknown_rank(net, check):
    product = net.op("MatMul", net.input(5), net.weights(5, 7))
    done = check(net.binary("ADD", product, net.weights(1, 7)), FoldAffine(), infos=False)
    assert done.rewrites == 0


@pytest.mark.parametrize("shape", [(3, 1), (2, 1, 1), (3, 7), (1, 1, 1, 7)])
def test_no_bias_of_a_matrix_product(net, check, shape):
    product = net.op("MatMul", net.input(2, 3, 5), net.weights(5, 7))
    assert check(net.binary("ADD", product, net.weights(*shape)), FoldAffine()).rewrites == 0


def test_one_column_and_a_bias_that_broadcasts(net, check):
    product = net.op("MatMul", net.input(3, 5), net.weights(5, 1))
    assert check(net.binary("ADD", product, net.weights(7)), FoldAffine()).rewrites == 0


def test_a_vector_needs_constant_weights(net, check):
    product = net.op("MatMul", net.input(3, 5), net.input(5, 7))
    assert check(net.binary("MUL", product, net.weights(7)), FoldAffine()).rewrites == 0


def test_no_scaling_after_a_residual(net, check):
    product = net.op("MatMul", net.input(3, 5), net.weights(5, 7), "", net.input(3, 7))
    assert check(net.binary("MUL", product, net.const(2.0)), FoldAffine()).rewrites == 0


def test_bias_before_a_residual(net, check):
    product = net.op("MatMul", net.input(3, 5), net.weights(5, 7), "", net.input(3, 7))
    done = check(net.binary("ADD", product, net.weights(7)), FoldAffine())
    assert all(done.only.inputs)
    assert len(done.only.inputs) == 4


def test_an_activation_between(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(5, 3, 1), activation=Activation("RELU"))
    assert check(scale(net, conv, 5), FoldAffine()).rewrites == 0


def test_other_reader_and_output(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(5, 3, 1))
    out = net.binary("ADD", conv, net.weights(5, 1))
    assert check((out, conv), FoldAffine()).rewrites == 0


def test_integers(net, check):
    product = net.op("MatMul", net.input(3, 5, dtype="int32"), net.const(np.ones((5, 7), np.int32)))
    out = net.binary("ADD", product, net.const(np.arange(7, dtype=np.int32)))
    assert check(out, FoldAffine()).rewrites == 0


def test_division_by_zero_stays(net, check):
    conv = net.conv(net.input(1, 3, 5), net.weights(5, 3, 1))
    assert check(net.binary("DIV", conv, net.const(0.0)), FoldAffine()).rewrites == 0


@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_factors_that_bring_values_into_range(net, check, factor):
    """Steps of 16-bit values: unscaled, float16 cannot hold the results of the convolution."""
    value = net.conv(net.input(1, 3, 5), net.weights(5, 3, 3))
    assert check(net.binary("DIV", value, net.const(factor)), FoldAffine()).rewrites == 0
