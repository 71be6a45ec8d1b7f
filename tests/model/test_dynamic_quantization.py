"""Networks that onnxruntime's tools quantise dynamically: ranges are those of each run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from tests.model.test_quantized_networks import SHAPE, mobilenet, resnet, stages
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession

Precision = Literal["high", "normal"]


def deep_resnet() -> onnx.ModelProto:
    """Return one whose sums may have more than 24 bits."""
    return stages((1, 1), 64)


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("network", [resnet, mobilenet, deep_resnet])
def test_all_of_it_runs_on_the_device(
    network: Any, weights: QuantType, precision: Precision, tmp_path: Path
) -> None:
    source, made = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    model = network()
    onnx.save(onnx.shape_inference.infer_shapes(model), source)
    quantize_dynamic(source, made, weight_type=weights)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    oracle = open_oracle(made)
    (want,) = oracle.run(None, {"x": x})
    with InferenceSession(made, precision=precision) as session:
        placed = session.placement()
        (got,) = session.run(None, {"x": x})
    assert {op.backend for op in placed} == {"VULKAN"}
    types = Counter(op.type for op in placed)
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert types["Convolution"] == types["MatMul"] == types["Cast"] == 0
    whole = types["DynamicQuantizeConvolution"]
    assert whole + types["QuantizedConvolution"] // 2 >= convolutions
    # Sums that may have more than 24 bits are two: a range, codes, two sums, a formula.
    in_two = convolutions - whole
    assert types.total() <= 2 * (whole + 1) + 5 * in_two + 8, types
    # Where a number lies half-way between two codes, any rounding error decides.
    spread = np.abs(want).max()
    assert np.abs(got - want).max() <= 2e-2 * spread
    assert got.argmax() == want.argmax()
