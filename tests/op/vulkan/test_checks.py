"""Overflows and bad indices that only the device can notice are raised, not passed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    CumSumAttrs,
    GatherNDAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
)
from vkmnn.vulkan.backend import VulkanBackend

LOW, HIGH = -(2**31), 2**31 - 1
REDUCTIONS = ("none", "add", "mul", "max", "min")


@contextmanager
def planned(
    ops: Sequence[Op], feeds: dict[str, Array], constants: dict[str, Array] | None = None
) -> Iterator[Plan]:
    """Plan ops, all of them on the device, for feeds of these shapes; the last op's result is y."""
    values = dict(feeds) | (constants or {})
    for op in ops:
        ins = [values[name] for name in op.inputs]
        values |= dict(zip(op.outputs, run_op(op, ins), strict=True))
    infos = {n: TensorInfo(n, DType.from_numpy(a.dtype), a.shape) for n, a in feeds.items()}
    y = values["y"]
    out = TensorInfo("y", DType.from_numpy(y.dtype), y.shape)
    graph = Graph("checks", list(infos.values()), [out], list(ops), dict(constants or {}))
    plan = Plan(graph, infos, {}, VulkanBackend(device()), CpuBackend(), run_op)
    try:
        assert not plan.placement().off_device, str(plan.placement())
        yield plan
    finally:
        plan.close()


def agrees(op: Op, feeds: dict[str, Array], constants: dict[str, Array] | None = None) -> None:
    """Run an op that must not raise and compare with numpy."""
    values = dict(feeds) | (constants or {})
    with planned([op], feeds, constants) as plan:
        got = plan.execute(feeds)["y"]
        np.testing.assert_array_equal(got, run_op(op, [values[n] for n in op.inputs])[0])


def refuses(
    op: Op, good: dict[str, Array], bad: dict[str, Array], constants: dict[str, Array] | None = None
) -> None:
    """Run good, bad, good data through one plan; only the bad may raise, naming op and node."""
    values = dict(good) | (constants or {})
    expected = run_op(op, [values[n] for n in op.inputs])[0]
    with planned([op], good, constants) as plan:
        for _ in range(2):
            np.testing.assert_array_equal(plan.execute(good)["y"], expected)
            with pytest.raises(InvalidInputError, match=r"32-bit") as caught:
                plan.execute(bad)
            assert (caught.value.op, caught.value.node) == (op.type, "here")
            assert 'device="cpu"' in (caught.value.hint or "")
        np.testing.assert_array_equal(plan.execute(good)["y"], expected)


def wide(*values: object) -> Array:
    return np.array(values, np.int64)


def binary(kind: str) -> Op:
    return Op("BinaryOp", "op7", ["a", "b"], ["y"], BinaryAttrs(kind), "here")


# The largest and smallest results that fit, and the first ones that do not.
FITS = {
    "ADD": [(HIGH, 0), (HIGH - 5, 5), (LOW, 0), (LOW + 7, -7), (LOW, HIGH)],
    "SUB": [(HIGH, 0), (-1, LOW), (LOW, LOW), (LOW + 3, 3), (-1, HIGH)],
    "MUL": [(65536, -32768), (LOW, 1), (HIGH, -1), (46340, 46340), (0, LOW), (715827882, 3)],
    "POW": [(2, 30), (-2, 31), (46340, 2), (1, HIGH), (-1, HIGH), (0, 0), (LOW, 1), (9, -3)],
}
OVERFLOWS = {
    "ADD": [(HIGH, 1), (LOW, -1), (HIGH, HIGH), (LOW, LOW)],
    "SUB": [(HIGH, -1), (0, LOW), (LOW, 1), (LOW, HIGH)],
    "MUL": [(65536, 32768), (LOW, -1), (46341, 46341), (65536, 65536), (LOW, LOW), (HIGH, 2)],
    "POW": [(2, 31), (-2, 32), (46341, 2), (65536, 2), (3, 21), (10, 1000), (LOW, 2)],
}


