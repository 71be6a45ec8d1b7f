"""Reads model files: graphs whose constants are views of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from vkmnn.budget import Meter
from vkmnn.converter.native.values import decode_attrs
from vkmnn.errors import ModelError, UnsupportedNode, UnsupportedOpError
from vkmnn.ir import (
    HOST_GRAPH,
    MAX_PLANNED_SIZES,
    OP_TYPES,
    PACKING,
    Array,
    DType,
    Graph,
    GraphState,
    ModelMetadata,
    Op,
    OpAttrs,
    PackedForm,
    TensorInfo,
)
from vkmnn.ir.dtype import NARROW_INTEGERS
from vkmnn.schema import Buffer, Table, load_schema
from vkmnn.shape import is_too_large

WHAT = "vkmnn"
FORMATS = (1, 2)
_PACKED_TYPES = (DType.FLOAT32, DType.FLOAT16, DType.INT32)
_MAX_RANK = 32
_MAX_DIM = 1 << 48


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file that has been opened: its FlatBuffer, and the bytes of its constants."""

    buffer: Buffer
    data: memoryview


def open_buffer(whole: memoryview) -> tuple[Buffer, int, int, str]:
    """Return a file's buffer, the offset and size of its constants, and the external file.

    Raises:
        ModelError: it is not a file of this kind, or of a format that is not known.
    """
    schema = load_schema("vkmnn")
    if bytes(whole[4:8]) != schema.identifier:
        raise ModelError(
            "this is not a vkmnn file: it does not begin like one",
            hint="the file is truncated or of another kind; convert the model again",
        )
    root = Buffer(whole, schema, WHAT).root()
    if root.integer("format") not in FORMATS:
        raise ModelError(
            f"the file has format {root.integer('format')}, this vkmnn reads format {FORMATS[-1]}",
            hint="a newer vkmnn wrote it; upgrade, or convert the model with this one",
        )
    start, size, external = root.integer("data"), root.integer("data_size"), root.text("external")
    buffer = Buffer(whole if external else whole[:start], schema, WHAT)
    if not external and start + size > len(whole):
        raise buffer.fail(f"it has {max(len(whole) - start, 0)} bytes of constants, not {size}")
    return buffer, start, size, external


def read_graph(source: ModelFile, meter: Meter) -> Graph:
    """Return the graph of a file, with everything in it checked.

    Raises:
        ModelError: the file is damaged.
        BudgetError: it takes more than the budget allows.
        UnsupportedOpError: it has op types that are not declared: all of them.
    """
    root = source.buffer.root()
    table = root.table("graph")
    if table is None:
        raise source.buffer.fail("it has no graph")
    return _Reader(source, table, meter).graph(root.table("metadata"))


