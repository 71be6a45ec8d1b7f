"""Attention of language models in onnxruntime's domain, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from vkmnn.converter.onnx import load_model
from vkmnn.ir import Graph

Build = Callable[..., onnx.ModelProto]
Agree = Callable[..., Graph]
Feeds = dict[str, np.ndarray]

RANDOM = np.random.default_rng(7)


def rand(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def contrib(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


def tables(rows: int, half: int) -> Feeds:
    angles = np.arange(rows)[:, None] / 10.0 ** np.arange(half)
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 5, 24)])
@pytest.mark.parametrize("start", [False, True])
def test_rotary_positions(
    shape: tuple[int, ...], interleaved: int, start: bool, build: Build, agree: Agree
) -> None:
    ids = np.array([4]) if start else RANDOM.integers(0, 13, (2, 5))
    inputs = {"x": rand(*shape), "ids": ids}
    node = contrib("RotaryEmbedding", ["x", "ids", "cos", "sin"], ["y"], interleaved=interleaved)
    agree(build([node], inputs, ["y"], tables(13, 4), com_microsoft=1), inputs)


def test_part_of_every_head_is_turned(build: Build, agree: Agree) -> None:
    inputs = {"x": rand(1, 3, 14), "ids": np.array([[0, 5, 2]])}
    node = contrib("RotaryEmbedding", ["x", "ids", "cos", "sin"], ["y"], num_heads=2,
                   rotary_embedding_dim=4)  # fmt: skip
    agree(build([node], inputs, ["y"], tables(7, 2), com_microsoft=1), inputs)


def grouped(length: int, past: int, packed: bool, depth: int = 16, batch: int = 1) -> Feeds:
    """Return the inputs of 4 query heads that share 2."""
    q, kv = rand(batch, length, 4 * depth), [rand(batch, length, 2 * depth) for _ in range(2)]
    feeds = {"q": np.concatenate([q, *kv], -1)} if packed else {"q": q, "k": kv[0], "v": kv[1]}
    feeds |= {name: rand(batch, 2, past, depth) for name in ("pk", "pv")}
    return feeds | {
        "last": np.full(batch, past + length - 1, np.int32),
        "total": np.array(past + length, np.int32),
    }


@pytest.mark.parametrize(
    ("length", "past", "attributes"),
    [
        (5, 0, {}),
        (1, 6, {}),
        (3, 4, {}),
        (1, 6, {"do_rotary": 1}),
        (5, 0, {"do_rotary": 1, "rotary_interleaved": 1}),
        (1, 9, {"do_rotary": 1, "local_window_size": 4}),
        (6, 0, {"local_window_size": 2}),
        (4, 0, {"softcap": 3.0, "scale": 0.7}),
        (1, 5, {"softcap": 1.5, "do_rotary": 1, "local_window_size": 3}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention(
    length: int, past: int, attributes: dict[str, object], packed: bool, build: Build, agree: Agree
) -> None:
    feeds = grouped(length, past, packed)
    names = ["q", "" if packed else "k", "" if packed else "v", "pk", "pv", "last", "total"]
    rotary = "do_rotary" in attributes
    node = contrib("GroupQueryAttention", [*names, *(["cos", "sin"] if rotary else [])],
                   ["y", "key", "value"], num_heads=4, kv_num_heads=2, **attributes)  # fmt: skip
    constants = {"total": feeds.pop("total"), **(tables(16, 8) if rotary else {})}
    agree(build([node], feeds, ["y", "key", "value"], constants, com_microsoft=1), feeds)


def test_rows_of_a_batch_end_where_they_say(build: Build, agree: Agree) -> None:
    feeds = grouped(1, 6, packed=True, batch=2)
    node = contrib("GroupQueryAttention", ["q", "", "", "pk", "pv", "last", "total", "cos", "sin"],
                   ["y", "key", "value"], num_heads=4, kv_num_heads=2, do_rotary=1)  # fmt: skip
    constants = {"total": feeds.pop("total"), **tables(16, 8)}
    agree(build([node], feeds, ["y", "key", "value"], constants, com_microsoft=1), feeds)


def test_shorter_prompts_are_padded_on_the_right(build: Build, agree: Agree) -> None:
    """What becomes of the padding is not specified; the rows that all texts have are compared."""
    feeds = grouped(5, 0, packed=True, batch=2) | {"last": np.array([4, 2], np.int32)}
    nodes = [
        contrib("GroupQueryAttention", ["q", "", "", "pk", "pv", "last", "total", "cos", "sin"],
                ["all", "key", "value"], num_heads=4, kv_num_heads=2, do_rotary=1),
        helper.make_node("Slice", ["all", "zero", "three", "one"], ["y"]),
    ]  # fmt: skip
    constants = {"total": feeds.pop("total"), **tables(16, 8)}
    constants |= {name: np.array([n]) for name, n in (("zero", 0), ("three", 3), ("one", 1))}
    agree(build(nodes, feeds, ["y", "key", "value"], constants, com_microsoft=1), feeds)


ROOMY = [  # rows that are new, rows of the cache, the last valid key of each text, keys in all
    (1, 8, [4], 5),
    (3, 8, [2], 3),
    (3, 8, [5], 6),
    (1, 8, [7], 8),
    (1, 8, [4], 8),
    (1, 7, [4, 2], 5),
    (1, 7, [6, 0, 3], 7),
    (3, 7, [2, 2], 3),
    (1, 4, [4, 2], 5),
    (1, 4, [4, 4], 5),
]
"""Caches with room to spare, and texts of different lengths behind a past."""


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "local_window_size": 2, "smooth_softmax": 1},
        {"softcap": 1.5},
    ],
)
@pytest.mark.parametrize(("length", "room", "last", "total"), ROOMY)
def test_caches_with_room_and_texts_of_any_length(
    length: int,
    room: int,
    last: list[int],
    total: int,
    attributes: dict[str, object],
    build: Build,
    agree: Agree,
) -> None:
    feeds = grouped(length, room, packed=True, batch=len(last)) | {"last": np.int32(last)}
    names = ["q", "", "", "pk", "pv", "last", "total", "cos", "sin"]
    rotary = "do_rotary" in attributes
    node = contrib("GroupQueryAttention", names[: 9 if rotary else 7], ["y", "key", "value"],
                   num_heads=4, kv_num_heads=2, **attributes)  # fmt: skip
    feeds["total"] = np.array(total, np.int32)
    agree(build([node], feeds, ["y", "key", "value"], tables(16, 8) if rotary else {},
                com_microsoft=1), feeds)  # fmt: skip


PLACES = {"cos": 7, "sin": 8, "ids": 9, "added": 10, "sink": 11, "k_scale": 12, "v_scale": 13,
          "q_norm": 14, "k_norm": 15}  # fmt: skip


def group_node(extra: Feeds, outputs: list[str], **attributes: object) -> onnx.NodeProto:
    names = ["q", "k", "v", "pk", "pv", "last", "total", *[""] * 9]
    for name in extra:
        names[PLACES[name]] = name
    return contrib("GroupQueryAttention", names, outputs, num_heads=4, kv_num_heads=2, **attributes)


@pytest.mark.parametrize(
    ("extra", "attributes"),
    [
        ({"sink": (4,)}, {}),
        ({"sink": (4,)}, {"smooth_softmax": 1, "softcap": 2.0}),
        ({}, {"smooth_softmax": 1}),
        ({"sink": (4,)}, {"local_window_size": 2}),
        ({"added": (1, 4)}, {}),
        ({"added": (1, 1)}, {"softcap": 1.5}),
        ({"added": (1, 4), "sink": (4,)}, {}),
        ({}, {"causal": 0}),
        ({"sink": (4,)}, {"causal": 0}),
    ],
)
@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 6), (3, 4)])
def test_rarer_forms_of_group_query_attention(
    length: int,
    past: int,
    extra: dict[str, tuple[int, ...]],
    attributes: dict[str, object],
    build: Build,
    agree: Agree,
) -> None:
    feeds = grouped(length, past, packed=False)
    more = {name: rand(*shape, *((length, past + length) if name == "added" else ()))
            for name, shape in extra.items()}  # fmt: skip
    node = group_node(more, ["y", "key", "value"], **attributes)
    constants = {"total": feeds.pop("total")}
    agree(build([node], feeds | more, ["y", "key", "value"], constants, com_microsoft=1),
          feeds | more)  # fmt: skip


@pytest.mark.parametrize("told", [1, 2])
@pytest.mark.parametrize("form", [{}, {"softcap": 1.5}, {"sink": (4,)}, {"added": (1, 4, 3, 7)}])
def test_scores_are_told(told: int, form: dict[str, Any], build: Build, agree: Agree) -> None:
    feeds = grouped(3, 4, packed=False)
    more = {name: rand(*shape) for name, shape in form.items() if isinstance(shape, tuple)}
    attributes = {name: value for name, value in form.items() if name not in more}
    node = group_node(more, ["y", "key", "value", "scores"], qk_output=told, **attributes)
    constants = {"total": feeds.pop("total")}
    agree(build([node], feeds | more, ["y", "key", "value", "scores"], constants, com_microsoft=1),
          feeds | more)  # fmt: skip


@pytest.mark.parametrize(
    ("length", "past", "ids"), [(3, 0, [5, 9, 2]), (3, 2, [5, 9, 2]), (1, 4, [7])]
)
def test_given_positions(
    length: int, past: int, ids: list[int], build: Build, agree: Agree
) -> None:
    """Of a prompt's positions, onnxruntime reads the first."""
    feeds = grouped(length, past, packed=False) | {"ids": np.array([ids])}
    node = group_node({"cos": feeds["q"], "sin": feeds["q"], "ids": feeds["ids"]},
                      ["y", "key", "value"], do_rotary=1)  # fmt: skip
    constants = {"total": feeds.pop("total"), **tables(16, 8)}
    agree(build([node], feeds, ["y", "key", "value"], constants, com_microsoft=1), feeds)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize(("length", "past", "total"), [(5, 0, 5), (1, 6, 7), (1, 6, 4)])
