"""Constants, shapes, ranges, windows of signal processing."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import FLOATS
from vkmnn_suite.fuzz.sketch import Sketch
from vkmnn_suite.fuzz.values import FINITE


def code(dtype: str) -> int:
    """Return ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@recipe("Constant")
def _constant(s: Sketch, op: str) -> None:
    form = s.choose("value", "value", "value_float", "value_floats", "value_int", "value_ints")
    if form == "value" or not s.since(12):
        value = s.fresh(s.one_of((*FLOATS, "int64", "int32", "bool", "uint8")), s.shape(), FINITE)
        s.node(op, [], value=numpy_helper.from_array(value.array))
    else:
        scalar = s.rng.randint(-3, 3) if "int" in form else s.rng.uniform(-3, 3)
        given: dict[str, Any] = {form: [scalar, scalar] if form.endswith("s") else scalar}
        s.node(op, [], **given)


@recipe("ConstantOfShape")
def _constant_of_shape(s: Sketch, op: str) -> None:
    shape = s.parameter(np.array(s.shape(max_rank=4), np.int64))
    dtype = s.one_of((*FLOATS, "int64", "int32", "bool", "uint8", "int8", "uint32"))
    value = numpy_helper.from_array(np.array([s.choose(0, 1, 3)], dtype))
    s.one(op, shape, value=s.choose(None, value, value))


@recipe("Shape")
def _shape(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    bounds = {}
    if s.since(15) and s.chance(0.5):
        bounds = {"start": s.rng.randint(-7, 7), "end": s.choose(None, s.rng.randint(-7, 7))}
    s.one(op, x, **bounds)


@recipe("Size")
def _size(s: Sketch, op: str) -> None:
    s.one(op, s.pick(s.dtype(op)))


@recipe("Range")
def _range(s: Sketch, op: str) -> None:
    dtype = s.dtype(op)
    start, step = s.rng.randint(-5, 5), s.choose(1, 1, 2, -1, -3)
    stop = start + step * s.rng.randint(0, 20) + s.choose(0, 0, 1)
    values: list[float] = [start, stop, step]
    if dtype.startswith("float") and s.chance(0.4):
        values = [value * 0.25 for value in values]
    s.one(op, *(s.parameter(value, dtype) for value in values))


@recipe("EyeLike")
def _eye_like(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=2, max_rank=2)
    dtype = s.choose(None, code(s.one_of(("float32", "float64", "int32", "int64", "bool"))))
    s.one(op, x, dtype=dtype, k=s.choose(None, s.rng.randint(-3, 3)))


@recipe("HannWindow", "HammingWindow", "BlackmanWindow")
def _window(s: Sketch, op: str) -> None:
    size = s.parameter(s.size() + 1, s.dtype(op))
    dtype = s.choose(None, None, code(s.one_of(FLOATS)))
    s.one(op, size, periodic=s.choose(None, 0, 1), output_datatype=dtype)
