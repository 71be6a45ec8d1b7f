"""Shared helpers of front ends that write ONNX nodes: scopes, names, pads, separate weights."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from vkmnn.base.budget import Budget, Meter
from vkmnn.converter.front_end import Conversion
from vkmnn.converter.nodes import (
    FLOAT,
    Readers,
    Reading,
    Scope,
    SourceOp,
    TensorNames,
    finish_model,
    inner_graph,
)
from vkmnn.converter.nodes.channels_last import spatial
from vkmnn.converter.nodes.same import same_padding, same_pads
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.errors import BudgetError, ModelError, UnsupportedOpError


def _op(scope: Scope, kind: str = "Any", inputs: int = 1) -> SourceOp:
    names = [f"x{number}" for number in range(inputs)]
    for name in names:
        scope.types[name], scope.shapes[name] = FLOAT, (1, 4, 5, 3)
    return SourceOp(scope, kind, "node", names, ["y"])


def test_weights_lie_outside_the_protobuf() -> None:
    scope = Scope()
    large = np.arange(3000, dtype=np.float32).reshape(3, 1000)
    scope.set_constant("w", large.T)  # of another order in memory
    scope.set_constant("small", np.float32([1, 2, 3]))
    op = _op(scope)
    op.finish("Add", op.make("MatMul", "x0", "w"), "small")
    file = finish_model(scope, {"x0": (FLOAT, [1, 4, 5, 1000])}, ["y"], "graph", "test")
    assert len(file.proto.SerializeToString()) < 1000
    graph = OnnxFrontEnd().convert(file, Conversion(Meter(Budget())))
    np.testing.assert_array_equal(graph.constants["w"], large.T)


def test_large_constants_of_bodies_move_outwards() -> None:
    outer, inner = Scope(), Scope("body/")
    large, small = np.zeros(600, np.float32), np.zeros(2, np.float32)
    inner.set_constant("body/w", large)
    inner.set_constant("body/s", small)
    result = helper.make_tensor_value_info("r", FLOAT, None)
    graph = inner_graph(inner, outer, [], [result], "body")
    assert [one.name for one in graph.initializer] == ["body/s"]
    assert outer.constants["body/w"] is large


def test_names_of_the_file_are_not_given_again() -> None:
    names = TensorNames(["a", "", "a", "node/1", "a#2"], "p/", "any")
    assert len(set(names.names)) == 5
    assert names.names[0] == "p/a"
    with pytest.raises(ModelError, match="no tensor 9"):
        names[9]
    scope = Scope()
    scope.reserve(["node/1"])
    assert scope.fresh("node") == "node/2"


def test_refusals_are_collected() -> None:
    readers: Readers[SourceOp] = Readers("Test of readers")

    @readers.reads("Known")
    def known(op: SourceOp) -> None:
        raise op.unreadable("a use that is not read")

    reading = Reading("Test", Meter(Budget(nodes=3)))
    scope = Scope()
    reading.count(3)
    for kind in ("Known", "Unknown"):
        op = _op(scope, kind)
        with reading.operator(op):
            readers.read(op)
    with pytest.raises(UnsupportedOpError) as refused:
        reading.check()
    assert [node.op for node in refused.value.nodes] == ["Known", "Unknown"]
    with pytest.raises(BudgetError):
        reading.count(1)


def test_chains_with_channels_last_have_a_transpose_at_each_end() -> None:
    scope = Scope()
    op = _op(scope)
    first = spatial(op, "x0", 4, lambda x: op.make("Relu", x))
    second = spatial(op, first, 4, lambda x: op.make("Sigmoid", x))
    op.finish("Identity", second)
    model = finish_model(scope, {"x0": (FLOAT, [1, 4, 5, 3])}, ["y"], "graph", "test").proto
    assert scope.shapes[second] == (1, 4, 5, 3)
    needed = {"y"}
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node.op_type)
            needed |= set(node.input)
    assert kept == ["Identity", "Transpose", "Sigmoid", "Relu", "Transpose"]


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (2, 3, 1), (3, 1, 2)]
)
def test_pads_of_same(size: int, kernel: int, stride: int, dilation: int) -> None:
    begin, end = same_pads(size, kernel, stride, dilation)
    extent = (kernel - 1) * dilation + 1
    assert (size + begin + end - extent) // stride + 1 == -(-size // stride)
    assert begin <= end <= begin + 1
    assert same_padding([size], [kernel], [stride], [dilation]) == {"pads": [begin, end]}
    assert same_padding([None], [kernel], [stride]) == {"auto_pad": "SAME_UPPER"}
