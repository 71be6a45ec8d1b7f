from __future__ import annotations

import numpy as np

from vkmnn.converter.passes.common_subexpression import MergeCommonSubexpressions

MERGE = MergeCommonSubexpressions()


def test_equal_chains_merge(net, check):
    x = net.input(3, 5)
    chains = [net.unary("EXP", net.binary("ADD", x, net.const(1.0))) for _ in range(3)]
    out = net.binary("MUL", net.binary("MUL", chains[0], chains[1]), chains[2])
    assert check(out, MERGE).kinds == ["ADD", "EXP", "MUL", "MUL"]


def test_different_attributes_inputs_and_constants_stay(net, check):
    x = net.input(3, 3)
    parts = [
        net.unary("EXP", x),
        net.unary("LOG", x),
        net.binary("SUB", x, net.const(1.0)),
        net.binary("SUB", net.const(1.0), x),
        net.binary("SUB", x, net.const([1.0])),
        net.binary("SUB", x, net.const(np.float32(1.0) + np.finfo(np.float32).eps)),
    ]
    total = parts[0]
    for part in parts[1:]:
        total = net.binary("MAX", total, part)
    assert check(total, MERGE).rewrites == 0


def test_large_constants_merge_only_when_they_are_one(net, check):
    x = net.input(100)
    w = net.weights(100)
    one, two = net.binary("ADD", x, w), net.binary("ADD", x, w)
    three = net.binary("ADD", x, net.const(net.graph.constants[w].copy()))
    done = check(net.binary("MUL", net.binary("MUL", one, two), three), MERGE)
    assert done.kinds == ["ADD", "ADD", "MUL", "MUL"]


def test_several_outputs(net, check):
    x = net.input(5, 4)
    first = net.op("Split", x, outputs=2, axis=1, num_outputs=2)
    second = net.op("Split", x, outputs=2, axis=1, num_outputs=2)
    assert check(net.binary("ADD", first, second), MERGE).types == ["Split", "BinaryOp"]


def test_graph_outputs_keep_their_ops(net, check):
    x = net.input(3)
    assert check((net.unary("EXP", x), net.unary("EXP", x)), MERGE).rewrites == 0


def test_the_twin_may_be_an_output(net, check):
    x = net.input(3)
    first, second = net.unary("EXP", x), net.unary("EXP", x)
    assert check((first, net.unary("NEG", second)), MERGE).kinds == ["EXP", "NEG"]
