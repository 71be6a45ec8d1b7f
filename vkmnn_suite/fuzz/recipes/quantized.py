"""Linear quantization."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.ir import Array
from vkmnn_suite.fuzz.recipes.table import pattern, recipe
from vkmnn_suite.fuzz.recipes.windows import geometry, groups, image
from vkmnn_suite.fuzz.sketch import MICROSOFT, Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, Spread

SCALES = Spread(0.02, 0.5, special=False)
BYTES = {"uint8": Spread(0, 255, special=False), "int8": Spread(-128, 127, special=False)}
ZEROS = {"uint8": Spread(100, 150, special=False), "int8": Spread(-20, 20, special=False)}


def quantized_dtype(s: Sketch, op: str, index: int, domain: str = "") -> str:
    """Return uint8 or int8, rarely 16 bits if the opset has them."""
    if (
        not domain
        and s.since(21)
        and s.chance(0.1)
        and op in ("QuantizeLinear", "DequantizeLinear")
    ):
        return s.rng.choice(["uint16", "int16"])
    return s.rng.choice(["uint8", "int8"])


def _wide(dtype: str) -> Spread:
    return BYTES.get(dtype, Spread(0 if dtype[0] == "u" else -30000, 30000, special=False))


def _zero(dtype: str) -> Spread:
    return ZEROS.get(dtype, Spread(0, 200, special=False))


def _along(s: Sketch, op: str, x: Value, domain: str = "") -> tuple[list[int], dict[str, Any]]:
    """Return the shape of scales, and the attributes that give their axis."""
    if x.rank == 0 or (not domain and not s.since(13)) or s.chance(0.5):
        return s.choose([], [], [1] if x.rank == 1 else []), {}
    axis = s.axis(x.rank)
    if not domain and s.since(21) and s.chance(0.3):
        block = s.choose(1, 2, 3)
        shape = list(x.shape)
        shape[axis] = -(-shape[axis] // block)
        return shape, {"axis": axis, "block_size": block}
    return [x.shape[axis]], {"axis": axis}


@recipe("QuantizeLinear")
def _quantize(s: Sketch, op: str) -> None:
    quantize(s, op, "")


@recipe("QuantizeLinear", domain=MICROSOFT)
def _quantize_microsoft(s: Sketch, op: str) -> None:
    quantize(s, op, MICROSOFT)


def quantize(s: Sketch, op: str, domain: str) -> Value:
    """Add a quantization of a float tensor."""
    dtypes = ["float32"] if domain or not s.since(19) else ["float32", "float32", "float16"]
    x = s.pick(s.rng.choice(dtypes), spread=FINITE)
    shape, attributes = _along(s, op, x, domain)
    scale = s.weight(x.dtype, shape, SCALES)
    dtype = quantized_dtype(s, op, 2, domain)
    zero = s.weight(dtype, shape, _zero(dtype)) if domain or s.chance(0.8) else None
    return s.one(op, x, scale, zero, domain=domain, **attributes)


@recipe("DequantizeLinear")
def _dequantize(s: Sketch, op: str) -> None:
    dequantize(s, op, "")


@recipe("DequantizeLinear", domain=MICROSOFT)
def _dequantize_microsoft(s: Sketch, op: str) -> None:
    dequantize(s, op, MICROSOFT)


def dequantize(s: Sketch, op: str, domain: str) -> Value:
    """Add the inverse."""
    dtype = quantized_dtype(s, op, 0, domain)
    if not domain and s.chance(0.1):
        dtype = "int32"
    x = s.pick(dtype, spread=_wide(dtype))
    shape, attributes = _along(s, op, x, domain)
    scale_dtype = "float16" if not domain and s.since(19) and s.chance(0.2) else "float32"
    scale = s.weight(scale_dtype, shape, SCALES)
    zero = None
    if dtype != "int32" and (domain or s.chance(0.8)):
        zero = s.weight(dtype, shape, _zero(dtype))
    return s.one(op, x, scale, zero, domain=domain, **attributes)


@recipe("DynamicQuantizeLinear")
def _dynamic(s: Sketch, op: str) -> None:
    s.node(op, [s.pick("float32", spread=FINITE)], 3)


def _bytes(
    s: Sketch, dtype: str, shape: list[int] | tuple[int, ...], *, weight: bool = False
) -> Value:
    if weight:
        return s.weight(dtype, shape, BYTES[dtype])
    return s.pick(dtype, shape, spread=BYTES[dtype])


def _scale_and_zero(
    s: Sketch, dtype: str, shape: list[int], spread: Spread = SCALES
) -> list[Value]:
    return [s.weight("float32", shape, spread), s.weight(dtype, shape, ZEROS[dtype])]


@recipe("QLinearMatMul")
def _qlinear_matmul(s: Sketch, op: str) -> None:
    da, db, dy = (s.choose("uint8", "int8") for _ in range(3))
    batch = s.choose([], [], [s.size(3)])
    rows, inner, columns = s.size(7), s.size(7), s.size(7)
    a = _bytes(s, da, [*batch, rows, inner])
    b = _bytes(s, db, s.choose([inner, columns], [*batch, inner, columns]), weight=True)
    by_column = [columns] if s.chance(0.3) else []
    wide = Spread(2.0, 40.0, special=False)
    s.one(op, a, *_scale_and_zero(s, da, []), b, *_scale_and_zero(s, db, by_column),
          *_scale_and_zero(s, dy, [], wide))  # fmt: skip


@recipe("QLinearConv")
def _qlinear_conv(s: Sketch, op: str) -> None:
    dx, dw = s.choose(("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))
    x = image(s, dx, s.choose(1, 2, 2), BYTES[dx])
    kernel, attributes = geometry(s, x.shape[2:])
    group = groups(s, x.shape[1])
    filters = group * s.size(3)
    w = _bytes(s, dw, [filters, x.shape[1] // group, *kernel], weight=True)
    by_channel = [filters] if s.chance(0.4) else []
    bias = s.weight("int32", [filters], Spread(-1000, 1000)) if s.chance(0.5) else None
    scale, zero = _scale_and_zero(s, dw, by_channel)
    if dw == "int8":
        zero = s.parameter(zero.array * 0, dw)
    s.one(op, x, *_scale_and_zero(s, dx, []), w, scale, zero,
          *_scale_and_zero(s, dx, [], Spread(2.0, 40.0, special=False)), bias,
          group=group, **attributes)  # fmt: skip


@recipe("MatMulInteger")
def _matmul_integer(s: Sketch, op: str) -> None:
    da, db = s.choose("uint8", "int8"), s.choose("uint8", "int8")
    batch = s.choose([], [], [s.size(3)])
    rows, inner, columns = s.size(7), s.size(7), s.size(7)
    a = _bytes(s, da, [*batch, rows, inner])
    b = _bytes(s, db, s.choose([inner, columns], [*batch, inner, columns]), weight=True)
    zeros: list[Value | None] = [None, None]
    if s.chance(0.5):
        zeros[0] = s.weight(da, [], ZEROS[da])
    if s.chance(0.5):
        zeros[1] = s.weight(db, s.choose([], [columns]) if b.rank == 2 else [], ZEROS[db])
    s.one(op, a, b, *zeros)


@recipe("ConvInteger")
def _conv_integer(s: Sketch, op: str) -> None:
    x = image(s, "uint8", s.choose(1, 2, 2), BYTES["uint8"])
    kernel, attributes = geometry(s, x.shape[2:])
    group = groups(s, x.shape[1])
    filters = group * s.size(3)
    dw = s.choose("uint8", "int8")
    w = _bytes(s, dw, [filters, x.shape[1] // group, *kernel], weight=True)
    x_zero = s.weight("uint8", [], ZEROS["uint8"]) if s.chance(0.6) else None
    w_zero = s.weight(dw, [], ZEROS[dw]) if s.chance(0.4) else None
    s.one(op, x, w, x_zero, w_zero, group=group, **attributes)


@recipe("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(s: Sketch, op: str) -> None:
    x = s.pick("float32", min_rank=2, max_rank=4, spread=FINITE)
    depth, columns = x.shape[-1], s.size(33)
    bits, block = s.choose(4, 4, 8), s.choose(16, 32, 64)
    blocks = -(-depth // block)
    b = s.source(_codes(s, [columns, blocks, block * bits // 8]), None, 1.0)
    scales = s.source(s.weight("float32", [columns, blocks], SCALES).array, None, 1.0)
    zeros = None
    if s.chance(0.5):
        zeros = s.source(_codes(s, [columns, -(-blocks * bits // 8)]), None, 1.0)
    bias = s.weight("float32", [columns], FINITE) if s.chance(0.4) else None
    s.one(op, x, b, scales, zeros, None, bias, domain=MICROSOFT, K=depth, N=columns, bits=bits,
          block_size=block)  # fmt: skip


@recipe("MatMulBnb4", domain=MICROSOFT)
def _matmul_bnb4(s: Sketch, op: str) -> None:
    x = s.pick("float32", min_rank=2, max_rank=4, spread=FINITE)
    depth, columns, block = x.shape[-1], s.size(33), s.choose(16, 32, 64)
    size = depth * columns
    b = s.source(_codes(s, [-(-size // 2)]), None, 1.0)
    scales = s.source(s.weight("float32", [-(-size // block)], SCALES).array, None, 1.0)
    s.one(op, x, b, scales, domain=MICROSOFT, K=depth, N=columns, block_size=block,
          quant_type=s.choose(0, 1))  # fmt: skip


def _codes(s: Sketch, shape: list[int]) -> Array:
    return s.draws.integers(0, 256, shape, dtype=np.uint8)


@recipe("GatherBlockQuantized", domain=MICROSOFT)
def _gather_block_quantized(s: Sketch, op: str) -> None:
    rows, depth = s.size(33), 2 * s.size(33)
    bits, block = s.choose(4, 8), s.choose(16, 32)
    blocks = -(-depth // block)
    data = s.source(_codes(s, [rows, depth * bits // 8]), None, 1.0)
    scales = s.source(s.weight("float32", [rows, blocks], SCALES).array, None, 1.0)
    zeros = None
    if s.chance(0.5):
        zeros = s.source(_codes(s, [rows, -(-blocks * bits // 8)]), None, 1.0)
    index = s.parameter(s.draws.integers(-rows, rows, s.shape(max_rank=3)), "int64", constant=0.3)
    s.one(op, data, index, scales, zeros, domain=MICROSOFT, bits=bits, block_size=block,
          gather_axis=0, quantize_axis=1)  # fmt: skip


@pattern
def weights_in_integers(s: Sketch) -> None:
    """Add a product by a matrix of integers, one scale for all, by column, or by block along K."""
    x = s.pick("float32", min_rank=2, max_rank=3, spread=FINITE)
    depth, columns = x.shape[-1], s.size(33)
    dtype = s.choose("int8", "uint8")
    w = s.source(s.weight(dtype, [depth, columns], BYTES[dtype]).array, None, 1.0)
    kind = s.choose("tensor", "column", "block" if s.since(21) else "column")
    shape: list[int] = {"tensor": [], "column": [columns], "block": [-(-depth // 32), columns]}[
        kind
    ]
    attributes: dict[str, Any] = {"axis": 1} if kind == "column" and s.since(13) else {}
    if kind == "column" and not s.since(13):
        shape = []
    if kind == "block":
        attributes = {"axis": 0, "block_size": 32}
    scale = s.source(s.weight("float32", shape, SCALES).array, None, 1.0)
    zero = (
        s.source(s.weight(dtype, shape, ZEROS[dtype]).array, None, 1.0) if s.chance(0.6) else None
    )
    s.one("MatMul", x, s.one("DequantizeLinear", w, scale, zero, **attributes))
