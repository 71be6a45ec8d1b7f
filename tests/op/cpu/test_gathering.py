from __future__ import annotations

import numpy as np
import pytest

from vkmnn.cpu_fallback import run_op
from vkmnn.errors import InvalidInputError, ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import AxisAttrs, GatherNDAttrs, ScatterElementsAttrs, ScatterNDAttrs

TYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "bool"]
REDUCTIONS = ["none", "add", "mul", "max", "min"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index_shape", [(), (1,), (0,), (2, 3)], ids=str)
@pytest.mark.parametrize("index_type", ["int32", "int64"])
def test_gather(check, draw, rng, axis, index_shape, index_type, dtype):
    data = draw(dtype, 5, 7, 3)
    size = data.shape[axis]
    indices = np.asarray(rng.integers(-size, size, index_shape), dtype=index_type)
    check("Gather", AxisAttrs(axis), [data, indices], "Gather", {"axis": axis}, oracle="runtime")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(check, draw, rng, axis):
    data = draw("float32", 5, 7, 3)
    shape = [4, 6, 2]
    shape[axis] = 11
    indices = rng.integers(-data.shape[axis], data.shape[axis], shape)
    arrays = [data, indices]
    check(
        "GatherElements",
        AxisAttrs(axis),
        arrays,
        "GatherElements",
        {"axis": axis},
        oracle="runtime",
    )


@pytest.mark.parametrize(
    ("data", "indices", "batch"),
    [
        ((5, 7, 3), (2, 1), 0),
        ((5, 7, 3), (2, 4, 3), 0),
        ((2, 7, 3), (2, 1), 1),
        ((2, 7, 3), (2, 4, 2), 1),
        ((2, 3, 5), (2, 3, 4, 1), 2),
        ((5,), (1,), 0),
        ((5, 7), (0, 2), 0),
    ],
    ids=str,
)
def test_gather_nd(check, draw, rng, data, indices, batch):
    x = draw("float32", *data)
    depth = indices[-1]
    index = np.stack([rng.integers(-s, s, indices[:-1]) for s in data[batch : batch + depth]], -1)
    check(
        "GatherND",
        GatherNDAttrs(batch),
        [x, index],
        "GatherND",
        {"batch_dims": batch},
        oracle="runtime",
    )


def test_gather_nd_of_nothing(run, draw):
    (y,) = run("GatherND", GatherNDAttrs(1), [draw("float32", 0, 3), np.zeros((0, 2, 1), np.int64)])
    assert y.shape == (0, 2)
    (y,) = run("GatherND", GatherNDAttrs(), [draw("float32", 0, 3), np.zeros((0, 1), np.int64)])
    assert y.shape == (0, 3)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd_with_duplicates(check, draw, rng, reduction, dtype, depth):
    data = draw(dtype, 3, 5, 2)
    shape = (11,) if reduction != "none" else (3,)
    index = np.stack([rng.integers(-s, s, shape) for s in data.shape[:depth]], -1)
    if reduction == "none":  # ONNX leaves duplicates open there
        index[:, 0] = [0, -2, 2]
    updates = draw(dtype, *shape, *data.shape[depth:])
    theirs = {"reduction": reduction}
    check("ScatterND", ScatterNDAttrs(reduction), [data, index, updates], "ScatterND", theirs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements_with_duplicates(check, draw, rng, reduction, dtype, axis):
    data = draw(dtype, 5, 7, 3)
    shape = [4, 6, 2]
    if reduction == "none":
        index = np.argsort(rng.random(shape), axis=axis) - 1
    else:
        shape[axis] = 11
        index = rng.integers(-data.shape[axis], data.shape[axis], shape)
    updates = draw(dtype, *shape)
    theirs = {"axis": axis, "reduction": reduction}
    attrs = ScatterElementsAttrs(axis, reduction)
    check("ScatterElements", attrs, [data, index, updates], "ScatterElements", theirs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatters_of_half(check_fp16, draw, rng, reduction):
    data, index = draw("float32", 5, 3), rng.integers(0, 5, (11, 1))
    arrays = [data, index, draw("float32", 11, 3)]
    check_fp16("ScatterND", ScatterNDAttrs(reduction), arrays)
    index = rng.integers(0, 5, (11, 3))
    arrays = [data, index, draw("float32", 11, 3)]
    check_fp16("ScatterElements", ScatterElementsAttrs(0, reduction), arrays)


def test_the_last_duplicate_wins(run):
    data, index = np.zeros(3, np.float32), np.int64([[1], [1]])
    (y,) = run("ScatterND", ScatterNDAttrs(), [data, index, np.float32([5, 7])])
    np.testing.assert_array_equal(y, [0, 7, 0])


def test_scatter_of_nothing(run, draw):
    none = np.zeros((0, 1), np.int64)
    x = draw("float32", 3, 5)
    np.testing.assert_array_equal(
        run("ScatterND", ScatterNDAttrs("add"), [x, none, draw("float32", 0, 5)])[0], x
    )
    (y,) = run("ScatterElements", ScatterElementsAttrs(), [x, none, draw("float32", 0, 1)])
    np.testing.assert_array_equal(y, x)


def test_scatter_of_a_view(draw):
    x = np.broadcast_to(np.float32(1), (3, 2))
    op = Op("ScatterND", "n", ["x", "i", "u"], ["y"], ScatterNDAttrs("add"))
    (y,) = run_op(op, [x, np.int64([[1]]), np.float32([[1, 2]])])
    np.testing.assert_array_equal(y, [[1, 1], [2, 3], [1, 1]])


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_one_hot(check, draw, axis, dtype):
    indices = np.int64([[0, -1, 3], [4, 5, -6]])  # 5 and -6 are outside: all off
    pair = draw(dtype, 2)
    arrays = [indices, np.array(5, np.int64), pair]
    check("OneHot", AxisAttrs(axis), arrays, "OneHot", {"axis": axis}, oracle="runtime")


def test_one_hot_of_floats_and_scalars(run):
    pair = np.float32([0, 1])
    (y,) = run("OneHot", AxisAttrs(-1), [np.float32([1.0]), np.float32([3.0]), pair])
    np.testing.assert_array_equal(y, [[0, 1, 0]])
    (y,) = run("OneHot", AxisAttrs(), [np.int64([1]), np.array(2), np.array([True, False])])
    np.testing.assert_array_equal(y, [[True], [False]])
    (y,) = run("OneHot", AxisAttrs(0), [np.array(2), np.int64([3]), pair])
    np.testing.assert_array_equal(y, [0, 0, 1])


def test_a_bad_index_names_op_and_node(draw):
    data = draw("float32", 5, 3)
    cases = [
        ("Gather", AxisAttrs(0), [data, np.int64([5])]),
        ("Gather", AxisAttrs(0), [data, np.int64([-6])]),
        ("Gather", AxisAttrs(1), [draw("float32", 5, 0), np.int64([0])]),
        ("GatherElements", AxisAttrs(1), [data, np.int64([[3]])]),
        ("GatherND", GatherNDAttrs(), [data, np.int64([[0, 3]])]),
        ("ScatterND", ScatterNDAttrs(), [data, np.int64([[5]]), draw("float32", 1, 3)]),
        ("ScatterElements", ScatterElementsAttrs(), [data, np.int64([[5]]), draw("float32", 1, 1)]),
    ]
    for op_type, attrs, arrays in cases:
        op = Op(op_type, "culprit", [f"i{i}" for i in range(len(arrays))], ["y"], attrs)
        with pytest.raises(InvalidInputError, match="culprit") as error:
            run_op(op, arrays)
        assert error.value.op == op_type
        assert error.value.hint


IDS = np.zeros((2, 2), np.int64)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes"),
    [
        ("Gather", AxisAttrs(2), [(3, 5), IDS]),
        ("GatherElements", AxisAttrs(0), [(3, 1), IDS]),
        ("GatherElements", AxisAttrs(0), [(3, 5, 7), IDS]),
        ("GatherND", GatherNDAttrs(2), [(3, 5), IDS]),
        ("GatherND", GatherNDAttrs(1), [(3, 5), IDS]),
        ("GatherND", GatherNDAttrs(), [(3,), IDS]),
        ("ScatterND", ScatterNDAttrs(), [(3, 5), IDS, (2, 5)]),
        ("ScatterND", ScatterNDAttrs("median"), [(3, 5), IDS, (2,)]),
        ("ScatterElements", ScatterElementsAttrs(), [(3, 5), IDS, (2, 3)]),
        ("OneHot", AxisAttrs(3), [(3, 5), np.int64(3), (2,)]),
        ("OneHot", AxisAttrs(0), [(3, 5), np.int64(3), (3,)]),
        ("OneHot", AxisAttrs(0), [(3, 5), np.int64(-3), (2,)]),
    ],
)
def test_impossible_shapes(run, draw, op, attrs, shapes):
    arrays = [item if not isinstance(item, tuple) else draw("float32", *item) for item in shapes]
    with pytest.raises(ShapeError, match=op):
        run(op, attrs, [np.asarray(array) for array in arrays])


def test_indices_must_be_integers(run, draw):
    with pytest.raises(ShapeError, match="integers"):
        run("Gather", AxisAttrs(0), [draw("float32", 3), draw("float32", 2)])
