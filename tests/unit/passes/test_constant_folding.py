from __future__ import annotations

import numpy as np
import pytest

from vkmnn.converter.passes.constant_folding import SIZE_LIMIT, FoldConstants
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import ShapeError
from vkmnn.ir import DType, TensorInfo

FOLD = FoldConstants(run_op)


def test_chain_of_constants(net, check):
    x = net.input(3)
    c = net.unary("EXP", net.binary("ADD", net.weights(3), net.weights(1)))
    done = check(net.binary("MUL", x, c), FOLD)
    assert done.kinds == ["MUL"]
    assert done.rewrites == 2


def test_a_constant_output(net, check):
    net.input(3)
    done = check(net.unary("EXP", net.weights(3)), FOLD)
    assert not done.types


def test_shape_of_a_static_tensor(net, check):
    x = net.input(2, 3, 5)
    shape = net.op("Shape", net.unary("RELU", x))
    assert check(net.op("ConstantOfShape", shape), FOLD).graph.ops == []


def test_size(net, check):
    done = check(net.op("Size", net.input(2, 3)), FOLD)
    assert not done.types


def test_shape_of_symbols(net, check):
    x = net.input(2, 3, 5)
    start, whole = net.op("Shape", x, start=1, end=2), net.op("Shape", x)
    graph = net.finish(start, whole)
    graph.inputs[0] = TensorInfo(x, DType.FLOAT32, ("N", 3, "L"))
    assert FOLD.run(graph) == 1
    assert graph.constants[start].tolist() == [3]
    assert [op.outputs for op in graph.ops] == [[whole]]


def test_what_depends_on_an_input_stays(net, check):
    assert check(net.unary("EXP", net.input(3)), FOLD).rewrites == 0


def test_absent_inputs(net, check):
    x = net.input(1, 3, 5)
    resized = net.op("Interp", net.weights(1, 3, 5), "", net.const([1.0, 1.0, 2.0]))
    assert check(net.op("Concat", x, resized, axis=2), FOLD).types == ["Concat"]


@pytest.mark.parametrize("elements", [10**7, 10**18])
def test_large_results_stay(net, elements):
    net.input(3)
    graph = net.finish(net.op("ConstantOfShape", net.ints(3)))
    graph.constants["c0"] = np.array([elements], np.int64)
    assert FOLD.run(graph) == 0


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("Expand", (np.ones((1, 1), np.float32), np.array([4096, 4096]))),
        ("Expand", (np.ones((4096, 1), np.float32), np.array([1, 4096]))),
        ("Tile", (np.ones(16, np.float32), np.array([2**20]))),
        ("Range", (np.array(0), np.array(2**40), np.array(1))),
        ("Pad", (np.ones(3, np.float32), np.array([0, 2**40]))),
        ("BinaryOp", (np.ones((4096, 1), np.float32), np.ones((1, 4096), np.float32))),
        ("MatMul", (np.ones((4096, 1), np.float32), np.ones((1, 4096), np.float32))),
        ("Interp", (np.ones((1, 1, 2), np.float32), None, np.array([1, 1, 2.0**40]))),
        ("Gather", (np.ones((1, 4096), np.float32), np.zeros(4096, np.int64))),
        ("OneHot", (np.zeros(4096, np.int64), np.array(4096), np.zeros(2, np.float32))),
    ],
)
def test_large_results_of_other_ops_stay(net, kind, inputs):
    names = ["" if value is None else net.const(value) for value in inputs]
    if kind == "BinaryOp":
        large = net.binary("ADD", *names)
    else:
        large = net.op(kind, *names)
    net.graph.outputs = [TensorInfo(large, DType.FLOAT32, None)]
    assert sum(net.graph.constants[name].nbytes for name in names if name) < SIZE_LIMIT
    assert FOLD.run(net.graph) == 0


def test_results_no_larger_than_their_inputs_fold(net, check):
    x = net.input(1)
    large = net.const(np.ones(5 * 2**20, np.float32))
    done = check(net.binary("ADD", net.unary("NEG", large), x), FOLD)
    assert done.kinds == ["ADD"]


def test_what_cannot_be_computed_stays(net):
    def fail(op, inputs):
        raise ShapeError("no")

    net.input(1)
    graph = net.finish(net.unary("EXP", net.weights(3)))
    assert FoldConstants(fail).run(graph) == 0
    assert len(graph.ops) == 1


def test_views_become_arrays_of_their_own(net, check):
    x = net.input(5, 3)
    wide = net.op("Expand", net.weights(3), net.ints(5, 3))
    done = check(net.binary("ADD", x, wide), FOLD)
    assert done.graph.constants[wide].flags.c_contiguous
