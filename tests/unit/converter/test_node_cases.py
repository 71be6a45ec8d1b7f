"""Every test case that the onnx package holds: right, or refused for a reason listed here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnx import TensorProto, defs, numpy_helper

from vkmnn.converter.onnx import load_model
from vkmnn.errors import ConversionError, UnsupportedNode, UnsupportedOpError
from vkmnn.ir import Graph

Evaluate = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]

# What the front end refuses on purpose, by the reason that it gives.
REFUSED_REASONS = re.compile(
    r"element type (BFLOAT16|FLOAT8\w+|FLOAT4\w+|U?INT[24]|STRING)"
    r"|(casting to|quantizing to|output_dtype|precision) (BFLOAT16|FLOAT8|FLOAT4|U?INT[24])"
    r"|only dense tensors|optional values|sequence values"
    r"|control flow|recurrent|random"
    r"|its output shape depends on data"
    r"|training_mode"
    r"|domain 'ai\.onnx\.(ml|preview)"
)
# Operators without a kernel in the vocabulary.
REFUSED_OPS = {
    "BitCast",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Col2Im",
    "CumProd",
    "DFT",
    "DeformConv",
    "Det",
    "ImageDecoder",
    "MaxUnpool",
    "MelWeightMatrix",
    "RoiAlign",
    "STFT",
    "TensorScatter",
    "TfIdfVectorizer",
}
# Their attributes are graphs, or their models are older than opset 7.
REFUSED_MODELS = {"test_not_2d", "test_not_3d", "test_not_4d"}


def is_expected(node: UnsupportedNode) -> bool:
    return node.op in REFUSED_OPS or REFUSED_REASONS.search(node.reason) is not None


def compare(name: str, actual: list[np.ndarray], expected: list[np.ndarray], rtol: float) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        if ours.dtype == np.float16:  # two units in the last place
            rtol = max(rtol, 2e-3)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-6, err_msg=name)


def as_array(value: object) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


@pytest.fixture(scope="module")
def node_cases() -> list:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    if cases[0].model is None:
        pytest.skip("this version of onnx keeps its cases in files, some of them recorded wrongly")
    return cases


@pytest.mark.slow
def test_all_node_cases(node_cases: list, evaluate: Evaluate) -> None:
    wrong: list[str] = []
    refused: list[str] = []
    right = 0
    for case in node_cases:
        try:
            graph = load_model(case.model)
            for inputs, outputs in case.data_sets:
                actual = evaluate(graph, [as_array(value) for value in inputs])
                compare(case.name, actual, [as_array(value) for value in outputs], case.rtol)
            right += 1
        except UnsupportedOpError as error:
            refused.append(case.name)
            wrong += [
                f"{case.name}: refused: {n.op}: {n.reason}"
                for n in error.nodes
                if not is_expected(n)
            ]
        except ConversionError as error:
            if case.name not in REFUSED_MODELS:
                wrong.append(f"{case.name}: {error}")
        except Exception as error:  # noqa: BLE001 - one bad case must not hide the others
            wrong.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    if defs.onnx_opset_version() == 28:  # the number of cases grows with onnx
        assert right >= 1441
        assert len(refused) <= 440


DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
# onnx's converter leaves PRelu's opset-6 slope of shape [C], which opset 7 does not allow.
INVALID_AFTER_CONVERSION = {f"test_PReLU_{rank}d_multiparam" for rank in (1, 2, 3)}


def recorded() -> Iterator[Path]:
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        for file in sorted((DATA / kind).glob("*/model.onnx")):
            if file.parent.name not in INVALID_AFTER_CONVERSION:
                yield file.parent


def tensors(folder: Path, kind: str) -> list[np.ndarray]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    files = [folder / f"{kind}_{index}.pb" for index in range(count)]
    return [numpy_helper.to_array(TensorProto.FromString(file.read_bytes())) for file in files]


@pytest.mark.parametrize("opset", [7, 13, 21])
@pytest.mark.parametrize("folder", list(recorded()), ids=lambda path: path.name)
def test_recorded_models(folder: Path, opset: int, evaluate: Evaluate) -> None:
    model = onnx.load(folder / "model.onnx")
    if model.opset_import[0].version < 7:
        model = onnx.version_converter.convert_version(model, opset)
    try:
        graph = load_model(model)
    except UnsupportedOpError as error:
        unexpected = [node for node in error.nodes if not is_expected(node)]
        if unexpected:
            raise
        pytest.skip(f"refused on purpose: {error.nodes[0].reason}")
    sets = sorted(folder.glob("test_data_set_*"))
    assert sets
    for data in sets:
        inputs = tensors(data, "input")[: len(graph.inputs)]
        actual = evaluate(graph, inputs)
        compare(folder.name, actual, tensors(data, "output"), 1e-3)
