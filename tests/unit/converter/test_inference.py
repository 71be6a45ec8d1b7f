"""Models that would end the process in the onnx package's inference of shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkmnn import InferenceSession
from vkmnn.converter.onnx.inference import infer_shapes
from vkmnn.errors import VkmnnError

ML = "ai.onnx.ml"
UNTYPED = {
    "LabelEncoder": (ML, {"keys_int64s": [0, 1], "values_strings": ["a", "b"]}),
    "DictVectorizer": (ML, {"int64_vocabulary": [1, 2]}),
    "RegexFullMatch": ("", {"pattern": "a+"}),
}


def model(nodes: list[onnx.NodeProto], *inputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def gather(batch_dims: int, size: int) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=batch_dims)
    inputs = info("x", TensorProto.FLOAT, [3, 3]), info("i", TensorProto.INT64, [3, size])
    return model([node], *inputs)


@pytest.mark.parametrize("op", UNTYPED)
def test_inputs_without_a_type(op: str) -> None:
    domain, attributes = UNTYPED[op]
    node = helper.make_node(op, ["x"], ["y"], domain=domain, **attributes)
    proto = model([node], onnx.ValueInfoProto(name="x"))
    with pytest.raises(VkmnnError), InferenceSession(proto, device="cpu") as session:
        session.run(None, {"x": np.zeros(2, np.float32)})
    inner = helper.make_graph([node], "inner", [], [onnx.ValueInfoProto(name="y")])
    for proto in (model([node]), model([helper.make_node("If", ["c"], ["y"], then_branch=inner)])):
        with pytest.raises(ValueError, match="type"):
            infer_shapes(proto)


def test_sizes_below_zero() -> None:
    assert infer_shapes(gather(1, 1)).graph.output[0].type.tensor_type.HasField("shape")
    infer_shapes(gather(0, -5))
    with pytest.raises(ValueError, match="batch"):
        infer_shapes(gather(-100000, 1))
    proto = gather(0, 1)
    tensor = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    tensor.dims[0] = -5
    proto.graph.initializer.append(tensor)
    with pytest.raises(ValueError, match="negative"):
        infer_shapes(proto)


@pytest.mark.parametrize("op", ["LpNormalization", "Relu", "Softmax"])
@pytest.mark.parametrize(
    ("equation", "shapes", "sizes"),
    [
        ("ii->i", [("a", 4)], [(4, 4)]),
        ("ij,jk->ik", [("a", 4), ("b", 5)], [(2, 4), (4, 5)]),
        ("i,i->i", [("a",), (5,)], [(5,), (5,)]),
    ],
)
def test_types_follow_where_sizes_do_not(
    op: str, equation: str, shapes: list[tuple[int | str, ...]], sizes: list[tuple[int, ...]]
) -> None:
    """A name that has to be as large as another axis is all right; the file says no types."""
    names = ["x", "w"][: len(shapes)]
    nodes = [
        helper.make_node("Einsum", names, ["t"], equation=equation),
        helper.make_node(op, ["t"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    feeds = {n: np.ones(size, np.float32) for n, size in zip(names, sizes, strict=True)}
    with InferenceSession(model(nodes, *inputs), device="cpu", unsupported="raise") as session:
        (got,) = session.run(None, feeds)
    assert got.shape == np.einsum(equation, *feeds.values()).shape
