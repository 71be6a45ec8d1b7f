"""Exporters' networks, some with ops without kernels: on the device, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.session.test_host_nodes import B, F, L, check, model, node, value
from vkmnn.core.placement import Placement

Feeds = list[dict[str, Any]]
RNG = np.random.default_rng(7)


def weights(*shape: int, scale: float = 0.3) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) * scale


def image(*shape: int) -> np.ndarray:
    return RNG.random(shape).astype(np.float32)


def detector_with_suppression() -> tuple[onnx.ModelProto, Feeds]:
    """A convolutional body, boxes and scores, NonMaxSuppression, and the remaining boxes."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r hw hb", "h"),
        node("Reshape", "h flat", "f"),
        node("Transpose", "f", "t", perm=[0, 2, 1]),
        node("Split", "t sizes", "raw scores", axis=2),
        node("Sigmoid", "scores", "s"),
        node("Transpose", "s", "st", perm=[0, 2, 1]),
        node("Sigmoid", "raw", "rs"),
        node("Mul", "rs scale", "boxes"),
        node("NonMaxSuppression", "boxes st most iou least", "n", center_point_box=1),
        node("Gather", "n two", "index", axis=1),
        node("Squeeze", "index one", "i"),
        node("Squeeze", "boxes zero", "all"),
        node("Gather", "all i", "y", axis=0),
        node("Shape", "y", "count"),
    ]
    constants = {
        "w": weights(8, 3, 3, 3),
        "b": weights(8),
        "hw": weights(6, 8, 1, 1, scale=1),
        "hb": weights(6),
        "flat": np.int64([0, 6, -1]),
        "sizes": np.int64([4, 2]),
        "scale": np.float32([16, 16, 6, 6]),
        "most": np.int64([20]),
        "iou": np.float32([0.4]),
        "least": np.float32([0.55]),
        "two": np.int64([2]),
        "one": np.int64([1]),
        "zero": np.int64([0]),
    }
    outputs = [value("y", F), value("count", L)]
    proto = model(nodes, [value("x", F, [1, 3, "h", "w"])], outputs, constants)
    sizes = ((16, 16), (12, 16), (16, 16))
    return proto, [{"x": image(1, 3, h, w)} for h, w in sizes]


def text_reader() -> tuple[onnx.ModelProto, Feeds]:
    """A CRNN: convolutions, two directions of LSTM, scores of letters."""
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 1], strides=[2, 1]),
        node("Transpose", "p", "t", perm=[3, 0, 1, 2]),
        node("Reshape", "t rows", "q"),
        node("LSTM", "q lw lr lb", "l", hidden_size=6, direction="bidirectional"),
        node("Transpose", "l", "lt", perm=[0, 2, 1, 3]),
        node("Reshape", "lt joined", "j"),
        node("MatMul", "j out", "s"),
        node("LogSoftmax", "s", "y", axis=2),
    ]
    constants = {
        "w": weights(4, 1, 3, 3),
        "rows": np.int64([0, 0, 16]),
        "lw": weights(2, 24, 16),
        "lr": weights(2, 24, 6),
        "lb": weights(2, 48),
        "joined": np.int64([0, 0, 12]),
        "out": weights(12, 5),
    }
    proto = model(nodes, [value("x", F, ["n", 1, 8, "w"])], [value("y", F)], constants)
    return proto, [{"x": image(n, 1, 8, w)} for n, w in ((2, 20), (1, 7))]


def tagger_with_lengths() -> tuple[onnx.ModelProto, Feeds]:
    """Words by their numbers, a GRU over sentences of different lengths, the best tag of each."""
    nodes = [
        node("Gather", "table ids", "e", axis=0),
        node("Transpose", "e", "t", perm=[1, 0, 2]),
        node("Cast", "lengths", "n", to=TensorProto.INT32),
        node("GRU", "t w r b n", "g last", hidden_size=5, linear_before_reset=1),
        node("Squeeze", "g one", "s"),
        node("MatMul", "s out", "o"),
        node("ArgMax", "o", "y", axis=2, keepdims=0),
    ]
    constants = {
        "table": weights(30, 4, scale=1),
        "w": weights(1, 15, 4, scale=1),
        "r": weights(1, 15, 5, scale=1),
        "b": weights(1, 30),
        "one": np.int64([1]),
        "out": weights(5, 7, scale=1),
    }
    inputs = [value("ids", L, ["n", "t"]), value("lengths", L, ["n"])]
    proto = model(nodes, inputs, [value("y", L), value("last", F)], constants)
    first = {"ids": RNG.integers(0, 30, (3, 6)), "lengths": np.int64([6, 2, 4])}
    return proto, [first, {"ids": RNG.integers(0, 30, (1, 4)), "lengths": np.int64([3])}]


