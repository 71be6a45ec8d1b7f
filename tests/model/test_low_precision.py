"""precision="low": float16 arithmetic in products and convolutions, on devices that gain by it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.oracle import open_oracle
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.gemm.families.half import ConvHalf, MatMulHalf
from vkmnn.vulkan.gemm.half import scale_of, scaled

PROFILES = ("mali-g610", "adreno-740")
"""GPUs with float16 arithmetic and no cooperative matrices."""


@pytest.fixture(params=PROFILES)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the device look like a GPU, whose kernels it runs."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    if not {"float16", "storage16"} <= open_device("auto").info.features:
        pytest.skip("no float16")
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", request.param)
    return str(request.param)


@pytest.fixture
def half_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take float16 arithmetic wherever it is offered: rules leave small products to others."""
    by_rule = Preferences.__call__

    def first(self: Preferences, what: str, problem: Hashable, candidates: Sequence[Any]) -> Any:
        half = [kernel for kernel in candidates if isinstance(kernel, (ConvHalf, MatMulHalf))]
        return half[0] if half else by_rule(self, what, problem, candidates)

    monkeypatch.setattr(Preferences, "__call__", first)


def run(model: Any, feeds: Any, precision: Any) -> tuple[list[Any], bool, str]:
    """Return results, whether kernels of float16 arithmetic made them, and the precision."""
    with vkmnn.InferenceSession(model, require_device=True, precision=precision) as session:
        results = session.run(None, feeds)
        taken = [choice.taken for choice in session._session.core._main.choices]
        half = any(isinstance(kernel, (ConvHalf, MatMulHalf)) for kernel in taken)
        return results, half, session.precision


@pytest.mark.parametrize("name", ["resnet", "unet", "vit", "bert", "gpt2"])
def test_networks_are_as_right_as_float16_allows(gpu: str, half_first: None, name: str) -> None:
    network = NETWORKS[name]
    model = network.build()
    feeds = make_feeds(model, network.sizes[0])
    expected = open_oracle(model).run(None, feeds)
    errors = {}
    for precision in ("normal", "low"):
        results, half, used = run(model, feeds, precision)
        assert used == precision
        assert half == (precision == "low")
        errors[precision] = max(
            float(np.abs(got - want).max() / np.abs(want).max())
            for got, want in zip(results, expected, strict=True)
        )
    assert errors["low"] < max(4 * errors["normal"], 1e-2), errors


def test_large_activations_do_not_overflow(gpu: str, half_first: None) -> None:
    """Sums of terms near the largest float16, of which four alone would be too large."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = rng.choice([-1.0, 1.0], (512, 96)).astype(np.float32)
    x = np.full((40, 512), 60_000.0, np.float32)
    weights[1::2] = -weights[::2]  # sums are nothing, or one term
    weights[-1] = 0.0
    graph = helper.make_graph(
        [
            helper.make_node("Sin", ["x"], ["sin"]),
            helper.make_node("Sub", ["x", "sin"], ["r"]),
            helper.make_node("MatMul", ["r", "w"], ["m"]),
            helper.make_node("Cos", ["m"], ["cos"]),
            helper.make_node("Sub", ["m", "cos"], ["y"]),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (40, 96))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,), half, _ = run(model, {"x": x}, "low")
    assert half
    want = (x - np.sin(x)) @ weights
    np.testing.assert_allclose(y, want, atol=128)


@pytest.mark.parametrize("depth", [1, 8, 16, 32, 33])
def test_scales_are_powers_of_two_that_keep_sums_small(depth: int) -> None:
    for size in (1e-30, 1e-6, 0.3, 1.0, 255.0, 1e4, 65504.0):
        weights = np.array([[0.0, -size], [size / 3, np.nan]], np.float32)
        scale = scale_of(weights, depth)
        assert np.frexp(scale)[0] == 0.5
        largest = np.nanmax(np.abs(scaled(weights, depth)))
        assert depth * largest <= 0.5
        assert depth * largest > 0.0625
        assert np.isnan(scaled(weights, depth)[1, 1])
    assert scale_of(np.zeros((2, 3), np.float32), depth) == 1.0
    assert scale_of(np.zeros((0, 3), np.float32), depth) == 1.0
    assert scale_of(np.array([np.inf, 2.0], np.float32), depth) == scale_of(np.array([2.0]), depth)
