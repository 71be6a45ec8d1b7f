from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession, ShapeError
from vkmnn.converter.passes.pad import FoldPad
from vkmnn.ir.ops import Activation

FOLD = FoldPad()


def pad(net, x, widths, *, value=None, axes=None):
    more = [] if value is None else [net.const(value)]
    if axes is not None:
        more = [more[0] if more else "", net.ints(*axes)]
    return net.op("Pad", x, net.ints(*widths), *more)


def pool(net, x, kind, *, outputs=1, **attrs):
    fixed = {"kernel": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    return net.op("Pooling", x, outputs=outputs, kind=kind, **{**fixed, **attrs})


ASYMMETRIC = (0, 0, 0, 1, 0, 0, 1, 2)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
@pytest.mark.parametrize("value", [None, 0.0])
def test_zeros_before_a_convolution(net, check, pads, value):
    """TensorFlow pads so where it strides; pads of the convolution's own come on top."""
    x = pad(net, net.input(2, 4, 6, 5), ASYMMETRIC, value=value)
    fixed = {"kernel": (3, 2), "strides": (2, 2), "dilations": (1, 1), "pads": pads}
    done = check(net.op("Convolution", x, net.weights(3, 4, 3, 2), **fixed), FOLD)
    assert done.types == ["Convolution"]
    assert done.attrs().pads == tuple(a + b for a, b in zip(pads, (0, 1, 1, 2), strict=True))


@pytest.mark.parametrize("axes", [(2, 3), (3, -2), (-1,)])
def test_pads_of_named_axes(net, check, axes):
    widths = tuple(range(1, 2 * len(axes) + 1))
    x = pad(net, net.input(1, 2, 6, 5), widths, axes=axes)
    assert check(net.conv(x, net.weights(3, 2, 3, 3)), FOLD).types == ["Convolution"]


def test_pads_wider_than_the_kernel(net, check):
    x = pad(net, net.input(1, 2, 3), (0, 0, 5, 0, 0, 4))
    out = net.conv(x, net.weights(3, 2, 2), net.weights(3), auto_pad="VALID")
    assert check(out, FOLD).types == ["Convolution"]


def test_several_readers(net, check):
    x = pad(net, net.input(1, 2, 6, 5), ASYMMETRIC)
    outs = (net.conv(x, net.weights(3, 2, 3, 3)), net.unary("EXP", x))
    assert check(outs, FOLD).types == ["Pad", "Convolution", "UnaryOp"]


@pytest.mark.parametrize("value", [-np.inf, np.finfo(np.float32).min])
def test_maxima_padded_with_the_lowest(net, check, value):
    x = pad(net, net.input(1, 2, 6, 5), ASYMMETRIC, value=value)
    assert check(pool(net, x, "MAX"), FOLD).types == ["Pooling"]


@pytest.mark.parametrize(
    ("made", "rest"),
    [
        (lambda net, x: net.unary("RELU", x), ["UnaryOp", "Pooling"]),
        (lambda net, x: net.unary("CLIP", x, 0.0, 6.0), ["UnaryOp", "Pooling"]),
        (
            lambda net, x: net.conv(x, net.weights(2, 2, 1, 1), activation=Activation("RELU")),
            ["Convolution", "Pooling"],
        ),
        (
            lambda net, x: net.op("Transpose", net.unary("SIGMOID", x), perm=(0, 1, 3, 2)),
            ["UnaryOp", "Transpose", "Pooling"],
        ),
    ],
)
def test_maxima_of_what_is_not_negative(net, check, made, rest):
    x = pad(net, made(net, net.input(1, 2, 6, 5)), ASYMMETRIC)
    assert check(pool(net, x, "MAX"), FOLD).types == rest


@pytest.mark.parametrize(
    "attrs", [{}, {"count_include_pad": True, "pads": (1, 1, 0, 0)}, {"count_include_pad": True}]
)
def test_averages_count_the_zeros(net, check, attrs):
    x = pad(net, net.input(1, 2, 6, 5), ASYMMETRIC)
    done = check(pool(net, x, "AVERAGE", **attrs), FOLD)
    assert done.types == ["Pooling"]
    assert done.attrs().count_include_pad


def test_norms(net, check):
    x = pad(net, net.input(1, 2, 6, 5), ASYMMETRIC)
    assert check(pool(net, x, "LP"), FOLD).types == ["Pooling"]


@pytest.mark.parametrize("perm", [(0, 3, 1, 2), (0, 2, 3, 1)])
def test_axes_move_after_the_pad(net, check, perm):
    widths = [0, *(3 * (axis == perm[2]) + (axis == perm[3]) for axis in (1, 2, 3))]
    x = pad(net, net.input(2, 5, 4, 3), [*widths, *[0] * 4])
    x = net.op("Transpose", x, perm=perm)
    done = check(net.conv(x, net.weights(3, (0, 5, 4, 3)[perm[1]], 3, 2)), FOLD)
    assert done.types == ["Transpose", "Convolution"]
    assert done.attrs(1).pads == (3, 1, 0, 0)


# --- where it must not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("widths", "value"),
    [
        (ASYMMETRIC, 1.0),
        ((0, 1, 1, 1, 0, 0, 1, 1), None),
        ((1, 0, 1, 1, 0, 0, 1, 1), None),
        ((0, 0, -1, 1, 0, 0, 1, 1), None),
    ],
)
def test_other_pads_before_a_convolution(net, check, widths, value):
    x = pad(net, net.input(1, 2, 6, 5), widths, value=value)
    channels = 3 if widths[1] else 2
    assert check(net.conv(x, net.weights(3, channels, 3, 3)), FOLD).rewrites == 0


