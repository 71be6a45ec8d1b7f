"""Converts weights of few bits from the forms of models to that of `MatMulNBits`."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.lazy_array import contiguous
from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.quantization import Quantization, QuantizedConstant
from vkmnn.ir import Array, DType
from vkmnn.ir.codes import pack_codes, unpack_codes
from vkmnn.ir.ops import MatMulNBitsAttrs

UNIT = 32
"""Values that kernels read at a time; half as many are the smallest block."""
_FLOATS = (DType.FLOAT32, DType.FLOAT16)

_Any = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Codes:
    """A packed matrix [columns, depth]; the names of its constants in the graph."""

    attrs: MatMulNBitsAttrs
    codes: str
    scales: str
    zeros: str

    def inputs(self, x: str, bias: str = "") -> list[str]:
        """Return the inputs of the product of x and this matrix."""
        return [x, self.codes, bias, "", self.scales, self.zeros]


def is_block(block: int) -> bool:
    """True for blocks that kernels read."""
    return block == UNIT // 2 or (block > 0 and block % UNIT == 0)


def add_codes(
    node: NodeContext, packed: _Any, scales: _Any, zeros: _Any | None, bits: int, depth: int
) -> Codes:
    """Add a matrix to the graph's constants.

    Args:
        node: the node that holds it.
        packed: uint8 [columns, blocks, block · bits / 8].
        scales: [columns, blocks].
        zeros: uint8 [columns, blocks], or None for 2^(bits - 1).
        bits: bits of a quantised value: 4 or 8.
        depth: number of valid quantised values in a row.
    """
    columns, _, width = packed.shape
    attrs = MatMulNBitsAttrs(bits, width * 8 // bits, depth, columns)
    return Codes(
        attrs,
        node.constant(contiguous(packed)),
        node.constant(contiguous(scales)),
        "" if zeros is None else node.constant(contiguous(zeros)),
    )


def split_zeros(node: NodeContext, zeros: Array, rows: int, blocks: int, bits: int) -> Array:
    """Return zero points [rows, blocks] of bytes whose rows are filled up to whole ones.

    Raises:
        UnsupportedCaseError: their number is wrong.
    """
    width = -(-blocks * bits // 8)
    if zeros.size != rows * width:
        raise node.unsupported(f"{zeros.size} bytes of zero points, {rows * width} are needed")
    return unpack_codes(zeros.reshape(rows, width), bits)[:, :blocks]


def float_zeros(node: NodeContext, zeros: Array, shape: tuple[int, ...], bits: int) -> Array:
    """Return float zero points, minus the middle of the range of the stored values.

    vkmnn's own attribute `centred` says that they have this form.
    """
    if DType.from_numpy(zeros.dtype) not in _FLOATS:
        raise node.unsupported(f"zero points are {zeros.dtype}")
    if zeros.size != prod(shape):
        raise node.unsupported(f"{zeros.size} zero points, {prod(shape)} are needed")
    zeros = zeros.reshape(shape)
    if node.bool("centred"):
        return zeros
    return np.asarray(zeros.astype(np.float32) - np.float32(1 << max(bits, 4) - 1))


def codes_of(node: NodeContext, tensor: str, *, transposed: bool) -> Codes | None:
    """Return a dequantised matrix in packed form, or None if it has to be floats.

    Args:
        node: the product that reads it.
        tensor: the matrix, [K, N].
        transposed: it is [N, K].
    """
    found = node.noted(tensor)
    key = f"{tensor}:codes:{transposed}"
    kept = node.noted(key)
    if isinstance(kept, Codes):
        return kept
    if not isinstance(found, QuantizedConstant):
        return None
    parts = _by_rows(found, transposed)
    if parts is None:
        return None
    x, scales, zeros, block = parts
    limits = DType.from_numpy(x.dtype).limits
    bits = 4 if limits[1] - limits[0] < 16 else 8
    # Signed values are shifted up, along with the zero point.
    low = limits[0]
    codes = (x.astype(np.int16) - low).astype(np.uint8)
    offsets = zeros.astype(np.int16) - low
    rows, depth = codes.shape
    blocks = scales.shape[1]
    padded = np.zeros((rows, blocks * block), np.uint8)
    padded[:, :depth] = codes
    default = bool((offsets == 1 << bits - 1).all())
    result = add_codes(
        node,
        pack_codes(padded.reshape(rows, blocks, block), bits),
        scales,
        None if default else offsets.astype(np.uint8),
        bits,
        depth,
    )
    node.note(key, result)
    return result


def _by_rows(found: QuantizedConstant, transposed: bool) -> tuple[_Any, _Any, _Any, int] | None:
    """Return packed values [N, K], scales and zeros [N, blocks], and the block, or None."""
    by = found.by
    x = found.values if transposed else found.values.T
    rows, depth = x.shape
    along = by.axis == (1 if transposed else 0)
    whole = max(1, -(-depth // UNIT)) * UNIT
    if by.scale.size == 1 and by.block == 0:
        values = [np.broadcast_to(v.reshape(1, 1), (rows, 1)) for v in (by.scale, by.zero)]
        block = whole
    elif not by.block:
        if along:
            return None
        values = [v.reshape(rows, 1) for v in (by.scale, by.zero)]
        block = whole
    else:
        one = by.block >= depth
        if not along or not (one or is_block(by.block)):
            return None
        values = [v if transposed else v.T for v in (by.scale, by.zero)]
        block = whole if one else by.block
    scales, zeros = values
    return x, scales, zeros, block


def note_dequantized(node: NodeContext, axis: int, block: int, to: DType) -> None:
    """Record the inputs of a DequantizeLinear of a constant matrix, for its products."""
    values = [node.const_value(name) if name else None for name in (*node.inputs, "")[:3]]
    x, scale, zero = values
    if x is None or scale is None or x.ndim != 2 or 0 in x.shape:
        return
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // block) if block > 0 else shape[axis]
    fits = scale.shape == tuple(shape) if block else scale.size in (1, shape[axis])
    if not fits or block < 0 or (zero is not None and zero.shape != scale.shape):
        return
    dtype = DType.from_numpy(x.dtype)
    low, high = dtype.limits if dtype.is_integer else (0, 1 << 16)
    known = zero is not None or not node.input(2)
    if high - low > 255 or not known or to not in _FLOATS or node.dtype(node.input(1)) is not to:
        return
    node.note(node.output(0), QuantizedConstant(x, Quantization.of(scale, zero, axis, block)))
