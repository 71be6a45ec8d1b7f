"""Backends of plug-ins: the one in examples/backend, and invalid ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn import discovery
from vkmnn.base.registry import Snapshot
from vkmnn.core.backends import BACKENDS, backend
from vkmnn.cpu_fallback import CpuBackend
from vkmnn.errors import PluginError, VkmnnError
from vkmnn.plugin import kernel

pytestmark = pytest.mark.usefixtures("registrations")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "backend"
DEPTH = 1001


def model() -> bytes:
    """x[n, 1001] · w, softmax, argmax and a transpose."""
    w = np.random.default_rng(1).standard_normal((DEPTH, 7)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["p"], axis=1),
        helper.make_node("Transpose", ["p"], ["y"]),
        helper.make_node("ArgMax", ["h"], ["i"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", DEPTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    i = helper.make_tensor_value_info("i", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "g", [x], [y, i], [numpy_helper.from_array(w, "w")])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


X = np.random.default_rng(0).standard_normal((5, DEPTH)).astype(np.float32)


@pytest.fixture
def example(registrations: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the example through its manifest."""
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", str(EXAMPLE))
    monkeypatch.setattr(discovery, "_complete", False)


@pytest.mark.usefixtures("example")
def test_the_example_runs_a_network() -> None:
    with vkmnn.InferenceSession(model(), device="f64") as session:
        for rows in (5, 1, 0):
            y, i = session.run(None, {"x": X[:rows]})
            with vkmnn.InferenceSession(model(), device="cpu") as usual:
                expected, index = usual.run(None, {"x": X[:rows]})
            np.testing.assert_allclose(y, expected, rtol=2e-4, atol=1e-6)
            np.testing.assert_array_equal(i, index)
            assert y.dtype == np.float32
        places = {op.type: op for op in session.placement()}
        assert places["MatMul"].backend == "F64"
        argmax = next(op for op in session.placement() if op.backend == "CPU")
        assert argmax.reason == "there are no floats to compute"
        assert session.device.name == "F64 (a plug-in's backend)"
    (plugin,) = (one for one in discovery.load_plugins() if one.name == "vkmnn-f64")
    assert plugin.registered == ("backend F64",)


@pytest.mark.usefixtures("example")
def test_an_option_and_kernels_for_it() -> None:
    discovery.load_plugins()
    base = __import__("vkmnn_f64").F64Execution

    @kernel("MatMul", backend="F64", provider="acme")
    class Zeros(base):
        def run(self, inputs):
            return [np.zeros(self.output.shape, np.float32)]

    with vkmnn.InferenceSession(model(), device="f64:MatMul") as session:
        y, _ = session.run(None, {"x": X})
        np.testing.assert_allclose(y, np.full((7, 5), 1 / 7), rtol=1e-6)
        placed = {op.type: op for op in session.placement()}
        assert placed["MatMul"].provider == "acme"
        assert placed["Softmax"].backend == "CPU"


def test_a_folder_that_is_gone_leaves_the_name_unknown() -> None:
    with pytest.raises(VkmnnError, match="f64"):
        vkmnn.InferenceSession(model(), device="f64")


@pytest.mark.parametrize("name", ["CPU", "VULKAN", "AUTO", "f64", "", "A-B"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(PluginError, match="cannot be the name of a backend"):
        backend(name)
    assert len(BACKENDS) == 0


@pytest.mark.parametrize(
    ("opener", "message"),
    [
        (lambda option: 3, "opened 3"),
        (lambda option: CpuBackend(), "opened <"),
        (lambda option: 1 / 0, "opening the backend ODD"),
    ],
)
def test_what_opens_no_backend(opener, message: str) -> None:
    backend("ODD")(opener)
    with pytest.raises(PluginError, match=message):
        vkmnn.InferenceSession(model(), device="odd")


def test_the_example_works_wherever_it_lies(
    tmp_path: Path, registrations: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "there", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("VKMNN_PLUGIN_PATH", str(tmp_path))
    monkeypatch.setattr(discovery, "_complete", False)
    with vkmnn.InferenceSession(model(), device="F64") as session:
        assert session.run(None, {"x": X})[0].shape == (7, 5)
