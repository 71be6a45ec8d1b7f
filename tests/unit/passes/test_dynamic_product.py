"""Products of dynamically quantised operands: one op with both scales, and several as one."""

from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.activation import FuseActivation
from vkmnn.converter.passes.affine import FoldAffine
from vkmnn.converter.passes.dynamic_convolution import FuseDynamicConvolution
from vkmnn.converter.passes.dynamic_product import FuseDynamicProduct, MergeDynamicProducts
from vkmnn.converter.passes.residual import FuseResidual

FUSE, MERGE = FuseDynamicProduct(), MergeDynamicProducts()
BOUNDS = {"low": -np.inf, "high": np.inf, "transpose_a": False, "transpose_b": False}


class Quantised:
    """Codes of a tensor by its own range, as the converter writes them."""

    def __init__(self, net, x, *, highest=255.0):
        self.net, self.x = net, x
        self.scale = net.op("DynamicRange", x, outputs=2)
        self.point = net.graph.ops[-1].outputs[1]
        steps = net.unary("ROUND", net.binary("DIV", x, self.scale))
        moved, zero = net.binary("ADD", steps, self.point), net.const(0.0)
        raised = net.op("Select", net.binary("GREATER", moved, zero), moved, zero)
        below = net.binary("MIN", raised, net.const(highest))
        self.codes = net.binary("SUB", below, self.point)

    def sums(self, columns=12, dtype=np.int8, factor=1.0, bias=""):
        w = self.net.random.integers(-128, 128, (8, columns)).astype(dtype)
        inputs = [self.codes, self.net.const(w), bias, "", self.net.const(np.full(1, factor, "f4"))]
        return self.net.op("QuantizedMatMul", *inputs, "", "", self.point, **BOUNDS)

    def product(self, columns=12, dtype=np.int8, each=False):
        factor = np.linspace(0.01, 0.02, columns if each else 1, dtype=np.float32)
        scales = self.net.binary("MUL", self.scale, self.net.const(factor))
        return self.net.binary("MUL", self.sums(columns, dtype), scales)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_both_scales_become_part_of_the_product(net, check, dtype, each):
    done = check(Quantised(net, net.input(2, 5, 8)).product(dtype=dtype, each=each), FUSE)
    assert done.types == ["DynamicRange", "DynamicQuantizeMatMul"]


def test_operands_may_stand_in_either_order(net, check):
    made = Quantised(net, net.input(5, 8))
    scales = net.binary("MUL", net.const(0.25), made.scale)
    done = check(net.binary("MUL", scales, made.sums()), FUSE)
    assert done.types == ["DynamicRange", "DynamicQuantizeMatMul"]


def test_the_scale_alone(net, check):
    made = Quantised(net, net.input(5, 8))
    done = check(net.binary("MUL", made.sums(), made.scale), FUSE)
    assert done.types == ["DynamicRange", "DynamicQuantizeMatMul"]


def test_what_others_read_stays(net, check):
    made = Quantised(net, net.input(5, 8))
    done = check((made.product(), made.codes), FUSE)
    assert done.types.count("DynamicQuantizeMatMul") == 1
    assert done.kinds.count("ROUND") == 1


@pytest.mark.parametrize("what", ["sums", "bias", "factor", "scale", "bounds", "rows", "weights"])
def test_others_stay(net, check, what):
    x = net.input(12, 8)
    made, other = Quantised(net, x, highest=200.0 if what == "bounds" else 255.0), None
    if what == "bias":
        sums = made.sums(bias=net.const(np.ones(12, np.float32)))
    elif what == "factor":
        sums = made.sums(factor=0.5)
    else:
        sums = made.sums()
    factor = np.ones((12, 1) if what == "rows" else 1, np.float32)
    scale = Quantised(net, net.input(12, 8)).scale if what == "scale" else made.scale
    by = net.input(1) if what == "weights" else net.const(factor)
    y = net.binary("MUL", sums, net.binary("MUL", scale, by))
    other = sums if what == "sums" else y
    assert check((y, other) if what == "sums" else y, FUSE).rewrites == 0