@pytest.mark.parametrize("kind", FITS)
def test_results_at_the_limits_pass(kind: str) -> None:
    for pairs in (FITS[kind], FITS[kind] * 4):
        a, b = (wide(*column) for column in zip(*pairs, strict=True))
        agrees(binary(kind), {"a": a, "b": b})


@pytest.mark.parametrize(("kind", "pair"), [(k, pair) for k in OVERFLOWS for pair in OVERFLOWS[k]])
def test_arithmetic_overflow_is_refused(kind: str, pair: tuple[int, int]) -> None:
    good = {"a": np.ones(7, np.int64), "b": np.ones(7, np.int64)}
    bad = {name: array.copy() for name, array in good.items()}
    bad["a"][5], bad["b"][5] = pair
    refuses(binary(kind), good, bad)


@pytest.mark.parametrize(
    ("left", "right"), [((3, 5), (3, 1)), ((3, 8), (8,)), ((), ()), ((1,), (9,))]
)
def test_broadcast_overflow_is_refused(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    good = {"a": np.full(left, 3, np.int64), "b": np.full(right, 5, np.int64)}
    bad = {"a": good["a"].copy(), "b": good["b"].copy()}
    bad["a"].flat[-1] = HIGH
    refuses(binary("ADD"), good, bad)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 13])
def test_sums_behind_the_last_element_are_not_checked(count: int) -> None:
    # A single value serves all lanes of a vector, so those behind the end come to hold HIGH + 1.
    ops = [
        Op("BinaryOp", "a", ["x", "high"], ["u"], BinaryAttrs("MAX")),
        Op("BinaryOp", "b", ["u", "highs"], ["v"], BinaryAttrs("SUB")),
        Op("BinaryOp", "c", ["v", "one"], ["y"], BinaryAttrs("ADD")),
    ]
    constants = {"high": wide(HIGH), "highs": np.full(count, HIGH), "one": wide(1)}
    x = np.zeros(count, np.int64)
    with planned(ops, {"x": x}, constants) as plan:
        np.testing.assert_array_equal(plan.execute({"x": x})["y"], np.ones(count))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 13])
def test_casts_behind_the_last_element_are_not_checked(count: int) -> None:
    # Constants are zero there, and one divided by that is infinite.
    ops = [
        Op("BinaryOp", "a", ["x", "ones"], ["u"], BinaryAttrs("MUL")),
        Op("BinaryOp", "b", ["one", "u"], ["v"], BinaryAttrs("DIV")),
        Op("Cast", "c", ["v"], ["y"], CastAttrs(DType.INT64)),
    ]
    constants = {"ones": np.ones(count, np.float32), "one": np.ones(1, np.float32)}
    x = np.ones(count, np.float32)
    with planned(ops, {"x": x}, constants) as plan:
        np.testing.assert_array_equal(plan.execute({"x": x})["y"], np.ones(count))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32])
def test_every_wide_type_is_checked(dtype: type) -> None:
    good = {"a": np.array([1, 2], dtype), "b": np.array([3, 4], dtype)}
    refuses(binary("ADD"), good, {"a": np.array([1, HIGH], dtype), "b": good["b"]})


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL"])
def test_int32_wraps_as_defined(kind: str) -> None:
    pairs = OVERFLOWS[kind]
    a, b = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    with np.errstate(over="ignore"):
        agrees(binary(kind), {"a": a, "b": b})


