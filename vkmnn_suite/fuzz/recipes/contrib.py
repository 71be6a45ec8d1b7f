"""onnxruntime's operators that occur in optimised exports."""

from __future__ import annotations

import numpy as np

from vkmnn_suite.fuzz.recipes.attention import linear_attention
from vkmnn_suite.fuzz.recipes.matrix import gemm
from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.recipes.windows import causal_convolution
from vkmnn_suite.fuzz.sketch import MICROSOFT, Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, UNIT


@recipe("Gelu", domain=MICROSOFT)
def _gelu(s: Sketch, op: str) -> None:
    s.one(op, s.pick("float32", spread=FINITE), domain=MICROSOFT)


@recipe("QuickGelu", domain=MICROSOFT)
def _quick_gelu(s: Sketch, op: str) -> None:
    x = s.pick("float32", spread=FINITE)
    s.one(op, x, domain=MICROSOFT, alpha=s.choose(None, 1.0, 1.702, 0.5))


@recipe("BiasGelu", "FastGelu", domain=MICROSOFT)
def _bias_gelu(s: Sketch, op: str) -> None:
    x = s.pick("float32", min_rank=1, spread=FINITE)
    bias = s.weight(x.dtype, x.shape[-1:], FINITE)
    s.one(op, x, bias if op == "BiasGelu" or s.chance(0.6) else None, domain=MICROSOFT)


