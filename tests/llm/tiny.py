"""Small language models with random weights, in folders as tools write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.networks.decoders import Builder

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "language models write one token after the other",
    "naïve café, déjà vu: über 100 %",
    "user: hello\nassistant: hello, what can I do for you?",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, and the peculiarities of its family."""

    layers: int = 2
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    depth: int = 16
    inner: int = 48
    vocabulary: int = 320
    positions: int = 512
    rotary: int = 16
    bias: bool = False  # Qwen2: of queries, keys and values
    softcap: float = 0.0  # Gemma 2: of the logits
    scaled: bool = False  # Gemma: embeddings
    layer_norm: bool = False  # Phi
    gelu: bool = False
    sinks: bool = False  # gpt-oss: of every head
    score_cap: float = 0.0  # Gemma 2: of the scores
    window: int = -1  # gpt-oss and Gemma 2: in every other layer
    packed: bool = True  # of GroupQueryAttention: queries, keys and values by one product
    style: str = ""  # of plain operators: as one of STYLES writes them
    evicting: bool = False  # caches of windows hold no more rows, and widths of heads have a name


STYLES = ("indexed", "triangle", "pairs")
"""Ways of plain exports: masks by indices into the attention mask, protected rows and a scale on
both sides (transformers 4.57 by TorchScript); masks cut from a triangle, and columns by Split;
pairs of columns turned half by half (gpt-oss)."""

LLAMA = Shape()
QWEN2 = Shape(bias=True, kv_heads=1)
GEMMA = Shape(softcap=20.0, scaled=True, gelu=True)
PHI = Shape(rotary=8, layer_norm=True, kv_heads=4, gelu=True)
GPT_OSS = Shape(sinks=True, bias=True, window=20)
GEMMA2 = Shape(softcap=20.0, score_cap=5.0, window=12)
FAMILIES = {"llama": LLAMA, "qwen2": QWEN2, "gemma": GEMMA, "phi": PHI, "gpt-oss": GPT_OSS,
            "gemma2": GEMMA2}  # fmt: skip


def _norm(b: Builder, x: str, name: str, shape: Shape) -> str:
    scale = b.constant(f"{name}.scale", 1 + 0.1 * b.rng.standard_normal(shape.width), np.float32)
    if shape.layer_norm:
        return b.node("LayerNormalization", [x, scale], name, axis=-1)
    square = b.node("Mul", [x, x], f"{name}.square")
    mean = b.node("ReduceMean", [square], f"{name}.mean", axes=[-1], keepdims=1)
    root = b.node("Sqrt", [b.node("Add", [mean, "eps"], f"{name}.plus")], f"{name}.root")
    return b.node("Mul", [b.node("Div", [x, root], f"{name}.unit"), scale], name)