def test_int32_running_sum_wraps_as_defined() -> None:
    op = Op("CumSum", "sum", ["x", "axis"], ["y"], CumSumAttrs(False, False))
    agrees(op, {"x": np.full(5, HIGH, np.int32)}, {"axis": np.array(0)})


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("inner", [1, 3])
def test_running_sum_that_overflows_is_refused(reverse: bool, exclusive: bool, inner: int) -> None:
    op = Op("CumSum", "op7", ["x", "axis"], ["y"], CumSumAttrs(exclusive, reverse), "here")
    good = {"x": np.full((7, inner), HIGH // 7, np.int64)}
    refuses(op, good, {"x": np.full((7, inner), HIGH // 4, np.int64)}, {"axis": np.array(0)})
    # The last sums are in range again, but one before was not.
    back = np.zeros((7, inner), np.int64)
    back[2:5, -1] = (-HIGH, HIGH, HIGH) if reverse else (HIGH, HIGH, -HIGH)
    refuses(op, good, {"x": back}, {"axis": np.array(0)})


def test_exclusive_sum_does_not_count_the_last_value() -> None:
    op = Op("CumSum", "sum", ["x", "axis"], ["y"], CumSumAttrs(True, False))
    agrees(op, {"x": wide(HIGH, 0, HIGH)}, {"axis": np.array(0)})


@pytest.mark.parametrize("place", [243, 244, 245, 246, 60_001])
def test_overflow_where_pieces_of_a_long_sum_meet_is_refused(place: int) -> None:
    op = Op("CumSum", "op7", ["x", "axis"], ["y"], CumSumAttrs(True, False), "here")
    bad = np.zeros(60_003, np.int64)
    bad[0], bad[place] = HIGH, 1
    refuses(op, {"x": np.ones_like(bad)}, {"x": bad}, {"axis": np.array(0)})


@pytest.mark.parametrize("dest", [DType.INT64, DType.UINT32, DType.UINT64])
@pytest.mark.parametrize("value", [2.0**31, 3e9, np.inf, 1e30])
def test_cast_that_overflows_is_refused(dest: DType, value: float) -> None:
    op = Op("Cast", "op7", ["x"], ["y"], CastAttrs(dest), "here")
    good = np.array([0.5, 3.75, 2147483520, 7, 8], np.float32)
    for place in (0, 4):
        bad = good.copy()
        bad[place] = value
        refuses(op, {"x": good}, {"x": bad})


def test_cast_at_the_limits_passes() -> None:
    op = Op("Cast", "cast", ["x"], ["y"], CastAttrs(DType.INT64))
    agrees(op, {"x": np.array([LOW, -0.5, 2147483520], np.float32)})
    below = np.nextafter(np.float32(LOW), np.float32(-np.inf))
    named = Op("Cast", "op7", ["x"], ["y"], CastAttrs(DType.INT64), "here")
    refuses(named, {"x": np.float32([1])}, {"x": np.array([below])})


def test_cast_of_nan_stays_unchecked_and_gives_zero() -> None:
    op = Op("Cast", "cast", ["x"], ["y"], CastAttrs(DType.INT64))
    x = np.array([np.nan, 1], np.float32)
    with np.errstate(invalid="ignore"), planned([op], {"x": x}) as plan:
        assert plan.execute({"x": x})["y"].tolist() == [0, 1]


def indexed(op_type: str, attrs: OpAttrs, *others: str) -> list[Op]:
    """Return ops that compute `index` on the device and use it."""
    inputs = ["x", "index", *others]
    return [
        Op("BinaryOp", "shift", ["i", "offset"], ["index"], BinaryAttrs("ADD")),
        Op(op_type, "op7", inputs, ["y"], attrs, "here"),
    ]


INDEXED = [
    ("Gather", AxisAttrs(1), (2, 5, 4), (3,), None),
    ("Gather", AxisAttrs(1), (2, 5, 3), (3,), None),
    ("GatherElements", AxisAttrs(0), (5, 3), (4, 3), None),
    ("GatherND", GatherNDAttrs(0), (5, 5, 3), (4, 2), None),
    ("GatherND", GatherNDAttrs(1), (3, 5, 3), (3, 2, 1), None),
    *(("ScatterND", ScatterNDAttrs(kind), (5, 5, 3), (4, 2), (4, 3)) for kind in REDUCTIONS),
    *(
        ("ScatterElements", ScatterElementsAttrs(0, kind), (5, 3), (4, 3), (4, 3))
        for kind in REDUCTIONS
    ),
]


@pytest.mark.parametrize(("op_type", "attrs", "data", "index", "updates"), INDEXED)
@pytest.mark.parametrize("wrong", [5, -6, 1000, HIGH])
def test_computed_index_out_of_range_is_refused(
    op_type: str,
    attrs: OpAttrs,
    data: tuple[int, ...],
    index: tuple[int, ...],
    updates: tuple[int, ...] | None,
    wrong: int,
) -> None:
    rng = np.random.default_rng(1)
    feeds: dict[str, Array] = {
        "x": rng.standard_normal(data).astype(np.float32),
        "i": rng.integers(-4, 4, index),
        "offset": wide(0),
    }
    if updates is not None:
        feeds["updates"] = rng.standard_normal(updates).astype(np.float32)
    ops = indexed(op_type, attrs, *(["updates"] if updates else []))
    bad = feeds | {"i": feeds["i"].copy()}
    bad["i"].flat[-1] = wrong
    values = [feeds["x"], feeds["i"], *([feeds["updates"]] if updates else [])]
    expected = run_op(ops[1], values)[0]
    with planned(ops, feeds) as plan:
        for _ in range(2):
            np.testing.assert_allclose(plan.execute(feeds)["y"], expected, rtol=1e-6)
            with pytest.raises(InvalidInputError, match="'index' holds an index outside") as caught:
                plan.execute(bad)
            assert (caught.value.op, caught.value.node) == (op_type, "here")
            assert "check the indices" in (caught.value.hint or "")
        np.testing.assert_allclose(plan.execute(feeds)["y"], expected, rtol=1e-6)


def test_first_failure_is_named() -> None:
    # The overflow makes the index wrong: the overflow is the cause.
    ops = indexed("Gather", AxisAttrs(0))
    feeds = {"x": np.ones((5, 4), np.float32), "i": wide(1, 2), "offset": wide(0)}
    with planned(ops, feeds) as plan, pytest.raises(InvalidInputError) as caught:
        plan.execute(feeds | {"i": wide(1, HIGH), "offset": wide(HIGH)})
    assert caught.value.node == "shift"


def test_constant_index_out_of_range_is_refused_when_planned() -> None:
    x = np.ones((5, 4), np.float32)
    op = Op("GatherElements", "op7", ["x", "index"], ["y"], AxisAttrs(0), "here")
    backend = VulkanBackend(device())
    infos = {"x": TensorInfo("x", DType.FLOAT32, x.shape)}
    out = TensorInfo("y", DType.FLOAT32, (1, 4))
    graph = Graph("checks", list(infos.values()), [out], [op], {"index": wide([0, 4, 5, 1])})
    with pytest.raises(InvalidInputError, match="index 5, outside -5 to 4") as caught:
        Plan(graph, infos, {}, backend, CpuBackend(), run_op)
    assert caught.value.node == "here"


def test_index_input_of_two_tables_is_checked_against_both() -> None:
    ops = [
        Op("Gather", "small", ["a", "i"], ["u"], AxisAttrs(0)),
        Op("Gather", "large", ["b", "i"], ["v"], AxisAttrs(0)),
        Op("BinaryOp", "sum", ["u", "v"], ["y"], BinaryAttrs("ADD")),
    ]
    feeds = {
        "a": np.ones((3, 4), np.float32),
        "b": np.ones((9, 4), np.float32),
        "i": wide(0, 2),
    }
    with planned(ops, feeds) as plan:
        plan.execute(feeds)
        with pytest.raises(InvalidInputError, match="index 5, outside -3 to 2"):
            plan.execute(feeds | {"i": wide(0, 5)})
