"""Tensors of a TFLite file: element types, shapes, quantisation, and the values of constants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)
from vkmnn.converter.nodes.quantized import QUANTISED
from vkmnn.converter.quantization import Quantization
from vkmnn.errors import ModelError
from vkmnn.ir import Array
from vkmnn.schema import Buffer, Table, load_schema

SCHEMA = load_schema("tflite")
_NAMES = {
    enum: {number: name for name, number in members.items()}
    for enum, members in SCHEMA.enums.items()
}

TYPES = {
    "FLOAT32": FLOAT,
    "FLOAT16": FLOAT16,
    "FLOAT64": DOUBLE,
    "BFLOAT16": FLOAT,
    "BOOL": BOOL,
    "INT4": INT8,
    "INT2": INT8,
    "INT8": INT8,
    "INT16": INT16,
    "INT32": INT32,
    "INT64": INT64,
    "UINT4": UINT8,
    "UINT8": UINT8,
    "UINT16": UINT16,
    "UINT32": UINT32,
    "UINT64": UINT64,
}
"""Graph types of TFLite's element types; packed values are unpacked."""

_DTYPES = {
    "FLOAT32": "<f4",
    "FLOAT16": "<f2",
    "FLOAT64": "<f8",
    "BFLOAT16": "<u2",
    "BOOL": "u1",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
}
_PACKED = {"INT4": (4, True), "UINT4": (4, False), "INT2": (2, True)}
"""Packed types, lowest bits first: bits, and whether signed."""

_BLOCKS = "BlockwiseQuantization"
_MAX_RANK = 16
_MAX_DIM = 1 << 40


def enum_name(enum: str, number: int) -> str:
    """Return the name of an enumeration's member; "" if there is none."""
    return _NAMES[enum].get(number, "")


@dataclass(frozen=True, eq=False)
class LiteTensor:
    """A tensor of a subgraph.

    Attributes:
        kind: its element type, as TFLite calls it.
        shape: its sizes; None for one that is open.
        quantization: the quantisation of its values; None if they are plain numbers.
        buffer: number of the buffer with its values; 0 where it is computed.
        is_variable: whether it is kept from one run to the next.
        data: a constant's values; None for other tensors.
    """

    kind: str
    shape: tuple[int | None, ...]
    quantization: Quantization | None
    buffer: int = 0
    is_variable: bool = False
    data: Array | None = field(default=None, repr=False)

    @property
    def is_complex(self) -> bool:
        """Whether its elements are complex: in the graph, pairs along an axis at the end."""
        return self.kind.startswith("COMPLEX")

    @property
    def dtype(self) -> int:
        """Its element type in the graph, by ONNX's number; 0 if there is none."""
        return TYPES.get(self.kind, 0)


