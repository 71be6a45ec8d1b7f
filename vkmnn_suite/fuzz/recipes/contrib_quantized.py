"""onnxruntime's quantised operators."""

from __future__ import annotations

from typing import Any

from vkmnn_suite.fuzz.recipes.quantized import BYTES, SCALES, ZEROS
from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.recipes.windows import geometry, image
from vkmnn_suite.fuzz.sketch import MICROSOFT, Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, Spread

_WIDE = Spread(2.0, 40.0, special=False)


def _unit(s: Sketch, dtype: str, spread: Spread = SCALES) -> list[Value]:
    """Return a scale and a zero point, both constant."""
    scale = s.source(s.weight("float32", [], spread).array, None, 1.0)
    return [scale, s.source(s.weight(dtype, [], ZEROS[dtype]).array, None, 1.0)]


def _bytes(s: Sketch, dtype: str, shape: Any = None, **limits: Any) -> Value:
    return s.pick(dtype, shape, spread=BYTES[dtype], **limits)


@recipe("QLinearAdd", domain=MICROSOFT)
@recipe("QLinearMul", domain=MICROSOFT)
def _binary(s: Sketch, op: str) -> None:
    dtype = s.choose("uint8", "int8")
    a = _bytes(s, dtype, max_rank=4)
    shape = s.choose(list(a.shape), list(a.shape[a.rank // 2 :]), [1] * a.rank)
    b = _bytes(s, dtype, shape)
    s.one(op, a, *_unit(s, dtype), b, *_unit(s, dtype), *_unit(s, dtype), domain=MICROSOFT)


@recipe("QLinearSigmoid", domain=MICROSOFT)
@recipe("QLinearLeakyRelu", domain=MICROSOFT)
def _unary(s: Sketch, op: str) -> None:
    dtype = s.choose("uint8", "int8")
    x = _bytes(s, dtype, max_rank=4)
    attributes = {"alpha": 0.125} if op == "QLinearLeakyRelu" and s.chance(0.5) else {}
    s.one(op, x, *_unit(s, dtype), *_unit(s, dtype), domain=MICROSOFT, **attributes)


@recipe("QLinearConcat", domain=MICROSOFT)
def _concat(s: Sketch, op: str) -> None:
    dtype = s.choose("uint8", "int8")
    x = _bytes(s, dtype, min_rank=1, max_rank=4)
    parts: list[Value] = []
    for _ in range(s.choose(1, 2, 3)):
        parts += [_bytes(s, dtype, list(x.shape)), *_unit(s, dtype)]
    s.one(op, *_unit(s, dtype), *parts, domain=MICROSOFT, axis=s.axis(x.rank))


@recipe("QLinearAveragePool", domain=MICROSOFT)
@recipe("QLinearGlobalAveragePool", domain=MICROSOFT)
def _pool(s: Sketch, op: str) -> None:
    dtype = s.choose("uint8", "int8")
    x = image(s, dtype, 2, BYTES[dtype])
    attributes: dict[str, Any] = {"channels_last": 0}
    if op == "QLinearAveragePool":
        kernel, attributes = geometry(s, x.shape[2:], dilate=False)
        attributes.pop("dilations", None)
        attributes["kernel_shape"] = kernel
    s.one(op, x, *_unit(s, dtype), *_unit(s, dtype), domain=MICROSOFT, **attributes)


@recipe("QLinearWhere", domain=MICROSOFT)
def _where(s: Sketch, op: str) -> None:
    dtype = s.choose("uint8", "int8")
    x = _bytes(s, dtype, max_rank=4)
    condition = s.pick("bool", list(x.shape))
    other = _bytes(s, dtype, list(x.shape))
    s.one(op, condition, x, *_unit(s, dtype), other, *_unit(s, dtype), *_unit(s, dtype),
          domain=MICROSOFT)  # fmt: skip


@recipe("QGemm", domain=MICROSOFT)
def _gemm(s: Sketch, op: str) -> None:
    da, db = s.choose(("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))
    m, k, n = s.size(7), s.size(13), s.size(7)
    a_down, b_down = s.choose(0, 1), s.choose(0, 1)
    a = _bytes(s, da, [k, m] if a_down else [m, k])
    b = s.source(s.weight(db, [n, k] if b_down else [k, n], BYTES[db]).array, None, 1.0)
    c = s.source(s.weight("int32", [n], Spread(-900, 900)).array, None, 1.0)
    made = _unit(s, da, _WIDE) if s.chance(0.7) else [None, None]
    s.one(op, a, *_unit(s, da), b, *_unit(s, db), c if s.chance(0.7) else None, *made,
          domain=MICROSOFT, transA=a_down, transB=b_down)  # fmt: skip


@recipe("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(s: Sketch, op: str) -> None:
    da, db = s.choose("uint8", "int8"), s.choose("uint8", "int8")
    rows, inner, columns = s.size(7), s.size(13), s.size(7)
    a = _bytes(s, da, [rows, inner])
    b = s.source(s.weight(db, [inner, columns], BYTES[db]).array, None, 1.0)
    by_column = [columns] if s.chance(0.4) else []
    scale = s.weight("float32", by_column, SCALES)
    zeros = [s.weight(da, [], ZEROS[da]), s.weight(db, by_column, ZEROS[db])]
    bias = s.weight("float32", [columns], FINITE) if s.chance(0.5) else None
    s.one(op, a, b, s.weight("float32", [], SCALES), scale, *zeros, bias, domain=MICROSOFT)


@recipe("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_quantize_matmul(s: Sketch, op: str) -> None:
    a = s.pick("float32", min_rank=2, max_rank=3, spread=FINITE)
    columns, db = s.size(7), s.choose("uint8", "int8")
    b = s.source(s.weight(db, [a.shape[-1], columns], BYTES[db]).array, None, 1.0)
    scale, zero = s.weight("float32", [], SCALES), s.weight(db, [], ZEROS[db])
    bias = s.weight("float32", [columns], FINITE) if s.chance(0.5) else None
    s.one(op, a, b, scale, zero, bias, domain=MICROSOFT)


@recipe("QAttention", domain=MICROSOFT)
def _attention(s: Sketch, op: str) -> None:
    batch, heads, length, depth, db = s.choose(1, 2), s.choose(1, 3), s.size(6), 8, s.choose(*BYTES)
    a = s.pick("uint8", [batch, length, s.size(9)], spread=BYTES["uint8"])
    width = 3 * heads * depth
    b = s.source(s.weight(db, [a.shape[-1], width], BYTES[db]).array, None, 1.0)
    few = s.choose([], [width])
    inputs: list[Value | None] = [
        *(a, b, s.weight("float32", [width], FINITE)),
        *(s.weight("float32", [], SCALES), s.weight("float32", few, SCALES)),
        s.parameter(s.draws.integers(1, length + 1, [batch]), "int32", constant=0.5)
        if s.chance(0.5)
        else None,
        *(
            s.weight("uint8", [], ZEROS["uint8"]),
            s.source(s.weight(db, few, ZEROS[db]).array, None, 1.0),
        ),
    ]
    s.one(op, *inputs, domain=MICROSOFT, num_heads=heads, unidirectional=s.choose(None, 0, 1))


@recipe("QEmbedLayerNormalization", domain=MICROSOFT)
def _embed_norm(s: Sketch, op: str) -> None:
    batch, length, width, words = s.choose(1, 2), s.size(6), s.size(9), s.size(7)
    ids = s.parameter(s.draws.integers(0, words, [batch, length]), "int32", constant=0.3)
    shapes = ([words, width], [length + 2, width], [width], [width])
    words_of, places, gamma, beta = (s.weight("uint8", shape, BYTES["uint8"]) for shape in shapes)
    scales = [s.weight("float32", [], SCALES) for _ in range(4)]
    zeros = [s.weight("uint8", [], ZEROS["uint8"]) for _ in range(4)]
    inputs = [ids, None, words_of, places, None, gamma, beta, None]
    for some in (scales, zeros):
        inputs += [*some[:2], None, *some[2:]]
    s.node(op, inputs, 2, domain=MICROSOFT)
