"""Reads model files: graphs whose constants are views of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from vkmnn.base.budget import Meter
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
from vkmnn.schema import Buffer, load_schema
from vkmnn.schema import vkmnn_generated as files
from vkmnn.schema.bindings import each, integers, quick, text, texts
from vkmnn.shape import is_too_large

WHAT = "vkmnn"
FORMATS = (1, 2)
_DTYPES = {name.encode(): dtype for name, dtype in DType.__members__.items()}
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
            "this is not a vkmnn file: it has another header",
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
    buffer.verify()
    if not external and start + size > len(whole):
        raise buffer.fail(f"it has {max(len(whole) - start, 0)} bytes of constants, not {size}")
    return buffer, start, size, external


def read_graph(source: ModelFile, meter: Meter) -> Graph:
    """Return the graph of a file, with everything in it checked.

    Raises:
        ModelError: the file is damaged.
        BudgetError: it exceeds the budget.
        UnsupportedOpError: it has op types that are not declared: all of them.
    """
    root = files.Model.GetRootAs(source.buffer.data)
    table, about = root.Graph(), root.Metadata()
    if table is None:
        raise source.buffer.fail("it has no graph")
    return _Reader(source, quick(table), meter).graph(about and quick(about))


class _Reader:
    def __init__(self, source: ModelFile, table: files.Graph, meter: Meter) -> None:
        self.source, self.table, self.meter = source, table, meter
        self.fail = source.buffer.fail
        self.names = texts(table.Names, table.NamesLength())
        self.symbols = texts(table.Symbols, table.SymbolsLength())
        if "" in self.names or len(set(self.names)) != len(self.names):
            raise self.fail("two tensors have one name, or one has none")

    def graph(self, about: files.Metadata | None) -> Graph:
        constants = self.constants()
        table = self.table
        infos = [self.tensor(one) for one in each(table.Infos, table.InfosLength())]
        forms = self.packed(constants)
        graph = Graph(
            text(table.Name()),
            [self.tensor(one) for one in each(table.Inputs, table.InputsLength())],
            [self.tensor(one) for one in each(table.Outputs, table.OutputsLength())],
            self.ops(),
            constants,
            {info.name: info for info in infos},
            metadata=_metadata(about) if about else ModelMetadata(),
            types=_texts(each(table.OnnxTypes, table.OnnxTypesLength())),
            planned_sizes=self.planned_sizes(),
            tuned={
                text(one.Device()): _texts(each(one.Choices, one.ChoicesLength()))
                for one in each(table.Tuned, table.TunedLength())
            },
            packed=forms,
            states=[self.state(one) for one in each(table.States, table.StatesLength())],
        )
        names = [info.name for info in graph.inputs]
        if len(set(names)) != len(names) or not constants.keys().isdisjoint(names):
            raise self.fail("an input occurs twice")
        graph.validate()
        return graph

    def name(self, number: int) -> str:
        if not 0 <= number < len(self.names):
            raise self.fail(f"it has no tensor {number}")
        return self.names[number]

    def tensor(self, table: files.Tensor) -> TensorInfo:
        shape = None
        if table.Ranked():
            shape = tuple(self.dim(dim) for dim in integers(table.DimsAsNumpy()))
            if len(shape) > _MAX_RANK:
                raise self.fail(f"a tensor has {len(shape)} axes")
        return TensorInfo(self.name(table.Name()), self.dtype(table.Dtype()), shape)

    def dim(self, dim: int) -> int | str | None:
        if dim == -1:
            return None
        if dim >= _MAX_DIM or -2 - dim >= len(self.symbols):
            raise self.fail(f"a tensor has the dimension {dim}")
        return dim if dim >= 0 else self.symbols[-2 - dim]

    def planned_sizes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for table in each(self.table.PlannedSizes, self.table.PlannedSizesLength()):
            symbol, sizes = table.Symbol(), tuple(integers(table.SizesAsNumpy()))
            if not 0 <= symbol < len(self.symbols) or not all(0 <= one < _MAX_DIM for one in sizes):
                raise self.fail(f"it plans for the sizes {sizes} of dimension {symbol}")
            found[self.symbols[symbol]] = sizes
        if not 0 < prod(map(len, found.values())) <= MAX_PLANNED_SIZES:
            raise self.fail(
                f"it plans for more than {MAX_PLANNED_SIZES} combinations of sizes, or none"
            )
        return found

    def state(self, table: files.State) -> GraphState:
        name, output = self.name(table.Input()), self.name(table.Output())
        dtype, dims = self.dtype(table.Dtype()), integers(table.DimsAsNumpy())
        if dtype is DType.OBJECT or not all(0 <= dim < _MAX_DIM for dim in dims):
            raise self.fail(f"state '{name}' is {dtype.name} of shape {dims}")
        size, given = prod(dims) * dtype.numpy.itemsize, table.DataLength()
        self.meter.weigh(size)
        if len(dims) > _MAX_RANK or given not in (0, size):
            raise self.fail(f"state '{name}' of shape {dims} does not have {given} bytes")
        if not given:
            return GraphState(name, output, np.zeros(dims, dtype.numpy))
        raw = table.DataAsNumpy().view(_little(dtype.numpy)).reshape(dims)
        return GraphState(name, output, _clean(raw.copy(), dtype))

    def dtype(self, name: bytes | None) -> DType:
        found = _DTYPES.get(name or b"")
        if found is None:
            raise self.fail(f"there is no element type {text(name)!r}")
        return found

    def constants(self) -> dict[str, Array]:
        tables = each(self.table.Constants, self.table.ConstantsLength())
        found: dict[str, Array] = {}
        sizes = [table.Size() for table in tables]
        self.meter.weigh(sum(sizes), self.table.OpsLength())
        end = 0
        for table, size in zip(tables, sizes, strict=True):
            name, at = self.name(table.Name()), table.At()
            # In ascending order: none overlaps another, and all together are in the file.
            if at < end or at + size > len(self.source.data) or name in found:
                raise self.fail(f"constant '{name}' overlaps another, or is outside the file")
            found[name] = self.constant(table, name, at, size)
            end = at + size
        return found

    def constant(self, table: files.Constant, name: str, at: int, size: int) -> Array:
        dtype, kept = self.dtype(table.Dtype()), table.Stored()
        stored = dtype if kept is None else self.dtype(kept)
        dims = integers(table.DimsAsNumpy())
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
        stored = each(self.table.Constants, self.table.ConstantsLength())
        end = max((one.At() + one.Size() for one in stored), default=0)
        for several in each(self.table.Packed, self.table.PackedLength()):
            device, known = text(several.Device()), several.Packing() == PACKING
            for table in each(several.Forms, several.FormsLength()):
                name, form = self.name(table.Constant()), text(table.Form())
                at, size = table.At(), table.Size()
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

    def form(self, table: files.PackedForm, name: str, at: int, size: int) -> Array:
        dtype, dims = self.dtype(table.Dtype()), integers(table.DimsAsNumpy())
        if dtype not in _PACKED_TYPES:
            raise self.fail(f"the packed form of '{name}' is {dtype.name} of shape {dims}")
        return self.array(f"the packed form of '{name}'", dtype, dims, at, size)

    def ops(self) -> list[Op]:
        self.meter.check_nodes(self.table.OpsLength())
        tables = each(self.table.Ops, self.table.OpsLength())
        declared = each(self.table.Types, self.table.TypesLength())
        types = [(text(one.Name()), text(one.Provider())) for one in declared]
        attributes = each(self.table.Attributes, self.table.AttributesLength())
        decoded: dict[tuple[int, int], OpAttrs] = {}
        ops: list[Op] = []
        unknown: list[UnsupportedNode] = []
        for table in tables:
            kind, number = table.Type(), table.Attributes()
            if not (0 <= kind < len(types) and 0 <= number < len(attributes)):
                raise self.fail(f"op '{text(table.Name())}' has no type or no attributes")
            name, provider = types[kind]
            if name not in OP_TYPES:
                reason = f"load the plug-in that declares it: {provider or 'not known'}"
                unknown.append(UnsupportedNode(name, WHAT, 1, text(table.Name()), reason))
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

    def op(self, table: files.Op, kind: str, attrs: OpAttrs) -> Op:
        inputs, outputs = integers(table.InputsAsNumpy()), integers(table.OutputsAsNumpy())
        op = Op(
            kind,
            text(table.Name()),
            ["" if number == -1 else self.name(number) for number in inputs],
            ["" if number == -1 else self.name(number) for number in outputs],
            attrs,
            text(table.Source()),
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


def _texts(pairs: Sequence[files.Pair]) -> dict[str, str]:
    return {text(pair.Key()): text(pair.Value()) for pair in pairs}


def _metadata(table: files.Metadata) -> ModelMetadata:
    return ModelMetadata(
        text(table.Producer()),
        text(table.Domain()),
        table.Version(),
        text(table.Description()),
        text(table.GraphName()),
        text(table.GraphDescription()),
        _texts(each(table.Properties, table.PropertiesLength())),
    )