class Tensors:
    """Reads the tensors of a file; buffers that several share are read once.

    Args:
        buffer: the FlatBuffer.
        buffers: its table of buffers.
        whole: the file, which contains the data of large buffers.
        meter: counts the unpacked bytes.
    """

    def __init__(
        self, buffer: Buffer, buffers: list[Table], whole: memoryview, meter: Meter
    ) -> None:
        self._meter = meter
        self._fail = buffer.fail
        self._buffers = buffers
        self._whole = whole

    def read(self, table: Table) -> LiteTensor:
        """Return a tensor.

        Raises:
            ModelError: its sizes, its scales or its data contradict each other.
        """
        number = table.integer("type")
        kind = enum_name("TensorType", number)
        declared, signature = table.integers("shape"), table.integers("shape_signature")
        if len(declared) > _MAX_RANK or any(not 0 <= dim < _MAX_DIM for dim in declared):
            raise self._fail(f"a tensor has the shape {declared[:_MAX_RANK]}")
        shape: tuple[int | None, ...] = tuple(declared)
        if len(signature) == len(declared):
            pairs = zip(declared, signature, strict=True)
            shape = tuple(None if dim < 0 else size for size, dim in pairs)
        place, external = table.integer("buffer"), table.integer("external_buffer")
        if external:
            raise self._fail("its weights are in other files, which is not supported")
        raw = self._raw(place)
        data = None if raw is None else self._array(table, kind, declared, raw)
        by = self._quantization(table, kind, declared)
        variable = bool(table.scalar("is_variable"))
        return LiteTensor(kind, shape, by, place if raw is not None else 0, variable, data)

    def with_blocks(self, table: Table, tensor: LiteTensor, others: list[LiteTensor]) -> LiteTensor:
        """Return a tensor with its quantisation by blocks, if it has one.

        Args:
            table: the tensor in the file.
            tensor: the same as it was read.
            others: all tensors of the subgraph, scales and zero points of blocks among them.

        Raises:
            ModelError: the scales do not fit the tensor.
        """
        given = table.table("quantization")
        details = None if given is None else given.union("details")
        if details is None or details.kind != _BLOCKS or tensor.dtype not in QUANTISED:
            return tensor
        scale = self._constant(others, details.integer("scales"))
        if scale is None or scale.dtype.kind != "f" or not np.isfinite(scale).all():
            raise self._fail("the scales of a tensor's blocks are not constant numbers")
        zero = self._constant(others, details.integer("zero_points"))
        if zero is None or zero.dtype.kind not in "iu" or zero.shape != scale.shape:
            zero = np.zeros(scale.shape, np.int64)  # without zero points the number is 0 or -1
        shape, block = [size or 0 for size in tensor.shape], details.integer("block_size")
        differ = [
            n for n, pair in enumerate(zip(scale.shape, shape, strict=False)) if len({*pair}) > 1
        ]
        axis = differ[0] if differ else len(shape) - 1
        fits = scale.ndim == len(shape) and block > 0 and len(differ) <= 1
        if not fits or scale.shape[axis] * block != shape[axis]:
            raise self._fail(f"scales of shape {scale.shape} for blocks of {block} in {shape}")
        by = Quantization(scale.astype(np.float32), zero.astype(np.int64), axis, block)
        return replace(tensor, quantization=by)

    @staticmethod
    def _constant(tensors: list[LiteTensor], number: int) -> Array | None:
        return tensors[number].data if 0 <= number < len(tensors) else None

    def _raw(self, number: int) -> Array | None:
        """Return a buffer's bytes; None if it has none."""
        if not 0 <= number < len(self._buffers):
            raise self._fail(f"it has no buffer {number}")
        if not number:
            return None
        table = self._buffers[number]
        offset, size = table.integer("offset"), table.integer("size")
        if offset > 1:
            if offset + size > len(self._whole):
                raise self._fail(f"buffer {number} is outside it")
            return np.frombuffer(self._whole, np.uint8, size, offset)
        found = table.vector("data")
        return found if found.size else None

    def _array(self, table: Table, kind: str, shape: list[int], raw: Array) -> Array:
        """Return a constant's values."""
        if kind not in TYPES:  # a resource, or strings: the operators that read it are refused
            return raw
        sparse = table.table("sparsity")
        count = prod(shape)
        if sparse is not None:
            from vkmnn.converter.tflite.sparse import dense_places

            self._meter.charge(8 * count, "DENSIFY", table.text("name"))
            places = dense_places(sparse, shape, self._fail)
            packed = self._values(kind, raw, places.size)
            values = np.zeros(count, packed.dtype)
            values[places] = packed
        else:
            values = self._values(kind, raw, count)
        return values.reshape(shape)

    def _values(self, kind: str, raw: Array, count: int) -> Array:
        bits, signed = _PACKED.get(kind, (0, False))
        item = 0 if bits else np.dtype(_DTYPES[kind]).itemsize
        size = -(-count * bits // 8) if bits else count * item
        if raw.size < size or (raw.size > size and not bits):
            raise self._fail(f"a constant of {count} elements has {raw.size} bytes, not {size}")
        if bits:
            self._meter.charge(count, "a constant", kind)
            places = np.arange(0, 8, bits, dtype=np.uint8)
            small = raw[:size].view(np.uint8)[:, None] >> places & ((1 << bits) - 1)
            flat = small.reshape(-1)[:count].astype(np.int8)
            if not signed:
                return flat.view(np.uint8)
            return np.where(flat >> (bits - 1) > 0, flat - (1 << bits), flat).astype(np.int8)
        values = raw.view(_DTYPES[kind])
        if not values.flags.aligned:
            values = values.copy()
        if kind == "BFLOAT16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values != 0 if kind == "BOOL" else values

    def _quantization(self, table: Table, kind: str, shape: list[int]) -> Quantization | None:
        by = table.table("quantization")
        details = None if by is None else by.union("details")
        if by is None or details is not None:
            quantised = kind in TYPES and TYPES[kind] in QUANTISED
            if details is not None and quantised and details.kind != _BLOCKS:
                raise ModelError(
                    f"a tensor is quantised in a custom format ({details.kind}), which is not "
                    "supported",
                    hint="quantise the model by tensors, by channels or by blocks",
                )
            return None
        scale: Any = by.vector("scale")
        zero: Any = by.vector("zero_point")
        if not scale.size or TYPES.get(kind) not in (*QUANTISED, INT32, INT64):
            return None
        axis = by.integer("quantized_dimension")
        if scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size):
            raise self._fail(f"{scale.size} scales for axis {axis} of a tensor of shape {shape}")
        if not zero.size:
            zero = np.zeros(scale.size, np.int64)
        if zero.size == 1 < scale.size:
            zero = np.repeat(zero, scale.size)
        if zero.size != scale.size or not np.isfinite(scale).all() or (scale < 0).any():
            raise self._fail(f"{scale.size} scales and {zero.size} zero points")
        if not scale.all():
            return None  # uncalibrated tensors hold real numbers
        dtype = TYPES[kind]
        if dtype in QUANTISED:
            limits = np.iinfo({INT8: "i1", UINT8: "u1", INT16: "i2", UINT16: "u2"}[dtype])
            if zero.min() < limits.min or zero.max() > limits.max:
                raise self._fail(f"zero points {zero[:4].tolist()} of {kind}")
        return Quantization(scale.astype(np.float32), zero.astype(np.int64), axis)