def test_other_modes(net, check):
    x = net.op("Pad", net.input(1, 2, 6, 5), net.ints(*ASYMMETRIC), mode="reflect")
    assert check(net.conv(x, net.weights(3, 2, 3, 3)), FOLD).rewrites == 0


def test_pads_that_follow_from_the_size(net, check):
    x = pad(net, net.input(1, 2, 6, 5), ASYMMETRIC)
    out = net.conv(x, net.weights(3, 2, 3, 3), auto_pad="SAME_UPPER", strides=(2, 2))
    assert check(out, FOLD).rewrites == 0


@pytest.mark.parametrize(
    ("kind", "attrs", "value"),
    [
        ("MAX", {}, 0.0),
        ("MAX", {"ceil_mode": True}, -np.inf),
        ("MAX", {"outputs": 2}, -np.inf),
        ("MAX", {"kernel": (1, 3)}, -np.inf),
        ("AVERAGE", {}, -1.0),
        ("AVERAGE", {"pads": (1, 1, 1, 1)}, 0.0),
        ("AVERAGE", {"ceil_mode": True}, 0.0),
        ("AVERAGE", {"dilations": (2, 1)}, 0.0),
    ],
)
def test_poolings_that_see_the_difference(net, check, kind, attrs, value):
    x = pad(net, net.input(1, 2, 6, 7), ASYMMETRIC, value=value)
    assert check(pool(net, x, kind, **attrs), FOLD).rewrites == 0


@pytest.mark.parametrize(
    "made",
    [
        lambda net, x: net.unary("CLIP", x, 0.0, -1.0),
        lambda net, x: net.op(
            "Interp", net.unary("RELU", x), net.const([0.0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5]), "",
            net.ints(1, 2, 6, 7), mode="linear", coordinate_mode="tf_crop_and_resize",
            extrapolation_value=-5.0,
        ),
    ],
    ids=["clip to a negative maximum", "resize with a negative border"],
)  # fmt: skip
def test_maxima_of_what_may_be_negative(net, check, made):
    x = pad(net, made(net, net.input(1, 2, 6, 7)), ASYMMETRIC)
    assert check(pool(net, x, "MAX"), FOLD).rewrites == 0


@pytest.mark.parametrize("axes", [(8, 9), (-9, 3)])
def test_axes_that_are_not_there(axes):
    """Shape rules say what is wrong with them."""
    nodes = [
        helper.make_node("Pad", ["x", "widths", "", "axes"], ["y"]),
        helper.make_node("MaxPool", ["y"], ["z"], kernel_shape=[2, 2]),
    ]
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 5])
    other = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    constants = {"widths": [1, 1, 1, 1], "axes": axes}
    tensors = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [one], [other], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ShapeError, match="axis"):
        InferenceSession(model, device="cpu")


def test_the_whole_of_an_image(net, check):
    x = pad(net, net.input(1, 2, 6, 7), ASYMMETRIC)
    assert check(pool(net, x, "AVERAGE", is_global=True, kernel=()), FOLD).rewrites == 0


@pytest.mark.parametrize("residual", ["ADD_AFTER", "MUL_AFTER"])
def test_a_residual_after_the_activation(net, check, residual):
    x = net.input(1, 2, 6, 5)
    y = net.conv(
        x, net.weights(2, 2, 1, 1), "", x, activation=Activation("RELU"), residual=residual
    )
    assert check(pool(net, pad(net, y, ASYMMETRIC), "MAX"), FOLD).rewrites == 0