def voice_activity() -> tuple[onnx.ModelProto, Feeds]:
    """Voice in sound of one of two rates: filters, and an LSTM with external state."""

    def branch(rate: str, stride: int) -> onnx.GraphProto:
        nodes = [
            node("Unsqueeze", "sound one", f"{rate}_u"),
            node("Conv", f"{rate}_u {rate}_w", f"{rate}_c", strides=[stride], pads=[4, 3]),
            node("Abs", f"{rate}_c", f"{rate}_a"),
        ]
        taps = helper.make_tensor(f"{rate}_w", F, [12, 1, 8], weights(12, 1, 8).ravel())
        return helper.make_graph(nodes, rate, [], [value(f"{rate}_a", F)], [taps])

    nodes = [
        node("Equal", "rate high", "fast"),
        node("If", "fast", "f", then_branch=branch("high", 16), else_branch=branch("low", 8)),
        node("Conv", "f w b", "c", pads=[1, 1], strides=[2]),
        node("Relu", "c", "r"),
        node("Transpose", "r", "t", perm=[2, 0, 1]),
        node("Split", "state", "h0 c0", axis=0, num_outputs=2),
        node("LSTM", "t lw lr lb  h0 c0", "l hn cn", hidden_size=16),
        node("Concat", "hn cn", "state_out", axis=0),
        node("Squeeze", "l one", "s"),
        node("ReduceMean", "s zero", "m", keepdims=0),
        node("MatMul", "m out", "o"),
        node("Sigmoid", "o", "y"),
    ]
    nodes[6].input[:] = ["t", "lw", "lr", "lb", "", "h0", "c0"]
    constants = {
        "high": np.int64(16_000),
        "one": np.int64([1]),
        "zero": np.int64([0]),
        "w": weights(10, 12, 3),
        "b": weights(10),
        "lw": weights(1, 64, 10),
        "lr": weights(1, 64, 16),
        "lb": weights(1, 128),
        "out": weights(16, 1),
    }
    inputs = [value("sound", F, ["n", "t"]), value("rate", L, []), value("state", F, [2, "n", 16])]
    proto = model(nodes, inputs, [value("y", F), value("state_out", F)], constants)
    feeds = [
        {"sound": image(n, t) - 0.5, "rate": np.array(rate), "state": image(2, n, 16) - 0.5}
        for n, t, rate in ((1, 512, 16_000), (1, 256, 8_000), (2, 512, 16_000))
    ]
    return proto, feeds


