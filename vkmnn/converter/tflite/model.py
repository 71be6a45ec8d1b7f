"""A TFLite file as a model of ONNX: subgraphs, operators, inputs and outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkmnn.budget import Meter
from vkmnn.converter.nodes import Reading, Scope, TensorNames, finish_model
from vkmnn.converter.nodes.quantized import QUANTISED, Quantization
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.converter.tflite.custom import CUSTOM_READERS
from vkmnn.converter.tflite.nodes import (
    CUSTOM,
    OPERATORS,
    READERS,
    LiteOp,
)
from vkmnn.converter.tflite.tensors import LiteTensor, Tensors
from vkmnn.converter.tflite.variables import Variables
from vkmnn.converter.tflite.vectors import Vectors
from vkmnn.errors import InvalidInputError, ModelError, nearest
from vkmnn.ir import QUANTIZATION, SIGNATURES, Dim
from vkmnn.schema import Buffer, Table

_DEEPEST = 16
_FLEX = "Flex"

Shapes = Mapping[str, tuple[Dim, ...]]


@dataclass(frozen=True)
class Operator:
    """What an operator code stands for: the operator's name, and whether it is a custom one."""

    name: str
    custom: bool = False


class Subgraph:
    """A subgraph that is read into a scope.

    Args:
        model: the file.
        number: which of its subgraphs.
        scope: where its nodes go.
        prefix: begins the names of its tensors.
        arguments: names of tensors that its inputs stand for; None for the model's inputs.
        outer: the subgraph around it; None for the model's.
        public: names that callers use for tensors, by number.

    Attributes:
        scope: where its nodes go.
        names: its tensors by number.
        tensors: the same as the file has them.
        inputs: numbers of its inputs.
        outputs: numbers of its outputs.
        vectors: what is known of vectors that are computed.
        decoded: constants that a DEQUANTIZE decodes, by the name of its result.
        outer: the subgraph around it; None for the model's.
    """

    def __init__(
        self,
        model: LiteModel,
        number: int,
        scope: Scope,
        prefix: str = "",
        arguments: Sequence[str] | None = None,
        outer: Subgraph | None = None,
        public: Mapping[int, str] | None = None,
    ) -> None:
        self.model, self.scope, self.prefix, self.outer = model, scope, prefix, outer
        self.table, self.tensors, names = model.tables_of(number)
        self.names = TensorNames(names, prefix, "TFLite", public)
        scope.reserve(self.names.names)
        self.inputs, self.outputs = self.table.integers("inputs"), self.table.integers("outputs")
        self.vectors = Vectors()
        self._shared: dict[tuple[int, str, tuple[int | None, ...]], str] = {}
        self.decoded: dict[str, tuple[str, Quantization | None]] = {}
        if arguments is not None:
            if len(arguments) != len(self.inputs):
                raise model.buffer.fail(
                    f"a subgraph takes {len(self.inputs)} inputs, not {len(arguments)}"
                )
            for inner, name in zip(self.inputs, arguments, strict=True):
                self.names.known[inner] = name

    def constants(self, numbers: Sequence[int]) -> None:
        """Add the constants among tensors to the scope, unless they are there."""
        for number in numbers:
            if number == -1 or number in self.names.known:
                continue
            name, tensor = self.names[number], self.tensors[number]
            if tensor.data is not None and tensor.dtype:
                # Tensors that share a buffer are one constant.
                key = tensor.buffer, tensor.kind, tensor.shape
                known = self._shared.setdefault(key, name)
                if known not in self.scope.types:
                    self.scope.set_constant(known, tensor.data)
                if known != name and known in self.scope.constants:
                    self.names.known[number] = known
            elif tensor.is_variable:
                self.model.variables.tensor(self, number)

    def declare(self, number: int) -> None:
        """Note what the file says of a tensor whose shape does not follow from its operator."""
        name, tensor = self.names[number], self.tensors[number]
        if tensor.dtype:
            self.scope.types.setdefault(name, tensor.dtype)
        known = self.scope.shapes.get(name)
        if known is None and tensor.shape:
            self.scope.shapes[name] = (
                tensor.shape if self.model.fixed else (None,) * len(tensor.shape)
            )
        elif known is not None and len(known) == len(tensor.shape) and self.model.fixed:
            pairs = zip(known, tensor.shape, strict=True)
            self.scope.shapes[name] = tuple(b if a is None else a for a, b in pairs)

    def results(self) -> list[str]:
        """Return the names of its outputs, constants among them added to the scope."""
        self.constants(self.outputs)
        return [self.names[number] for number in self.outputs]

    def read(self) -> None:
        """Read its operators into the scope."""
        operators = self.table.tables("operators")
        model = self.model
        model.reading.count(len(operators))
        if model.depth >= _DEEPEST:
            raise model.buffer.fail("its subgraphs contain each other")
        model.depth += 1
        for table in operators:
            self._operator(table)
        model.depth -= 1

    def _operator(self, table: Table) -> None:
        kind = self.model.operator(table.integer("opcode_index"))
        inputs, outputs = table.integers("inputs"), table.integers("outputs")
        name = self.names[outputs[0]] if outputs else f"{self.prefix}{kind.name}"
        self._check([number for number in inputs if number != -1] + outputs)
        self.constants(inputs)
        op = LiteOp(self.scope, kind.name, name, table, self, (inputs, outputs))
        self.model.reading.meter.check_time(op.type, op.name)
        with self.model.reading.operator(op):
            if kind.custom:
                self._custom(op)
            else:
                READERS.read(op)
        for number in outputs:
            self.declare(number)

    def _custom(self, op: LiteOp) -> None:
        if op.type.startswith(_FLEX):
            raise op.unreadable("it is TensorFlow's own: convert without SELECT_TF_OPS")
        CUSTOM_READERS.read(op)

    def _check(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if not 0 <= number < len(self.tensors):
                raise self.model.buffer.fail(f"it has no tensor {number}")


class LiteModel:
    """A file that is read.

    Args:
        buffer: the FlatBuffer.
        whole: the bytes of the file.
        meter: counts operators.
        shapes: shapes of inputs in place of the file's.

    Attributes:
        scope: where the nodes of the main subgraph go.
        calls: how many subgraphs have been read in the place of operators.
        fixed: whether the sizes that the file states hold: no input is open, or has others.
    """

    def __init__(self, buffer: Buffer, whole: memoryview, meter: Meter, shapes: Shapes) -> None:
        self.buffer, self.shapes = buffer, shapes
        root = buffer.root()
        self.reading = Reading("TFLite", meter)
        self.codes = root.tables("operator_codes")
        self.subgraphs = root.tables("subgraphs")
        self.signatures = root.tables("signature_defs")
        self.tensors = Tensors(buffer, root.tables("buffers"), whole, meter)
        self.description = root.text("description")
        self.variables = Variables()
        meter.weigh(len(whole))
        self.scope = Scope()
        self.depth = 0
        self.calls = 0
        self.fixed = True
        self._operators: dict[int, Operator] = {}
        self._tables: dict[int, tuple[Table, list[LiteTensor], list[str]]] = {}

    def operator(self, number: int) -> Operator:
        """Return what an operator code stands for."""
        if number not in self._operators:
            if not 0 <= number < len(self.codes):
                raise self.buffer.fail(f"it has no operator code {number}")
            table = self.codes[number]
            code = max(table.integer("deprecated_builtin_code"), table.integer("builtin_code"))
            name = OPERATORS.get(code, f"operator {code}")
            custom = name == CUSTOM
            text = table.text("custom_code") if custom else ""
            self._operators[number] = Operator(text or name, custom)
        return self._operators[number]

    def tables_of(self, number: int) -> tuple[Table, list[LiteTensor], list[str]]:
        """Return a subgraph, its tensors, and their names in the file."""
        if number not in self._tables:
            if not 0 <= number < len(self.subgraphs):
                raise self.buffer.fail(f"it has no subgraph {number}")
            tables = self.subgraphs[number].tables("tensors")
            read = [self.tensors.read(one) for one in tables]
            names = [one.text("name") for one in tables]
            self._tables[number] = self.subgraphs[number], read, names
        return self._tables[number]

    def convert(self, name: str, signature: str) -> ModelFile:
        """Return the model of a signature.

        Args:
            name: what the graph is called.
            signature: its key; "" for the first, or the first subgraph where there is none.

        Raises:
            ModelError: the file is damaged.
            UnsupportedOpError: operators that are not read: all of them.
        """
        chosen = self._signature(signature)
        number = chosen.integer("subgraph_index") if chosen else 0
        inputs, outputs = self._faces(number, chosen)
        scope = self.scope
        public = {tensor: name for name, tensor in (outputs | inputs).items()}
        main = Subgraph(self, number, scope, public=public)
        shapes = {name: self._input(main, tensor, name) for name, tensor in inputs.items()}
        main.read()
        self.reading.check()
        for face, tensor in outputs.items():
            main.constants([tensor])
            made = main.names[tensor]
            if made not in scope.types:
                raise self.buffer.fail(f"nothing makes the output '{face}'")
            if made == face and face in scope.constants:
                made = scope.constant(scope.constants.pop(face))
            if made != face:
                scope.copy(made, face)
        states = self.variables.finish(scope)
        shapes |= {state.name: (state.dtype, list(state.initial.shape)) for state in states}
        results = [*outputs, *(state.output for state in states)]
        quantised = {one: main.tensors[tensor] for one, tensor in (inputs | outputs).items()}
        producer = "TFLite" if not self.description else f"TFLite: {self.description[:80]}"
        return finish_model(
            *(scope, shapes, results, name, producer, self._properties(quantised)),
            shapes={one: scope.shapes[one] for one in results if one in scope.shapes},
        )

    def _faces(self, number: int, chosen: Table | None) -> tuple[dict[str, int], dict[str, int]]:
        """Return the numbers of inputs and outputs by the names that callers use."""
        table, tensors, names = self.tables_of(number)
        found: list[dict[str, int]] = []
        taken: set[str] = set()
        for field in ("inputs", "outputs"):
            named = _mapped(chosen, field) if chosen else {}
            faces: dict[str, int] = {}
            for tensor in table.integers(field):
                if not 0 <= tensor < len(tensors):
                    raise self.buffer.fail(f"it has no tensor {tensor}")
                name = named.get(tensor) or names[tensor] or f"tensor_{tensor}"
                while name in taken:
                    name = f"{name}#{tensor}"
                taken.add(name)
                faces[name] = tensor
            found.append(faces)
        if len(set(found[0].values())) < len(found[0]):
            raise self.buffer.fail("an input is there twice")
        return found[0], found[1]

    def _properties(self, tensors: Mapping[str, LiteTensor]) -> dict[str, str]:
        found = {
            name: [[float(one) for one in by.scale], by.zero.tolist(), by.axis]
            for name, tensor in tensors.items()
            if (by := tensor.quantization) is not None and tensor.dtype in QUANTISED
        }
        properties = {QUANTIZATION: json.dumps(found)} if found else {}
        keys = [one.text("signature_key") for one in self.signatures]
        return properties | ({SIGNATURES: ", ".join(keys)} if keys else {})

    def _signature(self, key: str) -> Table | None:
        if not key:
            return self.signatures[0] if self.signatures else None
        keys = [one.text("signature_key") for one in self.signatures]
        if key not in keys:
            raise InvalidInputError(
                f"the model has no signature '{key}'", hint=nearest(key, keys, "signatures")
            )
        return self.signatures[keys.index(key)]

    def _input(self, main: Subgraph, number: int, name: str) -> tuple[int, list[Dim]]:
        """Declare an input; return its element type and its shape."""
        tensor, given = main.tensors[number], self.shapes.get(name)
        if not tensor.dtype:
            raise ModelError(
                f"input '{name}' has elements of type {tensor.kind or 'unknown'}",
                hint="vkmnn runs networks on numbers: cut off the part that reads texts",
            )
        dims: list[Dim] = [
            f"{name}_{axis}" if dim is None else dim for axis, dim in enumerate(tensor.shape)
        ]
        dims = dims if given is None else list(given)
        known = tuple(dim if isinstance(dim, int) else None for dim in dims)
        self.fixed &= None not in known and known == tensor.shape
        main.scope.types[name], main.scope.shapes[name] = tensor.dtype, known
        return tensor.dtype, dims


def _mapped(signature: Table, field: str) -> dict[int, str]:
    return {one.integer("tensor_index"): one.text("name") for one in signature.tables(field)}
