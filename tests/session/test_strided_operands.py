"""Operands of BinaryOp that a Raster would copy: kernels read them by strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import vkmnn
from tests.session.models import model, value
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Op
from vkmnn.ir.ops import StridedBinaryAttrs

RNG = np.random.default_rng(9)
NODES = {"SUB": np.subtract, "LESS": np.less, "MUL": np.multiply}


def transposed(
    shape: Any,
    perm: Any,
    other: Any,
    op: str = "Sub",
    swapped: bool = False,
    kind: Any = np.float32,
) -> tuple[onnx.ModelProto, dict[str, Any], Any]:
    x = RNG.integers(-9, 9, shape).astype(kind)
    y = RNG.integers(-9, 9, other).astype(kind)
    names = ["y", "t"] if swapped else ["t", "y"]
    arrays = [y, x.transpose(perm)] if swapped else [x.transpose(perm), y]
    want = NODES[op.upper()](*arrays)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=perm),
        helper.make_node(op, names, ["z"]),
    ]
    element = onnx.TensorProto.FLOAT if kind is np.float32 else onnx.TensorProto.INT32
    result = onnx.TensorProto.BOOL if op == "Less" else element
    proto = model(
        nodes,
        [value("x", shape, element), value("y", other, element)],
        [value("z", want.shape, result)],
    )
    return proto, {"x": x, "y": y}, want


CASES = [
    ((3, 5), (1, 0), (5, 3)),
    ((4, 8), (1, 0), (8, 4)),
    ((2, 3, 4, 8), (0, 2, 1, 3), (2, 4, 3, 8)),  # rows stay whole: four words at a time
    ((2, 3, 4, 8), (0, 2, 1, 3), (8,)),
    ((2, 3, 4, 8), (0, 2, 1, 3), (4, 1, 8)),
    ((2, 3, 4, 8), (3, 2, 1, 0), (8, 4, 3, 2)),
    ((1, 7, 1, 5), (3, 2, 0, 1), (5, 1, 1, 7)),
    ((3, 1), (1, 0), (4, 3)),  # the transposed one is broadcast
    ((3, 4), (1, 0), (2, 4, 1)),
    ((3, 4), (1, 0), ()),
    ((2, 3, 2, 3, 2), (4, 1, 2, 3, 0), (2, 3, 2, 3, 2)),
]


@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
@pytest.mark.parametrize(("shape", "perm", "other"), CASES)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_transposed_operand_is_no_copy(shape: Any, perm: Any, other: Any, swapped: bool) -> None:
    for op, kind in (("Sub", np.float32), ("Less", np.float32), ("Mul", np.int32)):
        proto, feeds, want = transposed(shape, perm, other, op, swapped, kind)
        with vkmnn.InferenceSession(proto) as session:
            (found,) = session.run(None, feeds)
            np.testing.assert_array_equal(found, want)
            assert [placed.type for placed in session.placement()] == ["BinaryOp"]
            assert session.placement().copies == 0


@pytest.mark.skipif(not vkmnn.devices(), reason="no Vulkan device")
def test_both_operands_and_what_stays_a_copy() -> None:
    x, y = (RNG.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    both = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[2, 0, 1]),
        helper.make_node("Transpose", ["y"], ["b"], perm=[2, 0, 1]),
        helper.make_node("Mul", ["a", "b"], ["z"]),
        helper.make_node("Softmax", ["z"], ["s"]),
    ]
    infos = [value("x", x.shape), value("y", y.shape)]
    session = vkmnn.InferenceSession(model(both, infos, [value("s", (4, 2, 3))]))
    power = np.exp((x * y).transpose(2, 0, 1))
    (found,) = session.run(None, {"x": x, "y": y})
    np.testing.assert_allclose(found, power / power.sum(-1, keepdims=True), atol=1e-5)
    assert sum(placed.type == "Raster" for placed in session.placement()) <= 1
    # Another reader, or an output, needs the copy all the same.
    nodes = [*both[:1], helper.make_node("Add", ["a", "a"], ["z"]), both[0]]
    nodes[2] = helper.make_node("Softmax", ["a"], ["s"])
    outputs = [value("z", (4, 2, 3)), value("s", (4, 2, 3))]
    session = vkmnn.InferenceSession(model(nodes, infos[:1], outputs))
    z, _ = session.run(None, {"x": x})
    np.testing.assert_array_equal(z, 2 * x.transpose(2, 0, 1))


def test_numpy_reads_views_too() -> None:
    a, b = RNG.standard_normal((3, 5)).astype(np.float32), np.arange(3, dtype=np.float32)
    attrs = StridedBinaryAttrs("SUB", shape=(2, 5, 3), strides=((0, 1, 5), (0, 0, 1)))
    (found,) = run_op(Op("BinaryOp", "n", ["a", "b"], ["y"], attrs), [a, b])
    np.testing.assert_array_equal(found, np.broadcast_to(a.T - b, (2, 5, 3)))