def merged_decoder() -> tuple[onnx.ModelProto, Feeds]:
    """One branch with a cache of keys, one without: an input selects one."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), name, [], [value(f"{name}_k", F)])

    nodes = [
        node("MatMul", "x wk", "k"),
        node(
            "If",
            "use_cache",
            "keys",
            then_branch=branch("t", node("Concat", "past k", "t_k", axis=1)),
            else_branch=branch("e", node("Identity", "k", "e_k")),
        ),
        node("MatMul", "x wq", "q"),
        node("Transpose", "keys", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p keys", "y"),
    ]
    constants = {"wk": weights(6, 4), "wq": weights(6, 4)}
    inputs = [value("x", F, [1, "t", 6]), value("past", F, [1, "p", 4]), value("use_cache", B, [])]
    proto = model(nodes, inputs, [value("y", F), value("keys", F)], constants)
    past = image(1, 5, 4)
    return proto, [
        {"x": image(1, 3, 6), "past": past[:, :0].copy(), "use_cache": np.array(False)},
        {"x": image(1, 1, 6), "past": past, "use_cache": np.array(True)},
    ]


def search_with_beams() -> tuple[onnx.ModelProto, Feeds]:
    """A Loop over steps, an If inside, TopK, and a sequence of tokens that grows."""
    longer = helper.make_graph(
        [node("Concat", "tokens top", "grown", axis=1)], "longer", [], [value("grown", L)]
    )
    same = helper.make_graph([node("Identity", "tokens", "kept")], "same", [], [value("kept", L)])
    body = helper.make_graph(
        [
            node("Gather", "emb last", "e", axis=0),
            node("MatMul", "e proj", "logits"),
            node("TopK", "logits k", "best top", axis=1),
            node("Less", "i limit", "more"),
            node("If", "more", "next", then_branch=longer, else_branch=same),
            node("Squeeze", "top one", "last_next"),
            node("ReduceSum", "best", "sum", keepdims=0),
            node("Add", "score sum", "score_next"),
            node("Identity", "keep", "go"),
            node("Identity", "best", "seen"),
        ],
        "body",
        [
            *(value("i", L, []), value("keep", B, []), value("tokens", L), value("last", L)),
            value("score", F, []),
        ],
        [
            *(value("go", B), value("next", L), value("last_next", L), value("score_next", F)),
            value("seen", F),
        ],
    )
    nodes = [
        node("MatMul", "x wide", "emb"),
        node("Loop", "steps yes first start zero", "tokens last score all", body=body),
        node("Exp", "score", "y"),
    ]
    constants = {
        "wide": weights(6, 8),
        "proj": weights(8, 10),
        "k": np.int64([1]),
        "limit": np.int64(4),
        "one": np.int64([1]),
        "yes": np.array(True),
        "start": np.int64([3, 1]),
        "first": np.int64([[3], [1]]),
        "zero": np.float32(0),
    }
    inputs = [value("x", F, [10, 6]), value("steps", L, [])]
    outputs = [value("y", F), value("tokens", L), value("all", F)]
    proto = model(nodes, inputs, outputs, constants)
    return proto, [{"x": image(10, 6), "steps": np.array(count)} for count in (7, 2)]


def selective_scan() -> tuple[onnx.ModelProto, Feeds]:
    """A state that decays and accumulates its input, step by step."""
    body = helper.make_graph(
        [
            node("Mul", "state decay", "kept"),
            node("Add", "kept new", "next"),
            node("Mul", "next gain", "seen"),
        ],
        "body",
        [value("state", F, None), value("decay", F, None), value("new", F, None)],
        [value("next", F), value("seen", F)],
    )
    nodes = [
        node("MatMul", "x w", "u"),
        node("Sigmoid", "u", "a"),
        node("Mul", "u x", "v"),
        node("Scan", "first a v", "last s", body=body, num_scan_inputs=2),
        node("MatMul", "s w", "y"),
    ]
    constants = {"w": weights(4, 4), "gain": weights(4), "first": np.zeros(4, np.float32)}
    outputs = [value("y", F), value("last", F)]
    proto = model(nodes, [value("x", F, ["t", 4])], outputs, constants)
    return proto, [{"x": image(9, 4)}, {"x": image(1, 4)}]


def ragged_batches() -> tuple[onnx.ModelProto, Feeds]:
    """Rows are split into a sequence, and those that pass a test are joined."""
    nodes = [
        node("Relu", "x", "r"),
        node("ReduceMean", "r axis", "m", keepdims=0),
        node("Greater", "m least", "g"),
        node("Compress", "r g", "c", axis=0),
        node("SplitToSequence", "c one", "s", axis=0),
        node("SequenceLength", "s", "n"),
        node("ConcatFromSequence", "s", "j", axis=1),
        node("Neg", "j", "y"),
    ]
    constants = {"axis": np.int64([1]), "least": np.float32(0.5), "one": np.int64(1)}
    outputs = [value("y", F), value("n", L)]
    proto = model(nodes, [value("x", F, ["a", 3])], outputs, constants)
    return proto, [{"x": image(12, 3)}, {"x": image(6, 3) + 1}]


# Ops that are not expected to run on the device.
CASES: dict[Callable[[], tuple[onnx.ModelProto, Feeds]], set[str]] = {
    detector_with_suppression: set(),
    text_reader: set(),
    tagger_with_lengths: set(),
    voice_activity: set(),
    merged_decoder: {"If"},
    search_with_beams: {"If"},
    selective_scan: {"Scan"},
    ragged_batches: {"SplitToSequence", "SequenceLength", "ConcatFromSequence"},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_beside_onnxruntime(case: Callable[[], tuple[onnx.ModelProto, Feeds]]) -> None:
    proto, feeds = case()
    placement: Placement = check(proto, *feeds)
    assert {op.type for op in placement.off_device} == CASES[case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_with_the_reference_evaluator(
    case: Callable[[], tuple[onnx.ModelProto, Feeds]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case is tagger_with_lengths:
        pytest.skip("onnx's evaluator does not look at the lengths")
    monkeypatch.setenv("VKMNN_HOST_ENGINE", "onnx")
    proto, feeds = case()
    check(proto, *feeds, device="cpu")
