"""Writes graphs as model files."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np

from vkmnn.base.lazy_array import as_lazy, whole_once
from vkmnn.base.whole_files import replacing
from vkmnn.converter.native.values import UnstorableError, encode
from vkmnn.errors import ConversionError, InvalidInputError
from vkmnn.ir import HOST_GRAPH, OP_TYPES, PACKING, Array, DType, Graph, GraphState, Op, TensorInfo
from vkmnn.schema import Buffer, load_schema, write
from vkmnn.schema.vkmnn_generated import Origin
from vkmnn.schema.writer import TooLargeError

FORMAT, WITH_STATES = 1, 2
ALIGNMENT = 64
"""Alignment of constants, which suits mappings for any element type."""

_HALF_FROM = 256
"""Weights of fewer elements stay in float32: biases and scales, which cost nothing."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options for writing a model file.

    Attributes:
        half: weights of float32 are rounded to float16; sessions read them as float32.
        external: constants go to a file of their own, named as the model with ".data" after it.
        engine: who writes it: "vkmnn 0.1.0".
    """

    half: bool = False
    external: bool = False
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A constant in the file; `kept` is its stored element type.

    `rounded` says that the file holds other numbers than the graph. `form` is that of a packed
    constant, `device` the device that chose it.
    """

    name: str
    dtype: DType
    kept: DType
    array: Array
    at: int
    rounded: bool = False
    form: str = ""
    device: str = ""

    @property
    def end(self) -> int:
        """Offset of its end."""
        return self.at + self.array.nbytes


def write_model(graph: Graph, path: Path, options: WriteOptions) -> None:
    """Write a graph as a model file, whole or not at all.

    Args:
        graph: a valid graph.
        path: the file.
        options: how it is written.

    Raises:
        ConversionError: the graph holds something that the file cannot; the node is named.
        InvalidInputError: the file cannot be written.
    """
    constants = list(_lay_out(graph, options.half))
    forms = list(_lay_out_forms(graph, constants))
    external = f"{path.name}.data" if options.external else ""
    everything = [*constants, *forms]
    end = everything[-1].end if everything else 0
    model = _Names(graph).model(constants, forms, options.engine) | {"data_size": end}
    if external:
        model["external"] = external
    try:
        head = _head(model, bool(external))
    except TooLargeError as error:
        raise ConversionError("the graph without its constants takes 2 GiB or more") from error
    except UnicodeEncodeError as error:
        raise ConversionError(f"a name in the graph is not text: {error.object!r}") from error
    try:
        if external:
            _write_whole(path.with_name(external), b"", everything)
            _write_whole(path, head, ())
        else:
            _write_whole(path, head, everything)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"'{path}' cannot be written: {reason}", hint="name a file in a folder of your own"
        ) from error


def _head(model: dict[str, Any], external: bool) -> bytes:
    """Return the FlatBuffer, padded up to the constants."""
    schema = load_schema("vkmnn")
    if external:
        return write(schema, model)
    head = bytearray(write(schema, model | {"data": ALIGNMENT}))
    start = len(head) + -len(head) % ALIGNMENT
    # Known only now: the offset of the constants, a scalar in the table itself.
    place = Buffer(memoryview(head), schema, "vkmnn").root().place("data")
    struct.pack_into("<Q", head, place, start)
    return bytes(head).ljust(start, b"\0")


def _write_data(file: IO[bytes], constants: Sequence[Stored]) -> None:
    at = 0
    for constant in constants:
        file.write(bytes(constant.at - at))
        file.write(whole_once(constant.array).reshape(-1).view(np.uint8).data)
        at = constant.end


def _write_whole(path: Path, head: bytes, constants: Sequence[Stored]) -> None:
    """Write a file under a temporary name first, so that no reader sees half a file."""
    with replacing(path) as file:
        file.write(head)
        _write_data(file, constants)


def _lay_out(graph: Graph, half: bool) -> Iterator[Stored]:
    """Yield the constants with their offsets in the data."""
    at = 0
    for name, source in graph.constants.items():
        array = whole_once(source)
        try:
            dtype = DType.from_numpy(array.dtype)
        except ValueError as error:
            raise ConversionError(f"constant '{name}' is of {array.dtype}") from error
        if dtype is DType.OBJECT:
            raise ConversionError(
                f"constant '{name}' holds objects, which a model file cannot store"
            )
        stored = _as_half(array) if half and dtype is DType.FLOAT32 else array
        little = np.ascontiguousarray(stored).reshape(stored.shape)
        if little.dtype.kind in "iufb":
            little = little.astype(little.dtype.newbyteorder("<"), copy=False)
        else:
            little = little.view(np.dtype(f"u{little.dtype.itemsize}"))
        kept = DType.FLOAT16 if stored.dtype != array.dtype else dtype
        rounded = kept is not dtype and not np.array_equal(stored.astype(array.dtype), array)
        # A weight that is not in memory is read again when it is written, one at a time.
        same = as_lazy(source) is not None and little.dtype == source.dtype
        yield Stored(name, dtype, kept, source if same else little, at, rounded)
        at += little.nbytes + -little.nbytes % ALIGNMENT


def _lay_out_forms(graph: Graph, constants: Sequence[Stored]) -> Iterator[Stored]:
    """Yield the packed forms after the constants, without outdated ones.

    Those of a device are consecutive.
    """
    names = {id(graph.constants[one.name]): one.name for one in constants if not one.rounded}
    at = constants[-1].end if constants else 0
    for form in sorted(graph.packed, key=lambda one: one.device):
        name = names.get(id(form.source))
        if name is not None:
            dtype = DType.from_numpy(form.packed.dtype)
            little = np.ascontiguousarray(form.packed).reshape(form.packed.shape)
            little = little.astype(little.dtype.newbyteorder("<"), copy=False)
            at += -at % ALIGNMENT
            yield Stored(name, dtype, dtype, little, at, form=form.form, device=form.device)
            at += little.nbytes


