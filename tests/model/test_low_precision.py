"""precision="low": float16 arithmetic in products and convolutions, on devices that gain by it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.vulkan.choice import Preferences
from vkmnn.vulkan.gemm.families.half import ConvHalf, MatMulHalf
from vkmnn.vulkan.gemm.half import divided, exponents_of

pytestmark = pytest.mark.elsewhere("test: one profile, and the networks that are quick")

PROFILES = ("mali-g610", pytest.param("adreno-740", marks=pytest.mark.soak))
"""GPUs with float16 arithmetic and no cooperative matrices."""


@pytest.fixture(params=PROFILES)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the device look like a GPU, whose kernels it then runs."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    if not {"float16", "storage16"} <= open_device("auto").info.features:
        pytest.skip("no float16")
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", request.param)
    return str(request.param)


@pytest.fixture
def half_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use float16 arithmetic wherever it is offered: the rules avoid it for small products."""
    by_rule = Preferences.__call__

    def first(self: Preferences, what: str, problem: Hashable, candidates: Sequence[Any]) -> Any:
        half = [kernel for kernel in candidates if isinstance(kernel, (ConvHalf, MatMulHalf))]
        return half[0] if half else by_rule(self, what, problem, candidates)

    monkeypatch.setattr(Preferences, "__call__", first)


def run(model: Any, feeds: Any, precision: Any) -> tuple[list[Any], bool, str]:
    """Return results, whether kernels of float16 arithmetic computed them, and the precision."""
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


# --- numpy ---------------------------------------------------------------------------------------


def fp16_network() -> Any:
    """Return a convolution, a sum, a product and a chain, with the constants that they take."""
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.standard_normal((6, 40, 1, 1)).astype(np.float32),
        "shift": rng.standard_normal((1, 6, 5, 5)).astype(np.float32),
        "m": rng.standard_normal((5, 7)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "shift"], ["b"]),
        helper.make_node("Mul", ["b", "a"], ["c"]),
        helper.make_node("MatMul", ["c", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "fp16",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 40, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 5, 7])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), constants


def steps_of_16(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a product whose sums of 16 terms are float16, and are added up in float32."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for k in range(0, a.shape[-1], 16):
        part = a[..., k : k + 16].astype(np.float64) @ b[k : k + 16].astype(np.float64)
        total += part.astype(np.float16).astype(np.float32)
    return total.astype(np.float16)


def by_interpreter(model: Any, x: np.ndarray[Any, Any], precision: Any) -> np.ndarray[Any, Any]:
    """Return the configuration of backend and precision in MNN's API."""
    with vkmnn.Interpreter(model) as net:
        session = net.create_session({"backend": "CPU", "precision": precision})
        assert session.precision == precision
        return np.asarray(session.run({"x": x})["y"])


def by_session(model: Any, x: np.ndarray[Any, Any], precision: Any) -> np.ndarray[Any, Any]:
    with vkmnn.InferenceSession(model, "cpu", precision=precision) as session:
        assert session.precision == precision
        return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("run_on_cpu", [by_interpreter, by_session])
def test_numpy_computes_in_float16_at_low(
    run_on_cpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model, constants = fp16_network()
    w, shift, m = (constants[name].astype(np.float16) for name in ("w", "shift", "m"))
    x = np.random.default_rng(2).standard_normal((1, 40, 5, 5)).astype(np.float32)
    pixels = x[0].reshape(40, 25).T.astype(np.float16)
    a = steps_of_16(pixels, w[:, :, 0, 0].T).T.reshape(1, 6, 5, 5)
    b = a + shift
    assert b.dtype == np.float16
    expected = steps_of_16(b * a, m)
    results = {p: run_on_cpu(model, x, p) for p in ("high", "normal", "low")}
    np.testing.assert_allclose(results["low"], expected.astype(np.float32), rtol=2e-3, atol=2e-3)
    scale = np.abs(results["high"]).max()
    errors = {p: np.abs(results[p] - results["high"]).max() / scale for p in ("normal", "low")}
    assert 0 < errors["normal"] < errors["low"] < 1e-2
    assert (results["low"] == results["low"].astype(np.float16)).all()
    assert not caplog.records


@pytest.mark.parametrize("precision", ["normal", "low"])
@pytest.mark.parametrize("name", ["resnet", "unet", "vit", "gpt2", "bert"])
def test_networks_on_numpy_are_as_right_as_float16_allows(name: str, precision: Any) -> None:
    network = NETWORKS[name]
    model = network.build()
    feeds = make_feeds(model, network.sizes[0])
    expected = open_oracle(model).run(None, feeds)
    with vkmnn.InferenceSession(model, "cpu", precision=precision, on_overflow="raise") as session:
        results = session.run(None, feeds)
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == want.dtype
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error < (2e-3 if precision == "normal" else 1e-2)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_compute_in_float16_as_one_does(threads: int) -> None:
    model, _ = fp16_network()
    x = np.random.default_rng(2).standard_normal((1, 40, 5, 5)).astype(np.float32)
    with vkmnn.Interpreter(model) as net:
        config = {"backend": "CPU", "precision": "low", "threads": threads}
        got = net.create_session(config).run({"x": x})["y"]
    np.testing.assert_array_equal(got, by_session(model, x, "low"))
