"""Every test case in the onnx package: right, or refused for a reason listed here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import defs

from tests.onnx_cases import (
    as_array,
    compare,
    node_cases,
    recorded,
    recorded_model,
    recorded_tensors,
)
from vkmnn.converter.onnx import load_model
from vkmnn.errors import ConversionError, UnsupportedNode, UnsupportedOpError
from vkmnn.ir import Graph

Evaluate = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]

# Intended refusals of the front end, by their reason.
REFUSED_REASONS = re.compile(
    r"element type (BFLOAT16|FLOAT8\w+|FLOAT4\w+|U?INT[24]|STRING)"
    r"|(casting to|quantizing to|output_dtype|precision) (BFLOAT16|FLOAT8|FLOAT4|U?INT[24])"
    r"|sequences, optionals and strings|sequences with known contents"
    r"|optional values|sequence values|light (bodies|branches)|random"
    r"|its output shape depends on data"
    r"|training_mode"
    r"|of ai\.onnx\.ml run on the host|domain 'ai\.onnx\.preview"
)
# Operators without a kernel in the vocabulary.
REFUSED_OPS = {
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "CumProd",
    "DeformConv",
    "Det",
    "ImageDecoder",
    "RoiAlign",
    "TensorScatter",
    "TfIdfVectorizer",
}
# Their attributes are graphs, or their models are older than opset 7.
REFUSED_MODELS = {"test_not_2d", "test_not_3d", "test_not_4d"}


def is_expected(node: UnsupportedNode) -> bool:
    return node.op in REFUSED_OPS or REFUSED_REASONS.search(node.reason) is not None


@pytest.mark.slow
def test_all_node_cases(evaluate: Evaluate) -> None:
    wrong: list[str] = []
    refused: list[str] = []
    right = 0
    for case in node_cases():
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


@pytest.mark.parametrize("opset", [7, 13, 21])
@pytest.mark.parametrize("folder", list(recorded()), ids=lambda path: path.name)
def test_recorded_models(folder: Path, opset: int, evaluate: Evaluate) -> None:
    try:
        graph = load_model(recorded_model(folder, opset))
    except UnsupportedOpError as error:
        unexpected = [node for node in error.nodes if not is_expected(node)]
        if unexpected:
            raise
        pytest.skip(f"refused on purpose: {error.nodes[0].reason}")
    sets = sorted(folder.glob("test_data_set_*"))
    assert sets
    for data in sets:
        inputs = recorded_tensors(data, "input")[: len(graph.inputs)]
        actual = evaluate(graph, inputs)
        compare(folder.name, actual, recorded_tensors(data, "output"), 1e-3)