def test_a_bias_comes_in(net, check):
    y = Quantised(net, net.input(5, 8)).product()
    bias = net.const(net.random.standard_normal(12).astype(np.float32))
    done = check(net.binary("ADD", bias, y), FUSE, FoldAffine())
    assert done.types == ["DynamicRange", "DynamicQuantizeMatMul"]
    # A factor stays: it would be rounded otherwise.
    y = Quantised(net, net.input(5, 8)).product()
    done = check(net.binary("MUL", bias, y), FUSE, FoldAffine())
    assert done.types[-1] == "BinaryOp"


def convolved(net, made, outputs=6, factor=1.0, bias=0.0, **attrs):
    w = net.random.integers(-128, 128, (outputs, 4, 3, 3)).astype(np.int8)
    inputs = [net.const(w), net.const(np.full(outputs, bias, "f4")), ""]
    inputs.append(net.const(np.full(outputs, factor, "f4")))
    ones = (1, 1)
    window = {"kernel": (3, 3), "strides": ones, "dilations": ones, "pads": ones * 2, "group": 1}
    bounds = {"low": -np.inf, "high": np.inf, "auto_pad": "NOTSET"}
    return net.op("QuantizedConvolution", made.codes, *inputs, **window, **bounds, **attrs)


@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1)])
def test_convolutions_take_all_that_follows(net, check, shape):
    x = net.input(2, 4, 5, 7)
    made = Quantised(net, x)
    factor = net.const(np.full(shape, 0.02, np.float32))
    y = net.binary("MUL", convolved(net, made), net.binary("MUL", made.scale, factor))
    y = net.binary("ADD", y, net.const(net.random.standard_normal((1, 6, 1, 1)).astype("f4")))
    y = net.unary("RELU", net.binary("ADD", y, net.input(2, 6, 5, 7)))
    passes = FuseDynamicConvolution(), FoldAffine(), FuseResidual(), FuseActivation()
    done = check(y, *passes)
    assert done.types == ["DynamicRange", "DynamicQuantizeConvolution"]


@pytest.mark.parametrize("what", ["factor", "bias", "rows", "scale", "sums", "bounds"])
def test_other_convolutions_stay(net, check, what):
    x = net.input(2, 4, 5, 7)
    made = Quantised(net, x, highest=200.0 if what == "bounds" else 255.0)
    more = {"factor": {"factor": 0.5}, "bias": {"bias": 1.0}, "scale": {"scale": 2.0}}
    sums = convolved(net, made, **more.get(what, {}))
    by = net.const(np.ones(7 if what == "rows" else 1, np.float32))
    y = net.binary("MUL", sums, net.binary("MUL", made.scale, by))
    assert check((y, sums) if what == "sums" else y, FuseDynamicConvolution()).rewrites == 0


def headed(net, y):
    return net.op("Transpose", net.op("Reshape", y, net.ints(2, -1, 3, 4)), perm=(0, 2, 1, 3))


def attended(net, parts):
    return net.op("Attention", *(headed(net, part) for part in parts), scale=0.5)


@pytest.mark.parametrize("bias", [0, 1, 3])
def test_queries_keys_and_values(net, check, bias):
    made = Quantised(net, net.input(2, 5, 8))
    parts = [made.product(each=number == 1) for number in range(3)]
    for number in range(bias):
        parts[number] = net.binary("ADD", parts[number], net.weights(12))
    done = check(attended(net, parts), FUSE, FoldAffine(), MERGE)
    assert done.types[:3] == ["DynamicRange", "DynamicQuantizeMatMul", "Split"]
    assert done.types.count("DynamicQuantizeMatMul") == 1


def test_keys_and_values_of_something_else(net, check):
    made, other = Quantised(net, net.input(2, 5, 8)), Quantised(net, net.input(2, 7, 8))
    parts = [made.product(), other.product(), other.product()]
    done = check(attended(net, parts), FUSE, MERGE)
    assert done.types.count("DynamicQuantizeMatMul") == 2


def test_bytes_with_different_numbers_added_stay_apart(net, check):
    made = Quantised(net, net.input(2, 5, 8))
    parts = [made.product(), made.product(dtype=np.int16), made.product()]
    done = check(attended(net, parts), FUSE, MERGE)
    assert done.types.count("DynamicQuantizeMatMul") == 2
