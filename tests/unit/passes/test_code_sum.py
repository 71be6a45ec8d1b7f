from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.code_sum import FuseCodeSum


def convolved(net, x, outputs=6, kernel=1):
    rng = np.random.default_rng(kernel)
    w = rng.integers(-128, 128, (outputs, 6, kernel, kernel)).astype(np.int8)
    bias = rng.integers(-99, 99, outputs).astype(np.float32)
    factor = np.full(outputs, 0.25, np.float32)
    constants = [net.const(w), net.const(bias), "", net.const(factor)]
    return net.op(
        *("QuantizedConvolution", x, *constants),
        kernel=(kernel,) * 2,
        strides=(1, 1),
        dilations=(1, 1),
        pads=(kernel // 2,) * 4,
        group=1,
        auto_pad="NOTSET",
        low=-128.0,
        high=127.0,
    )


def added(net, a, b):
    one, other = (net.binary("MUL", x, net.const(s)) for x, s in ((a, 0.5), (b, 0.375)))
    steps = net.binary("DIV", net.binary("ADD", one, other), net.const(0.75))
    return net.unary("CLIP", net.unary("ROUND", steps), -100.0, 90.0)


def codes(net, *shape):
    return net.unary("ROUND", net.input(*shape))


def test_a_sum_becomes_part_of_the_convolution(net, check):
    x = codes(net, 2, 6, 5, 7)
    done = check(added(net, convolved(net, x), x), FuseCodeSum())
    assert done.types == ["UnaryOp", "QuantizedConvolution"]
    add = done.graph.ops[-1].attrs.add
    assert (add.of_x, add.of_residual, add.unit) == (0.5, 0.375, 0.75)
    assert (add.low, add.high) == (-100.0, 90.0)


def test_the_second_operand_may_be_the_convolution(net, check):
    x = codes(net, 2, 6, 5, 7)
    done = check(added(net, x, convolved(net, x)), FuseCodeSum())
    assert done.types == ["UnaryOp", "QuantizedConvolution"]
    assert done.graph.ops[-1].attrs.add.of_x == 0.375


def test_the_longer_branch_takes_the_shortcut_in(net, check):
    x = codes(net, 2, 6, 5, 7)
    branch = convolved(net, convolved(net, x, kernel=3))
    done = check(added(net, convolved(net, x), branch), FuseCodeSum())
    assert done.types == ["UnaryOp", *["QuantizedConvolution"] * 3]
    assert done.graph.ops[-1].attrs.add.of_x == 0.375


@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (6, 1, 1)])
def test_a_residual_that_broadcasts_stays(net, check, shape):
    done = check(
        added(net, convolved(net, codes(net, 2, 6, 5, 7)), codes(net, *shape)), FuseCodeSum()
    )
    assert done.rewrites == 0


def test_a_convolution_that_others_read_stays(net, check):
    y = convolved(net, codes(net, 2, 6, 5, 7))
    other = net.unary("NEG", y)
    total = added(net, y, codes(net, 2, 6, 5, 7))
    done = check(net.binary("MUL", total, other), FuseCodeSum())
    assert done.rewrites == 0
