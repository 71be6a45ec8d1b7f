from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from vkmnn.cpu_fallback import run_op
from vkmnn.errors import InvalidInputError, OutOfHostMemoryError, ShapeError
from vkmnn.ir import DType, Op, OpAttrs
from vkmnn.ir.ops import ConstantOfShapeAttrs, ShapeAttrs


@pytest.mark.parametrize("shape", [(), (1,), (2, 0, 3), (1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize(("start", "end"), [(0, None), (1, None), (-2, -1), (-9, 9), (2, 1)])
def test_shape(check, draw, shape, start, end):
    theirs = {"start": start} | ({} if end is None else {"end": end})
    check("Shape", ShapeAttrs(start, end), [draw("float32", *shape)], "Shape", theirs)


@pytest.mark.parametrize("shape", [(), (1,), (2, 0, 3), (2, 3, 5)], ids=str)
def test_size(check, draw, shape):
    check("Size", OpAttrs(), [draw("float32", *shape)], "Size")


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("int64", (0, 10, 3)),
        ("int64", (10, 0, -3)),
        ("int32", (5, 5, 1)),
        ("int64", (5, 0, 1)),
        ("int16", (-7, 7, 2)),
        ("float32", (0.5, 3.0, 0.7)),
        ("float64", (3.0, -1.0, -0.3)),
        ("float32", (0.0, 1.0, 0.1)),
        ("float32", (1.0, 0.0, 0.1)),
    ],
)
def test_range(check, dtype, numbers):
    arrays = [np.array(number, dtype) for number in numbers]
    check("Range", OpAttrs(), arrays, "Range", oracle="runtime")


@pytest.mark.parametrize("numbers", [(0, 5, 0), (0.0, 5.0, 0.0), (0.0, np.inf, 1.0)])
def test_endless_ranges(run, numbers):
    with pytest.raises(ShapeError, match="Range"):
        run("Range", OpAttrs(), [np.array(number) for number in numbers])


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.OBJECT])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3, 5)], ids=str)
def test_constant_of_shape(check, dtype, shape):
    value = np.array([1], dtype.numpy)
    check(
        "ConstantOfShape",
        ConstantOfShapeAttrs(1, dtype),
        [np.array(shape, np.int64)],
        "ConstantOfShape",
        {"value": numpy_helper.from_array(value)},
    )


def test_constant_of_a_negative_shape(run):
    with pytest.raises(ShapeError, match="negative"):
        run("ConstantOfShape", ConstantOfShapeAttrs(), [np.int64([-1])])


def test_more_memory_than_there_is():
    op = Op("ConstantOfShape", "bomb", ["s"], ["y"], ConstantOfShapeAttrs())
    for shape in ([2**50], [2**40, 2**40]):
        with pytest.raises((InvalidInputError, OutOfHostMemoryError), match="bomb"):
            run_op(op, [np.int64(shape)])
