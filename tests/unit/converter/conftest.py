from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn.converter.onnx import load_model
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import OP_TYPES, DType, Graph, TensorInfo
from vkmnn.shape import compute_shapes

Arrays = Sequence[np.ndarray]


def evaluate_graph(graph: Graph, inputs: Arrays) -> list[np.ndarray]:
    """Run a graph op by op on numpy; check shapes and types against the graph and the computed."""
    names = [info.name for info in graph.inputs]
    values: dict[str, np.ndarray] = {
        **graph.constants,
        **dict(zip(names, inputs, strict=True)),
    }
    for op in graph.ops:
        operands = [values[name] if name else None for name in op.inputs]
        infos = [
            None if value is None else TensorInfo(name, DType(value.dtype.name), value.shape)
            for name, value in zip(op.inputs, operands, strict=True)
        ]
        needed = OP_TYPES[op.type].content
        contents = [value if index in needed else None for index, value in enumerate(operands)]
        outputs = compute_shapes(op, infos, contents)
        for info, value in zip(outputs, run_op(op, operands), strict=True):
            assert (info.dims, info.dtype.value) == (value.shape, value.dtype.name), op
            _check_declared(graph.infos.get(info.name), value)
            values[info.name] = value
    return [values[info.name] for info in graph.outputs]


def _check_declared(info: TensorInfo | None, value: np.ndarray) -> None:
    if info is None:
        return
    assert info.dtype.value == value.dtype.name, info
    if info.shape is not None:
        assert len(info.shape) == value.ndim, info
        pairs = zip(info.shape, value.shape, strict=True)
        assert all(dim == size for dim, size in pairs if isinstance(dim, int)), info


@pytest.fixture(scope="session")
def evaluate() -> Callable[[Graph, Arrays], list[np.ndarray]]:
    return evaluate_graph


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray | tuple[int, Sequence[Any] | None]],
    outputs: Mapping[str, tuple[int, Sequence[Any] | None]] | Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    **domains: int,
) -> onnx.ModelProto:
    """Build a model; inputs and outputs as arrays or (element type, shape).

    Outputs given as names alone are float32 of unknown shape.
    """

    def value(name: str, what: Any) -> onnx.ValueInfoProto:
        if isinstance(what, np.ndarray):
            what = (helper.np_dtype_to_tensor_dtype(what.dtype), what.shape)
        return helper.make_tensor_value_info(name, *what)

    if not isinstance(outputs, Mapping):
        outputs = dict.fromkeys(outputs, (TensorProto.FLOAT, None))
    graph = helper.make_graph(
        list(nodes),
        "net",
        [value(name, what) for name, what in inputs.items()],
        [value(name, what) for name, what in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(name.replace("_", "."), v) for name, v in domains.items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=8)


@pytest.fixture(scope="session")
def build() -> Callable[..., onnx.ModelProto]:
    return make_model


@pytest.fixture(scope="session")
def agree() -> Callable[..., Graph]:
    """Convert, run, compare with onnxruntime; returns the graph."""

    def check(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Graph:
        session = open_oracle(model, optimised=False)
        expected = session.run(None, dict(inputs))
        graph = load_model(model)
        actual = evaluate_graph(graph, [inputs[info.name] for info in graph.inputs])
        for ours, theirs in zip(actual, expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            tolerance = 2e-3 if ours.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        return graph

    return check
