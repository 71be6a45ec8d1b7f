"""The test cases in the onnx package."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnx import TensorProto, numpy_helper

from vkmnn.ir import DType

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
# onnx's converter leaves PRelu's opset-6 slope of shape [C], which opset 7 does not allow.
INVALID_AFTER_CONVERSION = {f"test_PReLU_{rank}d_multiparam" for rank in (1, 2, 3)}


@lru_cache(maxsize=1)
def node_cases() -> list[Any]:
    """Return onnx's node cases; generating them takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    if cases[0].model is None:
        pytest.skip("this version of onnx keeps its cases in files, some of them recorded wrongly")
    return cases


def recorded() -> Iterator[Path]:
    """Give the folders of models with recorded inputs and outputs, the large networks left out."""
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        for file in sorted((DATA / kind).glob("*/model.onnx")):
            if file.parent.name not in INVALID_AFTER_CONVERSION:
                yield file.parent


def recorded_model(folder: Path, opset: int) -> onnx.ModelProto:
    """Load a recorded model; one older than opset 7 is converted to `opset`."""
    model = onnx.load(folder / "model.onnx")
    if model.opset_import[0].version < 7:
        return onnx.version_converter.convert_version(model, opset)
    return model


def recorded_tensors(folder: Path, kind: str) -> list[np.ndarray]:
    """Read a data set's tensors of a kind, "input" or "output"."""
    count = len(list(folder.glob(f"{kind}_*.pb")))
    files = [folder / f"{kind}_{index}.pb" for index in range(count)]
    return [as_array(TensorProto.FromString(file.read_bytes())) for file in files]


def as_array(value: object) -> np.ndarray:
    """Return a case's input or output as an array."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def compare(name: str, actual: list[np.ndarray], expected: list[np.ndarray], rtol: float) -> None:
    """Assert that types and shapes are equal and values close."""
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        if DType.from_numpy(ours.dtype).is_narrow:  # numpy does not compare those
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
            rtol = max(rtol, 2**-6)  # as in the backend tests of onnx
        if ours.dtype == np.float16:  # two units in the last place
            rtol = max(rtol, 2e-3)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6, err_msg=name)
