"""onnxruntime's operators on weights of few bits."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.weights import UNIT, add_codes, float_zeros, split_zeros
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Activation, Array, DType
from vkmnn.ir.codes import pack_codes, unpack_codes
from vkmnn.ir.ops import GatherNBitsAttrs, MatMulAttrs

_MICROSOFT = "com.microsoft"
_FLOATS = (DType.FLOAT32, DType.FLOAT16)
_BITS = (2, 4, 8)
_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
_BNB4 = (np.array((*_FP4, *(-value for value in _FP4)), np.float32), np.array(_NF4, np.float32))
"""Values of bitsandbytes' 4-bit types, by `quant_type`."""


def _constant(node: NodeContext, index: int, what: str) -> Array:
    """Return an input that is constant, or follows from constants: tied tables are reshaped."""
    value = node.known_value(node.input(index))
    if value is None:
        raise node.unsupported(f"its {what} are not constant")
    return value


def _sized(node: NodeContext, array: Array, shape: tuple[int, ...], what: str) -> Array:
    if array.size != prod(shape):
        raise node.unsupported(f"{array.size} {what}, {prod(shape)} are needed")
    return array.reshape(shape)


@converter("MatMulNBits", domain=_MICROSOFT)
def _matmul_n_bits(node: NodeContext) -> None:
    """Y = A · dequant(B)ᵀ + bias."""
    depth, columns = node.int("K"), node.int("N")
    bits, block = node.int("bits", 4), node.int("block_size")
    if min(depth, columns) < 1 or bits not in _BITS or block < 16 or block & (block - 1):
        raise node.unsupported(f"K {depth}, N {columns}, {bits} bits in blocks of {block}")
    if node.int("weight_prepacked", 0):
        raise node.unsupported("weight_prepacked is a layout of another device")
    if node.dtype(node.input(0)) not in _FLOATS:
        raise node.unsupported(f"products of {node.dtype(node.input(0)).value}")
    blocks = -(-depth // block)
    codes = _constant(node, 1, "weights")
    if codes.dtype != np.uint8:
        raise node.unsupported(f"weights are {codes.dtype}, not uint8")
    packed = _sized(node, codes, (columns, blocks, block * bits // 8), "bytes of weights")
    scales = _sized(node, _constant(node, 2, "scales"), (columns, blocks), "scales")
    _check_groups(node, depth, block)
    zeros = None
    if node.input(3):
        zeros = _constant(node, 3, "zero points")
        if zeros.dtype == np.uint8:
            zeros = split_zeros(node, zeros, columns, blocks, bits)
        else:
            zeros = float_zeros(node, zeros, (columns, blocks), bits)
    if bits == 2:
        packed = pack_codes(unpack_codes(packed, 2), 4)
        zeros = np.full((columns, blocks), 2, np.uint8) if zeros is None else zeros
    found = add_codes(node, packed, scales, zeros, max(bits, 4), depth)
    attrs = found.attrs
    if node.has("gates"):  # vkmnn's own: of every four columns, two gate the others
        act = _GATES[node.choice("gates", "silu", tuple(_GATES))]
        attrs = replace(attrs, gated=True, activation=Activation(act))
    node.finish("MatMulNBits", found.inputs(node.input(0), node.input(5)), attrs)


_GATES = {"silu": "SILU", "gelu_tanh": "GELU_TANH"}


@converter("MatMulBnb4", domain=_MICROSOFT)
def _matmul_bnb4(node: NodeContext) -> None:
    """Y = A · dequant(B)ᵀ; the 4-bit types are not linear, so B becomes floats."""
    depth, columns = node.int("K"), node.int("N")
    block, kind = node.int("block_size"), node.int("quant_type")
    if min(depth, columns, block) < 1 or kind not in (0, 1):
        raise node.unsupported(f"K {depth}, N {columns}, blocks of {block}, quant_type {kind}")
    if not node.int("transB", 1) or node.int("training_mode", 0):
        raise node.unsupported("only weights for inference, stored by columns, are supported")
    dtype = node.dtype(node.input(0))
    if dtype not in _FLOATS:
        raise node.unsupported(f"products of {dtype.value}")
    size = depth * columns
    packed = _sized(node, _constant(node, 1, "weights"), (-(-size // 2),), "bytes of weights")
    scales = _sized(node, _constant(node, 2, "scales"), (-(-size // block),), "scales")
    # The first value of a byte is in its high half.
    codes = unpack_codes(packed, 4).reshape(-1, 2)[:, ::-1].reshape(-1)[:size]
    weights = _BNB4[kind][codes] * np.repeat(scales.astype(np.float32), block)[:size]
    matrix = node.constant(weights.reshape(columns, depth).astype(dtype.numpy))
    node.finish("MatMul", [node.input(0), matrix], MatMulAttrs(transpose_b=True))


def _check_groups(node: NodeContext, depth: int, block: int) -> None:
    """Reject a permutation of the matrix rows."""
    if not node.input(4):
        return
    groups = node.const_value(node.input(4))
    plain = np.arange(depth) // block
    if groups is None or groups.size < depth or (groups.reshape(-1)[:depth] != plain).any():
        raise node.unsupported("g_idx reorders the rows of the weights")


@converter("GatherBlockQuantized", domain=_MICROSOFT)
def _gather_block_quantized(node: NodeContext) -> None:
    """Rows of a packed table; an index out of range gives zeros.

    vkmnn's own attribute `wide` dequantises to float32 whatever type the scales have; zero points
    may be floats, as in `MatMulNBits`.
    """
    data, scales = _constant(node, 0, "data"), _constant(node, 2, "scales")
    block = node.int("block_size", 128)
    if data.ndim != 2 or scales.ndim != 2 or 0 in data.shape:
        raise node.unsupported(f"data of the shape {data.shape}, only matrices are supported")
    if node.axis("gather_axis", 0, 2) != 0 or node.axis("quantize_axis", 1, 2) != 1:
        raise node.unsupported("only blocks along the rows are supported")
    if DType.from_numpy(scales.dtype) not in _FLOATS or block < 16 or block & (block - 1):
        raise node.unsupported(f"{scales.dtype} scales, blocks of {block}")
    rows = data.shape[0]
    if data.dtype == np.uint8:
        packed, bits, depth = _packed_table(node, data, block)
        default = 1 << bits - 1
    else:
        codes, bits, default = _table_codes(node, data)
        packed, depth = _packed_rows(codes, bits, block), codes.shape[1]
    blocks = -(-depth // block)
    if scales.shape != (rows, blocks):
        raise node.unsupported(f"scales of the shape {scales.shape}, {(rows, blocks)} is needed")
    zeros: Array = np.full((rows, blocks), default, np.uint8)
    if node.input(3):
        given = _constant(node, 3, "zero points")
        if DType.from_numpy(given.dtype) in _FLOATS:
            zeros = float_zeros(node, given, (rows, blocks), bits)
        elif data.dtype == np.uint8:
            zeros = split_zeros(node, given, rows, blocks, bits)
        else:
            zeros = _sized(node, given, (rows, blocks), "zero points").astype(np.int16) + default
            zeros = zeros.astype(np.uint8)
    bits = max(bits, 4)
    block = packed.shape[2] * 8 // bits
    plain = zeros.dtype == np.uint8 and bool((zeros == 1 << bits - 1).all())
    found = add_codes(node, packed, scales, None if plain else zeros, bits, depth)
    attrs = GatherNBitsAttrs(bits, block, depth, rows, node.bool("wide"))
    node.finish("GatherNBits", [found.codes, node.input(1), found.scales, found.zeros], attrs)


def _packed_table(node: NodeContext, data: Array, block: int) -> tuple[Array, int, int]:
    """Return packed bytes by blocks, the bits of a value, and the values of a row.

    Whole blocks of 4 or 8 bits stay in place, so that a product may share them.
    """
    bits = node.int("bits", 4)
    if bits not in _BITS:
        raise node.unsupported(f"values of {bits} bits")
    depth = data.shape[1] * 8 // bits
    if bits > 2 and depth % block == 0:
        return data.reshape(data.shape[0], depth // block, -1), bits, depth
    return _packed_rows(unpack_codes(data, bits), bits, block), bits, depth


def _packed_rows(codes: Array, bits: int, block: int) -> Array:
    """Return packed bytes by blocks, the last one of a row padded with zeros."""
    rows, depth = codes.shape
    blocks = -(-depth // block)
    block = min(block, -(-depth // UNIT) * UNIT)
    padded = np.zeros((rows, blocks * block), np.uint8)
    padded[:, :depth] = codes
    return pack_codes(padded.reshape(rows, blocks, block), max(bits, 4))


def _table_codes(node: NodeContext, data: Array) -> tuple[Array, int, int]:
    """Return unpacked values of signed types, their bits, and the default zero point."""
    dtype = DType.from_numpy(data.dtype)
    if dtype not in (DType.INT4, DType.UINT4):
        raise node.unsupported(f"values of the type {dtype.value}")
    low = dtype.limits[0]
    return (data.astype(np.int8) - low).astype(np.uint8), 4, -low
