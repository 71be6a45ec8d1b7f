from __future__ import annotations

import numpy as np
import pytest

from vkmnn.errors import InvalidInputError, ShapeError
from vkmnn.ir.ops import (
    REDUCTION_KINDS,
    ArgReduceAttrs,
    CumSumAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    TopKAttrs,
)

NODES = {
    "SUM": "ReduceSum",
    "MEAN": "ReduceMean",
    "MAX": "ReduceMax",
    "MIN": "ReduceMin",
    "PROD": "ReduceProd",
    "L1": "ReduceL1",
    "L2": "ReduceL2",
    "LOG_SUM": "ReduceLogSum",
    "LOG_SUM_EXP": "ReduceLogSumExp",
    "SUM_SQUARE": "ReduceSumSquare",
}
AXES = [None, (0,), (-1,), (1, -1), (2, 0), (0, 1, 2)]


def axes_input(axes):
    return None if axes is None else np.array(axes, dtype=np.int64)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for kind in REDUCTION_KINDS
        for dtype in ("float32", "float64", "int32", "int64")
        if (kind, dtype) != ("LOG_SUM", "int64")
        if kind != "LOG_SUM_EXP" or dtype.startswith("float")  # integers left ONNX in opset 28
    ],
)
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(check, check_fp16, draw, kind, axes, keepdims, dtype):
    x = draw(dtype, 3, 5, 7)
    if kind == "LOG_SUM":
        x = np.abs(x) + np.asarray(1, dtype)
    if kind == "PROD" and x.dtype.kind == "i":
        x = np.where(x < 0, -1, 1).astype(dtype)  # overflow is nobody's business
    attrs = ReductionAttrs(kind, keepdims)
    arrays = [x, axes_input(axes)]
    theirs = {"keepdims": int(keepdims)}
    limit = None if kind != "PROD" else 1e-4
    # The reference evaluator widens int32 in some of them.
    oracle = "runtime" if dtype == "int32" else "reference"
    check("Reduction", attrs, arrays, NODES[kind], theirs, opset=18, oracle=oracle, tolerance=limit)
    if dtype == "float32":
        check_fp16("Reduction", attrs, arrays)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize("empty", [None, np.zeros(0, np.int64)], ids=["absent", "empty"])
def test_noop_with_empty_axes(check, draw, kind, empty):
    x = np.abs(draw("float32", 3, 5))
    attrs = ReductionAttrs(kind, True, noop_with_empty_axes=True)
    check("Reduction", attrs, [x, empty], NODES[kind], {"noop_with_empty_axes": 1}, opset=20)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (2, 0, 3)], ids=str)
def test_odd_shapes(run, draw, kind, shape, recwarn):
    run("Reduction", ReductionAttrs(kind), [draw("float32", *shape)])
    run("Reduction", ReductionAttrs(kind, False), [draw("float32", *shape)])
    run("Reduction", ReductionAttrs(kind), [draw("int32", *shape)])
    assert not recwarn.list


def test_extremes_of_nothing(run):
    empty, axes = np.zeros((2, 0), np.float32), np.int64([1])
    np.testing.assert_array_equal(
        run("Reduction", ReductionAttrs("MAX"), [empty, axes])[0], -np.inf
    )
    np.testing.assert_array_equal(run("Reduction", ReductionAttrs("MIN"), [empty, axes])[0], np.inf)
    (y,) = run("Reduction", ReductionAttrs("MAX"), [empty.astype(np.int32), axes])
    np.testing.assert_array_equal(y, np.iinfo(np.int32).min)
    (y,) = run("Reduction", ReductionAttrs("LOG_SUM_EXP"), [empty, axes])
    np.testing.assert_array_equal(y, -np.inf)


