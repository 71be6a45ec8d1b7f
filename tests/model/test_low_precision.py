"""precision="low": float16 arithmetic in products and convolutions, on devices that gain by it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.gemm.families.half import ConvHalf, MatMulHalf
from vkmnn.vulkan.gemm.half import divided, exponents_of

PROFILES = ("mali-g610", pytest.param("adreno-740", marks=pytest.mark.soak))
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


@pytest.mark.parametrize("name", ["resnet", "unet", "vit", "gpt2"])
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
def test_powers_keep_the_sums_of_every_column_small(depth: int) -> None:
    sizes = np.array([0.0, 1e-12, 1e-6, 0.3, 1.0, 255.0, 1e4, 65504.0, 1e30], np.float32)
    columns = np.stack([-sizes, sizes / 3, np.full_like(sizes, np.nan)], 1)
    exponents = exponents_of(columns, depth)
    made = divided(columns, exponents)
    assert np.isnan(made[:, 2]).all()
    largest = depth * np.abs(made[:, 0])
    assert (largest < 0.5).all()
    assert (largest[1:] >= 0.125 * depth / (1 << (depth - 1).bit_length())).all()
    back = np.ldexp(made[:, :2], exponents[:, None])
    np.testing.assert_array_equal(back, np.minimum(np.abs(columns[:, :2]), 65504.0) * [-1, 1])
    nothing = np.zeros((0, 3), np.float32)
    assert divided(nothing, exponents_of(nothing, depth)).shape == (0, 3)


def test_channels_of_unlike_size_are_equally_exact(gpu: str, half_first: None) -> None:
    """Normalisations that are folded into weights make some of them thousands of times smaller."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    sizes = (10.0 ** -np.arange(40).clip(max=7)).astype(np.float32)
    weights = rng.standard_normal((40, 24, 3, 3)).astype(np.float32) * sizes[:, None, None, None]
    x = rng.standard_normal((1, 24, 9, 11)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Sin", ["x"], ["r"]),
            helper.make_node("Conv", ["r", "w"], ["c"]),
            helper.make_node("Sin", ["c"], ["y"]),
        ],
        "unlike",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 40, 7, 9))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = open_oracle(model).run(None, {"x": x})[0]
    (y,), half, _ = run(model, {"x": x}, "low")
    assert half
    error = np.abs(y - expected).max((0, 2, 3)) / np.abs(expected).max((0, 2, 3))
    assert (error < 1e-2)[1:7].all(), error  # the sine of the first hides nothing of its rounding
