"""The cost of loading grows linearly with the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import load_model
from vkmnn.converter.passes import optimize
from vkmnn.converter.passes.base import MAX_SOURCES, merged_source
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import ModelError
from vkmnn.ir import Op
from vkmnn.ir.ops import OpAttrs
from vkmnn.shape.symbolic.dims import MAX_NAME

Build = Callable[..., onnx.ModelProto]
X = {"x": np.zeros((2, 3), np.float32)}


def chain(build: Build, length: int) -> onnx.ModelProto:
    names = ["x", *(f"t{number}" for number in range(length - 1)), "y"]
    nodes = [
        helper.make_node("Relu", [names[at]], [names[at + 1]], name=f"n{at}")
        for at in range(length)
    ]
    return build(nodes, X, ["y"])


def test_the_sources_of_a_long_chain_are_cut(build: Build) -> None:
    graph = optimize(load_model(chain(build, 10 * MAX_SOURCES)), run_op)
    (op,) = graph.ops
    parts = op.source.split(" + ")
    assert len(parts) == MAX_SOURCES + 1
    assert parts[-1] == "…"
    assert len(set(parts)) == len(parts)


def test_the_sources_of_a_short_chain_are_all_there(build: Build) -> None:
    graph = optimize(load_model(chain(build, 10)), run_op)
    (op,) = graph.ops
    assert op.source == " + ".join(f"n{number} (Relu)" for number in range(10))


def test_cut_sources_stay_cut() -> None:
    ops = [
        Op("Identity", f"op{n}", ["x"], ["y"], OpAttrs(), f"n{n}") for n in range(MAX_SOURCES + 1)
    ]
    cut = merged_source(ops)
    one = Op("Identity", "cut", ["x"], ["y"], OpAttrs(), cut)
    assert merged_source((one, one)) == cut
    assert merged_source((one, ops[-1])) == cut
    assert merged_source((ops[-1], one)).split(" + ")[-1] == "…"


def test_a_long_cycle_is_described_in_short(build: Build) -> None:
    model = chain(build, 5000)
    model.graph.node[0].input[0] = "y"
    with pytest.raises(ModelError, match="4984 more") as caught:
        load_model(model)
    assert len(str(caught.value)) < 2000


SQUARINGS = 22


def squared_size(op: str) -> onnx.ModelProto:
    """Return a model that reshapes to N², N⁴, …, or to 2·N, 4·N, …"""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["size0"]),
        *(
            helper.make_node(op, [f"size{number}"] * 2, [f"size{number + 1}"])
            for number in range(SQUARINGS)
        ),
        helper.make_node("Concat", [f"size{SQUARINGS}", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["reshaped"]),
        helper.make_node("Relu", ["reshaped"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([-1])}
    return model_of(nodes, ("N", 3), constants)


def strided_convolutions() -> onnx.ModelProto:
    """Return a model whose sizes nest: floor((floor((H - 1)/2) - 1)/2), …"""
    names = ["x", *(f"t{number}" for number in range(200)), "y"]
    nodes = [
        helper.make_node("Conv", [first, "w"], [second], strides=[2, 2], pads=[1, 1, 1, 1])
        for first, second in itertools.pairwise(names)
    ]
    return model_of(nodes, ("N", 1, "H", "W"), {"w": np.ones((1, 1, 3, 3), np.float32)})


def model_of(
    nodes: list[onnx.NodeProto], shape: tuple[int | str, ...], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "model", [squared_size("Mul"), squared_size("Add"), strided_convolutions()]
)
def test_names_of_sizes_do_not_grow_with_the_model(model: onnx.ModelProto) -> None:
    graph = optimize(load_model(model), run_op)
    names = [dim for info in graph.infos.values() for dim in info.shape or () if dim is not None]
    assert names
    assert max(len(str(name)) for name in names) <= MAX_NAME
