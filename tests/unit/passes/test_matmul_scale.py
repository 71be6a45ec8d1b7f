from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.matmul_scale import FoldOperandScale, FoldResultScale
from vkmnn.ir.ops import Activation


@pytest.mark.parametrize("kind", ["MUL", "DIV"])
@pytest.mark.parametrize("infos", [False, True])
def test_result(net, check, kind, infos):
    product = net.op("MatMul", net.input(2, 3, 5), net.input(2, 5, 7), net.weights(7), alpha=0.5)
    done = check(net.binary(kind, product, net.const(8.0)), FoldResultScale(), infos=infos)
    assert done.only.attrs.alpha == (4.0 if kind == "MUL" else 0.0625)


def test_result_with_activation(net, check):
    product = net.op("MatMul", net.input(3, 5), net.input(5, 7))
    out = net.binary("MUL", net.const(2.0), product, activation=Activation("RELU"))
    assert check(out, FoldResultScale()).only.attrs.activation == Activation("RELU")


def test_result_over_zero_and_under_a_number(net, check):
    product = net.op("MatMul", net.input(3, 5), net.input(5, 7))
    outputs = net.binary("DIV", product, net.const(0.0)), net.binary("DIV", net.const(2.0), product)
    assert check(outputs, FoldResultScale()).rewrites == 0


def test_result_with_bias_that_is_not_constant(net, check):
    product = net.op("MatMul", net.input(3, 5), net.input(5, 7), net.input(7))
    assert check(net.binary("MUL", product, net.const(2.0)), FoldResultScale()).rewrites == 0


def test_result_with_residual(net, check):
    product = net.op("MatMul", net.input(3, 5), net.weights(5, 7), "", net.input(3, 7))
    assert check(net.binary("MUL", product, net.const(2.0)), FoldResultScale()).rewrites == 0


def test_result_that_is_used_elsewhere(net, check):
    product = net.op("MatMul", net.input(3, 5), net.input(5, 7))
    out = net.binary("MUL", product, net.const(2.0))
    assert check((product, out), FoldResultScale()).rewrites == 0


def test_scalar_that_raises_the_rank(net, check):
    scalar = net.const(np.full((1, 1, 1), 2, np.float32))
    product = net.op("MatMul", net.input(3, 5), net.input(5, 7))
    assert check(net.binary("MUL", product, scalar), FoldResultScale()).rewrites == 0


def test_both_operands(net, check):
    a = net.binary("MUL", net.input(2, 3, 5), net.const([0.5]))
    b = net.binary("DIV", net.input(2, 5, 7), net.const(4.0))
    done = check(net.op("MatMul", a, b), FoldOperandScale())
    assert done.only.attrs.alpha == 0.125


def test_operand_that_is_used_elsewhere(net, check):
    a = net.binary("MUL", net.const(0.5), net.input(3, 5))
    done = check((net.op("MatMul", a, net.input(5, 7)), a), FoldOperandScale())
    assert done.kinds == ["MUL", "MatMul"]
    assert done.attrs(1).alpha == 0.5


@pytest.mark.parametrize("shape", [(5,), (3, 1), (1, 1, 1)])
def test_operands_that_are_not_scaled_by_a_number(net, check, shape):
    a = net.binary("MUL", net.input(3, 5), net.weights(*shape))
    assert check(net.op("MatMul", a, net.input(5, 7)), FoldOperandScale()).rewrites == 0


def test_operand_with_activation(net, check):
    a = net.binary("MUL", net.input(3, 5), net.const(2.0), activation=Activation("RELU"))
    assert check(net.op("MatMul", a, net.input(5, 7)), FoldOperandScale()).rewrites == 0


def test_alpha_comes_before_the_bias(net, check):
    a = net.binary("MUL", net.input(3, 5), net.const(2.0))
    out = net.op("MatMul", a, net.weights(5, 7), net.weights(7))
    assert check(out, FoldOperandScale()).types == ["MatMul"]
