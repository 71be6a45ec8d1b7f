"""Whole models: the results of onnxruntime, the numpy backend and the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.ir import Array
from vkmnn.runtime.device import enumerate_devices

Arrays = Mapping[str, Array]


def node(op: str, inputs: str, output: str = "y", **attributes: object) -> onnx.NodeProto:
    """Return a node; names are separated by blanks."""
    return helper.make_node(op, inputs.split(" "), output.split(" "), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Arrays,
    constants: Arrays | None = None,
    outputs: str = "y",
    opset: int = 21,
) -> onnx.ModelProto:
    """Return a model whose inputs have the shapes of the feeds."""
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, types[n], array.shape) for n, array in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs.split(" ")],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def oracle(made: onnx.ModelProto, feeds: Arrays) -> list[Array]:
    """Return onnxruntime's results, computed node by node."""
    data = made.SerializeToString()
    session = open_oracle(data, optimised=False, threads=1)
    return list(session.run(None, dict(feeds)))


@lru_cache(maxsize=1)
def devices() -> tuple[str, ...]:
    """Return the numpy backend and, if there is one, the Vulkan device."""
    return ("cpu", "auto") if enumerate_devices() else ("cpu",)


def run(made: onnx.ModelProto, feeds: Arrays, device: str) -> list[Array]:
    """Return vkmnn's results."""
    with InferenceSession(made, device=device) as session:
        return list(session.run(None, dict(feeds)))


def check(
    made: onnx.ModelProto,
    feeds: Arrays,
    expected: Sequence[Array] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    on: Sequence[str] | None = None,
) -> None:
    """Compare both backends with `expected`, else with onnxruntime; integers are exact."""
    wanted = oracle(made, feeds) if expected is None else expected
    for device in devices() if on is None else on:
        results = run(made, feeds, device)
        assert len(results) == len(wanted)
        for result, want in zip(results, wanted, strict=True):
            assert (result.dtype, result.shape) == (want.dtype, want.shape), device
            near = (rtol, atol) if want.dtype.kind == "f" else (0.0, 0.0)
            np.testing.assert_allclose(result, want, *near, err_msg=device)
