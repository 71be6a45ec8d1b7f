"""vkmnn under the test runner that onnx brings for backends, and the rest of the backend API."""

from __future__ import annotations

import re
import unittest
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn.onnx_backend as backend
from vkmnn import (
    ConversionError,
    DeviceNotFoundError,
    InvalidInputError,
    ShapeError,
    UnsupportedOpError,
)

PARTS = 8

# Cases that repeat what others say, that the runner wants to download, or that do not pass.
EXCLUDED = {
    "test_(bvlc|densenet|inception|resnet|shufflenet|squeezenet|vgg|zfnet)": "tests/model has them",
    "test_loop16_seq_none": "the runner takes the length of an array without axes",
    "test_bernoulli": "random numbers: the recorded ones are one draw",
    "test_image_decoder": "the evaluators need Pillow",
    "test_gradient_of": "examples/gradient expands them first, and has their test",
}
# Results that differ from the recorded ones by one step of float16, or by the rounding of a sum.
TOLERANCES = {"test_attention_4d_causal_fp16_expanded": {"rtol": 2e-3}} | {
    f"test_{name}": {"rtol": 1e-3, "atol": 1e-3}
    for name in (
        *("dft", "dft_axis", "dft_inverse", "dft_irfft", "dft_rfft"),
        *("dft_opset19", "dft_axis_opset19", "dft_inverse_opset19", "dft_irfft_opset19"),
        *("dft_rfft_opset19", "stft", "stft_with_window"),
    )
}


# Why an op that has a kernel may run off the device, and in which cases.
OFF_DEVICE = {
    "float64 tensors cannot be stored on the device": "",  # plain Vulkan 1.1 has no 64-bit types
    "convolution of int32 tensors": "convinteger_",
    # Tables of powers of two, and what stands for the end of an axis.
    "holds -?[0-9]+, outside int32": "",
    # What a uint32 holds and no int32 does.
    "integers beyond the 32 bits that the device computes with": "(test_)?bitcast_",
}


class Watched(backend.VkmnnBackendRep):
    """A model whose ops must have run on the device, as far as they have kernels."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        results = super().run(inputs, **kwargs)
        name = self.session.core.graph.name
        for op in self.session.core.placement().off_device:
            if op.backend == "CPU":  # not on the host for want of a kernel, which pages list
                allowed = (cases for why, cases in OFF_DEVICE.items() if re.search(why, op.reason))
                assert any(re.match(cases, name) for cases in allowed), f"{op.type}: {op.reason}"
        return results


class OnDevice(backend.VkmnnBackend):
    """The runner knows the devices "CPU" and "CUDA": "CPU" stands for Vulkan here."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        if not super().supports_device("VULKAN"):
            return super().prepare(model, "CPU")
        made = super().prepare(model, "VULKAN", validation=True)
        return Watched(made.session, made.overridable)


@lru_cache(maxsize=1)
def cases() -> list[unittest.TestCase]:
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = BackendTest(OnDevice, __name__, TOLERANCES)
    for pattern in EXCLUDED:
        runner.exclude(pattern)
    return [case for case in flat(runner.test_suite) if case.id().endswith("_cpu")]


def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flat(item)
        else:
            yield item


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_cases_of_onnx(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    result = unittest.TestResult()
    unittest.TestSuite(cases()[part::PARTS]).run(result)
    wrong = [f"{case.id()}: {text[-600:]}" for case, text in result.failures + result.errors]
    assert not wrong, "\n".join(wrong)
    right = result.testsRun - len(result.skipped)
    with capsys.disabled():
        print(f"\nonnx's backend tests, part {part}: {right} of {result.testsRun}")  # noqa: T201
    assert right > 150


# --- the rest of the interface -------------------------------------------------------------------

X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


def test_prepare_and_run(dense: Path) -> None:
    model = onnx.load(dense)
    rep = backend.prepare(model, "CPU")
    for inputs in (X, [X], (X,), {"x": X}, [X.tolist()]):
        if isinstance(inputs, list) and isinstance(inputs[0], list):
            inputs = [np.array(inputs[0], np.float32)]
        result = rep.run(inputs)
        np.testing.assert_array_equal(result["z"], np.maximum(result[0], 0))
    np.testing.assert_array_equal(backend.run_model(model, [X], "CPU")[1], result[1])
    assert backend.is_compatible(model)


def test_run_node() -> None:
    node = helper.make_node("Gemm", ["a", "b", ""], ["y"], alpha=2.0)
    a, b = X, X.T.copy()
    want = 2 * a @ b
    info = [(np.dtype(np.float32), (2, 2))]
    for inputs in ([a, b], {"b": b, "a": a}):
        for outputs_info in (None, info):
            (y,) = backend.run_node(node, inputs, "CPU", outputs_info, opset_version=13)
            np.testing.assert_allclose(y, want, rtol=1e-5)
    gelu = helper.make_node("BiasGelu", ["a", "b"], ["y"], domain="com.microsoft")
    assert backend.run_node(gelu, [X, X[0]], "CPU")[0].shape == X.shape
    same = helper.make_node("Add", ["a", "a"], ["y"])
    np.testing.assert_array_equal(backend.run_node(same, X, "CPU").y, X + X)


def test_devices(dense: Path) -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    assert not backend.supports_device("VULKAN:99")
    assert backend.supports_device("VULKAN") == backend.supports_device("vulkan:0")
    with pytest.raises(DeviceNotFoundError, match="'CUDA:1'"):
        backend.prepare(onnx.load(dense), "CUDA:1")
    if backend.supports_device("VULKAN"):
        rep = backend.prepare(onnx.load(dense), precision="fp16")
        np.testing.assert_allclose(
            rep.run(X).z, backend.run_model(onnx.load(dense), X, "CPU").z, rtol=1e-2, atol=1e-2
        )


def test_refusals(dense: Path) -> None:
    model = onnx.load(dense)
    node = helper.make_node("Add", ["a", "b"], ["y"], name="sum")
    with pytest.raises(InvalidInputError, match="has 1 input, got 2 arrays"):
        backend.run_model(model, [X, X], "CPU")
    with pytest.raises(InvalidInputError, match="no setting 'nonsense'"):
        backend.prepare(model, "CPU", nonsense=1)
    with pytest.raises(InvalidInputError, match="no setting 'nonsense'"):
        backend.prepare(model, "CPU").run(X, nonsense=1)
    with pytest.raises(InvalidInputError, match=r"reads 2 tensors, got 1.*\(op Add, node 'sum'\)"):
        backend.run_node(node, [X], "CPU")
    with pytest.raises(ShapeError):
        backend.run_node(node, [X, X[:, :3]], "CPU")
    with pytest.raises(UnsupportedOpError, match="Nope"):
        backend.run_node(helper.make_node("Nope", ["a"], ["y"]), [X], "CPU")
    graph = helper.make_graph(
        [helper.make_node("Nope", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    assert not backend.is_compatible(helper.make_model(graph))
    with pytest.raises(ConversionError):
        backend.prepare(helper.make_model(graph), "CPU")
