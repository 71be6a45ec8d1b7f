from __future__ import annotations

import pytest

from vkmnn.converter.passes.activation import FuseActivation
from vkmnn.ir.ops import ACTIVATION_KINDS, Activation

PARAMETERS = {
    "CLIP": (-0.5, 0.75),
    "LEAKY_RELU": (0.1, 0.0),
    "ELU": (0.7, 0.0),
    "QUICK_GELU": (2.0, 0.0),
}
PARAMETERS["HARD_SIGMOID"] = (0.2, 0.5)


@pytest.mark.parametrize("kind", sorted({*ACTIVATION_KINDS} - {"NONE"}))
def test_every_kind_goes_into_a_convolution(net, check, kind):
    alpha, beta = PARAMETERS.get(kind, (0.0, 0.0))
    conv = net.conv(net.input(1, 3, 5, 7), net.weights(5, 3, 3, 3), pads=1)
    done = check(net.unary(kind, conv, alpha, beta), FuseActivation())
    assert done.only.attrs.activation == Activation(kind, alpha, beta)


def test_other_ops_take_activations(net, check):
    a = net.op("MatMul", net.input(3, 5), net.weights(5, 7))
    b = net.binary("ADD", net.unary("RELU", a), net.weights(7))
    c = net.binary("MUL", net.unary("TANH", b), net.input(3, 7))
    d = net.op("Scale", net.unary("SIGMOID", c), net.weights(7), net.weights(7))
    e = net.unary("SILU", d)
    done = check(e, FuseActivation())
    assert done.kinds == ["MatMul", "ADD", "MUL", "Scale"]
    assert [op.attrs.activation.kind for op in done.graph.ops] == [
        "RELU",
        "TANH",
        "SIGMOID",
        "SILU",
    ]


def test_clamp_follows_clamp(net, check):
    conv = net.conv(net.input(1, 2, 5), net.weights(3, 2, 1))
    done = check(net.unary("CLIP", net.unary("RELU", conv), -1.0, 0.5), FuseActivation())
    assert done.only.attrs.activation == Activation("CLIP", 0.0, 0.5)


def test_second_activation_stays(net, check):
    conv = net.conv(net.input(1, 2, 5), net.weights(3, 2, 1))
    done = check(net.unary("TANH", net.unary("RELU", conv)), FuseActivation())
    assert done.kinds == ["Convolution", "TANH"]


def test_other_reader(net, check):
    conv = net.conv(net.input(1, 2, 5), net.weights(3, 2, 1))
    relu = net.unary("RELU", conv)
    assert check(net.binary("ADD", relu, conv), FuseActivation()).rewrites == 0


def test_graph_output(net, check):
    conv = net.conv(net.input(1, 2, 5), net.weights(3, 2, 1))
    assert check((net.unary("RELU", conv), conv), FuseActivation()).rewrites == 0


@pytest.mark.parametrize("kind", ["MISH", "SELU", "ERF"])
def test_kinds_that_ops_do_not_apply(net, check, kind):
    conv = net.conv(net.input(1, 2, 5), net.weights(3, 2, 1))
    assert check(net.unary(kind, conv), FuseActivation()).rewrites == 0


def test_integers_and_unknown_types(net, check):
    total = net.binary("ADD", net.input(3, dtype="int32"), net.input(3, dtype="int32"))
    assert check(net.unary("RELU", total), FuseActivation()).rewrites == 0


def test_no_activation_in_the_op_before(net, check):
    pooled = net.op("Softmax", net.input(3, 5))
    assert check(net.unary("RELU", pooled), FuseActivation()).rewrites == 0


def test_ops_that_move_elements_come_between(net, check):
    conv = net.conv(net.input(1, 2, 5, 3), net.weights(4, 2, 1, 1))
    moved = net.op("Transpose", net.op("DepthToSpace", conv, block_size=2), perm=(0, 2, 1, 3))
    out = net.unary("SIGMOID", net.op("Reshape", moved, net.ints(-1, 6)))
    done = check(out, FuseActivation())
    assert done.types == ["Convolution", "DepthToSpace", "Transpose", "Reshape"]
    assert done.attrs(0).activation == Activation("SIGMOID")


def test_moved_elements_that_are_used_elsewhere(net, check):
    conv = net.conv(net.input(1, 4, 5, 3), net.weights(4, 4, 1, 1))
    moved = net.op("DepthToSpace", conv, block_size=2)
    outputs = net.unary("SIGMOID", moved), net.unary("EXP", moved)
    assert check(outputs, FuseActivation()).rewrites == 0
    assert check((*outputs, conv), FuseActivation()).rewrites == 0


def test_ops_that_leave_elements_out_stay_between(net, check):
    conv = net.conv(net.input(1, 4, 5), net.weights(4, 4, 1))
    part = net.op("Slice", conv, net.ints(0), net.ints(2))
    assert check(net.unary("SIGMOID", part), FuseActivation()).rewrites == 0
