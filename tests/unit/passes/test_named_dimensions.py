"""Named dimensions survive every operator: a residual after it is fused as after any other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.unit.shape.named_cases import CASES, Case, Given, Shape
from vkmnn.converter.passes import optimize
from vkmnn.cpu_fallback import cpu_execution, run_op
from vkmnn.ir import OP_TYPES, DType, Graph, Op, OpAttrs, TensorInfo, op_type
from vkmnn.ir.ops import BinaryAttrs, MatMulAttrs
from vkmnn.shape import size_computer

# What follows is a matrix product of floats, whose last size is a constant's.
INTEGERS = {"ArgMax", "ArgMin", "NonMaxSuppression", "Shape", "Size", "Range", "SampleToken"}
NO_CONSTANT_SIZE = {"DeformColumns", "Det", "DynamicRange", "MelWeightMatrix"}


@dataclass(frozen=True, slots=True)
class PlugAttrs(OpAttrs):
    """Attributes of an op that is not vkmnn's."""


def makes_sense(case: Case) -> bool:
    shape = case.outputs[0]
    named = any(isinstance(dim, str) for dim in shape)
    packs = case.op.type == "Append" and bool(getattr(case.op.attrs, "packing", ""))
    floats = not packs and getattr(case.op.attrs, "kind", "") not in ("EQUAL", "ISNAN")
    return case.op.type not in INTEGERS and named and isinstance(shape[-1], int) and floats


def then_fused(op: Op, inputs: list[Given | None], shape: Shape) -> Graph:
    """Return op → MatMul → Add(residual of that shape), after the passes."""
    graph = Graph("net", [], [])
    for name, given in zip(op.inputs, inputs, strict=True):
        if given is None:
            continue
        if given.value is None:
            graph.inputs.append(TensorInfo(name, given.dtype, given.shape))
        elif isinstance(given.value, np.ndarray):
            graph.constants[name] = given.value
        else:
            _add_vector(graph, name, given)
    width = shape[-1]
    assert isinstance(width, int)
    graph.inputs.append(TensorInfo("residual", DType.FLOAT32, shape))
    graph.constants["weights"] = np.eye(width, dtype=np.float32)[::-1]
    graph.ops += [
        op,
        Op("MatMul", "product", [op.outputs[0], "weights"], ["p"], MatMulAttrs()),
        Op("BinaryOp", "sum", ["p", "residual"], ["sum"], BinaryAttrs("ADD")),
    ]
    graph.outputs = [TensorInfo("sum", DType.FLOAT32, None)]
    graph.validate()
    return optimize(graph, run_op)


def _add_vector(graph: Graph, name: str, given: Given) -> None:
    """Build a shape vector like models do: sizes from Shape, the rest constants."""
    assert isinstance(given.value, tuple)
    parts = []
    for place, dim in enumerate(given.value):
        part = f"{name}.{place}"
        if isinstance(dim, str):
            source = f"of_{dim}"
            if all(info.name != source for info in graph.inputs):
                graph.inputs.append(TensorInfo(source, DType.FLOAT32, (dim,)))
            graph.ops.append(Op("Shape", part, [source], [part], OP_TYPES["Shape"].attrs()))
        else:
            graph.constants[part] = np.array([dim], given.dtype.numpy)
        parts.append(part)
    joined = f"{name}.joined"
    graph.ops.append(Op("Concat", joined, parts, [joined], OP_TYPES["Concat"].attrs()))
    graph.constants[f"{name}.rank"] = np.array(given.shape, np.int64)
    graph.ops.append(
        Op("Reshape", name, [joined, f"{name}.rank"], [name], OP_TYPES["Reshape"].attrs())
    )


def assert_fused(graph: Graph) -> None:
    products = [op for op in graph.ops if op.type == "MatMul" and "residual" in op.inputs[3:]]
    assert len(products) == 1, [op.type for op in graph.ops]
    assert not any(op.type == "BinaryOp" and "residual" in op.inputs for op in graph.ops)


@pytest.mark.parametrize("case", list(filter(makes_sense, CASES)), ids=str)
def test_a_residual_after_every_operator(case: Case) -> None:
    assert_fused(then_fused(case.op, case.inputs, case.outputs[0]))


def test_the_operators_that_are_not_tried() -> None:
    tried = {case.op.type for case in filter(makes_sense, CASES)}
    assert {case.op.type for case in CASES} - tried == INTEGERS | NO_CONSTANT_SIZE


@pytest.mark.usefixtures("registrations")
def test_a_residual_after_a_plugin_without_a_rule() -> None:
    op_type("PlugBlend", inputs=2)(PlugAttrs)
    size_computer("PlugBlend")(lambda op, inputs, values: [(DType.FLOAT32, inputs[0].dims)])
    cpu_execution("PlugBlend")(lambda op, inputs: [inputs[0] + inputs[1]])
    op = Op("PlugBlend", "blend", ["x0", "x1"], ["y"], PlugAttrs())
    x = Given(("N", "L", 8))
    assert_fused(then_fused(op, [x, x], x.shape))


def test_other_sizes_are_not_fused() -> None:
    """What the tests above see is not there without equal names."""
    op = Op("Identity", "same", ["x0"], ["y"], OpAttrs())
    graph = then_fused(op, [Given(("N", "L", 8))], ("N", "M", 8))
    assert [op.type for op in graph.ops] == ["MatMul", "BinaryOp"]
