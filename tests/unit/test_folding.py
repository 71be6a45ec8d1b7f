"""Shared behaviour of all constant folding."""

from __future__ import annotations

import numpy as np
import pytest

from vkmnn.base.budget import Budget, Meter
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import BudgetError, ShapeError
from vkmnn.ir import DType, Op, TensorInfo
from vkmnn.ir.ops import BinaryAttrs, ConstantOfShapeAttrs
from vkmnn.shape.folding import Folder, keep, operands

ADD = Op("BinaryOp", "add", ["a", "b"], ["c"], BinaryAttrs("ADD"))
A, B = np.ones((2, 3), np.float32), np.ones(3, np.float32)


def test_operands() -> None:
    values = {"a": A, "b": B}
    found = operands(ADD, values.get)
    assert found is not None
    assert [one is other for one, other in zip(found, (A, B), strict=True)] == [True, True]
    assert operands(ADD, {"a": A}.get) is None
    optional = Op("BinaryOp", "add", ["a", ""], ["c", ""], BinaryAttrs("ADD"))
    found = operands(optional, values.get)
    assert found is not None
    assert found[0] is A
    assert found[1] is None
    keep(optional, [A, B], values)
    assert values["c"] is A
    assert "" not in values


def test_results_are_charged_before_they_are_made() -> None:
    calls: list[str] = []

    def evaluate(op, inputs, outputs=None):  # type: ignore[no-untyped-def]
        calls.append(op.name)
        return run_op(op, inputs, outputs)

    meter = Meter(Budget(bytes=100))
    folder = Folder(evaluate, meter)
    (result,) = folder.compute(ADD, [A, B])
    np.testing.assert_array_equal(result, A + B)
    big = np.ones((100, 3), np.float32)
    with pytest.raises(BudgetError, match=r"add"):
        folder.compute(ADD, [big, B])
    assert folder.compute_if_small(ADD, [A, B], 23) is None
    assert calls == ["add"]
    assert folder.compute_if_small(ADD, [A, B], 24) is not None
    info = TensorInfo("c", DType.FLOAT32, (2, 3))
    assert folder.compute_if_small(ADD, [A, B], 23, [info]) is None
    assert folder.compute_if_small(ADD, [A, B], 24, [info]) is not None


def test_what_cannot_be_computed_names_the_op() -> None:
    with pytest.raises(ShapeError) as caught:
        Folder(run_op).compute(ADD, [A, np.ones(2, np.float32)])
    assert (caught.value.op, caught.value.node) == ("BinaryOp", "add")


def test_fills_take_no_memory() -> None:
    value = np.array([7], np.float32)
    fill = Op("ConstantOfShape", "fill", ["n"], ["y"], ConstantOfShapeAttrs(value))
    (result,) = Folder(run_op, Meter(Budget())).compute(fill, [np.array([1000, 1000])])
    assert result.shape == (1000, 1000)
    assert result.base is not None
    assert result[3, 5] == 7
