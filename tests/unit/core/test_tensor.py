"""When a tensor may be changed, and by whom."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from vkmnn.base.budget import unlimited
from vkmnn.core.plan import Plan
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import PluginError
from vkmnn.ir import DType, Graph, Layout, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs


def made() -> Tensor:
    return Tensor(TensorInfo("t", DType.FLOAT32, (2, 3)))


def test_forms_change_until_they_are_settled() -> None:
    tensor = made()
    tensor.take_form(Layout.NC4HW4, "f16")
    assert (tensor.layout, tensor.element) == (Layout.NC4HW4, "f16")
    tensor.settle()
    with pytest.raises(PluginError, match="form of tensor 't' can no longer change"):
        tensor.take_form(Layout.NCHW, "f32")
    copy = replace(tensor, element="f32")
    copy.take_form(Layout.NCHW, "f32")
    assert tensor.layout is Layout.NC4HW4


@pytest.mark.parametrize("name", ["info", "usage", "layout", "value", "element"])
def test_nothing_is_assigned(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(made(), name, None)


def test_tensors_are_themselves() -> None:
    assert made() != made()
    assert len({made(), made()}) == 2


def test_a_plan_settles_what_the_backend_returns() -> None:
    info = TensorInfo("x", DType.FLOAT32, (2,))
    op = Op("UnaryOp", "y", ["x"], ["y"], UnaryAttrs("NEG"))
    graph = Graph("g", [info], [TensorInfo("y", DType.FLOAT32, (2,))], [op])
    plan = Plan(graph, {"x": info}, {}, CpuBackend(), CpuBackend(), run_op, unlimited())
    tensors = [t for c in plan.commands for t in (*c.inputs, *c.outputs) if t is not None]
    assert len(tensors) == 2
    for tensor in tensors:
        with pytest.raises(PluginError, match="can no longer change"):
            tensor.take_form(Layout.NCHW, "f16")
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(plan.execute({"x": x})["y"], -x)
