from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import defs

from vkmnn.converter.onnx import supported_ops
from vkmnn.converter.onnx.support import unsupported_ops
from vkmnn.converter.onnx.table import operator_table
from vkmnn.converter.tflite.table import with_table

PAGE = Path(__file__).parents[3] / "docs" / "operators-tflite.md"
DOCUMENT = Path(__file__).parents[3] / "docs" / "operators.md"

# The promises of the first version.
PROMISED = """
Conv ConvTranspose Gemm MatMul BatchNormalization InstanceNormalization LayerNormalization
GroupNormalization LRN MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool GlobalLpPool
Relu Clip LeakyRelu PRelu Sigmoid HardSigmoid HardSwish Tanh Elu Selu Softplus Gelu Erf Exp Log
Sqrt Pow Neg Abs Reciprocal Floor Ceil Round Add Sub Mul Div Min Max Mod Equal Greater
GreaterOrEqual Less LessOrEqual And Or Xor Not Where Softmax LogSoftmax ReduceSum ReduceMean
ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare
ArgMax ArgMin TopK CumSum Concat Split Slice Pad Reshape Flatten Squeeze Unsqueeze Transpose
Expand Tile Gather GatherElements GatherND ScatterND OneHot DepthToSpace SpaceToDepth Resize
Upsample GridSample Shape Size Range Constant ConstantOfShape Identity Dropout Cast Trilu Einsum
"""


def test_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    written = re.search(r"\(opset (\d+)\)", text)
    assert written
    if int(written[1]) != defs.onnx_opset_version():
        pytest.skip("written for another version of onnx")
    assert text == operator_table(), "run `python -m vkmnn.converter.onnx.table docs/operators.md`"


def test_the_operators_of_tflite_are_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_table(text), f"run `python -m vkmnn.converter.tflite.table {PAGE}`"


def test_promised_operators_are_supported() -> None:
    names = {entry.name for entry in supported_ops() if not entry.domain}
    assert set(PROMISED.split()) <= names


def test_every_operator_of_onnx_is_listed_once() -> None:
    supported = {entry.name for entry in supported_ops() if not entry.domain}
    refused = {name for name, _ in unsupported_ops()}
    assert not supported & refused
    known = {s.name for s in defs.get_all_schemas() if not s.domain and not s.deprecated}
    assert known <= supported | refused


def test_converters_belong_to_operators_and_versions_that_exist() -> None:
    """`since` is a version of the operator, or lies before all of them."""
    contrib = {"SimplifiedLayerNormalization"}  # onnxruntime puts this one in ONNX's domain
    history: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            history.setdefault(schema.name, set()).add(schema.since_version)
    for entry in supported_ops():
        if entry.domain or entry.how != "direct" or entry.name in contrib:
            continue
        if defs.onnx_opset_version() < min(entry.versions):
            continue  # newer than the installed onnx
        versions = history[entry.name]
        early = {since for since in entry.versions if since < min(versions)}
        assert set(entry.versions) - early <= versions, entry
