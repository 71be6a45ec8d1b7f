"""Sequences whose members are known become tensors; others are created on the host."""

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

F, L = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(7)
X = RNG.standard_normal((6, 4)).astype(np.float32)
value = helper.make_tensor_value_info
many = helper.make_tensor_sequence_value_info
INTS = {"zero": 0, "one": 1, "last": -1, "two": 2, "nine": 9, "parts": [1, 2, 3]}


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in INTS.items()]
    whole = helper.make_graph(
        list(nodes), "g", [value("x", F, X.shape), *inputs], list(outputs), constants
    )
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(proto: onnx.ModelProto, **more: Array) -> Placement:
    """Compare with onnxruntime; return where the ops ran."""
    feeds = {"x": X, **more}
    want = open_oracle(proto).run(None, feeds)
    with InferenceSession(proto) as session:
        got = session.run(None, feeds)
        placement = session.placement()
    for one, other in zip(got, want, strict=True):
        pairs = zip(one, other, strict=True) if isinstance(other, list) else [(one, other)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    return placement


PARTS = node("SplitToSequence", "x parts", "s", axis=0)
OUT = [value("y", F, None)]
KNOWN: dict[str, list[onnx.NodeProto]] = {
    "parts of sizes": [PARTS, node("SequenceAt", "s two", "a"), node("Neg", "a", "y")],
    "from the end": [PARTS, node("SequenceAt", "s last", "a"), node("Neg", "a", "y")],
    "parts of one size": [
        node("SplitToSequence", "x two", "s", axis=1),
        node("SequenceAt", "s one", "a"),
        node("Neg", "a", "y"),
    ],
    "rows without their axis": [
        node("SplitToSequence", "x", "s", axis=0, keepdims=0),
        node("SequenceAt", "s one", "a"),
        node("Neg", "a", "y"),
    ],
    "rows with it": [
        node("SplitToSequence", "x", "s", axis=0, keepdims=1),
        node("SequenceAt", "s one", "a"),
        node("Neg", "a", "y"),
    ],
    "built up, and taken apart": [
        node("SequenceEmpty", "", "e"),
        node("SequenceInsert", "e x", "f"),
        node("Neg", "x", "n"),
        node("SequenceInsert", "f n zero", "g"),
        node("Exp", "x", "p"),
        node("SequenceInsert", "g p last", "h"),
        node("Identity", "h", "i"),
        node("SequenceErase", "i zero", "j"),
        node("ConcatFromSequence", "j", "y", axis=1),
    ],
    "the last is erased": [
        PARTS,
        node("SequenceErase", "s", "j"),
        node("ConcatFromSequence", "j", "y", axis=0),
    ],
    "stacked": [
        node("Neg", "x", "n"),
        node("SequenceConstruct", "x n x", "s"),
        node("ConcatFromSequence", "s", "y", axis=-1, new_axis=1),
    ],
    "counted": [
        PARTS,
        node("SequenceLength", "s", "n"),
        node("Cast", "n", "m", to=F),
        node("Mul", "x m", "y"),
    ],
}


@pytest.mark.parametrize("what", KNOWN)
def test_known_members(what: str) -> None:
    assert not check(model(KNOWN[what], OUT)).off_device


def test_a_loop_that_inserts() -> None:
    body = helper.make_graph(
        [
            node("Gather", "bounds i", "from"),
            node("Add", "i one", "next"),
            node("Gather", "bounds next", "to"),
            node("Unsqueeze", "from zeros", "f"),
            node("Unsqueeze", "to zeros", "t"),
            node("Slice", "x f t", "part"),
            node("SequenceInsert", "s part", "more"),
            node("Identity", "go", "on"),
        ],
        "body",
        [value("i", L, []), value("go", TensorProto.BOOL, []), many("s", F, None)],
        [value("on", TensorProto.BOOL, []), many("more", F, None)],
        [
            numpy_helper.from_array(np.array([0, 1, 4, 6]), "bounds"),
            numpy_helper.from_array(np.array([0]), "zeros"),
        ],
    )
    nodes = [
        node("SequenceEmpty", "", "e"),
        helper.make_node("Loop", ["three", "", "e"], ["s"], body=body),
        node("SequenceAt", "s one", "a"),
        node("Neg", "a", "y"),
    ]
    proto = model(nodes, OUT)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(3), "three"))
    assert not check(proto).off_device


UNKNOWN: dict[str, list[onnx.NodeProto]] = {
    "a place that is fed": [PARTS, node("SequenceAt", "s k", "a"), node("Neg", "a", "y")],
    "known first": [
        PARTS,
        node("SequenceErase", "s zero", "t"),
        node("SequenceErase", "t k", "u"),
        node("ConcatFromSequence", "u", "y", axis=0),
    ],
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_places_that_are_fed(what: str) -> None:
    proto = model(UNKNOWN[what], OUT, [value("k", L, [])])
    assert check(proto, k=np.array(0)).off_device


def test_sequences_that_the_network_returns() -> None:
    nodes = [
        node("Neg", "x", "n"),
        node("SequenceConstruct", "x n", "s"),
        node("SequenceErase", "s zero", "t"),
        node("SequenceEmpty", "", "none"),
    ]
    check(model(nodes, [many("s", F, None), many("t", F, None)]))


def test_a_sequence_and_an_operator_of_the_host() -> None:
    body = helper.make_graph(
        [node("Neg", "one", "minus")], "b", [value("one", F, None)], [value("minus", F, None)]
    )
    nodes = [
        PARTS,
        helper.make_node("SequenceMap", ["s"], ["m"], body=body),
        node("ConcatFromSequence", "m", "y", axis=0),
    ]
    check(model(nodes, OUT))


@pytest.mark.parametrize("place", ["nine", "last"])
def test_a_place_out_of_range(place: str) -> None:
    nodes = [node("SequenceEmpty", "", "e"), node("SequenceAt", f"e {place}", "y")]
    with pytest.raises(Exception, match="SequenceAt"), InferenceSession(model(nodes, OUT)) as s:
        s.run(None, {"x": X})
