from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnxruntime_oracle import open_oracle
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import OP_TYPES, DType, Op, OpAttrs, TensorInfo
from vkmnn.shape import compute_shapes

Arrays = Sequence[np.ndarray | None]

TOLERANCE = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-11}


def make_op(op_type: str, attrs: OpAttrs, count: Arrays, outputs: int = 1) -> Op:
    names = ["" if array is None else f"i{index}" for index, array in enumerate(count)]
    return Op(op_type, "node", names, [f"o{index}" for index in range(outputs)], attrs)


def run(op_type: str, attrs: OpAttrs, arrays: Arrays, outputs: int = 1) -> list[np.ndarray]:
    """Run an op; the results of compute_shapes, which sees only shapes and contents, must agree."""
    op = make_op(op_type, attrs, arrays, outputs)
    infos = [
        None if array is None else TensorInfo(f"i{index}", DType(array.dtype.name), array.shape)
        for index, array in enumerate(arrays)
    ]
    contents = [array if i in OP_TYPES[op.type].content else None for i, array in enumerate(arrays)]
    copies = [None if array is None else array.copy() for array in arrays]
    expected = compute_shapes(op, infos, contents)
    results = run_op(op, arrays)
    assert len(results) == len(expected) == outputs
    for info, result in zip(expected, results, strict=True):
        assert (info.dims, info.dtype.numpy) == (result.shape, result.dtype)
    for before, after in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(before, after)
    return results


def model(
    node: str,
    attributes: dict[str, Any],
    arrays: Arrays,
    outputs: Sequence[np.ndarray],
    opset: int,
    domain: str,
) -> onnx.ModelProto:
    def info(name: str, array: np.ndarray, shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), shape
        )

    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    inputs = [
        info(name, array, array.shape) for name, array in zip(names, arrays, strict=True) if name
    ]
    results = [info(f"o{index}", array, None) for index, array in enumerate(outputs)]
    made = helper.make_node(
        node, names, [item.name for item in results], domain=domain, **attributes
    )
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    graph = helper.make_graph([made], "g", inputs, results)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def reference(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [np.asarray(item) for item in ReferenceEvaluator(proto).run(None, feeds)]


def runtime(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = open_oracle(proto, optimised=False, threads=1)
    return list(session.run(None, feeds))


ORACLES = {"reference": reference, "runtime": runtime}


def check(
    op_type: str,
    attrs: OpAttrs,
    arrays: Arrays,
    node: str,
    attributes: dict[str, Any] | None = None,
    *,
    outputs: int = 1,
    onnx_arrays: Arrays | None = None,
    oracle: str = "reference",
    opset: int = 22,
    domain: str = "",
    tolerance: float | None = None,
) -> list[np.ndarray]:
    """Compare an op with ONNX's reference evaluator, or with onnxruntime (oracle="runtime")."""
    results = run(op_type, attrs, arrays, outputs)
    given = arrays if onnx_arrays is None else onnx_arrays
    proto = model(node, attributes or {}, given, results, opset, domain)
    feeds = {f"i{index}": array for index, array in enumerate(given) if array is not None}
    wanted = ORACLES[oracle](proto, feeds)
    for result, want in zip(results, wanted, strict=True):
        compare(result, want, tolerance)
    return results


def compare(result: np.ndarray, want: np.ndarray, tolerance: float | None = None) -> None:
    assert result.dtype == want.dtype
    assert result.shape == want.shape
    if result.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(result, want)
        return
    limit = TOLERANCE[result.dtype.name] if tolerance is None else tolerance
    np.testing.assert_allclose(result, want, rtol=limit, atol=limit)


def check_fp16(op_type: str, attrs: OpAttrs, arrays: Arrays, outputs: int = 1) -> None:
    """float16 must equal the float32 result, rounded once."""
    fp16 = [
        array.astype(np.float16) if array is not None and array.dtype == np.float32 else array
        for array in arrays
    ]
    wide = [
        array.astype(np.float32) if array is not None and array.dtype == np.float16 else array
        for array in fp16
    ]
    pairs = zip(run(op_type, attrs, fp16, outputs), run(op_type, attrs, wide, outputs), strict=True)
    for result, want in pairs:
        # One ulp: what float64 computes inside is rounded once in one case, twice in the other.
        np.testing.assert_allclose(result, want.astype(result.dtype), rtol=2**-10, atol=2**-24)


@pytest.fixture(name="check_fp16")
def _check_fp16() -> Callable[..., None]:
    return check_fp16


@pytest.fixture(name="check")
def _check() -> Callable[..., list[np.ndarray]]:
    return check


@pytest.fixture(name="run")
def _run() -> Callable[..., list[np.ndarray]]:
    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(name="draw")
def _draw(rng: np.random.Generator) -> Callable[..., np.ndarray]:
    """Random tensors of any element type: normal floats, small integers, coin flips."""

    def draw(dtype: str, *shape: int) -> np.ndarray:
        kind = np.dtype(dtype).kind
        if kind == "f":
            return rng.standard_normal(shape).astype(dtype)
        if kind == "b":
            return rng.integers(0, 2, shape).astype(bool)
        low = -9 if kind == "i" else 0
        return rng.integers(low, 10, shape).astype(dtype)

    return draw
