"""onnx's float32 node cases with integers and bool instead of floats, wherever ONNX allows those
types: the device agrees with the numpy backend, and runs every op except for the reasons listed
here.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs

from tests.onnx_cases import as_array, node_cases
from tests.op.vulkan.harness import device
from vkmnn import InferenceSession
from vkmnn.errors import ConversionError, InvalidInputError, ModelError, UnsupportedOpError
from vkmnn.ir import Array

TYPES = {
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
# Why an op may run off the device.
OFF_DEVICE = re.compile(
    "float64 tensors cannot be stored on the device"
    "|(linear|cubic) interpolation of (int32|int64|uint8|bool)"  # sums are float32
    "|scale or activation of an integer product"  # Gemm with a fractional alpha
    "|M(AX|IN) of no int64 elements"  # the limits of int64 do not fit
)
# Interpolated integers are rounded, and float32 may round to the other neighbour.
ROUNDED = {"Resize", "Upsample"}
DIVISORS = {"Div", "Mod"}


def type_name(schema: defs.OpSchema, parameters: Any, index: int) -> str:
    """Return the type variable of an operator's input or output; the last one may repeat."""
    return str(parameters[min(index, len(parameters) - 1)].type_str)


def retyped(case: Any, dtype: str) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
    """Return a case with `dtype` in place of float32, and its inputs; None if not allowed."""
    if len(case.model.graph.node) != 1 or case.model.graph.node[0].domain:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    schema = defs.get_schema(node.op_type, model.opset_import[0].version)
    declared = {info.name: info for info in (*model.graph.input, *model.graph.output)}
    floats = [
        type_name(schema, schema.inputs, index)
        for index, name in enumerate(node.input)
        if name in declared and declared[name].type.tensor_type.elem_type == TensorProto.FLOAT
    ]
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    if not floats or f"tensor({dtype})" not in allowed.get(floats[0], ()):
        return None
    places = [(n, type_name(schema, schema.inputs, i)) for i, n in enumerate(node.input)]
    places += [(n, type_name(schema, schema.outputs, i)) for i, n in enumerate(node.output)]
    changed = {name for name, variable in places if variable == floats[0] and name in declared}
    for name in changed:
        declared[name].type.tensor_type.elem_type = TYPES[dtype]
    feeds = {}
    for info, value in zip(model.graph.input, case.data_sets[0][0], strict=True):
        array = as_array(value)
        if array.dtype.kind in "fV":  # NaN and infinity have no integer; V: types of ml_dtypes
            wide = np.nan_to_num(array.astype(np.float64), posinf=4, neginf=-4)
            array = wide.astype(array.dtype)
        if info.name in changed:
            # Small: products must stay in 32 bits.
            array = np.clip(np.rint(array.astype(np.float64) * 3), -4, 4)
            if dtype == "uint8":
                array = np.abs(array)
            if node.op_type in DIVISORS:
                array = np.where(array == 0, 1, array)
            array = (array > 0) if dtype == "bool" else array.astype(dtype)
        feeds[info.name] = array
    return model, feeds


def run(model: onnx.ModelProto, feeds: dict[str, Array], where: str) -> tuple[list[Array], str]:
    """Return the outputs, and why ops did not run on the device if that is not allowed."""
    with InferenceSession(
        model, device=where, validation=where != "cpu", unsupported="raise"
    ) as session:
        results = session.run(None, {info.name: feeds[info.name] for info in session.get_inputs()})
        away = session.placement().off_device
        return results, "; ".join(op.reason for op in away if not OFF_DEVICE.search(op.reason))


def difference(name: str, ours: list[Array], theirs: list[Array]) -> str:
    """Describe how results differ."""
    for a, b in zip(ours, theirs, strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
        tolerance = 1.0 if name in ROUNDED and a.dtype.kind == "u" else 1e-5
        close = np.isclose(
            a.astype(float), b.astype(float), rtol=1e-3, atol=tolerance, equal_nan=True
        )
        if not close.all():
            return f"{a[~close][:3]} instead of {b[~close][:3]}"
    return ""


@pytest.mark.soak
@pytest.mark.validation
@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype: str) -> None:
    device()
    wrong: list[str] = []
    count = 0
    for case in node_cases():
        if "sequence" in case.name or "optional" in case.name:
            continue
        made = retyped(case, dtype)
        if made is None:
            continue
        try:
            expected, _ = run(*made, "cpu")
        except (UnsupportedOpError, ConversionError, InvalidInputError, ModelError):
            continue  # not taken by the converter or a body, or attributes that only fit floats
        try:
            results, away = run(*made, "auto")
            problem = away or difference(case.model.graph.node[0].op_type, results, expected)
        except Exception as error:  # noqa: BLE001 - one bad case must not hide the others
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        count += 1
        if problem:
            wrong.append(f"{case.name}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert count > 150
