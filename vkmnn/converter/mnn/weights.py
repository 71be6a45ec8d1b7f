"""Weights and constants of MNN files: plain, float16, or quantised; in the file or next to it."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from vkmnn.converter.mnn.nodes import MnnOp, enum_name
from vkmnn.errors import ModelError
from vkmnn.ir import Array
from vkmnn.schema import Table

_DENSE, _SPARSE, _HALF, _INT8 = 1, 2, 3, 4

_FIELDS = {
    "DT_FLOAT": ("float32s", "f4"),
    "DT_INT32": ("int32s", "i4"),
    "DT_INT64": ("int64s", "i8"),
    "DT_BOOL": ("int32s", "i4"),
    "DT_INT8": ("int8s", "i1"),
    "DT_UINT8": ("uint8s", "u1"),
}


def external(op: MnnOp, place: list[int], number: int) -> bytes:
    """Return a part of the file of weights.

    Args:
        op: the op that has them.
        place: the offset of the first part, then the sizes of all of them.
        number: which part.
    """
    if number + 1 >= len(place):
        return b""
    start, size = place[0] + sum(place[1 : number + 1]), place[number + 1]
    weights = op.weights
    if start < 0 or min(place) < 0 or start + size > len(weights):
        raise ModelError(
            f"its weights are {size} bytes at {start} of a file of {len(weights)} bytes",
            op=op.type,
            node=op.name,
            hint="put MODEL.mnn.weight next to the model",
        )
    return weights[start : start + size]


def blob(op: MnnOp, table: Table) -> Array:
    """Return a constant; int64 becomes int32, as everything in MNN is."""
    kind = enum_name("DataType", table.integer("dataType") if table.has("dataType") else 1)
    dims = table.integers("dims")
    place = table.integers("external")
    if kind == "DT_HALF":
        raw = external(op, place, 0) if place else table.vector("uint8s").tobytes()
        values: Array = np.frombuffer(raw[: len(raw) // 2 * 2], "<f2").astype(np.float32)
    elif kind in _FIELDS:
        field, code = _FIELDS[kind]
        found = table.vector(field)
        if place:
            raw = external(op, place, 0)
            found = np.frombuffer(raw[: len(raw) - len(raw) % np.dtype(code).itemsize], f"<{code}")
        values = found.astype(np.int32 if code == "i8" else code)
    else:
        raise op.unreadable(f"a constant of element type {kind or table.integer('dataType')}")
    packed = enum_name("MNN_DATA_FORMAT", table.integer("dataFormat")) == "NC4HW4"
    if packed and len(dims) > 1 and min(dims) > 0:
        values = _plain_order(values, dims)
    if min(dims, default=0) < 0 or prod(dims) != values.size:
        raise ModelError(
            f"a constant of shape {dims} has {values.size} elements", op=op.type, node=op.name
        )
    return values.reshape(dims)


def _plain_order(values: Array, dims: list[int]) -> Array:
    """Return a constant stored in blocks of four channels, which precede the batch."""
    batch, channels, inner = dims[0], dims[1], prod(dims[2:])
    blocks = -(-channels // 4)
    if values.size != blocks * 4 * batch * inner:
        return values
    apart = values.reshape(blocks, batch, inner, 4).transpose(1, 0, 3, 2)
    return np.ascontiguousarray(apart.reshape(batch, blocks * 4, inner)[:, :channels]).reshape(-1)


def floats(op: MnnOp, table: Table, field: str, part: int) -> Array:
    """Return a vector of floats, in the table or as a part of the file of weights."""
    place = table.integers("external")
    if place and not table.vector(field).size:
        return np.frombuffer(external(op, place, part), "<f4").astype(np.float32)
    return table.vector(field).astype(np.float32)


def convolution_weights(op: MnnOp, table: Table) -> tuple[Array, Array]:
    """Return the weights, flat, and the bias of a convolution or a product with constants."""
    quantised = table.table("quanParameter")
    if quantised is None:
        return floats(op, table, "weight", 0), floats(op, table, "bias", 1)
    place = table.integers("external") if "external" in _names(table) else []
    packed = quantised.vector("buffer").tobytes() or external(op, place, 0)
    kind = quantised.integer("type")
    bias = table.vector("bias").astype(np.float32)
    if place and not bias.size:
        bias = np.frombuffer(external(op, place, 2), "<f4").astype(np.float32)
    if kind == _HALF:
        halves = np.frombuffer(packed[: len(packed) // 2 * 2], "<f2")
        return halves.astype(np.float32), bias
    if kind not in (_DENSE, _INT8):
        raise op.unreadable(f"weights in MNN's compression {kind} (sparse, or newer)")
    alpha = _scales(op, quantised, place)
    numbers = _unpacked(op, packed, quantised) if kind == _DENSE else np.frombuffer(packed, "i1")
    return _scaled(op, numbers, alpha, quantised), bias


def _names(table: Table) -> frozenset[str]:
    from vkmnn.converter.mnn.nodes import SCHEMA

    return frozenset(SCHEMA.tables[table.kind])


def _scales(op: MnnOp, quantised: Table, place: list[int]) -> npt.NDArray[np.float32]:
    if enum_name("ScaleStorageType", quantised.integer("scaleStorage")) == "FP16":
        return quantised.vector("alphaFp16").view("<f2").astype(np.float32)
    alpha = quantised.vector("alpha")
    if place and not alpha.size:
        return np.frombuffer(external(op, place, 1), "<f4").astype(np.float32)
    return alpha.astype(np.float32)


def _unpacked(op: MnnOp, packed: bytes, quantised: Table) -> Array:
    """Return the numbers of a dense table: dimensions, the distinct numbers, and their indexes."""
    wide = 4 if quantised.scalar("shapeInt32") else 2
    raw = np.frombuffer(packed, np.uint8)
    rank = int(raw[0]) if raw.size else 0
    at = 1 + rank * wide
    dims = np.frombuffer(packed[1:at], f"<u{wide}").tolist() if raw.size > at else []
    if not dims:
        raise ModelError("its quantised weights are cut off", op=op.type, node=op.name)
    count = int(raw[at]) or 256
    samples = raw[at + 1 : at + 1 + count].view(np.int8)
    bits = max((count - 1).bit_length(), 1)
    size = prod(dims)
    indexes = raw[at + 1 + count :]
    if samples.size < count or indexes.size * 8 < size * bits:
        raise ModelError("its quantised weights are cut off", op=op.type, node=op.name)
    if bits == 8:
        numbers = indexes[:size].astype(np.int64)
    else:
        flat = np.unpackbits(indexes[: (size * bits + 7) // 8])[: size * bits]
        weights = 1 << np.arange(bits - 1, -1, -1, dtype=np.int64)
        numbers = flat.reshape(size, bits) @ weights
    if numbers.size and numbers.max() >= count:
        raise ModelError(
            "its quantised weights refer to a value outside their table", op=op.type, node=op.name
        )
    return samples[numbers]


def _scaled(op: MnnOp, numbers: Array, alpha: npt.NDArray[np.float32], quantised: Table) -> Array:
    """Return the weights: numbers times the scales of their blocks, or offset by their minimum."""
    uneven = quantised.integer("readType") != 0
    blocks = alpha.size // 2 if uneven else alpha.size
    if not blocks or numbers.size % blocks or (uneven and alpha.size % 2):
        raise ModelError(
            f"{numbers.size} quantised weights do not have {alpha.size} scales",
            op=op.type,
            node=op.name,
        )
    rows = numbers.reshape(blocks, -1).astype(np.float32)
    if uneven:
        least = quantised.integer("aMin") or -128
        low, scale = alpha.reshape(blocks, 2)[:, :1], alpha.reshape(blocks, 2)[:, 1:]
        rows = (rows - np.float32(least)) * scale + low
    else:
        rows = rows * alpha[:, None]
    factor = float(quantised.scalar("quantScale"))
    if factor not in (0.0, 1.0) and not quantised.scalar("has_scaleInt"):
        rows = rows * np.float32(factor)
    result: Array = rows.reshape(-1)
    return result
