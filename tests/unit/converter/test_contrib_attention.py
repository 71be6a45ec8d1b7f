"""Attention of language models in onnxruntime's domain, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

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
