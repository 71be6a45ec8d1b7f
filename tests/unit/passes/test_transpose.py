from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.transpose import CancelTransposesAround, MergeTransposes


def test_inverse_pair(net, check):
    inner = net.op("Transpose", net.unary("EXP", net.input(2, 3, 5)), perm=(2, 0, 1))
    assert check(net.op("Transpose", inner, perm=(1, 2, 0)), MergeTransposes()).kinds == ["EXP"]


def test_composition(net, check):
    inner = net.op("Transpose", net.input(2, 3, 5, 7), perm=(2, 0, 3, 1))
    done = check(net.op("Transpose", inner, perm=(1, 3, 0, 2)), MergeTransposes())
    assert done.types == ["Transpose"]


def test_reversal(net, check):
    inner = net.op("Transpose", net.unary("EXP", net.input(2, 3, 5)))
    assert check(net.op("Transpose", inner), MergeTransposes()).kinds == ["EXP"]


def test_reversal_of_unknown_rank(net, check):
    inner = net.op("Transpose", net.unary("EXP", net.input(2, 3, 5)))
    assert check(net.op("Transpose", inner), MergeTransposes(), infos=False).rewrites == 0


def test_inverse_pair_between_input_and_output(net, check):
    inner = net.op("Transpose", net.input(2, 3), perm=(1, 0))
    done = check(net.op("Transpose", inner, perm=(1, 0)), MergeTransposes())
    assert done.only.attrs.perm == (0, 1)


def test_inner_transpose_that_is_used_stays(net, check):
    inner = net.op("Transpose", net.input(2, 3, 5), perm=(2, 0, 1))
    out = net.op("Transpose", inner, perm=(0, 2, 1))
    assert check((inner, out), MergeTransposes()).types == ["Transpose", "Transpose"]


def around(net, middle, after=(1, 2, 0)):
    inner = net.op("Transpose", net.input(2, 3, 5), perm=(2, 0, 1))
    return net.op("Transpose", middle(inner), perm=after)


def test_unary_between(net, check):
    out = around(net, lambda value: net.unary("TANH", value))
    assert check(out, CancelTransposesAround()).kinds == ["TANH"]


@pytest.mark.parametrize("left", [False, True])
def test_scalar_between(net, check, left):
    scalar = net.const([2.0])
    out = around(net, lambda v: net.binary("SUB", *((scalar, v) if left else (v, scalar))))
    assert check(out, CancelTransposesAround()).kinds == ["SUB"]


def test_other_operands_between(net, check):
    vector = net.weights(3)
    out = around(net, lambda value: net.binary("ADD", value, vector))
    assert check(out, CancelTransposesAround()).rewrites == 0


def test_scalar_that_raises_the_rank(net, check):
    scalar = net.const(np.ones((1, 1, 1, 1), np.float32))
    inner = net.op("Transpose", net.input(2, 3, 5), perm=(2, 0, 1))
    out = net.op("Transpose", net.binary("ADD", inner, scalar), perm=(0, 2, 3, 1))
    assert check(out, CancelTransposesAround()).rewrites == 0


def test_transposes_that_do_not_cancel(net, check):
    out = around(net, lambda value: net.unary("TANH", value), after=(0, 2, 1))
    assert check(out, CancelTransposesAround()).rewrites == 0


def test_value_between_is_used(net, check):
    inner = net.op("Transpose", net.input(2, 3), perm=(1, 0))
    tanh = net.unary("TANH", inner)
    out = net.op("Transpose", tanh, perm=(1, 0))
    assert check((out, tanh), CancelTransposesAround()).rewrites == 0
