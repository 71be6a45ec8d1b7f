"""The effect of `precision` on a session, on devices with and without half storage."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.runtime.device import Device, enumerate_devices, open_device

WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)


def network() -> onnx.ModelProto:
    """Return relu(x w) w."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def expected() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.maximum(X @ WEIGHT, 0) @ WEIGHT


@pytest.fixture
def fp16() -> None:
    devices = enumerate_devices()
    if not devices or "storage16" not in devices[0].features:
        pytest.skip("no device with 16-bit storage")


def test_normal_stores_halves(fp16: None, caplog: pytest.LogCaptureFixture) -> None:
    with vkmnn.InferenceSession(network(), 0, precision="normal") as session:
        (y,) = session.run(None, {"x": X})
        assert session.precision == "normal"
    assert y.dtype == np.float32
    error = np.abs(y - expected()).max() / np.ptp(expected())
    assert 1e-6 < error < 1e-3  # stored as halves, and no worse than that
    assert "float16" not in caplog.text


def test_high_is_the_default() -> None:
    with vkmnn.InferenceSession(network(), "cpu") as session:
        assert session.precision == "high"


def test_normal_on_numpy_stores_halves(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "vkmnn"),
        vkmnn.InferenceSession(network(), "cpu", precision="normal") as session,
    ):
        (y,) = session.run(None, {"x": X})
        assert session.precision == "normal"
    assert y.dtype == np.float32
    error = np.abs(y - expected()).max() / np.ptp(expected())
    assert 1e-6 < error < 1e-3
    assert not caplog.text


def test_normal_on_a_device_without_halves_is_high_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")

    def floor(*args: Any, **options: Any) -> Device:
        device = open_device(*args, **options)
        poor = Device.__new__(Device)
        poor.__dict__.update(vars(device))
        poor.info = replace(device.info, features=device.info.features - {"storage16"})
        return poor

    monkeypatch.setattr("vkmnn.runtime.device.open_device", floor)
    with (
        caplog.at_level(logging.WARNING, "vkmnn"),
        vkmnn.InferenceSession(network(), 0, precision="normal") as session,
    ):
        (y,) = session.run(None, {"x": X})
        assert session.precision == "high"
    np.testing.assert_allclose(y, expected(), rtol=1e-5, atol=1e-5)
    assert 'precision "normal" runs as "high"' in caplog.text


@pytest.mark.parametrize("device", ["cpu", 0])
def test_fast_without_matrices_is_high_and_says_so(
    device: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    if device == 0 and (not enumerate_devices() or enumerate_devices()[0].type.value != "cpu"):
        pytest.skip("no software device")
    with (
        caplog.at_level(logging.WARNING, "vkmnn"),
        vkmnn.InferenceSession(network(), device, precision="fast") as session,
    ):
        (y,) = session.run(None, {"x": X})
        assert session.precision == "high"
    np.testing.assert_allclose(y, expected(), rtol=1e-5, atol=1e-5)
    assert 'no cooperative matrices that gain by precision "fast": it runs as "high"' in caplog.text


def test_both_faces_take_it(fp16: None) -> None:
    net = vkmnn.Interpreter.from_model(network())
    session = net.create_session(vkmnn.ScheduleConfig(device=0, precision="normal"))
    assert session.precision == "normal"
    (y,) = session.run({"x": X}).values()
    assert np.abs(y - expected()).max() < 1e-2 * np.ptp(expected())
    session.close()


@pytest.mark.parametrize("precision", ["lowest", "FP16", ""])
def test_others_are_refused_with_a_hint(precision: str) -> None:
    with pytest.raises(vkmnn.InvalidInputError, match='"normal" or "fp16": float16 storage'):
        vkmnn.InferenceSession(network(), "cpu", precision=precision)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["normal", "fp16", "float16", "low"])
def test_names_that_mean_halves(fp16: None, precision: str) -> None:
    with vkmnn.InferenceSession(network(), 0, precision=precision) as session:  # type: ignore[arg-type]
        low = precision == "low" and session.precision == "low"  # on GPUs with that arithmetic
        assert low or session.precision == "normal"


def test_a_float16_model(fp16: None) -> None:
    """Its own type is that of the storage: casts in between cost nothing."""
    proto = network()
    wide = helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT16)
    back = helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT)
    proto.graph.node.insert(2, wide)
    proto.graph.node.insert(3, back)
    proto.graph.node[4].input[0] = "d"
    with vkmnn.InferenceSession(proto, 0, precision="normal") as session:
        (y,) = session.run(None, {"x": X})
        kernels = {op.kernel for op in session.profile({"x": X}, 1).ops()}
    assert np.abs(y - expected()).max() < 1e-2 * np.ptp(expected())
    assert not any(name.startswith("cast") for name in kernels)


def test_profiles_and_tuning_know_it(fp16: None) -> None:
    with vkmnn.InferenceSession(network(), 0, precision="normal") as session:
        products = session.profile({"x": X}, 1).ops()[-2:]
        assert any("_f16" in op.kernel for op in products)
        # A matrix of halves, and of 16 columns on both sides.
        assert max(op.nbytes for op in products) == 2 * (16 * 16 + 2 * X.size)
        for choice in session.tune({"x": X}, 1).choices:
            assert choice.problem.startswith("('fp16', ") or choice.what == "load"
        (y,) = session.run(None, {"x": X})
    assert np.abs(y - expected()).max() < 1e-2 * np.ptp(expected())
