"""A TFLite file and its subgraphs, as operators see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.converter.nodes import Reading, Scope, TensorNames
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.quantization import Quantization
from vkmnn.converter.tflite.states import Variables
from vkmnn.converter.tflite.tensors import SCHEMA, LiteTensor, Tensors
from vkmnn.ir import Dim
from vkmnn.schema import Buffer, Table

CUSTOM = "CUSTOM"
OPERATORS = {number: name for name, number in SCHEMA.enums["BuiltinOperator"].items()}

Shapes = Mapping[str, tuple[Dim, ...]]

Part = int | str
"""A known number, or the name of a tensor with one."""


@dataclass(frozen=True)
class Cut:
    """A slice: its tensor, starts and sizes."""

    source: str
    begins: tuple[Part, ...]
    sizes: tuple[Part, ...]


@dataclass
class Vectors:
    """Known contents of computed tensors, by name.

    Attributes:
        parts: vectors, number by number.
        cuts: slices.
        after: numbers that are one more than another.
    """

    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Operator:
    """Meaning of an operator code: the operator's name, and whether it is custom."""

    name: str
    custom: bool = False


class LiteFile:
    """A file that is read.

    Args:
        buffer: the FlatBuffer.
        whole: the bytes of the file.
        meter: counts operators.
        shapes: shapes of inputs in place of the file's.

    Attributes:
        scope: the scope for the nodes of the main subgraph.
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
        """Return the operator of a code."""
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
            pairs = zip(tables, read, strict=True)
            read = [self.tensors.with_blocks(table, tensor, read) for table, tensor in pairs]
            names = [one.text("name") for one in tables]
            self._tables[number] = self.subgraphs[number], read, names
        return self._tables[number]


class Subgraph:
    """A subgraph that is read into a scope.

    Args:
        model: the file.
        number: number of the subgraph.
        scope: the scope for its nodes.
        prefix: begins the names of its tensors.
        arguments: names of the tensors that its inputs represent; None for the model's inputs.
        outer: the subgraph around it; None for the model's.
        public: names that callers use for tensors, by number.

    Attributes:
        scope: the scope for its nodes.
        names: its tensors by number.
        tensors: the same as the file has them.
        inputs: numbers of its inputs.
        outputs: numbers of its outputs.
        vectors: known facts about computed vectors.
        spread: tensors whose blocks became the batches of another, by its name, and the blocks.
        dilated: the same for convolutions of such: their results, with channels first, as those of
            dilated ones.
        decoded: constants that a DEQUANTIZE decodes, by the name of its result.
        outer: the subgraph around it; None for the model's.
    """

    def __init__(
        self,
        model: LiteFile,
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
        self._public = frozenset(public or ())
        self.vectors = Vectors()
        self.spread: dict[str, tuple[str, list[int]]] = {}
        self.dilated: dict[str, tuple[str, list[int]]] = {}
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
        """Add the constants among tensors to the scope, unless they exist."""
        for number in numbers:
            if number == -1 or number in self.names.known.keys() - self._public:
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
            elif tensor.dtype and 0 in tensor.shape and name not in self.scope.types:
                # Constants without elements have no buffer: the shape of a scalar, for one.
                empty = np.zeros([size or 0 for size in tensor.shape], NUMPY_TYPES[tensor.dtype])
                self.scope.set_constant(name, empty)
            elif tensor.is_variable:
                variables, meter = self.model.variables, self.model.reading.meter
                self.names.known[number] = variables.tensor(self.scope, name, tensor, meter)

    def declare(self, number: int) -> None:
        """Record the declared info of a tensor whose shape its operator does not determine."""
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

    def check(self, numbers: Sequence[int]) -> None:
        """Check that tensors of these numbers exist.

        Raises:
            ModelError: one of them is missing.
        """
        for number in numbers:
            if not 0 <= number < len(self.tensors):
                raise self.model.buffer.fail(f"it has no tensor {number}")
