from __future__ import annotations

import copy
import logging

from vkmnn.converter.passes import optimize
from vkmnn.converter.passes.identity import RemoveNoOps
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.cpu_fallback import run_op


def build(net):
    x = net.op("Identity", net.input(1, 3, 5, 7))
    conv = net.conv(x, net.weights(5, 3, 3, 3), pads=1)
    norm = net.op("Scale", conv, net.weights(5), net.unary("EXP", net.weights(5)))
    return net.op("Identity", net.unary("CLIP", net.unary("RELU", norm), -1.0, 6.0), out="y")


def test_all_passes_together(net):
    graph = net.finish(build(net))
    before = copy.deepcopy(graph)
    done = optimize(graph, run_op)
    assert graph.ops == before.ops
    assert graph.constants.keys() == before.constants.keys()
    (op,) = done.ops
    assert op.type == "Convolution"
    assert op.attrs.activation.kind == "CLIP"
    assert op.outputs == ["y"]
    assert len(done.constants) == 2
    assert op.source == "op1 + op3 + op4 + op5"


def test_passes_can_be_chosen(net):
    done = optimize(net.finish(build(net)), run_op, passes=[RemoveNoOps()])
    assert [op.type for op in done.ops].count("Identity") == 0
    assert "Scale" in [op.type for op in done.ops]


def test_what_happens_is_logged(net, caplog):
    with caplog.at_level(logging.DEBUG, "vkmnn.converter.passes"):
        optimize(net.finish(build(net)), run_op)
    assert "fold_affine: 1 rewrites" in caplog.text
    assert "ops before the passes, 1 after" in caplog.text


def test_passes_that_never_end_are_reported(net, caplog):
    class Restless:
        name = "restless"

        def run(self, graph):
            return 1

    optimize(net.finish(build(net)), run_op, passes=[Restless()])
    assert "restless" not in caplog.text
    assert "still changed" in caplog.text


def test_passes_end_when_each_has_run_since_the_last_rewrite(net):
    runs = []

    class Counted:
        def __init__(self, name, rewrites=0):
            self.name, self.rewrites = name, rewrites

        def run(self, graph):
            runs.append(self.name)
            self.rewrites -= 1
            return int(self.rewrites >= 0)

    graph = net.finish(build(net))
    optimize(graph, run_op, passes=[Counted("a"), Counted("b", rewrites=1), Counted("c")])
    assert runs == ["a", "b", "c", "a", "b"]
    assert optimize(graph, run_op, passes=[]).ops == graph.ops


def test_ops_of_other_types_are_not_visited(net):
    index = GraphIndex(net.finish(build(net)))
    assert [op.type for op in index.ops({"Scale"})] == ["Scale"]
    index.current = None
    assert not list(index.ops({"Attention"}))
    assert index.current is None
