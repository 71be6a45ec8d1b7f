"""Loop and Scan with a known number of iterations: these become part of the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.core.placement import Placement
from vkmnn.ir import Array

F, B, L = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3)).astype(np.float32)
value = helper.make_tensor_value_info


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: str,
    constants: dict[str, Array] | None = None,
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    kinds = {"go": B}
    results = [value(name, kinds.get(name, F), None) for name in outputs.split()]
    return helper.make_graph(list(nodes), "body", list(inputs), results, tensors)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Array],
    outputs: str,
    constants: dict[str, Array],
    opset: int = 17,
) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype
    whole = helper.make_graph(
        list(nodes),
        "g",
        [value(name, kind(a.dtype), a.shape) for name, a in inputs.items()],
        [value(name, F, None) for name in outputs.split()],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(proto: onnx.ModelProto, feeds: dict[str, Array]) -> Placement:
    """Compare with onnxruntime; return where the ops ran."""
    session = open_oracle(proto)
    expected = session.run(None, feeds)
    with InferenceSession(proto) as mine:
        results = mine.run(None, feeds)
        placement = mine.placement()
    for one, other in zip(results, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return placement


COUNTER = [value("i", L, []), value("c", B, []), value("h", F, None)]
STEP = [
    node("Cast", "i", "f", to=F),
    node("Mul", "h w", "a"),
    node("Add", "a f", "next"),
    node("Identity", "c", "go"),
]
CONSTANTS: dict[str, Array] = {"w": np.float32([0.5, 1, -1]), "m": np.array(4)}
ENDS = {
    "m ": {},
    "m yes": {"yes": np.array(True)},
    "one yes": {"one": np.int64([1]), "yes": np.array(True)},
}


@pytest.mark.parametrize("ends", ENDS)
def test_loops_of_a_known_number(ends: str) -> None:
    body = graph(STEP, COUNTER, "go next a")
    loop = helper.make_node("Loop", [*ends.split(" "), "x"], ["y", "all"], body=body)
    placement = check(model([loop], {"x": X}, "y all", CONSTANTS | ENDS[ends]), {"x": X})
    assert not placement.off_device


@pytest.mark.parametrize("trips", [-1, 0])
def test_loops_without_iterations(trips: int) -> None:
    body = graph(STEP, COUNTER, "go next")
    constants = CONSTANTS | {"m": np.array(trips)}
    check(model([node("Loop", "m  x", "y", body=body)], {"x": X}, "y", constants), {"x": X})


@pytest.mark.parametrize("where", ["inside", "node", "around"])
def test_a_condition_that_ends_the_first_iteration(where: str) -> None:
    inner = {"go": np.array(False)} if where == "inside" else {}
    nodes = STEP[:3]
    if where == "node":
        tensor = numpy_helper.from_array(np.array(False))
        nodes = [*nodes, helper.make_node("Constant", [], ["go"], value=tensor)]
    elif where == "around":
        nodes = [*nodes, node("Identity", "never", "go")]
    body = graph(nodes, COUNTER, "go next", inner)
    loop = node("Loop", " yes x", "y", body=body)
    constants = CONSTANTS | {"yes": np.array(True), "never": np.array(False)}
    assert not check(model([loop], {"x": X}, "y", constants), {"x": X}).off_device


def test_names_of_the_body_hide_those_around_it() -> None:
    """The body's `w`, and its inner tensors, are other tensors than those of the same name."""
    body = graph(STEP, COUNTER, "go next a", {"w": np.float32([2, 0.5, 1])})
    nodes = [
        node("Loop", "m  x", "p all", body=body),
        node("Mul", "p w", "y"),
        node("Loop", "m  y", "q more", body=body),
    ]
    assert not check(model(nodes, {"x": X}, "y all q more", CONSTANTS), {"x": X}).off_device


def test_values_that_only_change_places() -> None:
    """A body may return its inputs, swapped, and values from outside."""
    formal = [*COUNTER[:2], value("a", F, None), value("b", F, None)]
    nodes = [node("Identity", "c", "go"), node("Add", "a x", "s"), node("Identity", "b", "t")]
    body = graph(nodes, formal, "go t s s")
    loop = node("Loop", "m  x z", "u v all", body=body)
    z = X * 2 + 1
    placement = check(model([loop], {"x": X, "z": z}, "u v all", CONSTANTS), {"x": X, "z": z})
    assert not placement.off_device


def test_shapes_that_change_between_iterations() -> None:
    nodes = [node("Concat", "h x", "next", axis=0), node("Identity", "c", "go")]
    body = graph(nodes, COUNTER, "go next")
    proto = model([node("Loop", "m  x", "y", body=body)], {"x": X}, "y", CONSTANTS)
    assert not check(proto, {"x": X}).off_device


