from __future__ import annotations

from vkmnn.converter.passes.transpose import MergeTransposes


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
