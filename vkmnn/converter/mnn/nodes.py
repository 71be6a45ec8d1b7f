"""What a reader of an MNN op sees, and how it writes nodes of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vkmnn.errors import ConversionError, ModelError, plural
from vkmnn.ir import Array
from vkmnn.registry import Registry
from vkmnn.schema import Table, load_schema

if TYPE_CHECKING:
    import onnx

SCHEMA = load_schema("mnn")
OP_TYPES = {number: name for name, number in SCHEMA.enums["OpType"].items()}

OPSET = 21
"""The opset of ONNX in which nodes are written."""

NUMBERED = "#"
"""Stands between the name of an op and a number, where the op becomes several nodes."""

FLOAT, UINT8, INT8, INT32, INT64, BOOL = 1, 2, 3, 6, 7, 9
"""Element types as ONNX numbers them."""

TYPES = {"DT_FLOAT": FLOAT, "DT_DOUBLE": FLOAT, "DT_HALF": FLOAT, "DT_BFLOAT16": FLOAT,
         "DT_INT32": INT32, "DT_INT64": INT32, "DT_BOOL": INT32, "DT_INT16": INT32,
         "DT_UINT16": INT32, "DT_UINT8": UINT8, "DT_INT8": INT8}  # fmt: skip
"""What MNN's element types are at run time: it has no integers of 64 bits, and no booleans."""

_NUMPY = {np.dtype("f4"): FLOAT, np.dtype("i4"): INT32, np.dtype("i8"): INT64,
          np.dtype("u1"): UINT8, np.dtype("i1"): INT8, np.dtype("?"): BOOL}  # fmt: skip


class UnreadableError(ConversionError):
    """A use of an op that is not read; the message is the reason."""


Reader = Callable[["MnnOp"], None]
READERS: Registry[str, Reader] = Registry("reader of MNN's op")

R = TypeVar("R", bound=Reader)


def reads(*types: str) -> Callable[[R], R]:
    """Register a function that reads ops of these types."""
    return READERS.register(*types)  # type: ignore[return-value]


STRUCTURAL = frozenset({"Input", "Const", "TrainableParam", "If", "While"})
"""Ops that stand for no node of their own: the model's reader takes them."""


def read_ops() -> dict[str, bool]:
    """Return every op that a file may have, and whether it is read."""
    return {name: name in READERS or name in STRUCTURAL for name in OP_TYPES.values()}


def enum_name(enum: str, number: int) -> str:
    """Return the name of an enumeration's member; "" where there is none."""
    members = SCHEMA.enums[enum]
    return next((name for name, value in members.items() if value == number), "")


_FOLDED: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum,
    "Min": np.minimum, "Mod": np.mod, "Identity": np.array,
    "Unsqueeze": lambda array, axes: np.expand_dims(array, tuple(axes.reshape(-1).tolist())),
    "Squeeze": lambda array, axes: np.squeeze(array, tuple(axes.reshape(-1).tolist())),
}  # fmt: skip
"""What is computed at once of small constants: files work out axes from ranks by these."""
_FOLDED_SIZE = 64