class _Reader:
    def __init__(self, source: ModelFile, table: Table, meter: Meter) -> None:
        self.source, self.table, self.meter = source, table, meter
        self.fail = source.buffer.fail
        self.names = table.texts("names")
        self.symbols = table.texts("symbols")
        if "" in self.names or len(set(self.names)) != len(self.names):
            raise self.fail("two tensors have one name, or one has none")

    def graph(self, about: Table | None) -> Graph:
        constants = self.constants()
        table = self.table
        infos = [self.tensor(one) for one in table.tables("infos")]
        forms = self.packed(constants)
        graph = Graph(
            table.text("name"),
            [self.tensor(one) for one in table.tables("inputs")],
            [self.tensor(one) for one in table.tables("outputs")],
            self.ops(),
            constants,
            {info.name: info for info in infos},
            metadata=_metadata(about) if about else ModelMetadata(),
            types=_texts(table.tables("onnx_types")),
            planned_sizes=self.planned_sizes(),
            tuned={
                one.text("device"): _texts(one.tables("choices")) for one in table.tables("tuned")
            },
            packed=forms,
            states=[self.state(one) for one in table.tables("states")],
        )
        names = [info.name for info in graph.inputs]
        if len(set(names)) != len(names) or not constants.keys().isdisjoint(names):
            raise self.fail("an input is there twice")
        graph.validate()
        return graph

    def name(self, number: int) -> str:
        if not 0 <= number < len(self.names):
            raise self.fail(f"it has no tensor {number}")
        return self.names[number]

    def tensor(self, table: Table) -> TensorInfo:
        shape = None
        if table.scalar("ranked"):
            shape = tuple(self.dim(dim) for dim in table.integers("dims"))
            if len(shape) > _MAX_RANK:
                raise self.fail(f"a tensor has {len(shape)} axes")
        return TensorInfo(self.name(table.integer("name")), self.dtype(table, "dtype"), shape)

    def dim(self, dim: int) -> int | str | None:
        if dim == -1:
            return None
        if dim >= _MAX_DIM or -2 - dim >= len(self.symbols):
            raise self.fail(f"a tensor has the dimension {dim}")
        return dim if dim >= 0 else self.symbols[-2 - dim]

    def planned_sizes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for table in self.table.tables("planned_sizes"):
            symbol, sizes = table.integer("symbol"), tuple(table.integers("sizes"))
            if not 0 <= symbol < len(self.symbols) or not all(0 <= one < _MAX_DIM for one in sizes):
                raise self.fail(f"it plans for the sizes {sizes} of dimension {symbol}")
            found[self.symbols[symbol]] = sizes
        if not 0 < prod(map(len, found.values())) <= MAX_PLANNED_SIZES:
            raise self.fail(
                f"it plans for more than {MAX_PLANNED_SIZES} combinations of sizes, or none"
            )
        return found

    def state(self, table: Table) -> GraphState:
        name, output = (self.name(table.integer(field)) for field in ("input", "output"))
        dtype, dims = self.dtype(table, "dtype"), table.integers("dims")
        if dtype is DType.OBJECT or not all(0 <= dim < _MAX_DIM for dim in dims):
            raise self.fail(f"state '{name}' is {dtype.name} of shape {dims}")
        size = prod(dims) * dtype.numpy.itemsize
        self.meter.weigh(size)
        raw = table.vector("data")
        if len(dims) > _MAX_RANK or (raw.size not in (0, size)):
            raise self.fail(f"state '{name}' of shape {dims} does not have {raw.size} bytes")
        if not raw.size:
            return GraphState(name, output, np.zeros(dims, dtype.numpy))
        return GraphState(
            name, output, _clean(raw.view(_little(dtype.numpy)).reshape(dims).copy(), dtype)
        )

    def dtype(self, table: Table, field: str) -> DType:
        name = table.text(field)
        if name not in DType.__members__:
            raise self.fail(f"there is no element type {name!r}")
        return DType[name]

    def constants(self) -> dict[str, Array]:
        tables = self.table.tables("constants")
        found: dict[str, Array] = {}
        sizes = [table.integer("size") for table in tables]
        self.meter.weigh(sum(sizes), len(self.table.tables("ops")))
        end = 0
        for table, size in zip(tables, sizes, strict=True):
            name, at = self.name(table.integer("name")), table.integer("at")
            # One after the other: none takes another's bytes, and all together are in the file.
            if at < end or at + size > len(self.source.data) or name in found:
                raise self.fail(f"constant '{name}' has no place of its own")
            found[name] = self.constant(table, name, at, size)
            end = at + size
        return found

    def constant(self, table: Table, name: str, at: int, size: int) -> Array:
        dtype = self.dtype(table, "dtype")
        stored = self.dtype(table, "stored") if table.has("stored") else dtype
        dims = table.integers("dims")
        if DType.OBJECT in (dtype, stored) or (
            stored is not dtype and (stored, dtype) != (DType.FLOAT16, DType.FLOAT32)
        ):
            raise self.fail(f"constant '{name}' is {stored.name} for {dtype.name}")
        array = _clean(self.array(f"constant '{name}'", stored, dims, at, size), stored)
        return array if stored is dtype else array.astype(dtype.numpy)

    def array(self, what: str, dtype: DType, dims: Sequence[int], at: int, size: int) -> Array:
        """Return bytes of the file as an array of exactly `size` bytes."""
        item = dtype.numpy
        fits = len(dims) <= _MAX_RANK and all(0 <= dim < _MAX_DIM for dim in dims)
        if not fits or is_too_large(dims) or prod(dims) * item.itemsize != size:
            raise self.fail(f"{what} of shape {dims} does not have {size} bytes")
        raw = self.source.data[at : at + size]
        try:
            array: Array = np.frombuffer(raw, np.uint8).view(_little(item)).reshape(dims)
        except ValueError as error:
            raise self.fail(f"{what} of shape {dims}: {error}") from error
        return array

    def packed(self, constants: Mapping[str, Array]) -> list[PackedForm]:
        """Return the packed forms; those of another packing version are checked and skipped."""
        found: list[PackedForm] = []
        seen: set[tuple[str, str, str]] = set()
        end = max(
            (one.integer("at") + one.integer("size") for one in self.table.tables("constants")),
            default=0,
        )
        for several in self.table.tables("packed"):
            device, known = several.text("device"), several.integer("packing") == PACKING
            for table in several.tables("forms"):
                name, form = self.name(table.integer("constant")), table.text("form")
                at, size = table.integer("at"), table.integer("size")
                if name not in constants or not form or (device, name, form) in seen:
                    raise self.fail(f"'{name}' is not a constant, or is packed twice as '{form}'")
                if at < end or at + size > len(self.source.data):
                    raise self.fail(f"the packed form of '{name}' has no place of its own")
                seen.add((device, name, form))
                end = at + size
                array = self.form(table, name, at, size)
                if known:
                    found.append(PackedForm(constants[name], form, array, device))
        return found

    def form(self, table: Table, name: str, at: int, size: int) -> Array:
        dtype, dims = self.dtype(table, "dtype"), table.integers("dims")
        if dtype not in _PACKED_TYPES:
            raise self.fail(f"the packed form of '{name}' is {dtype.name} of shape {dims}")
        return self.array(f"the packed form of '{name}'", dtype, dims, at, size)

    def ops(self) -> list[Op]:
        tables = self.table.tables("ops")
        self.meter.check_nodes(len(tables))
        types = [(one.text("name"), one.text("provider")) for one in self.table.tables("types")]
        attributes = self.table.tables("attributes")
        decoded: dict[tuple[int, int], OpAttrs] = {}
        ops: list[Op] = []
        unknown: list[UnsupportedNode] = []
        for table in tables:
            kind, number = table.integer("type"), table.integer("attributes")
            if not (0 <= kind < len(types) and 0 <= number < len(attributes)):
                raise self.fail(f"op '{table.text('name')}' has no type or no attributes")
            name, provider = types[kind]
            if name not in OP_TYPES:
                reason = f"load the plug-in that declares it: {provider or 'not known'}"
                unknown.append(UnsupportedNode(name, WHAT, 1, table.text("name"), reason))
                continue
            if (kind, number) not in decoded:
                attrs = decode_attrs(attributes[number], OP_TYPES[name].attrs, name)
                decoded[kind, number] = attrs
            ops.append(self.op(table, name, decoded[kind, number]))
        if unknown:
            raise UnsupportedOpError(
                unknown, hint="vkmnn.load_plugin loads one; an older vkmnn lacks newer ops"
            )
        if len({op.name for op in ops}) != len(ops):
            raise self.fail("two ops have one name")
        return ops

    def op(self, table: Table, kind: str, attrs: OpAttrs) -> Op:
        inputs, outputs = table.integers("inputs"), table.integers("outputs")
        op = Op(
            kind,
            table.text("name"),
            ["" if number == -1 else self.name(number) for number in inputs],
            ["" if number == -1 else self.name(number) for number in outputs],
            attrs,
            table.text("source"),
        )
        if not op.name or (not any(op.outputs) and kind != HOST_GRAPH):
            raise self.fail(f"op '{op.name}' has no name or no outputs")
        return op


def _little(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return dtype.newbyteorder("<") if dtype.kind in "iufb" else dtype


def _clean(array: Array, dtype: DType) -> Array:
    """Return the array with nothing in it that its element type has no number for."""
    if dtype is DType.BOOL:
        raw = array.view(np.uint8)
        return array if raw.size == 0 or raw.max() <= 1 else raw != 0
    if dtype in NARROW_INTEGERS or dtype is DType.FLOAT4E2M1:
        bits, signed = NARROW_INTEGERS.get(dtype, (4, False))
        low = array.view(np.uint8) & ((1 << bits) - 1)
        if signed:
            low |= -(low >> (bits - 1)) << bits
        return low.view(array.dtype)
    return array


def _texts(tables: Sequence[Table]) -> dict[str, str]:
    return {one.text("key"): one.text("value") for one in tables}


def _metadata(table: Table) -> ModelMetadata:
    properties: Mapping[str, str] = _texts(table.tables("properties"))
    return ModelMetadata(
        table.text("producer"),
        table.text("domain"),
        table.integer("version"),
        table.text("description"),
        table.text("graph_name"),
        table.text("graph_description"),
        properties,
    )