def _as_half(array: Array) -> Array:
    """Return weights in float16, or unchanged if they are few or too large for it."""
    if array.size < _HALF_FROM:
        return array
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float16)
    same = np.array_equal(np.isfinite(rounded), np.isfinite(array))
    return rounded if same else array


class _Names:
    """Numbers of tensors, symbols, types and attributes, in the order of their first use."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[str, int] = {}
        self.symbols: dict[str, int] = {}
        self.types: dict[str, int] = {}
        self.attributes: dict[object, int] = {}
        self.encoded: list[dict[str, Any]] = []

    def model(
        self, constants: Sequence[Stored], forms: Sequence[Stored], engine: str
    ) -> dict[str, Any]:
        graph, metadata = self.graph, self.graph.metadata
        tables: dict[str, Any] = {
            "name": graph.name,
            "inputs": [self.tensor(info) for info in graph.inputs],
            "outputs": [self.tensor(info) for info in graph.outputs],
            "infos": [self.tensor(info) for info in graph.infos.values()],
            "ops": [self.op(op) for op in graph.ops],
            "constants": [self.constant(constant) for constant in constants],
            "onnx_types": _pairs(graph.types),
            "planned_sizes": [
                {"symbol": self.symbols[name], "sizes": sizes}
                for name, sizes in graph.planned_sizes.items()
            ],
            "tuned": [
                {"device": device, "choices": _pairs(choices)}
                for device, choices in graph.tuned.items()
            ],
            "states": [self.state(state) for state in graph.states] or None,
            "packed": [
                {"packing": PACKING, "device": device, "forms": list(map(self.form, several))}
                for device, several in groupby(forms, lambda form: form.device)
            ],
        }
        tables["names"], tables["symbols"] = list(self.names), list(self.symbols)
        tables["types"] = [_op_type(name) for name in self.types]
        tables["attributes"] = self.encoded
        fields = ("producer", "domain", "version", "description", "graph_name")
        about = {name: getattr(metadata, name) for name in (*fields, "graph_description")}
        about["properties"] = _pairs(metadata.properties)
        version = WITH_STATES if graph.states else FORMAT
        return {"format": version, "engine": engine, "graph": tables, "metadata": about}

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names)) if name else -1

    def state(self, state: GraphState) -> dict[str, Any]:
        initial = np.ascontiguousarray(state.initial)
        little = initial.astype(initial.dtype.newbyteorder("<"), copy=False)
        return {
            "input": self.name(state.input),
            "output": self.name(state.output),
            "dtype": DType.from_numpy(initial.dtype).name,
            "dims": state.initial.shape,
            "data": little.tobytes() if little.view(np.uint8).any() else None,
        }

    def tensor(self, info: TensorInfo) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name(info.name), "dtype": info.dtype.name}
        if info.shape is not None:
            fields |= {"ranked": True, "dims": [self.dim(dim) for dim in info.shape]}
        return fields

    def dim(self, dim: int | str | None) -> int:
        if isinstance(dim, str):
            return -2 - self.symbols.setdefault(dim, len(self.symbols))
        return -1 if dim is None else int(dim)

    def constant(self, constant: Stored) -> dict[str, Any]:
        return {
            "name": self.name(constant.name),
            "dtype": constant.dtype.name,
            "dims": constant.array.shape,
            "at": constant.at,
            "size": constant.array.nbytes,
            "stored": None if constant.kept is constant.dtype else constant.kept.name,
        }

    def form(self, form: Stored) -> dict[str, Any]:
        return {
            "constant": self.name(form.name),
            "form": form.form,
            "dtype": form.dtype.name,
            "dims": form.array.shape,
            "at": form.at,
            "size": form.array.nbytes,
        }

    def op(self, op: Op) -> dict[str, Any]:
        key = (type(op.attrs), repr(op.attrs))  # 1, 1.0 and True are equal, but not the same
        if key not in self.attributes:
            try:
                self.encoded.append(encode(op.attrs))
            except UnstorableError as error:
                raise ConversionError(
                    f"its attributes cannot be stored in a model file: {error.message}",
                    op=op.type,
                    node=op.source or op.name,
                    hint="attributes are numbers, strings, bytes, enumerations, dataclasses and "
                    "tuples of them",
                ) from error
            self.attributes[key] = len(self.attributes)
        return {
            "type": self.types.setdefault(op.type, len(self.types)),
            "name": op.name,
            "inputs": [self.name(name) for name in op.inputs],
            "outputs": [self.name(name) for name in op.outputs],
            "attributes": self.attributes[key],
            "source": op.source,
        }


def _op_type(name: str) -> dict[str, Any]:
    """Return an op type with its declaring module: a file with a plug-in's op names the plug-in."""
    provider = OP_TYPES[name].attrs.__module__
    if name == HOST_GRAPH:
        origin = "HOST"
    else:
        origin = "VKMNN" if provider.startswith("vkmnn.ir") else "PLUGIN"
    return {
        "name": name,
        "origin": getattr(Origin, origin),
        "provider": provider if origin == "PLUGIN" else None,
    }


def _pairs(texts: Any) -> list[dict[str, str]]:
    return [{"key": str(key), "value": str(value)} for key, value in texts.items()]