@pytest.mark.parametrize("kind", ["MAX", "MIN"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_extremes_of_small_types(check, draw, kind, dtype):
    check(
        "Reduction", ReductionAttrs(kind), [draw(dtype, 3, 5), np.int64([1])], NODES[kind], opset=20
    )


def test_log_sum_exp_does_not_overflow(run):
    x = np.float32([[1000, 1000], [-1000, -np.inf], [-np.inf, -np.inf], [np.inf, 0]])
    (y,) = run("Reduction", ReductionAttrs("LOG_SUM_EXP", False), [x, np.int64([1])])
    np.testing.assert_allclose(y, [1000 + np.log(2), -1000, -np.inf, np.inf])


def test_mean_of_integers_truncates(run):
    (y,) = run("Reduction", ReductionAttrs("MEAN", False), [np.int32([-3, -4])])
    assert y == -3


@pytest.mark.parametrize("axes", [(3,), (-4,), (0, 0), (1, -2)], ids=str)
def test_impossible_axes(run, draw, axes):
    with pytest.raises(ShapeError, match="Reduction"):
        run("Reduction", ReductionAttrs("SUM"), [draw("float32", 3, 5, 7), axes_input(axes)])


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax(check, check_fp16, draw, log, axis, dtype):
    x = draw(dtype, 3, 5, 7) * np.asarray(20, dtype)
    node = "LogSoftmax" if log else "Softmax"
    check("Softmax", SoftmaxAttrs(axis, log), [x], node, {"axis": axis})
    if dtype == "float32":
        check_fp16("Softmax", SoftmaxAttrs(axis, log), [x])


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_over_the_rest(check, draw, log, axis):
    node = "LogSoftmax" if log else "Softmax"
    attrs = SoftmaxAttrs(axis, log, flatten=True)
    x = draw("float32", 3, 5, 7)
    check("Softmax", attrs, [x], node, {"axis": axis}, opset=11, oracle="runtime")


@pytest.mark.parametrize("shape", [(1,), (0,), (3, 0), (0, 3)], ids=str)
def test_softmax_of_odd_shapes(run, draw, shape):
    run("Softmax", SoftmaxAttrs(), [draw("float32", *shape)])


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "uint8"])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("keepdims", [False, True])
def test_arg_reduce(check, rng, op, axis, last, keepdims, dtype):
    x = rng.integers(0, 3, (5, 7, 11)).astype(dtype)
    theirs = {"axis": axis, "keepdims": int(keepdims), "select_last_index": int(last)}
    check(op, ArgReduceAttrs(axis, keepdims, last), [x], op, theirs)


def test_arg_reduce_of_odd_shapes(run, draw):
    (y,) = run("ArgMax", ArgReduceAttrs(0, False), [draw("float32", 1)])
    assert (y.shape, y.item()) == ((), 0)
    (y,) = run("ArgMin", ArgReduceAttrs(1), [draw("float32", 0, 3)])
    assert y.shape == (0, 1)
    (y,) = run("ArgMin", ArgReduceAttrs(1, False), [draw("float32", 0, 0)])
    assert y.shape == (0,)
    with pytest.raises(ShapeError, match="empty axis"):
        run("ArgMax", ArgReduceAttrs(0), [draw("float32", 0, 3)])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("axis", "k"), [(0, 3), (-1, 1), (1, 7), (1, 0)])
def test_topk_with_ties(run, rng, largest, axis, k, dtype):
    x = rng.integers(0, 4, (5, 7, 3)).astype(dtype)
    values, indices = run("TopK", TopKAttrs(axis, largest), [x, np.int64([k])], 2)
    key = -x.astype(np.float64) if largest else x.astype(np.float64)
    order = np.argsort(key, axis=axis, kind="stable").take(np.arange(k), axis=axis)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("largest", [0, 1])
def test_topk_matches_onnxruntime(check, draw, largest):
    arrays = [draw("float32", 3, 11), np.int64([5])]
    theirs = {"largest": largest}
    check("TopK", TopKAttrs(-1, bool(largest)), arrays, "TopK", theirs, outputs=2, oracle="runtime")


@pytest.mark.parametrize("k", [-1, 6])
def test_topk_of_too_many(run, draw, k):
    with pytest.raises(ShapeError, match="TopK"):
        run("TopK", TopKAttrs(), [draw("float32", 5), np.int64([k])], 2)


def test_topk_checks_when_run_alone(draw):
    from vkmnn.cpu_fallback import run_op
    from vkmnn.ir import Op

    op = Op("TopK", "chosen", ["x", "k"], ["v", "i"], TopKAttrs())
    with pytest.raises(InvalidInputError, match="chosen"):
        run_op(op, [draw("float32", 5), np.int64([6])])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum(check, check_fp16, draw, exclusive, reverse, axis, dtype):
    attrs = CumSumAttrs(bool(exclusive), bool(reverse))
    arrays = [draw(dtype, 5, 7), np.array(axis, np.int64)]
    theirs = {"exclusive": exclusive, "reverse": reverse}
    check("CumSum", attrs, arrays, "CumSum", theirs)
    if dtype == "float32":
        check_fp16("CumSum", attrs, arrays)


@pytest.mark.parametrize("shape", [(1,), (0,), (3, 0)], ids=str)
def test_cumsum_of_odd_shapes(run, draw, shape):
    run("CumSum", CumSumAttrs(True, True), [draw("float32", *shape), np.array(0, np.int32)])