class Scope:
    """A graph of ONNX as it grows: its nodes, its constants, and what is known of its tensors."""

    def __init__(self, prefix: str, weights: bytes) -> None:
        self.prefix = prefix
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.types: dict[str, int] = {}
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.named: dict[str, int] = {}
        self.count = 0

    def fresh(self, base: str) -> str:
        """Return a name that no other tensor has."""
        self.count += 1
        return f"{self.prefix}{base}/{self.count}"

    def _node_name(self, op: str) -> str:
        """Return the name of an op's next node: the op's own, then the same with a number."""
        number = self.named[op] = self.named.get(op, 0) + 1
        return f"{self.prefix}{op}" if number == 1 else f"{self.prefix}{op}{NUMBERED}{number}"

    def constant(self, array: Array, base: str = "constant") -> str:
        """Add a constant and return its name."""
        name = self.fresh(base)
        self.set_constant(name, array)
        return name

    def set_constant(self, name: str, array: Array) -> None:
        """Add a constant of a name."""
        self.constants[name] = array
        self.types[name] = _NUMPY[array.dtype]
        self.shapes[name] = array.shape

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        node: str,
        dtype: int | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Add a node; `dtype` is the element type of what it makes, that of its input if None."""
        from onnx import helper

        found = self.types.get(inputs[0], FLOAT) if dtype is None and inputs else dtype
        if self._folded(op, inputs, outputs):
            return
        name = self._node_name(node)
        # An empty list has no type; the converter says so where one is needed.
        attributes = {key: value for key, value in attributes.items() if value != []}
        proto = helper.make_node(op, inputs, outputs, name, domain=domain, **attributes)
        self.nodes.append(proto)
        for name in outputs:
            self.types[name] = FLOAT if found is None else found
        if not domain:
            self._infer(proto)

    def _folded(self, op: str, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """Compute a node of small constants of integers; False where it has to stay."""
        found = [self.constants.get(name) for name in inputs]
        arrays = [one for one in found if one is not None and one.size <= _FOLDED_SIZE]
        if op not in _FOLDED or len(arrays) != len(inputs) or not 0 < len(arrays) < 3:
            return False
        if any(one.dtype.kind != "i" for one in arrays) or (op == "Mod" and not np.all(arrays[1])):
            return False
        try:
            result = np.asarray(_FOLDED[op](*arrays))
        except (ValueError, IndexError):  # what does not fit: the node's own error says so
            return False
        self.set_constant(outputs[0], result.astype(arrays[0].dtype))
        return True

    def _infer(self, node: onnx.NodeProto) -> None:
        """Note what ONNX's rules say of a node's results: element types, and sizes or ranks."""
        from onnx import defs, helper, numpy_helper, shape_inference

        types, values = {}, {}
        for name in filter(None, node.input):
            if name not in self.types:
                return
            shape = self.shapes.get(name)
            types[name] = helper.make_tensor_type_proto(self.types[name], shape)
            array = self.constants.get(name)
            if array is not None and array.size <= _FOLDED_SIZE:
                values[name] = numpy_helper.from_array(array, name)
        try:
            schema = defs.get_schema(node.op_type, OPSET, "")
            imports = [helper.make_opsetid("", OPSET)]
            inferred = shape_inference.infer_node_outputs(
                schema, node, types, values, opset_imports=imports
            )
        except Exception:  # noqa: BLE001 - native code, which throws what it likes
            return
        for name, proto in inferred.items():
            tensor = proto.tensor_type
            if tensor.elem_type:
                self.types[name] = tensor.elem_type
            if tensor.HasField("shape"):
                self.shapes[name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim
                )
        self._infer_reshaped(node)

    def _infer_reshaped(self, node: onnx.NodeProto) -> None:
        """Note the rank of a reshaped tensor: how long the list of its sizes is."""
        if node.op_type in ("Reshape", "Expand") and node.output[0] not in self.shapes:
            length = self.shapes.get(node.input[1], (None,))[0:1]
            if length and length[0] is not None and node.op_type == "Reshape":
                self.shapes[node.output[0]] = (None,) * length[0]


class MnnOp:
    """One op of a file.

    Attributes:
        table: the op in the file.
        type: its type.
        name: its name, for messages and for the nodes that it becomes.
        inputs: names of its inputs.
        outputs: names of its outputs.
        main: its parameters; None where it has none.
    """

    def __init__(self, scope: Scope, table: Table, inputs: list[str], outputs: list[str]) -> None:
        self.scope, self.table = scope, table
        self.type = OP_TYPES.get(table.integer("type"), f"type {table.integer('type')}")
        self.name = table.text("name") or self.type
        self.inputs, self.outputs = inputs, outputs
        self.main = table.union("main")

    def parameters(self, kind: str) -> Table:
        """Return the parameters, which have to be of a kind.

        Raises:
            ModelError: they are not.
        """
        if self.main is None or self.main.kind != kind:
            found = self.main.kind if self.main else "none"
            raise ModelError(f"it has parameters {found}, not {kind}", op=self.type, node=self.name)
        return self.main

    def need(self, inputs: int, outputs: int = 1) -> None:
        """Check that it has at least this many inputs and outputs."""
        if len(self.inputs) < inputs or len(self.outputs) < outputs:
            raise ModelError(
                f"it has {plural(len(self.inputs), 'input')} and "
                f"{plural(len(self.outputs), 'output')}, not {inputs} and {outputs}",
                op=self.type,
                node=self.name,
            )

    def unreadable(self, reason: str) -> UnreadableError:
        """Return the error for a use of the op that is not read."""
        return UnreadableError(reason, op=self.type, node=self.name)

    def value(self, number: int) -> Array | None:
        """Return an input that is a constant; None for any other, and for one that is absent."""
        if number >= len(self.inputs):
            return None
        return self.scope.constants.get(self.inputs[number])

    def integers(self, number: int) -> list[int] | None:
        """Return an input that is a constant as a list."""
        found = self.value(number)
        return None if found is None else [int(one) for one in found.reshape(-1)]

    def type_of(self, name: str) -> int:
        """Return the element type of a tensor."""
        return self.scope.types.get(name, FLOAT)

    def rank(self, number: int) -> int | None:
        """Return how many axes an input has; None where it is not known."""
        shape = self.scope.shapes.get(self.inputs[number])
        return None if shape is None else len(shape)

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant and return its name."""
        return self.scope.constant(np.array(values, dtype), self.name)

    def make(
        self, op: str, *inputs: str, dtype: int | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node whose only output is a new tensor, and return the tensor's name."""
        name = self.scope.fresh(self.name)
        self.scope.emit(op, inputs, [name], self.name, dtype, domain, **attributes)
        return name

    def finish(
        self, op: str, *inputs: str, dtype: int | None = None, domain: str = "", **attributes: Any
    ) -> None:
        """Add the node that makes the op's first output."""
        self.need(0)
        self.scope.emit(op, inputs, self.outputs[:1], self.name, dtype, domain, **attributes)

    def cast(self, name: str, dtype: int) -> str:
        """Return a tensor converted to an element type."""
        if self.type_of(name) == dtype:
            return name
        array = self.scope.constants.get(name)
        if array is not None and dtype == INT64:
            return self.constant(array)
        return self.make("Cast", name, dtype=dtype, to=dtype)

    def finish_as(self, dtype: int, name: str) -> None:
        """Make a tensor the op's output, converted to an element type."""
        if self.type_of(name) == dtype:
            self.finish("Identity", name)
        else:
            self.finish("Cast", name, dtype=dtype, to=dtype)

    def finish_active(self, name: str, kind: str) -> None:
        """Make a tensor, after an activation NONE, RELU or RELU6, the op's output."""
        if kind == "RELU6":
            limits = self.constant(0, np.float32), self.constant(6, np.float32)
            self.finish("Clip", name, *limits)
        else:
            self.finish("Relu" if kind == "RELU" else "Identity", name)
