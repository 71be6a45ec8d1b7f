"""Attention of onnxruntime's domain: quantised, of one new row with beams, of shared heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from vkmnn import InferenceSession
from vkmnn.errors import ShapeError

Array = npt.NDArray[Any]
BATCH, LENGTH, HEADS, DEPTH = 2, 5, 3, 4
WIDTH = HEADS * DEPTH
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def single(node: Any, feeds: dict[str, Array], constants: dict[str, Array] | None = None) -> bytes:
    """Return a model of one node."""
    kinds = [INT32 if name == "counted" else FLOAT for name in node.output]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feeds.items()
        ],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(node.output, kinds, strict=True)
            if name
        ],
        [numpy_helper.from_array(x, name) for name, x in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def assert_same(
    node: Any, feeds: dict[str, Array], constants: dict[str, Array], cpu: bool = False
) -> None:
    """Compare a node with onnxruntime; all of it runs on the device, and on "cpu" if asked."""
    model = single(node, feeds, constants)
    expected = open_oracle(model).run(None, feeds)
    for device in ("auto", "cpu")[: 1 + cpu]:
        with InferenceSession(model, device=device, unsupported="raise") as session:
            results = session.run(None, feeds)
            if device == "auto":
                assert {op.backend for op in session.placement()} == {"VULKAN"}
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def codes(seed: int, dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    array = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape)
    return np.asarray(array).astype(dtype)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize("mask", ["", "every key", "lengths"])
@pytest.mark.parametrize("weights", ["uint8", "int8 by column"])
def test_attention_on_codes(weights: str, mask: str, past: int, causal: int) -> None:
    dtype, few = (np.uint8, ()) if weights == "uint8" else (np.int8, (3 * WIDTH,))
    constants = {
        "w": codes(1, dtype, 7, 3 * WIDTH),
        "b": drawn(2, 3 * WIDTH),
        "xs": np.array(0.01, np.float32),
        "ws": np.full(few, 0.02, np.float32),
        "xz": np.array(120, np.uint8),
        "wz": np.full(few, 3, dtype),
    }
    feeds = {"x": codes(3, np.uint8, BATCH, LENGTH, 7)}
    keys = LENGTH + past
    if mask == "every key":
        feeds["m"] = np.array([[1] * keys, [1] * (keys - 2) + [0, 0]], np.int32)
    elif mask:
        feeds["m"] = np.array([keys, keys - 2], np.int32)
    if past:
        feeds["p"] = drawn(4, 2, BATCH, HEADS, past, DEPTH)
    names = ["x", "w", "b", "xs", "ws", "m" if mask else "", "xz", "wz", "p" if past else ""]
    node = helper.make_node(
        "QAttention",
        names,
        ["y", "present"] if past else ["y"],
        domain="com.microsoft",
        num_heads=HEADS,
        unidirectional=causal,
    )
    assert_same(node, feeds, constants)


@pytest.mark.parametrize("segments", [False, True])
def test_an_embedding_of_codes(segments: bool) -> None:
    rng = np.random.default_rng(5)
    feeds = {"ids": rng.integers(0, 20, (BATCH, LENGTH)).astype(np.int32)}
    feeds["mask"] = np.array([[1] * LENGTH, [1] * (LENGTH - 2) + [0, 0]], np.int32)
    rows = {"words": (20, 8), "places": (LENGTH + 3, 8), "kinds": (2, 8), "g": (8,), "b": (8,)}
    if segments:
        feeds["segments"] = rng.integers(0, 2, (BATCH, LENGTH)).astype(np.int32)
    else:
        del rows["kinds"]
    constants = {name: codes(6, np.uint8, *shape) for name, shape in rows.items()}
    constants |= {f"{name}:scale": np.array(0.013, np.float32) for name in rows}
    constants |= {f"{name}:zero": np.array(100, np.uint8) for name in rows}
    tables = [name if name in rows else "" for name in ("words", "places", "kinds", "g", "b")]
    names = ["ids", "segments" if segments else "", *tables, "mask"]
    names += [name and f"{name}:{what}" for what in ("scale", "zero") for name in tables]
    node = helper.make_node(
        "QEmbedLayerNormalization", names, ["y", "counted"], domain="com.microsoft"
    )
    assert_same(node, feeds, constants)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["caches", "beams", "cross"])
def test_one_new_row(kind: str, masked: bool, added: bool, biased: bool, told: bool) -> None:
    place, room = 5, 9
    cross = kind == "cross"
    added = added and not cross  # onnxruntime has no kernel for that
    keys = room if cross else place + 1
    row, cache = (BATCH, 1, WIDTH), (BATCH, HEADS, room, DEPTH)
    feeds = {"q": drawn(7, *row)}
    feeds |= {name: drawn(8, *(cache if cross else row)) for name in "kv"}
    if masked:
        feeds["m"] = np.array([[1] * keys, [0] + [1] * (keys - 1)], np.int32)
    if added:
        feeds["a"] = drawn(9, 1, HEADS, 1, keys)
    if not cross:
        feeds |= {"pk": drawn(10, *cache), "pv": drawn(11, *cache)}
        feeds["at"] = np.array([place], np.int32)
    if kind == "beams":
        feeds["beams"] = np.array([2], np.int32)
        sources = np.random.default_rng(12).integers(0, 2, (1, 2, room))
        feeds["from"] = sources.astype(np.int32)
    if biased:
        feeds["b"] = drawn(13, 3 * WIDTH)
    order = ("q", "k", "v", "m", "a", "pk", "pv", "at", "beams", "from", "b")
    outputs = ["y", *(["", ""] if cross else ["k2", "v2"]), *(["scores"] if told else [])]
    node = helper.make_node(
        "DecoderMaskedMultiHeadAttention",
        [name if name in feeds else "" for name in order],
        outputs if told or not cross else ["y"],
        domain="com.microsoft",
        num_heads=HEADS,
        past_present_share_buffer=int(not cross),
        output_qk=int(told),
    )
    assert_same(node, feeds, {})


@pytest.mark.parametrize(("length", "past"), [(40, 0), (1, 70), (3, 5)])
@pytest.mark.parametrize(
    "how",
    [
        {"softcap": 1.5},
        {"local_window_size": 9},
        {"smooth_softmax": 1},
        {"sinks": 1},
        {"sinks": 1, "softcap": 0.7, "local_window_size": 4, "do_rotary": 1},
    ],
)
def test_shared_heads(how: dict[str, Any], length: int, past: int) -> None:
    how, depth = dict(how), 16
    feeds = {"x": drawn(1, 1, length, 8 * depth)}
    feeds |= {name: drawn(2, 1, 2, past, depth) for name in ("pk", "pv")}
    feeds["last"] = np.array([past + length - 1], np.int32)
    constants = {"total": np.array(past + length, np.int32)}
    names = ["x", "", "", "pk", "pv", "last", "total", "", "", "", "", ""]
    if "do_rotary" in how:
        names[7:9] = ["cos", "sin"]
        constants |= {name: drawn(3, past + length, depth // 2) for name in ("cos", "sin")}
    if how.pop("sinks", 0):
        names[11] = "sinks"
        constants["sinks"] = drawn(4, 4) + 1
    node = helper.make_node("GroupQueryAttention", names, ["y", "k", "v"],
                            domain="com.microsoft", num_heads=4, kv_num_heads=2, **how)  # fmt: skip
    assert_same(node, feeds, constants)


@pytest.mark.parametrize("how", [{}, {"do_rotary": 1, "local_window_size": 3}])
@pytest.mark.parametrize(
    ("length", "room", "last", "total"),
    [
        (1, 37, [22], 23),
        (41, 50, [40], 41),
        (3, 9, [6], 7),
        (5, 11, [4, 4], 5),
        (1, 13, [7, 0, 12], 13),
        (1, 6, [6, 2], 7),
        (1, 6, [6, 6], 7),
    ],
)
def test_caches_with_room_and_texts_of_any_length(
    length: int, room: int, last: list[int], total: int, how: dict[str, Any]
) -> None:
    """The cache stays as long as it is; rows past those of a text are zeros, as in onnxruntime."""
    depth, batch = 16, len(last)
    feeds = {"x": drawn(1, batch, length, 8 * depth)}
    feeds |= {name: drawn(seed, batch, 2, room, depth) for seed, name in ((2, "pk"), (3, "pv"))}
    feeds |= {"last": np.array(last, np.int32), "total": np.array(total, np.int32)}
    tables = ["cos", "sin"] if how else []
    constants = {name: drawn(4, total, depth // 2) for name in tables}
    node = helper.make_node(
        "GroupQueryAttention", ["x", "", "", "pk", "pv", "last", "total", *tables],
        ["y", "k", "v"], domain="com.microsoft", num_heads=4, kv_num_heads=2, **how
    )  # fmt: skip
    assert_same(node, feeds, constants, cpu=True)


def test_rows_that_a_cache_cannot_hold() -> None:
    feeds = {"x": drawn(1, 1, 1, 128), "pk": drawn(2, 1, 2, 3, 16), "pv": drawn(3, 1, 2, 3, 16)}
    feeds |= {"last": np.array([5], np.int32), "total": np.array(6, np.int32)}
    names = ["x", "", "", "pk", "pv", "last", "total"]
    node = helper.make_node("GroupQueryAttention", names, ["y", "k", "v"], domain="com.microsoft",
                            num_heads=4, kv_num_heads=2)  # fmt: skip
    with (
        InferenceSession(single(node, feeds)) as session,
        pytest.raises(ShapeError, match="total_sequence_length") as caught,
    ):
        session.run(None, feeds)
    assert caught.value.op == "JoinPast"