def test_caches_in_codes(
    length: int, past: int, total: int, kind: str, bits: int, build: Build, agree: Agree
) -> None:
    feeds = grouped(length, past, packed=False) | {"last": np.int32([total - 1])}
    feeds["total"] = np.array(total, np.int32)
    dtype, width = (np.int8, 16) if bits == 8 else (np.uint8, 8)
    low = np.iinfo(dtype)
    for name in ("pk", "pv"):
        feeds[name] = RANDOM.integers(low.min, low.max + 1, (1, 2, past, width)).astype(dtype)
    shape = (1,) if kind == "PER_TENSOR" else (1, 2, 1, 16)
    scales = {f"{x}_scale": RANDOM.uniform(0.02, 0.3, shape).astype(np.float32) for x in "kv"}
    node = group_node(scales, ["y", "key", "value"], k_quant_type=kind, v_quant_type=kind,
                      kv_cache_bit_width=bits)  # fmt: skip
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = {"y": (1, None), "key": (element, None), "value": (element, None)}
    constants = {"total": feeds.pop("total"), **scales}
    agree(build([node], feeds, outputs, constants, com_microsoft=1), feeds)


def test_queries_and_keys_are_normalised(build: Build, evaluate: Callable[..., Any]) -> None:
    """onnxruntime has it for GPUs alone; here the norms are taken of what goes in."""
    feeds = grouped(3, 2, packed=False)
    norms = {"q_norm": rand(16), "k_norm": rand(16)}
    constants = {"total": feeds.pop("total")}
    node = group_node(norms, ["y", "key", "value"], qk_norm_epsilon=1e-3)
    whole = load_model(build([node], feeds, ["y", "key", "value"], constants | norms,
                             com_microsoft=1))  # fmt: skip
    plain = load_model(build([group_node({}, ["y", "key", "value"])], feeds, ["y", "key", "value"],
                             constants, com_microsoft=1))  # fmt: skip

    def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        parts = x.reshape(*x.shape[:2], -1, 16)
        root = np.sqrt((parts.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3)
        return (parts / root * weight).astype(np.float32).reshape(x.shape)

    by_hand = feeds | {"q": normed(feeds["q"], norms["q_norm"]),
                       "k": normed(feeds["k"], norms["k_norm"])}  # fmt: skip
    actual = evaluate(whole, [feeds[info.name] for info in whole.inputs])
    expected = evaluate(plain, [by_hand[info.name] for info in plain.inputs])
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(past: int, unidirectional: int, build: Build, agree: Agree) -> None:
    feeds = {name: rand(2, 4, 24) for name in "qkv"}
    names = ["q", "k", "v", "bias", "", "added"]
    constants = {"bias": rand(72), "added": rand(1, 3, 4, 4 + past)}
    outputs = ["y"]
    if past:
        feeds |= {"pk": rand(2, 3, past, 8), "pv": rand(2, 3, past, 8)}
        names += ["pk", "pv"]
        outputs += ["key", "value"]
    node = contrib("MultiHeadAttention", names, outputs, num_heads=3,
                   unidirectional=unidirectional)  # fmt: skip
    agree(build([node], feeds, outputs, constants, com_microsoft=1), feeds)


def test_padded_keys_count_little(build: Build, agree: Agree) -> None:
    feeds = {"q": rand(2, 4, 24), "k": rand(2, 5, 24), "v": rand(2, 5, 24)}
    feeds["kept"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    node = contrib("MultiHeadAttention", ["q", "k", "v", "", "kept"], ["y"], num_heads=3, scale=0.5)
    agree(build([node], feeds, ["y"], com_microsoft=1), feeds)


def test_keys_of_another_network_come_by_head(build: Build, agree: Agree) -> None:
    feeds = {"q": rand(1, 2, 24), "k": rand(1, 3, 6, 8), "v": rand(1, 3, 6, 8)}
    node = contrib("MultiHeadAttention", ["q", "k", "v"], ["y"], num_heads=3)
    agree(build([node], feeds, ["y"], com_microsoft=1), feeds)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize(
    "mask",
    [
        np.array([2, 5]),
        np.array([2, 5, 0, 5, 10, 0, 5, 10]),
        np.array([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]),
        np.eye(5) + RANDOM.integers(0, 2, (2, 5, 5)) > 0,
    ],
    ids=lambda mask: str(mask.shape),
)
def test_kinds_of_padding(
    mask: np.ndarray, unidirectional: int, build: Build, agree: Agree
) -> None:
    feeds = {"q": rand(2, 5, 24), "k": rand(2, 5, 24), "v": rand(2, 5, 24)}
    feeds["kept"] = mask.astype(np.int32)
    node = contrib("MultiHeadAttention", ["q", "k", "v", "", "kept"], ["y"], num_heads=3,
                   unidirectional=unidirectional)  # fmt: skip
    agree(build([node], feeds, ["y"], com_microsoft=1), feeds)


@pytest.mark.parametrize("biased", [False, True])
def test_cross_attention_by_head(biased: bool, build: Build, agree: Agree) -> None:
    feeds = {"q": rand(2, 3, 24), "k": rand(2, 3, 5, 8), "v": rand(2, 3, 5, 8)}
    node = contrib("MultiHeadAttention", ["q", "k", "v", *(["bias"] if biased else [])],
                   ["y", "", "", "scores"], num_heads=3)  # fmt: skip
    constants = {"bias": rand(72)} if biased else {}
    agree(build([node], feeds, ["y", "scores"], constants, com_microsoft=1), feeds)


@pytest.mark.parametrize("packed", ["qkv", "kv"])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_operands(
    packed: str, biased: bool, build: Build, evaluate: Callable[..., Any]
) -> None:
    """onnxruntime has them for GPUs alone; they are the same as operands apart."""
    apart = {"q": rand(2, 5, 24), "k": rand(2, 5, 24), "v": rand(2, 5, 24)}
    bias = ["bias"] if biased else []
    constants = {"bias": rand(72)} if biased else {}
    both = np.stack([apart[name].reshape(2, 5, 3, 8) for name in packed], 3)
    feeds = {"x": both} if packed == "qkv" else {"q": apart["q"], "x": both}
    names = ["x", "", ""] if packed == "qkv" else ["q", "x", ""]
    results = []
    for given, inputs in ((feeds, names), (apart, ["q", "k", "v"])):
        node = contrib("MultiHeadAttention", [*inputs, *bias], ["y"], num_heads=3)
        graph = load_model(build([node], given, ["y"], constants, com_microsoft=1))
        results.append(evaluate(graph, [given[info.name] for info in graph.inputs])[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize(
    ("mask", "past"),
    [
        (None, 0),
        (None, 4),
        (np.array([2, 3]), 0),
        (np.array([2, 3, 0, 1]), 0),
        (np.array([2, 5, 0, 3, 6, 0, 5, 10]), 0),
        (np.array([[1, 0, 1], [1, 1, 0]]), 0),
        (np.eye(2, 7) + RANDOM.integers(0, 2, (2, 7)) > 0, 4),
        (np.eye(3) + RANDOM.integers(0, 2, (2, 3, 3)) > 0, 0),
    ],
)
def test_attention_with_its_product(
    mask: np.ndarray | None, past: int, unidirectional: int, build: Build, agree: Agree
) -> None:
    feeds = {"x": rand(2, 3, 10)}
    names = ["x", "w", "b", "", "", ""]
    if mask is not None:
        feeds["mask"], names[3] = mask.astype(np.int32), "mask"
    if past:
        feeds["past"], names[4] = rand(2, 2, 3, past, 8), "past"
    else:
        feeds["added"], names[5] = rand(2, 3, 3, 3), "added"
    node = contrib("Attention", names, ["y", "present"], num_heads=3,
                   unidirectional=unidirectional)  # fmt: skip
    constants = {"w": rand(10, 72), "b": rand(72)}
    agree(build([node], feeds, ["y", "present"], constants, com_microsoft=1), feeds)


def test_values_of_another_width(build: Build, agree: Agree) -> None:
    feeds = {"x": rand(2, 3, 10)}
    node = contrib("Attention", ["x", "w", "b"], ["y"], num_heads=3, qkv_hidden_sizes=[24, 24, 12])
    agree(build([node], feeds, ["y"], {"w": rand(10, 60), "b": rand(60)}, com_microsoft=1), feeds)


def test_layers_share_masks_and_positions(build: Build, agree: Agree) -> None:
    """Those of other windows, and of other numbers of rows, have their own."""
    constants = tables(16, 8) | {"total": np.array(5, np.int32)}
    feeds = {"last": np.array([4], np.int32)}
    nodes, outputs = [], []
    for number, (rows, window) in enumerate([(5, -1), (5, -1), (5, 2), (2, -1)]):
        feeds |= {f"x{number}": rand(1, rows, 128), f"k{number}": rand(1, 2, 5 - rows, 16),
                  f"v{number}": rand(1, 2, 5 - rows, 16)}  # fmt: skip
        names = [f"x{number}", "", "", f"k{number}", f"v{number}", "last", "total", "cos", "sin"]
        outs = [f"{name}{number}" for name in ("y", "key", "value")]
        nodes.append(contrib("GroupQueryAttention", names, outs, num_heads=4, kv_num_heads=2,
                             do_rotary=1, local_window_size=window))  # fmt: skip
        outputs += outs
    graph = agree(build(nodes, feeds, outputs, constants, com_microsoft=1), feeds)
    assert sum(op.type == "Select" for op in graph.ops) == 3
    assert sum(op.type == "Gather" for op in graph.ops) == 4
