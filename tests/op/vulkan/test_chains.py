"""Chains of elementwise nodes: one dispatch, onnxruntime's results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.onnxruntime_oracle import open_oracle
from vkmnn.ir import Array

pytest.importorskip("onnxruntime")

Shape = tuple[int, ...]
node = helper.make_node


def network(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, Shape], numbers: dict[str, Any]
) -> onnx.ModelProto:
    """Return a model with output "y"."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [
        numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in numbers.items()
    ]
    graph = helper.make_graph(nodes, "chain", infos, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compare(proto: onnx.ModelProto, ops: list[str]) -> None:
    """Compare with onnxruntime; `ops`: the types of the remaining ops, except conversions."""
    with vkmnn.InferenceSession(proto, require_device=True) as session:
        random = np.random.default_rng(0)
        feeds: dict[str, Array] = {
            info.name: random.standard_normal(info.shape).astype(np.float32)
            for info in session.get_inputs()
        }
        (got,) = session.run(None, feeds)
        types = [one.type for one in session.placement()]
        assert [kind for kind in types if kind != "ConvertTensor"] == ops
    oracle = open_oracle(proto)
    np.testing.assert_allclose(got, oracle.run(None, feeds)[0], rtol=1e-5, atol=1e-5)


def test_rotary_embedding() -> None:
    nodes = [
        node("Mul", ["x", "cos"], ["a"]),
        node("Mul", ["turned", "sin"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    full, row = (2, 3, 5, 7), (1, 1, 5, 7)
    compare(
        network(nodes, {"x": full, "turned": full, "cos": row, "sin": row}, {}), ["Elementwise"]
    )


def test_recurrent_cell() -> None:
    nodes = [
        node("Sigmoid", ["f"], ["forget"]),
        node("Sigmoid", ["i"], ["gate"]),
        node("Tanh", ["g"], ["new"]),
        node("Mul", ["forget", "c"], ["kept"]),
        node("Mul", ["gate", "new"], ["added"]),
        node("Add", ["kept", "added"], ["y"]),
    ]
    compare(network(nodes, dict.fromkeys("fcig", (3, 11)), {}), ["Elementwise"])


@pytest.mark.parametrize("kind", ["Abs", "Exp"])
@pytest.mark.parametrize("channels", [3, 8])
def test_between_convolutions(channels: int, kind: str) -> None:
    """Channel-blocked: with channels that fill the blocks, and with some that do not."""
    random = np.random.default_rng(1)
    weight = random.standard_normal((channels, channels, 3, 3)) / 8
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node(kind, ["c"], ["e"]),
        node("Mul", ["e", "scale"], ["m"]),
        node("Tanh", ["m"], ["s"]),
        node("Conv", ["s", "w"], ["y"]),
    ]
    numbers = {"w": weight, "scale": random.standard_normal((channels, 1, 1))}
    proto = network(nodes, {"x": (2, channels, 7, 9)}, numbers)
    compare(proto, ["Convolution", "Elementwise", "Convolution"])
