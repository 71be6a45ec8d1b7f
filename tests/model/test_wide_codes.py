"""Networks whose activations are quantised to 16 bits: more than a 16-bit float can represent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from tests.model.test_quantized_networks import SHAPE, Samples, mobilenet, resnet
from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession

Precision = Literal["high", "normal"]


@pytest.mark.parametrize(("precision", "bound"), [("high", 1e-3), ("normal", 1e-2)])
@pytest.mark.parametrize("activations", [QuantType.QInt16, QuantType.QUInt16], ids=str)
@pytest.mark.parametrize("network", [resnet, mobilenet])
def test_codes_of_16_bits(
    network: Any, activations: QuantType, precision: Precision, bound: float, tmp_path: Path
) -> None:
    source, made = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(network()), source)
    quantize_static(
        source,
        made,
        Samples(),
        quant_format=QuantFormat.QDQ,
        activation_type=activations,
        weight_type=QuantType.QInt8,
        extra_options={"UseQDQContribOps": True},
    )
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    oracle = open_oracle(made)
    (want,) = oracle.run(None, {"x": x})
    with InferenceSession(made, precision=precision) as session:
        assert {op.backend for op in session.placement()} == {"VULKAN"}
        (got,) = session.run(None, {"x": x})
    assert np.abs(got - want).max() <= bound * np.abs(want).max()
