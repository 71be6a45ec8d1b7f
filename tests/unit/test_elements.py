"""The table of float elements, and everything derived from its rows."""

from __future__ import annotations

from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest

from vkmnn.base.elements import FLOATS, NARROW, FloatElement, FloatStorage
from vkmnn.codegen.declare import ELEMENTS
from vkmnn.codegen.features import FEATURES
from vkmnn.codegen.variants import ELEMENT_SETS
from vkmnn.core.float_range import divides, exceeds, fits, to_element
from vkmnn.core.plan import Plan
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import MatMulAttrs, SoftmaxAttrs, UnaryAttrs
from vkmnn.schedule_config import STORAGE
from vkmnn.vulkan.encoder import TEXEL_LOADS
from vkmnn.vulkan.storage import element_bytes, storage_bytes, stored_dtype, stored_element


def test_rows_are_what_the_type_names() -> None:
    assert tuple(FLOATS) == get_args(FloatElement)
    assert {"f32"} == FLOATS.keys() - NARROW


@pytest.mark.parametrize("name", FLOATS)
def test_numbers_of_a_row_are_those_of_its_type(name: FloatElement) -> None:
    row = FLOATS[name]
    largest = np.array(row.largest, np.float64)
    assert float(largest.astype(row.dtype)) == row.largest
    assert row.overflows == (row.largest < np.finfo(np.float32).max)
    whole = np.array([row.whole, row.whole + 1], np.float64).astype(row.dtype).astype(np.float64)
    assert whole[0] == row.whole != whole[1] - 1
    assert len(row.words) == 3
    assert len(row.texels) in (0, 3)
    assert FEATURES.keys() >= {*row.needs}


@pytest.mark.parametrize("name", FLOATS)
def test_memory_follows_from_the_row(name: FloatElement) -> None:
    row = FLOATS[name]
    tensor = Tensor(TensorInfo("t", DType.FLOAT32, (5, 8)), element=name)
    assert (stored_element(tensor), stored_dtype(tensor)) == (name, row.dtype)
    assert element_bytes(tensor) == row.dtype.itemsize
    assert storage_bytes(tensor) == 40 * row.dtype.itemsize
    vectors = "vec" if name == "f32" else f"{name}vec"
    for lanes, key in ((1, name), (2, f"{vectors}2"), (4, f"{vectors}4")):
        assert ELEMENTS[key].size == lanes * row.bytes
        assert ELEMENTS[key].lanes == lanes
    loads = TEXEL_LOADS[name]
    assert loads is None or loads >= {f"texel_{row.texels[0]}", f"texel_{row.texels[2]}"}


def test_sets_of_macro_json_follow_from_the_table() -> None:
    assert ELEMENT_SETS["$floats"] == tuple(FLOATS)
    assert {*ELEMENT_SETS["$narrow"]} == NARROW
    images = {*ELEMENT_SETS["$images"]}
    assert images | {*ELEMENT_SETS["$imageless"]} == {*FLOATS}
    assert "f32" in images


def test_precisions_name_elements() -> None:
    for element, arithmetic in STORAGE.values():
        assert arithmetic in ("f32", element, "limbs" if element == "f32" else element)


def test_ranges_are_those_of_the_element() -> None:
    far, tiny = np.array([1e30, 1.0], np.float32), np.array(1e-30, np.float32)
    assert [fits(far, one) for one in ("f32", "f16")] == [True, False]
    assert fits(far, "f16", clamped=True)
    assert [fits(tiny, one) for one in ("f32", "f16")] == [True, False]
    assert [exceeds(far, one) for one in ("f32", "f16")] == [False, True]
    assert [divides(tiny, one) for one in ("f32", "f16")] == [True, False]
    given = np.array([1e30, -np.inf, np.nan, 1.0], np.float32)
    stored = to_element(given, "f16")
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(stored, np.array([65504, -np.inf, np.nan, 1], np.float16))
    assert to_element(given, "f32") is given


def test_numpy_stores_elements_that_it_has_no_arithmetic_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row is all that the numpy backend needs: bfloat16, as an extension type."""
    row = FloatStorage("bf16", "bfloat16", 2, ("", "", ""), whole=256)
    assert row.dtype == np.dtype(ml_dtypes.bfloat16)
    monkeypatch.setitem(FLOATS, "bf16", row)
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((5, 16), (16, 8)))
    ops = [
        Op("MatMul", "product", ["x", "w"], ["a"], MatMulAttrs()),
        Op("UnaryOp", "tanh", ["a"], ["b"], UnaryAttrs("TANH")),
        Op("Softmax", "softmax", ["b"], ["y"], SoftmaxAttrs(-1)),
    ]
    info = {"x": TensorInfo("x", DType.FLOAT32, x.shape)}
    graph = Graph("g", [info["x"]], [TensorInfo("y", DType.FLOAT32, (5, 8))], ops, {"w": w})
    element: Any = "bf16"
    stored = CpuBackend(element=element)
    got = Plan(graph, info, {}, stored, CpuBackend(), run_op).execute({"x": x})["y"]

    def rounded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)

    b = rounded(np.tanh(rounded(rounded(x) @ rounded(w))))
    want = np.exp(b) / np.exp(b).sum(axis=-1, keepdims=True)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2.0**-7)
    assert not np.array_equal(got, want.astype(np.float32))
