from __future__ import annotations

from vkmnn.converter.passes.dead_code import RemoveDeadCode


def test_dead_ops_constants_and_infos_go(net, check):
    x = net.input(3)
    kept = net.unary("RELU", x)
    net.unary("TANH", net.binary("ADD", kept, net.weights(3)))
    done = check(kept, RemoveDeadCode())
    assert done.kinds == ["RELU"]
    assert not done.graph.constants
    assert set(done.graph.infos) == {kept}


def test_an_op_with_one_used_output_stays(net, check):
    parts = net.op("Split", net.input(6), outputs=2, axis=0, num_outputs=2)
    assert check(net.unary("RELU", parts), RemoveDeadCode()).types == ["Split", "UnaryOp"]


def test_an_output_that_is_a_constant_stays(net, check):
    net.input(3)
    assert check(net.weights(3), RemoveDeadCode()).rewrites == 0
