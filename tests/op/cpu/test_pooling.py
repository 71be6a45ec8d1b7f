from __future__ import annotations

import numpy as np
import pytest

from vkmnn.errors import ShapeError
from vkmnn.ir.ops import PoolingAttrs

# x, kernel, strides, dilations, pads
CASES = [
    ((2, 3, 7, 11), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((1, 2, 11, 13), (3, 2), (2, 3), (1, 1), (1, 0, 1, 1)),
    ((1, 3, 13, 8), (2, 3), (2, 2), (2, 3), (1, 2, 0, 1)),
    ((2, 5, 17), (4,), (3,), (1,), (2, 1)),
    ((1, 2, 5, 7, 6), (2, 3, 2), (1, 2, 2), (1, 1, 1), (0, 1, 1, 1, 1, 0)),
    ((1, 1, 1, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
]
NODES = {"MAX": "MaxPool", "AVERAGE": "AveragePool", "LP": "LpPool"}


def both(kind, case, **more):
    _, kernel, strides, dilations, pads = case
    names = {"ceil_mode": "ceil_mode", "count_include_pad": "count_include_pad", "p": "p"}
    attrs = PoolingAttrs(kind, kernel, strides, dilations, pads, **more)
    theirs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    theirs |= {names.get(key, key): int(value) for key, value in more.items()}
    return attrs, theirs


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8"])
def test_max(check, draw, case, ceil_mode, dtype):
    attrs, theirs = both("MAX", case, ceil_mode=ceil_mode)
    check("Pooling", attrs, [draw(dtype, *case[0])], "MaxPool", theirs, oracle="runtime")


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_with_indices(check, draw, case, ceil_mode, storage_order):
    attrs, theirs = both("MAX", case, ceil_mode=ceil_mode, storage_order=storage_order)
    x = np.round(draw("float32", *case[0]))  # ties: the first one wins
    arguments = ("Pooling", attrs, [x], "MaxPool", theirs)
    check(*arguments, outputs=2, oracle="runtime")


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_average(check, check_fp16, draw, case, ceil_mode, count_include_pad):
    attrs, theirs = both("AVERAGE", case, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    x = draw("float32", *case[0])
    check("Pooling", attrs, [x], "AveragePool", theirs, oracle="runtime")
    check_fp16("Pooling", attrs, [x])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp(check, draw, case, p):
    attrs, theirs = both("LP", case, p=p)
    x = draw("float32", *case[0])
    check("Pooling", attrs, [x], "LpPool", theirs, oracle="runtime")


@pytest.mark.parametrize("kind", ["MAX", "AVERAGE", "LP"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3), (4, 5)])
def test_auto_pad(check, draw, kind, auto_pad, strides):
    attrs = PoolingAttrs(kind, (3, 4), strides, auto_pad=auto_pad)
    theirs = {"kernel_shape": (3, 4), "strides": strides, "auto_pad": auto_pad}
    x = draw("float32", 1, 2, 11, 13)
    check("Pooling", attrs, [x], NODES[kind], theirs, oracle="runtime")


@pytest.mark.parametrize("kind", ["MAX", "AVERAGE", "LP"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 1), (2, 3, 2, 3, 5)], ids=str)
def test_global(check, draw, kind, shape):
    attrs = PoolingAttrs(kind, is_global=True)
    x = draw("float32", *shape)
    check("Pooling", attrs, [x], f"Global{NODES[kind]}", oracle="runtime", opset=11)


def test_defaults_are_onnx_defaults(check, draw):
    x = draw("float32", 1, 1, 5, 5)
    check("Pooling", PoolingAttrs("MAX", (2, 2)), [x], "MaxPool", {"kernel_shape": (2, 2)})


def test_ceil_mode_drops_a_window_that_starts_in_the_padding(run):
    x = np.ones((1, 1, 5), dtype=np.float32)
    attrs = PoolingAttrs("AVERAGE", (1,), (3,), pads=(0, 2), ceil_mode=True)
    (y,) = run("Pooling", attrs, [x])
    assert y.shape == (1, 1, 2)


def test_max_of_negative_infinity_has_an_index(run):
    x = np.full((1, 1, 3), -np.inf, dtype=np.float32)
    y, index = run("Pooling", PoolingAttrs("MAX", (3,)), [x], 2)
    assert y.item() == -np.inf
    assert index.item() == 0


def test_global_max_indices(run):
    x = np.float32([[[1, 5, 2], [3, 4, 5]]]).reshape(1, 2, 3)
    y, index = run("Pooling", PoolingAttrs("MAX", is_global=True), [x], 2)
    np.testing.assert_array_equal(y.reshape(-1), [5, 5])
    np.testing.assert_array_equal(index.reshape(-1), [1, 5])


@pytest.mark.parametrize("kind", ["MAX", "AVERAGE", "LP"])
@pytest.mark.parametrize("shape", [(0, 3, 5, 5), (2, 0, 5, 5), (1, 1, 0, 5)], ids=str)
def test_empty(run, draw, kind, shape):
    (y,) = run("Pooling", PoolingAttrs(kind, (2, 2)), [draw("float32", *shape)])
    assert y.size == 0


def test_float_max_keeps_nan(run):
    x = np.float32([[[1, np.nan, 2, 3, 4]]])
    (y,) = run("Pooling", PoolingAttrs("MAX", (2,)), [x])
    np.testing.assert_array_equal(np.isnan(y), [[[True, True, False, False]]])
    z, index = run("Pooling", PoolingAttrs("MAX", (2,)), [x], 2)
    np.testing.assert_array_equal(np.isnan(z), np.isnan(y))
    np.testing.assert_array_equal(index, [[[1, 1, 3, 4]]])


@pytest.mark.parametrize(
    "attrs",
    [
        PoolingAttrs("MAX", (9, 9)),
        PoolingAttrs("MAX", (2,)),
        PoolingAttrs("MAX"),
        PoolingAttrs("MAX", (2, 2), (0, 1)),
        PoolingAttrs("MEDIAN", (2, 2)),
        PoolingAttrs("MAX", (2, 2), auto_pad="SAME"),
    ],
)
def test_impossible_attributes(run, draw, attrs):
    with pytest.raises(ShapeError, match="Pooling"):
        run("Pooling", attrs, [draw("float32", 1, 1, 5, 5)])
