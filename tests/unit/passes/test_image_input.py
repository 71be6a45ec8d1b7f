from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from vkmnn.converter.passes.image_input import FuseImageInput
from vkmnn.ir import DType
from vkmnn.ir.ops import Activation

FUSE = FuseImageInput()
FLOAT = DType.FLOAT32


def picture(net, *shape, dtype="uint8"):
    name = net.input(*shape, dtype=dtype)
    net.feeds[name] = np.random.default_rng(5).integers(0, 256, shape).astype(dtype)
    return name


def conv(net, value, channels, spatial=2):
    return net.conv(value, net.weights(5, channels, *[3] * spatial), pads=1)


@pytest.mark.parametrize("order", list(permutations(["move", "cast", "affine"])))
def test_bytes_in_every_order(net, check, order):
    """Bytes are cast before they are scaled; what comes before is of floats."""
    floats = order.index("affine") < order.index("cast")
    value = net.input(2, 5, 7, 3) if floats else picture(net, 2, 5, 7, 3)
    for step in order:
        moved = "move" in order[: order.index(step)]
        if step == "move":
            value = net.op("Transpose", value, perm=(0, 3, 1, 2))
        elif step == "cast" and not floats:
            value = net.op("Cast", value, to=FLOAT)
        elif step == "affine":
            shape = (3, 1, 1) if moved else (3,)
            value = net.binary("SUB", value, net.weights(*shape))
            value = net.binary("DIV", value, net.weights(*shape))
            value = net.binary("ADD", net.const(-3.5), value)
    done = check(conv(net, value, 3), FUSE, rtol=1e-4, atol=1e-3)
    assert done.types == ["ImageToTensor", "Convolution"]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int16", "int32", "int64"])
def test_other_integers(net, check, dtype):
    value = net.op("Transpose", picture(net, 1, 4, 3, 2, dtype=dtype), perm=(0, 3, 1, 2))
    done = check(conv(net, net.op("Cast", value, to=FLOAT), 2), FUSE, rtol=1e-4)
    assert done.types == ["ImageToTensor", "Convolution"]


def test_casts_in_a_row(net, check):
    value = net.op("Cast", picture(net, 1, 4, 3, 2), to=DType.INT32)
    done = check(conv(net, net.op("Cast", value, to=FLOAT), 4), FUSE, rtol=1e-4)
    assert done.types == ["ImageToTensor", "Convolution"]


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_any_number_of_axes_and_channels(net, check, spatial):
    value = net.input(2, *[5] * spatial, 9)
    value = net.op("Transpose", value, perm=(0, spatial + 1, *range(1, spatial + 1)))
    assert check(conv(net, value, 9, spatial), FUSE).types == ["ImageToTensor", "Convolution"]


def test_a_single_image_gets_its_batch(net, check):
    value = net.op("Transpose", picture(net, 4, 5, 3), perm=(2, 0, 1))
    value = net.op("Cast", net.op("Unsqueeze", value, net.ints(0)), to=FLOAT)
    value = net.binary("SUB", value, net.weights(1, 3, 1, 1))
    done = check(conv(net, value, 3), FUSE, rtol=1e-4)
    assert done.types == ["ImageToTensor", "Convolution"]
    assert done.attrs().single


def test_sizes_that_are_named(net, check):
    value = net.op("Transpose", picture(net, 2, 5, 7, 3), perm=(0, 3, 1, 2))
    net.op("Cast", value, to=FLOAT, out="floats")
    graph = net.finish(conv(net, "floats", 3))
    graph.inputs[0] = type(graph.inputs[0])("x0", DType.UINT8, ("N", "H", "W", 3))
    graph.infos["floats"] = type(graph.inputs[0])("floats", FLOAT, ("N", 3, "H", "W"))
    assert FUSE.run(graph) == 1


def test_several_convolutions_read_it(net, check):
    value = net.op("Transpose", net.input(1, 4, 5, 3), perm=(0, 3, 1, 2))
    done = check((conv(net, value, 3), conv(net, value, 3)), FUSE)
    assert done.types == ["ImageToTensor", "Convolution", "Convolution"]


# --- where it must not ---------------------------------------------------------------------------


def moved(net, *shape, dtype="float32"):
    perm = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return net.op("Transpose", net.input(*shape, dtype=dtype), perm=perm)


def test_another_order(net, check):
    value = net.op("Transpose", net.input(1, 4, 4, 4), perm=(0, 3, 2, 1))
    assert check(conv(net, value, 4), FUSE).rewrites == 0


def test_something_reads_it_in_plain_order(net, check):
    value = moved(net, 1, 4, 5, 3)
    assert check((conv(net, value, 3), net.unary("EXP", value)), FUSE).rewrites == 0


def test_the_network_returns_it(net, check):
    value = moved(net, 1, 4, 5, 3)
    assert check((conv(net, value, 3), value), FUSE).rewrites == 0


def test_it_is_the_weights(net, check):
    weights = moved(net, 4, 1, 1, 3)
    out = net.op(
        *("Convolution", net.input(1, 3, 2, 2), weights),
        kernel=(1, 1), strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0),
    )  # fmt: skip
    assert check(out, FUSE).rewrites == 0


def test_factors_of_computed_values(net, check):
    """Within a network, values lie in blocks already."""
    value = net.binary("ADD", conv(net, net.input(1, 3, 5, 5), 3), net.weights(5, 1, 1))
    assert check(net.conv(value, net.weights(2, 5, 3, 3), pads=1), FUSE).rewrites == 0


@pytest.mark.parametrize(
    ("shape", "fused"), [((1, 1), True), ((3,), True), ((5, 1), False), ((4, 5, 3), False)]
)
def test_only_factors_by_channel(net, check, shape, fused):
    """What is not taken stays before or after the op that moves axes."""
    value = net.binary("MUL", net.input(1, 4, 5, 3), net.weights(*shape))
    done = check(conv(net, net.op("Transpose", value, perm=(0, 3, 1, 2)), 3), FUSE)
    assert done.types == ["BinaryOp"] * (not fused) + ["ImageToTensor", "Convolution"]


def test_a_constant_that_makes_channels(net, check):
    value = net.binary("ADD", moved(net, 1, 4, 5, 1), net.weights(3, 1, 1))
    assert check(conv(net, value, 3), FUSE).rewrites == 0


def test_an_activation_between(net, check):
    value = net.binary("ADD", moved(net, 1, 4, 5, 3), net.const(1.0), activation=Activation("RELU"))
    assert check(conv(net, value, 3), FUSE).rewrites == 0


def test_floats_that_are_truncated(net, check):
    value = net.op("Cast", moved(net, 1, 4, 5, 3), to=DType.INT32)
    done = check(conv(net, net.op("Cast", value, to=FLOAT), 3), FUSE)
    assert done.rewrites == 0


def test_halves_on_the_way(net, check):
    value = net.op("Cast", picture(net, 1, 4, 5, 3), to=DType.FLOAT16)
    value = net.op("Transpose", net.op("Cast", value, to=FLOAT), perm=(0, 3, 1, 2))
    done = check(conv(net, value, 3), FUSE, rtol=1e-4)
    assert done.types == ["ImageToTensor", "Convolution"]