def test_a_loop_in_a_scan_in_a_loop() -> None:
    deep = graph(
        [node("Mul", "e w", "d"), node("Identity", "o", "go")],
        [value("j", L, []), value("o", B, []), value("e", F, None)],
        "go d",
    )
    middle = graph(
        [
            node("Add", "s r", "t"),
            node("Loop", "two  t", "u", body=deep),
            node("Tanh", "u", "n"),
            node("Neg", "n", "k"),
        ],
        [value("s", F, None), value("r", F, None)],
        "n k",
    )
    for result in middle.output:  # onnxruntime has to know the ranks
        result.type.tensor_type.shape.dim.add().dim_value = 3
    nodes = [
        node("Scan", "zero h", "z next", body=middle, num_scan_inputs=1),
        node("Identity", "c", "go"),
    ]
    outer = graph(nodes, COUNTER, "go next z")
    constants = CONSTANTS | {"two": np.array(2), "zero": np.zeros(3, np.float32)}
    proto = model([node("Loop", "m  x", "y all", body=outer)], {"x": X}, "y all", constants)
    assert not check(proto, {"x": X}).off_device


SCANNED = [value(name, F, None) for name in ("s", "p", "q")]
SCAN_STEP = [node("Mul", "p q", "r"), node("Add", "r s", "t"), node("Sub", "t w", "u")]


@pytest.mark.parametrize("opset", [9, 11, 17, 21])
@pytest.mark.parametrize("axes", [((1, 0), (0, 1)), ((1, 2), (1, 0)), ((-2, -1), (-1, -2))])
def test_scans_along_axes_in_both_directions(
    opset: int, axes: tuple[Sequence[int], Sequence[int]]
) -> None:
    if opset == 9 and min(axes[0]) < 0:
        pytest.skip("axes count from the front")
    nodes = [*SCAN_STEP, node("Identity", "t", "v")]
    body = graph(nodes, SCANNED, "t v u")
    p = np.moveaxis(RNG.standard_normal((5, 2, 3)).astype(np.float32), 0, axes[0][0])
    q = np.moveaxis(RNG.standard_normal((5, 2, 3)).astype(np.float32), 0, axes[0][1])
    scan = node(
        "Scan",
        "x p q",
        "last all more",
        body=body,
        num_scan_inputs=2,
        scan_input_axes=axes[0],
        scan_input_directions=[0, 1],
        scan_output_axes=axes[1],
        scan_output_directions=[1, 0],
    )
    feeds = {"x": X, "p": np.ascontiguousarray(p), "q": np.ascontiguousarray(q)}
    proto = model([scan], feeds, "last all more", CONSTANTS, opset)
    assert not check(proto, feeds).off_device


@pytest.mark.parametrize("directions", [[0, 0], [1, 0]])
def test_scans_of_opset_8_go_over_batches(directions: list[int]) -> None:
    body = graph(SCAN_STEP, SCANNED, "t u")
    scan = node("Scan", " s0 p0 q0", "last all", body=body, num_scan_inputs=2)
    scan.attribute.append(helper.make_attribute("directions", directions))
    feeds: dict[str, Array] = {
        "s0": RNG.standard_normal((2, 3)).astype(np.float32),
        "p0": RNG.standard_normal((2, 4, 3)).astype(np.float32),
        "q0": RNG.standard_normal((2, 4, 3)).astype(np.float32),
    }
    placement = check(model([scan], feeds, "last all", CONSTANTS, 8), feeds)
    assert not placement.off_device


def test_lengths_of_batches_are_for_the_host() -> None:
    body = graph(SCAN_STEP, SCANNED, "t u")
    scan = node("Scan", "n s0 p0 q0", "last all", body=body, num_scan_inputs=2)
    feeds: dict[str, Array] = {
        "n": np.int64([4, 2]),
        "s0": RNG.standard_normal((2, 3)).astype(np.float32),
        "p0": RNG.standard_normal((2, 4, 3)).astype(np.float32),
        "q0": RNG.standard_normal((2, 4, 3)).astype(np.float32),
    }
    check(model([scan], feeds, "last all", CONSTANTS, 8), feeds)


def test_many_iterations_and_counters_stay_with_the_host() -> None:
    body = graph(STEP, COUNTER, "go next")
    constants = CONSTANTS | {"m": np.array(1000)}
    many = model([node("Loop", "m  x", "y", body=body)], {"x": X}, "y", constants)
    assert {op.type for op in check(many, {"x": X}).off_device} == {"Loop"}
    counted = helper.make_graph(
        [node("Add", "k i", "n"), node("Identity", "c", "go")],
        "body",
        [*COUNTER[:2], value("k", L, [])],
        [value("go", B, None), value("n", L, None)],
    )
    nodes = [node("Loop", "m  k", "n", body=counted), node("Cast", "n", "y", to=F)]
    k = np.array(3)
    assert check(model(nodes, {"k": k}, "y", CONSTANTS), {"k": k}).off_device