@recipe("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(s: Sketch, op: str) -> None:
    a = s.pick("float32", min_rank=2, max_rank=4, spread=FINITE)
    trans_a, trans_b = s.choose(None, 0, 1), s.choose(None, 0, 1)
    inner = a.shape[-2] if trans_a else a.shape[-1]
    pair = [inner, s.size(17)]
    batch = s.choose([], s.broadcast(a.shape[:-2]))
    b = s.weight(a.dtype, [*batch, *(pair[::-1] if trans_b else pair)], FINITE)
    alpha = s.choose(None, 0.5, -2.0)
    s.one(op, a, b, domain=MICROSOFT, transA=trans_a, transB=trans_b, alpha=alpha)


@recipe("FusedGemm", domain=MICROSOFT)
def _fused_gemm(s: Sketch, op: str) -> None:
    parameters = {
        "LeakyRelu": {"activation_alpha": 0.2},
        "Elu": {"activation_alpha": 0.7},
        "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
    }
    kind = s.choose("Relu", "Tanh", "Sigmoid", *parameters)
    more = parameters.get(kind, {})
    gemm(s, op, "float32", True, domain=MICROSOFT, activation=kind, **more)


@recipe("LinearAttention", domain=MICROSOFT)
def _linear_attention(s: Sketch, op: str) -> None:
    linear_attention(s, op, domain=MICROSOFT)


@recipe("CausalConvWithState", domain=MICROSOFT)
def _causal_convolution(s: Sketch, op: str) -> None:
    causal_convolution(s, op, "float32", domain=MICROSOFT)


@recipe("Trilu", domain=MICROSOFT)
def _trilu(s: Sketch, op: str) -> None:
    x = s.pick(s.choose("float32", "int64"), min_rank=2)
    k = s.parameter(s.rng.randint(-4, 4)) if s.chance(0.6) else None
    s.one(op, x, k, domain=MICROSOFT, upper=s.choose(None, 0, 1))


@recipe("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_norm(s: Sketch, op: str) -> None:
    shape = [s.choose(1, 2, 3), s.size(7), s.size(17)]
    x, skip = (s.pick("float32", shape, spread=FINITE) for _ in range(2))
    hidden = shape[-1:]
    inputs = [x, skip, s.weight(x.dtype, hidden, FINITE)]
    if op == "SkipLayerNormalization":
        inputs.append(s.weight(x.dtype, hidden, FINITE))
    if s.chance(0.5):
        inputs.append(s.weight(x.dtype, hidden, FINITE))
    s.node(op, inputs, 1, domain=MICROSOFT, epsilon=s.choose(None, 1e-5, 1e-3))


@recipe("RotaryEmbedding", domain=MICROSOFT)
def _rotary(s: Sketch, op: str) -> None:
    batch, heads, length, half = s.choose(1, 2), s.choose(1, 3), s.size(5), s.choose(1, 2, 4)
    flat = s.chance(0.4)
    shape = [batch, length, heads * 2 * half] if flat else [batch, heads, length, 2 * half]
    x = s.pick("float32", shape, spread=FINITE)
    rows = length + s.size(5)
    positions = s.draws.integers(0, rows, [batch, length])
    if s.chance(0.3):
        positions = s.draws.integers(0, rows - length + 1, [1])
    tables = [s.weight("float32", [rows, half], UNIT) for _ in range(2)]
    s.one(
        op,
        x,
        s.parameter(positions, constant=0.4),
        *tables,
        domain=MICROSOFT,
        interleaved=s.choose(None, 0, 1),
    )


@recipe("GroupQueryAttention", domain=MICROSOFT)
def _group_query_attention(s: Sketch, op: str) -> None:
    batch, shared, kv_heads, depth = s.choose(1, 2), s.choose(1, 2, 3), s.choose(1, 2), 16
    past = s.choose(0, s.size(6))
    length = 1 if past and batch > 1 else s.size(6)  # onnxruntime supports no others
    heads, rotary = kv_heads * shared, s.chance(0.5)
    widths = [heads * depth, kv_heads * depth, kv_heads * depth]
    parts: list[Value | None] = [s.pick("float32", [batch, length, width], spread=UNIT)
                                 for width in widths]  # fmt: skip
    if s.chance(0.5):
        parts = [s.pick("float32", [batch, length, sum(widths)], spread=UNIT), None, None]
    room = past + s.choose(0, 0, s.size(6))
    caches = [s.pick("float32", [batch, kv_heads, room, depth], spread=UNIT) for _ in range(2)]
    shorter = s.choose(0, past) if past else 0
    lasts = [past + length - 1, past - shorter + length - 1][:batch]
    last = s.parameter(lasts, "int32", constant=0.5)
    total = s.parameter(past + length, "int32", constant=1.0)
    tables = [s.weight("float32", [past + length, depth // 2], UNIT) for _ in range(2)]
    rest: list[Value | None] = list(tables) if rotary else []
    if s.chance(0.3):
        rest += [None] * (4 - len(rest)) + [s.weight("float32", [heads], UNIT)]
    s.node(
        op,
        [*parts, *caches, last, total, *rest],
        3,
        domain=MICROSOFT,
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=int(rotary),
        rotary_interleaved=s.choose(0, 1) if rotary else None,
        local_window_size=s.choose(None, None, s.size(6)),
        softcap=s.choose(None, None, 2.0),
        smooth_softmax=s.choose(None, None, 1) if len(rest) < 5 else None,
        scale=s.choose(None, 0.5),
    )


@recipe("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(s: Sketch, op: str) -> None:
    batch, heads, length, keys, depth = s.choose(1, 2), s.choose(1, 3), s.size(6), s.size(6), 8
    width = heads * depth
    inputs: list[Value | None] = [
        s.pick("float32", [batch, rows, width], spread=UNIT) for rows in (length, keys, keys)
    ]
    inputs.append(s.weight("float32", [3 * width], UNIT) if s.chance(0.5) else None)
    inputs.append(None)
    inputs.append(s.weight("float32", [1, heads, length, keys], UNIT) if s.chance(0.5) else None)
    s.one(op, *inputs, domain=MICROSOFT, num_heads=heads, scale=s.choose(None, 0.5))


@recipe("Attention", domain=MICROSOFT)
def _attention(s: Sketch, op: str) -> None:
    batch, heads, length, depth = s.choose(1, 2), s.choose(1, 3), s.size(6), 8
    x = s.pick("float32", [batch, length, s.size(9)], spread=UNIT)
    width = heads * depth
    inputs: list[Value | None] = [
        x,
        s.weight("float32", [x.shape[-1], 3 * width], UNIT),
        s.weight("float32", [3 * width], UNIT),
    ]
    if s.chance(0.5):
        kept = s.draws.integers(1, length + 1, [batch])
        inputs.append(s.parameter(kept, "int32", constant=0.5))
    s.one(op, *inputs, domain=MICROSOFT, num_heads=heads, scale=s.choose(None, 0.5),
          unidirectional=s.choose(None, 0, 1))  # fmt: skip


@recipe("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def _decoder_attention(s: Sketch, op: str) -> None:
    """Its caches have room, or it is of another network's keys and values."""
    batch, heads, room, depth = s.choose(1, 2), s.choose(1, 3), s.size(9), 8
    row = [batch, 1, heads * depth]
    cross = s.chance(0.4)
    sizes = [row, *[[batch, heads, room, depth] if cross else row] * 2]
    inputs: list[Value | None] = [s.pick("float32", size, spread=UNIT) for size in sizes]
    place = room - 1 if cross else int(s.draws.integers(0, room))
    masked = s.draws.integers(0, 2, [batch, place + 1]) | (np.arange(place + 1) == place)
    inputs.append(s.parameter(masked, "int32", constant=0.5) if s.chance(0.5) else None)
    inputs.append(None)
    if not cross:
        caches = [s.pick("float32", [batch, heads, room, depth], spread=UNIT) for _ in range(2)]
        inputs += [*caches, s.parameter([place], "int32", constant=0.5)]
    s.node(op, inputs, 1 if cross else 3, domain=MICROSOFT, num_heads=heads,
           scale=s.choose(None, 0.5), past_present_share_buffer=0 if cross else 1)  # fmt: skip


@recipe("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_norm(s: Sketch, op: str) -> None:
    batch, length, width, words = s.choose(1, 2), s.size(6), s.size(9), s.size(7)
    ids = s.parameter(s.draws.integers(0, words, [batch, length]), "int32", constant=0.3)
    tables = [s.weight("float32", [rows, width], UNIT) for rows in (words, length + 2)]
    weights = [s.weight("float32", [width], FINITE) for _ in range(2)]
    s.node(op, [ids, None, *tables, None, *weights], 1, domain=MICROSOFT,
           epsilon=s.choose(1e-5, 1e-3))  # fmt: skip


@recipe("MoE", domain=MICROSOFT)
def _mixture(s: Sketch, op: str) -> None:
    tokens, experts, width, inner = s.size(5), s.choose(2, 3, 5), s.size(9), s.size(9)
    kind = s.choose("relu", "gelu", "silu", "identity", "swiglu")
    double = 2 if kind == "swiglu" else 1
    order = s.draws.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)
    inputs: list[Value | None] = [
        s.pick("float32", [tokens, width], spread=UNIT),
        s.parameter(order.astype(np.float32) / 2, "float32", constant=0.3),
        s.weight("float32", [experts, double * inner, width], UNIT),
        s.weight("float32", [experts, double * inner], UNIT) if s.chance(0.5) else None,
        s.weight("float32", [experts, width, inner], UNIT),
    ]
    s.one(op, *inputs, domain=MICROSOFT, k=s.rng.randint(1, experts), activation_type=kind,
          swiglu_fusion=1 if double == 2 else None,
          normalize_routing_weights=s.choose(None, 1))  # fmt: skip


@recipe("QMoE", domain=MICROSOFT)
def _coded_mixture(s: Sketch, op: str) -> None:
    tokens, experts, width, inner = s.size(5), s.choose(2, 3), 32, s.choose(32, 64)
    order = s.draws.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)

    def codes(columns: int, depth: int) -> list[Value]:
        packed = s.draws.integers(0, 256, [experts, columns, depth // 2])
        scales = s.draws.uniform(0.001, 0.05, [experts, columns, depth // 32])
        return [s.parameter(packed, "uint8", constant=1.0),
                s.parameter(scales.astype(np.float32), "float32", constant=1.0)]  # fmt: skip

    first, second = codes(2 * inner, width), codes(width, inner)
    s.one(op, s.pick("float32", [tokens, width], spread=UNIT),
          s.parameter(order.astype(np.float32) / 2, "float32", constant=0.3),
          *first, None, *second, domain=MICROSOFT, k=s.rng.randint(1, experts),
          activation_type="swiglu", swiglu_fusion=1, expert_weight_bits=4, block_size=32,
          weights_prepacked=0)  # fmt: skip
