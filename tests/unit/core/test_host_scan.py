"""Scan in the reference evaluator, as onnxruntime runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.host.engines import EngineError, OnnxRuntime, Reference

pytest.importorskip("onnxruntime")


SHAPE = [2, 3]


def typed(*names: str, shape: list[int] = SHAPE) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in names]


BODY = helper.make_graph(
    [
        helper.make_node("Add", ["s", "a"], ["sum"]),
        helper.make_node("Mul", ["sum", "factor"], ["next"]),
        helper.make_node("Sub", ["next", "b"], ["less"]),
        helper.make_node("Identity", ["next"], ["same"]),
    ],
    "body",
    typed("s", "a", "b"),
    typed("next", "less", "same"),
)


def along(axis: int, length: int) -> list[int]:
    """Return the shape of slices that are stacked along an axis."""
    return np.insert(SHAPE, axis % 3, length).tolist()


def model(opset: int, length: int, axes: tuple[int, int], **attributes: Any) -> onnx.ModelProto:
    inputs = ["state", "x0", "x1"]
    node = helper.make_node(
        "Scan", inputs, ["last", "z0", "z1"], body=BODY, num_scan_inputs=2, **attributes
    )
    graph = helper.make_graph(
        [node],
        "scan",
        [
            *typed("state", "factor"),
            *typed("x0", shape=along(axes[0], length)),
            *typed("x1", shape=along(axes[1], length)),
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    for value in graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds_of(made: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        value.name: rng.standard_normal(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in made.graph.input
    }


def results(engine: type[Any], made: onnx.ModelProto, feeds: Any) -> list[Any]:
    return list(engine(made).run([value.name for value in made.graph.output], feeds, 10.0))


def check(made: onnx.ModelProto, feeds: Any) -> None:
    got, wanted = (results(engine, made, feeds) for engine in (Reference, OnnxRuntime))
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 16, 21])
@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (-1, -2)])
@pytest.mark.parametrize("back", [(0, 0), (1, 0), (0, 1)])
def test_any_axis_either_way(opset: int, axes: tuple[int, int], back: tuple[int, int]) -> None:
    made = model(
        opset,
        4,
        axes,
        scan_input_axes=axes,
        scan_input_directions=back,
        scan_output_axes=axes[::-1],
        scan_output_directions=back[::-1],
    )
    check(made, feeds_of(made))


def test_lists_may_be_left_out() -> None:
    made = model(9, 5, (0, 0))
    check(made, feeds_of(made))


def test_no_steps() -> None:
    made = model(16, 0, (0, 1), scan_input_axes=[0, 1], scan_output_axes=[0, 2])
    feeds = feeds_of(made)
    last, *stacked = results(Reference, made, feeds)
    np.testing.assert_array_equal(last, feeds["state"])
    assert [one.shape for one in stacked] == [(0, 2, 3), (2, 3, 0)]
    assert {one.dtype for one in stacked} == {np.dtype(np.float32)}


@pytest.mark.parametrize("lengths", [None, [4, 2], [1, 3]])
@pytest.mark.parametrize("back", [0, 1])
def test_batches_of_opset_8(lengths: list[int] | None, back: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "a"], ["next"]),
            helper.make_node("Mul", ["next", "next"], ["square"]),
        ],
        "body",
        typed("s", "a", shape=[3]),
        typed("next", "square", shape=[3]),
    )
    inputs = ["lengths" if lengths else "", "state", "x"]
    node = helper.make_node(
        "Scan", inputs, ["last", "z"], body=body, num_scan_inputs=1, directions=[back]
    )
    given = [*typed("state"), *typed("x", shape=[2, 4, 3])]
    graph = helper.make_graph([node], "scan", given, [*typed("last"), *typed("z", shape=[2, 4, 3])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    feeds: dict[str, Any] = dict(feeds_of(made))
    if lengths:
        made.graph.input.insert(
            0, helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, [2])
        )
        feeds["lengths"] = np.array(lengths)
    check(made, feeds)


def test_inputs_of_different_lengths_are_an_error() -> None:
    made = model(16, 4, (0, 0))
    feeds = feeds_of(made)
    feeds["x1"] = feeds["x1"][:3]
    with pytest.raises(EngineError):
        results(Reference, made, feeds)