def _mlp(b: Builder, x: str, name: str, shape: Shape) -> str:
    gate = b.linear(x, f"{name}.gate", shape.width, shape.inner)
    if shape.gelu:
        act = b.node("Gelu", [gate], f"{name}.gelu", approximate="tanh")
    else:
        act = b.node("Mul", [gate, b.node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.silu")
    up = b.node("Mul", [act, b.linear(x, f"{name}.up", shape.width, shape.inner)], f"{name}.mix")
    return b.linear(up, f"{name}.down", shape.inner, shape.width)


def _tables(b: Builder, shape: Shape) -> None:
    half = shape.rotary // 2
    angles = np.arange(shape.positions)[:, None] / 10000.0 ** (np.arange(half) / half)
    b.constant("cos_cache", np.cos(angles), np.float32)
    b.constant("sin_cache", np.sin(angles), np.float32)


def _head(b: Builder, x: str, shape: Shape) -> None:
    _logits(b, _norm(b, x, "norm", shape), shape)


def _logits(b: Builder, y: str, shape: Shape) -> None:
    if not shape.softcap:
        b.linear(y, "logits", shape.width, shape.vocabulary)
        return
    y = b.node("Div", [b.linear(y, "head", shape.width, shape.vocabulary), "cap"], "capped")
    b.node("Mul", [b.node("Tanh", [y], "squashed"), "cap"], "logits")


def _start(shape: Shape, seed: int) -> tuple[Builder, str]:
    b = Builder(seed)
    b.constant("eps", 1e-5, np.float32)
    b.constant("cap", shape.softcap or 1.0, np.float32)
    b.constant("root_width", np.sqrt(shape.width), np.float32)
    for name, value in (("a0", [0]), ("a1", [1]), ("a2", [2]), ("a01", [0, 1]), ("a12", [1, 2])):
        b.constant(name, value, np.int64)
    for name, value in (("zero", 0), ("one", 1), ("two", 2)):
        b.constant(name, value, np.int64)
    _tables(b, shape)
    table = b.constant("embed", b.rng.standard_normal((shape.vocabulary, shape.width)), np.float32)
    x = b.node("Gather", [table, "input_ids"], "embedded")
    return b, b.node("Mul", [x, "root_width"], "scaled") if shape.scaled else x


def _projection(b: Builder, x: str, name: str, size: int, shape: Shape) -> str:
    y = b.linear(x, name, shape.width, size)
    if not shape.bias:
        return y
    bias = b.constant(f"{name}.bias", b.rng.standard_normal(size), np.float32)
    return b.node("Add", [y, bias], f"{name}.biased")


# --- as torch and Optimum write them -------------------------------------------------------------


def _turned(b: Builder, x: str, name: str, shape: Shape) -> str:
    if shape.style == "pairs":
        return _turned_in_pairs(b, x, name, shape)
    half, width, depth = shape.rotary // 2, shape.rotary, shape.depth
    for edge in (0, half, width, depth):
        b.constant(f"edge{edge}", [edge], np.int64)
    b.constant("last", [-1], np.int64)

    def cut(start: int, end: int) -> str:
        names = [x, f"edge{start}", f"edge{end}", "last"]
        return b.node("Slice", names, f"{name}.{start}_{end}")

    head = x if width == depth else cut(0, width)
    if shape.style == "triangle":
        first, second = f"{name}.first", f"{name}.second"
        sizes = b.constant("split_sizes", [half, half], np.int64)
        b.nodes.append(helper.make_node("Split", [head, sizes], [first, second], axis=-1))
    else:
        first, second = cut(0, half), cut(half, width)
    swapped = b.node("Concat", [b.node("Neg", [second], f"{name}.neg"), first], f"{name}.swapped",
                     axis=-1)  # fmt: skip
    cos = b.node("Mul", [head, "cos"], f"{name}.cos")
    sin = b.node("Mul", [swapped, "sin"], f"{name}.sin")
    y = b.node("Add", [cos, sin], f"{name}.turned")
    if width == depth:
        return y
    return b.node("Concat", [y, cut(width, depth)], f"{name}.whole", axis=-1)


def _turned_in_pairs(b: Builder, x: str, name: str, shape: Shape) -> str:
    first, second = f"{name}.first", f"{name}.second"
    sizes = b.constant("split_sizes", [shape.depth // 2] * 2, np.int64)
    b.nodes.append(helper.make_node("Split", [x, sizes], [first, second], axis=-1))
    products = {(part, table): b.node("Mul", [part, f"{table}_half"], f"{part}.{table}")
                for part in (first, second) for table in ("cos", "sin")}  # fmt: skip
    low = b.node("Sub", [products[first, "cos"], products[second, "sin"]], f"{name}.low")
    high = b.node("Add", [products[second, "cos"], products[first, "sin"]], f"{name}.high")
    return b.node("Concat", [low, high], f"{name}.turned", axis=-1)


def _angles(b: Builder, shape: Shape) -> None:
    """Add rotary tables from the positions: products with frequencies, then cosines and sines."""
    half = shape.rotary // 2
    b.constant("frequencies", 10000.0 ** (-np.arange(half) / half)[None, :, None], np.float32)
    b.constant("factor", 1.0, np.float32)
    if shape.scaled:  # Gemma: from the length of the caches
        rows = b.node("Unsqueeze", ["rows", "a01"], "position_rows")
    else:
        rows = b.node("Unsqueeze", ["position_ids", "a1"], "position_rows")
    rows = b.node("Cast", [rows], "position_floats", to=TensorProto.FLOAT)
    angles = b.node("MatMul", ["frequencies", rows], "angles")
    angles = b.node("Transpose", [angles], "angle_rows", perm=[0, 2, 1])
    both = b.node("Concat", [angles, angles], "angles_both", axis=-1)
    for part in ("cos", "sin"):
        flat = b.node("Mul", [b.node(part.title(), [both], f"{part}_angles"), "factor"],
                      f"{part}_flat")  # fmt: skip
        b.node("Unsqueeze", [flat, "a1"], part)


def _indexed_mask(b: Builder) -> None:
    """Add the visible keys: rows and columns compared, and the mask by computed indices."""
    b.constant("a3", [3], np.int64)
    b.constant("a0123", [0, 1, 2], np.int64)
    b.constant("a013", [0, 1, 3], np.int64)
    column = b.node("Unsqueeze", ["columns", "a0123"], "columns_4")
    row = b.node("Unsqueeze", ["rows", "a013"], "rows_4")
    b.node("LessOrEqual", [column, row], "causal_4")
    kept = b.node("Cast", ["attention_mask"], "kept", to=TensorProto.BOOL)
    width = b.node("Gather", [b.node("Shape", [kept], "kept_shape"), "a1"], "kept_width")
    first = b.node("Mul", [b.constant("image", [[[[0]]]], np.int64), width], "image_start")
    places = b.node("Add", [column, first], "places")
    flat = b.node("Flatten", [kept], "kept_flat", axis=0)
    flat = b.node("Reshape", [flat, b.constant("whole", [-1], np.int64)], "kept_line")
    b.node("And", ["causal_4", b.node("Gather", [flat, places], "kept_4")], "seen")


def _triangular_mask(b: Builder) -> None:
    """Add the hidden keys: a triangle of the lowest numbers, and the attention mask."""
    low = b.constant("low", np.finfo(np.float32).min, np.float32)
    b.constant("a_one", [1], np.int64)
    sizes = b.node("Concat", [b.node("Unsqueeze", [n, "a0"], f"{n}_1") for n in
                              ("length", "total")], "square", axis=0)  # fmt: skip
    full = b.node("Expand", [low, sizes], "full")
    above = b.node("Trilu", [full, "one"], "above", upper=1)
    row = b.node("Unsqueeze", ["rows", "a1"], "rows_2")
    past = b.node("Greater", [b.node("Unsqueeze", ["columns", "a0"], "columns_2"), row], "later")
    later = b.node("Cast", [past], "later_float", to=TensorProto.FLOAT)
    hidden = b.node("Mul", [b.node("Min", [above, b.node("Mul", [later, low], "later_low")],
                                   "hidden_1"), later], "hidden_2")  # fmt: skip
    kept = b.node("Cast", ["attention_mask"], "kept", to=TensorProto.FLOAT)
    gone = b.node("Mul", [b.node("Sub", [b.constant("kept_one", 1.0, np.float32), kept], "gone"),
                          low], "gone_low")  # fmt: skip
    wide = b.node("Unsqueeze", [hidden, "a01"], "hidden_4")
    b.node("Min", [wide, b.node("Unsqueeze", [gone, "a12"], "gone_4")], "mask")


def _optimum_front(b: Builder, shape: Shape) -> None:
    """Add the mask and the rotary tables, from shapes, the attention mask and the positions."""
    b.constant("hidden", -3.4e38, np.float32)
    b.constant("shown", 0.0, np.float32)
    b.node("Shape", ["past_key_values.0.key"], "past_shape")
    b.node("Gather", ["past_shape", "two"], "past_length")
    b.node("Shape", ["input_ids"], "ids_shape")
    b.node("Gather", ["ids_shape", "one"], "length")
    b.node("Add", ["past_length", "length"], "total")
    b.node("Range", ["past_length", "total", "one"], "rows")
    b.node("Range", ["zero", "total", "one"], "columns")
    if shape.style == "indexed":
        _indexed_mask(b)
        b.constant("hidden", -np.inf, np.float32)
        b.node("Where", ["seen", "shown", "hidden"], "mask")
        _angles(b, shape)
        return
    if shape.style == "triangle":
        _triangular_mask(b)
    else:
        _compared_mask(b)
    for part in ("cos", "sin"):
        rows = b.node("Gather", [f"{part}_cache", "position_ids"], f"{part}_rows")
        b.node("Unsqueeze", [rows, "a1"], f"{part}_half")
        both = b.node("Concat", [rows, rows], f"{part}_both", axis=-1)
        b.node("Unsqueeze", [both, "a1"], part)


def _compared_mask(b: Builder) -> None:
    row, column = (b.node("Unsqueeze", [x, a], f"{x}_2") for x, a in
                   (("rows", "a1"), ("columns", "a0")))  # fmt: skip
    b.node("Unsqueeze", [b.node("LessOrEqual", [column, row], "causal"), "a01"], "causal_4")
    kept = b.node("Cast", ["attention_mask"], "kept", to=TensorProto.BOOL)
    b.node("And", ["causal_4", b.node("Unsqueeze", [kept, "a12"], "kept_4")], "seen")
    b.node("Where", ["seen", "shown", "hidden"], "mask")


def _protected(b: Builder, name: str, q: str, k: str, v: str) -> str:
    """Add attention with a scale on both sides, and zeros where no key is visible."""
    turned = b.node("Transpose", [k], f"{name}.k_turned", perm=[0, 1, 3, 2])
    sides = [b.node("Mul", [x, "root_scale"], f"{x}.scaled") for x in (q, turned)]
    scores = b.node("Add", [b.node("MatMul", sides, f"{name}.qk"), "mask"], f"{name}.masked")
    weights = b.node("Softmax", [scores], f"{name}.weights", axis=-1)
    nothing = b.node("IsNaN", [weights], f"{name}.nothing")
    weights = b.node("Where", [nothing, "shown", weights], f"{name}.kept")
    mixed = b.node("MatMul", [weights, v], f"{name}.mixed")
    turned = b.node("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
    return b.node("Reshape", [turned, "joined"], f"{name}.joined")


def optimum_model(shape: Shape = LLAMA, seed: int = 0) -> onnx.ModelProto:
    """Return a decoder of plain operators, with caches, positions and a mask."""
    b, x = _start(shape, seed)
    _optimum_front(b, shape)
    h, g, d = shape.heads, shape.kv_heads, shape.depth
    b.constant("q_heads", [0, 0, h, d], np.int64)
    b.constant("kv_heads", [0, 0, g, d], np.int64)
    b.constant("joined", [0, 0, h * d], np.int64)
    b.constant("more", [1, 1, h // g, 1, 1], np.int64)
    b.constant("all_heads", [0, h, -1, d], np.int64)
    b.constant("scale", d**-0.5, np.float32)
    b.constant("root_scale", d**-0.25, np.float32)

    def by_head(y: str, name: str, heads: str) -> str:
        cut = b.node("Reshape", [y, heads], f"{name}.cut")
        return b.node("Transpose", [cut], f"{name}.heads", perm=[0, 2, 1, 3])

    for layer in range(shape.layers):
        name = f"layer.{layer}"
        y = _norm(b, x, f"{name}.norm", shape)
        q = by_head(_projection(b, y, f"{name}.q", h * d, shape), f"{name}.q", "q_heads")
        k, v = (by_head(_projection(b, y, f"{name}.{p}", g * d, shape), f"{name}.{p}", "kv_heads")
                for p in "kv")  # fmt: skip
        q, k = (_turned(b, z, f"{name}.{p}", shape) for z, p in ((q, "q"), (k, "k")))
        cached = []
        for part, new in (("key", k), ("value", v)):
            both = [f"past_key_values.{layer}.{part}", new]
            y = b.node("Concat", both, f"present.{layer}.{part}", axis=2)
            if h != g:
                y = b.node("Unsqueeze", [y, "a2"], f"{name}.{part}.apart")
                y = b.node("Expand", [y, "more"], f"{name}.{part}.more")
                y = b.node("Reshape", [y, "all_heads"], f"{name}.{part}.all")
            cached.append(y)
        if shape.style == "indexed":
            y = _protected(b, name, q, *cached)
        else:
            y = b.attend(name, q, *cached, "mask", True)
        x = b.node("Add", [x, b.linear(y, f"{name}.o", h * d, shape.width)], f"{name}.first")
        y = _mlp(b, _norm(b, x, f"{name}.norm2", shape), f"{name}.mlp", shape)
        x = b.node("Add", [x, y], f"{name}.second")
    _head(b, x, shape)
    return _model(b, shape, positions=True)


def merged_model(shape: Shape = LLAMA, seed: int = 0) -> onnx.ModelProto:
    """Return Optimum's merged decoder: an If on use_cache_branch around the decoder."""
    whole = optimum_model(shape, seed)
    inner = whole.graph
    branch = helper.make_graph(list(inner.node), "with_past", [], list(inner.output))
    empty = helper.make_graph(
        [helper.make_node("Constant", [], [f"no.{o.name}"], value=helper.make_tensor(
            "v", TensorProto.FLOAT, [1] * len(o.type.tensor_type.shape.dim), [0.0]))
         for o in inner.output],
        "without", [], [helper.make_tensor_value_info(f"no.{o.name}", TensorProto.FLOAT, None)
                        for o in inner.output],
    )  # fmt: skip
    node = helper.make_node("If", ["use_cache_branch"], [o.name for o in inner.output],
                            name="optimum::if", then_branch=branch, else_branch=empty)  # fmt: skip
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "merged", [*inner.input, flag], list(inner.output),
                              list(inner.initializer))  # fmt: skip
    return helper.make_model(graph, opset_imports=whole.opset_import, ir_version=10)


# --- as onnxruntime-genai's builder writes them --------------------------------------------------


def genai_model(shape: Shape = LLAMA, seed: int = 0) -> onnx.ModelProto:
    """Return a decoder of GroupQueryAttention and normalisation with residuals."""
    b, x = _start(shape, seed)
    h, g, d = shape.heads, shape.kv_heads, shape.depth
    b.constant("minus_one", [-1], np.int64)
    kept = b.node("ReduceSum", ["attention_mask", "a1"], "kept", keepdims=0)
    less = b.node("Sub", [kept, "one"], "kept_less")
    b.node("Cast", [less], "seqlens_k", to=TensorProto.INT32)
    width = b.node("Gather", [b.node("Shape", ["attention_mask"], "mask_shape"), "one"], "columns")
    b.node("Cast", [width], "total", to=TensorProto.INT32)
    scale = b.constant("norm0", np.ones(shape.width), np.float32)
    y = b.node("SimplifiedLayerNormalization", [x, scale], "norm0.out", axis=-1, epsilon=1e-5)
    for layer in range(shape.layers):
        name = f"layer.{layer}"
        if shape.packed:
            qkv = [_projection(b, y, f"{name}.qkv", (h + 2 * g) * d, shape), "", ""]
        else:
            qkv = [_projection(b, y, f"{name}.{part}", heads * d, shape)
                   for part, heads in (("q", h), ("k", g), ("v", g))]  # fmt: skip
        outs = [f"{name}.attn", f"present.{layer}.key", f"present.{layer}.value"]
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        sinks = []
        if shape.sinks:
            sinks = ["", "", b.constant(f"{name}.sinks", b.rng.standard_normal(h), np.float32)]
        b.nodes.append(helper.make_node(
            "GroupQueryAttention", [*qkv, *past, "seqlens_k", "total", "cos_cache",
                                    "sin_cache", *sinks], outs, domain="com.microsoft",
            num_heads=h, kv_num_heads=g, do_rotary=1, softcap=shape.score_cap, scale=d**-0.5,
            sliding_window_cache=1 if _evicts(shape, layer) else None,
            local_window_size=-1 if layer % 2 else shape.window))  # fmt: skip
        y, x = _skip_norm(b, x, b.linear(outs[0], f"{name}.o", h * d, shape.width), name, shape)
        y, x = _skip_norm(b, x, _mlp(b, y, f"{name}.mlp", shape), f"{name}.end", shape)
    _logits(b, y, shape)
    return _model(b, shape, positions=False)


def _evicts(shape: Shape, layer: int) -> bool:
    return shape.evicting and shape.window > 0 and not layer % 2


def _skip_norm(b: Builder, x: str, skip: str, name: str, shape: Shape) -> tuple[str, str]:
    scale = b.constant(f"{name}.skip.scale", np.ones(shape.width), np.float32)
    outs = [f"{name}.skip", f"{name}.sum"]
    b.nodes.append(helper.make_node("SkipSimplifiedLayerNormalization", [x, skip, scale],
                                    [outs[0], "", "", outs[1]], domain="com.microsoft",
                                    epsilon=1e-5))  # fmt: skip
    return outs[0], outs[1]


def _model(b: Builder, shape: Shape, positions: bool) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    caches = [f"{n}.{part}" for n in range(shape.layers) for part in ("key", "value")]
    depth = "kv_cache_dim" if shape.evicting else shape.depth

    def cache(name: str, rows: str) -> Any:
        if _evicts(shape, int(name.split(".")[1])):
            rows = "past_sliding_length"
        return info(name, TensorProto.FLOAT, ["batch_size", shape.kv_heads, rows, depth])

    inputs = [
        info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
        *([info("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"])]
          if positions else []),
        *(cache(f"past_key_values.{c}", "past_sequence_length") for c in caches),
    ]  # fmt: skip
    outputs = [
        info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", shape.vocabulary]),
        *(cache(f"present.{c}", "total_sequence_length") for c in caches),
    ]
    used = {name for node in b.nodes for name in node.input}
    constants = [tensor for name, tensor in b.constants.items() if name in used]
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    if any(node.op_type == "Gelu" for node in b.nodes):
        opsets[0] = helper.make_opsetid("", 20)
        _new_reductions(b)
        graph = helper.make_graph(b.nodes, "decoder", inputs, outputs,
                                  [*constants, b.constants["minus"]])  # fmt: skip
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _new_reductions(b: Builder) -> None:
    """Move axes of reductions into inputs, where opset 18 has them."""
    b.constant("minus", [-1], np.int64)
    for node in b.nodes:
        if node.op_type == "ReduceMean":
            del node.attribute[:]
            node.input.append("minus")
            node.attribute.append(helper.make_attribute("keepdims", 1))


def four_bits(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace products with matrices by MatMulNBits, of 4 bits in blocks of 32."""
    graph = proto.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        name, matrix = node.input[1], numpy_helper.to_array(weights[node.input[1]]).T
        columns, rows = matrix.shape
        blocks = -(-rows // 32)
        padded = np.zeros((columns, blocks * 32), np.float32)
        padded[:, :rows] = matrix
        parts = padded.reshape(columns, blocks, 32)
        scales = np.abs(parts).max(-1) / 7
        codes = (np.clip(np.rint(parts / scales[..., None]), -8, 7) + 8).astype(np.uint8)
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        for suffix, array in (("q", packed), ("s", scales)):
            graph.initializer.append(numpy_helper.from_array(array, f"{name}.{suffix}"))
        inputs = [node.input[0], f"{name}.q", f"{name}.s"]
        sizes = {"K": rows, "N": columns, "bits": 4, "block_size": 32}
        node.CopyFrom(helper.make_node("MatMulNBits", inputs, list(node.output), node.name,
                                       domain="com.microsoft", **sizes))  # fmt: skip
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return proto


def _half(tensor: onnx.TensorProto) -> Any:
    with np.errstate(over="ignore"):  # what hides scores is infinite then
        return numpy_helper.to_array(tensor).astype(np.float16)


def half_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let weights, caches and everything in between be float16."""
    graph, half = proto.graph, TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(_half(tensor), tensor.name))
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = half
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = half
    return proto


def rounded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Round weights to float16."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            wide = _half(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    return proto


# --- folders -------------------------------------------------------------------------------------


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    """Train a tokenizer on a few lines and write it as transformers does."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<eos>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(TEXT, trainer)
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<eos>", **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def optimum_folder(
    folder: Path,
    shape: Shape = LLAMA,
    seed: int = 0,
    make: Callable[[Shape, int], onnx.ModelProto] = optimum_model,
    name: str = "onnx/model.onnx",
) -> Path:
    """Write a folder in the form of Optimum and onnx-community."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(make(shape, seed), str(path))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
              "max_position_embeddings": shape.positions, "eos_token_id": 319}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    write_tokenizer(folder)
    return folder


def genai_folder(folder: Path, shape: Shape = LLAMA, seed: int = 0) -> Path:
    """Write a folder as onnxruntime-genai's builder does."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(genai_model(shape, seed), str(folder / "model.onnx"))
    caches = {"past_key_names": "past_key_values.%d.key",
              "past_value_names": "past_key_values.%d.value"}  # fmt: skip
    decoder = {
        "filename": "model.onnx", "head_size": shape.depth, "hidden_size": shape.width,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "num_hidden_layers": shape.layers,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value"},
    }  # fmt: skip
    model = {"type": "llama", "context_length": shape.positions, "vocab_size": shape.vocabulary,
             "eos_token_id": [319], "decoder": decoder}  # fmt: skip
    whole = {"model": model, "search": {"max_length": shape.positions, "do_sample": False}}
    (folder / "genai_config.json").write_text(json.dumps(whole), "utf-8")
    write_tokenizer(folder)
    return folder


def embedding_folder(folder: Path, width: int = 12) -> Path:
    """Write an encoder: an embedding of every token, mixed with its square."""
    b = Builder(5)
    b.node("Gather", [b.weight("embed", 320, width), "input_ids"], "x")
    b.linear(b.node("Tanh", ["x"], "t"), "last_hidden_state", width, width)
    info = helper.make_tensor_value_info
    inputs = [info(n, TensorProto.INT64, ["b", "s"]) for n in ("input_ids", "attention_mask")]
    outputs = [info("last_hidden_state", TensorProto.FLOAT, ["b", "s", width])]
    graph = helper.make_graph(b.nodes, "encoder", inputs, outputs, list(b.constants.values()))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, str(folder / "model.onnx"))
    config = {"model_type": "bert", "architectures": ["BertModel"]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    write_tokenizer(folder, None)
    return folder


# --- encoder and decoder, as Optimum writes T5 ---------------------------------------------------

_WIDE, _HEADS, _WORDS = 24, 3, 320


def _by_head(b: Builder, x: str, name: str) -> str:
    y = b.linear(x, name, _WIDE, _WIDE)
    return b.node("Transpose", [b.node("Reshape", [y, "cut"], f"{name}.cut")], f"{name}.heads",
                  perm=[0, 2, 1, 3])  # fmt: skip


def _t5_builder(seed: int) -> Builder:
    b = Builder(seed)
    b.constant("cut", [0, 0, _HEADS, _WIDE // _HEADS], np.int64)
    b.constant("heads", [0, 0, _HEADS, _WIDE // _HEADS], np.int64)
    b.constant("joined", [0, 0, _WIDE], np.int64)
    b.constant("scale", (_WIDE // _HEADS) ** -0.5, np.float32)
    b.constant("one", 1.0, np.float32)
    b.constant("low", -1e9, np.float32)
    b.constant("a12", [1, 2], np.int64)
    b.weight("embed", _WORDS, _WIDE)
    return b


def _t5_decoder(seed: int, cached: bool) -> tuple[Builder, list[str]]:
    """Add a step's nodes: with caches, keys and values of the encoder are fed."""
    b = _t5_builder(seed)
    kept = b.node("Cast", ["encoder_attention_mask"], "kept", to=TensorProto.FLOAT)
    hidden = b.node("Mul", [b.node("Sub", ["one", kept], "gone"), "low"], "gone.low")
    mask = b.node("Unsqueeze", [hidden, "a12"], "across")
    x = b.node("Gather", ["embed", "input_ids"], "x")
    q, k, v = (_by_head(b, x, part) for part in "qkv")
    if cached:
        k = b.node("Concat", ["past_key_values.0.decoder.key", k], "own.key", axis=2)
        v = b.node("Concat", ["past_key_values.0.decoder.value", v], "own.value", axis=2)
    own = b.attend("self", q, k, v, "", True)
    x = b.node("Add", [x, own], "x2")
    if cached:  # the same weights, although nothing reads them
        cross = [b.weight(f"cross.{part}.weight", _WIDE, _WIDE) for part in "kv"]
    else:
        cross = [_by_head(b, "encoder_hidden_states", f"cross.{part}") for part in "kv"]
    names = [f"past_key_values.0.encoder.{part}" for part in ("key", "value")]
    y = b.attend("cross", _by_head(b, x, "cross.q"), *(names if cached else cross), mask, True)
    x = b.node("Add", [x, y], "x3")
    b.linear(b.node("Tanh", [x], "end"), "scores", _WIDE, _WORDS)
    return b, ["scores", k, v, *(names if cached else cross)]


def seq2seq_folder(folder: Path, merged: bool = True) -> Path:
    """Write a folder as Optimum does for T5, with one layer."""
    folder.mkdir(parents=True, exist_ok=True)
    info = helper.make_tensor_value_info
    ids = [info(n, TensorProto.INT64, ["b", "e"]) for n in ("input_ids", "attention_mask")]
    b = _t5_builder(1)
    b.linear(b.node("Gather", ["embed", "input_ids"], "x"), "last_hidden_state", _WIDE, _WIDE)
    _save(b.nodes, b, ids, [info("last_hidden_state", TensorProto.FLOAT, ["b", "e", _WIDE])],
          folder / "encoder_model.onnx")  # fmt: skip
    inputs = [info("encoder_attention_mask", TensorProto.INT64, ["b", "e"]),
              info("input_ids", TensorProto.INT64, ["b", "s"]),
              info("encoder_hidden_states", TensorProto.FLOAT, ["b", "e", _WIDE])]  # fmt: skip
    parts = [f"{side}.{part}" for side in ("decoder", "encoder") for part in ("key", "value")]
    depth = _WIDE // _HEADS
    past = [info(f"past_key_values.0.{p}", TensorProto.FLOAT,
                 ["b", _HEADS, f"past_{p[:7]}", depth]) for p in parts]  # fmt: skip
    names = ["logits", *(f"present.0.{p}" for p in parts)]
    outputs = [info("logits", TensorProto.FLOAT, ["b", "s", _WORDS]),
               *(info(f"present.0.{p}", TensorProto.FLOAT, ["b", _HEADS, f"all_{p[:7]}", depth])
                 for p in parts)]  # fmt: skip
    branches = []
    for cached in (True, False):
        b, made = _t5_decoder(2, cached)
        suffix = "_c" if cached else "_n"
        nodes = [*b.nodes, *(helper.make_node("Identity", [one], [f"{name}{suffix}"])
                             for one, name in zip(made, names, strict=True))]  # fmt: skip
        if not merged:
            for node in nodes:
                node.output[:] = [n.removesuffix(suffix) for n in node.output]
            file = "decoder_with_past_model.onnx" if cached else "decoder_model.onnx"
            given = [*inputs[:2], *past] if cached else inputs
            _save(nodes, b, given, outputs, folder / file)
        ends = [info(f"{name}{suffix}", TensorProto.FLOAT, None) for name in names]
        inner = {out for one in b.nodes for out in one.output}
        for node in nodes:  # names of the branches have to differ
            node.output[:] = [f"{n}{suffix}" if n in inner else n for n in node.output]
            node.input[:] = [f"{n}{suffix}" if n in inner else n for n in node.input]
        branches.append(helper.make_graph(nodes, f"branch{suffix}", [], ends))
    if merged:
        node = helper.make_node("If", ["use_cache_branch"], names, then_branch=branches[0],
                                else_branch=branches[1])  # fmt: skip
        flag = info("use_cache_branch", TensorProto.BOOL, [1])
        path = folder / "decoder_model_merged.onnx"
        _save([node], b, [*inputs, *past, flag], outputs, path)
    config = {"model_type": "t5", "decoder_start_token_id": 0, "eos_token_id": 319}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    write_tokenizer(folder, None)
    return folder


def _save(nodes: list[Any], b: Builder, inputs: list[Any], outputs: list[Any], path: Path) -> None:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(b.constants.values()))
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
