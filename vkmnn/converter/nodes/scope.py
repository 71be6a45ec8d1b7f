"""A growing ONNX graph: nodes, constants, and known infos."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import ModelError
from vkmnn.ir import Array

if TYPE_CHECKING:
    import onnx

OPSET = 21
"""The opset of ONNX in which nodes are written."""

NUMBERED = "#"
"""Separates the name of an op from a number, if the op becomes several nodes."""

FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL = 1, 2, 3, 4, 5, 6, 7, 9
FLOAT16, DOUBLE, UINT32, UINT64 = 10, 11, 12, 13
"""Element types as ONNX numbers them."""

ELEMENT_TYPES = {
    "f4": FLOAT, "f2": FLOAT16, "f8": DOUBLE, "b1": BOOL, "i1": INT8, "i2": INT16, "i4": INT32,
    "i8": INT64, "u1": UINT8, "u2": UINT16, "u4": UINT32, "u8": UINT64,
}  # fmt: skip
"""ONNX's number of an element type, by numpy's kind and item size."""

NUMPY_TYPES = {number: np.dtype(code) for code, number in ELEMENT_TYPES.items()}

_FOLDED: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum,
    "Min": np.minimum, "Mod": np.mod, "Identity": np.array,
    "Unsqueeze": lambda array, axes: np.expand_dims(array, tuple(axes.reshape(-1).tolist())),
    "Squeeze": lambda array, axes: np.squeeze(array, tuple(axes.reshape(-1).tolist())),
}  # fmt: skip
"""Operators computed at once on small integer constants: files derive axes from ranks by these."""
_FOLDED_SIZE = 64


def element_type(dtype: np.dtype[Any]) -> int:
    """Return ONNX's number for a numpy element type."""
    return ELEMENT_TYPES[f"{dtype.kind}{dtype.itemsize}"]


class Scope:
    """A graph of ONNX as it grows.

    Args:
        prefix: begins the names of its nodes and of tensors without a name in the file.

    Attributes:
        nodes: its nodes, in order.
        constants: its constants by name.
        types: element types of tensors, as ONNX numbers them.
        shapes: sizes of tensors as far as they are known; None for an unknown size.
        notes: tensors for which nodes were already written, by purpose (`memoised`).
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.types: dict[str, int] = {}
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.notes: dict[tuple[str, object], str] = {}
        self.named: dict[str, int] = {}
        self.taken: set[str] = set()
        self.count = 0

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for the file's own tensors."""
        self.taken.update(names)

    def fresh(self, base: str) -> str:
        """Return a name that no other tensor has."""
        while True:
            self.count += 1
            name = f"{self.prefix}{base}/{self.count}"
            if name not in self.taken:
                return name

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
        self.types[name] = element_type(array.dtype)
        self.shapes[name] = array.shape

    def memoised(self, name: str, what: object, make: Callable[[], str]) -> str:
        """Return the tensor that `make` derives from another, written once per use."""
        found = self.notes.get((name, what))
        if found is None:
            found = self.notes[name, what] = make()
        return found

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
        """Add a node.

        Args:
            op: its operator.
            inputs: names of its inputs.
            outputs: names of its outputs.
            node: the name of the file's operator that it belongs to.
            dtype: element type of its outputs if ONNX's rules do not define it; that of its first
                input if None.
            domain: domain of its operator.
            attributes: its attributes; empty lists are left out.
        """
        if not self._folded(op, inputs, outputs):
            self._append(op, inputs, outputs, node, dtype, domain, attributes)

    def copy(self, name: str, output: str) -> None:
        """Name a tensor as a graph output, through a node even for a constant."""
        self._append("Identity", [name], [output], output, None, "", {})

    def _append(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        node: str,
        dtype: int | None,
        domain: str,
        attributes: dict[str, Any],
    ) -> None:
        from onnx import helper

        found = self.types.get(inputs[0], FLOAT) if dtype is None and inputs else dtype
        name = self._node_name(node)
        # An empty list has no type; the converter reports it if one is needed.
        attributes = {key: value for key, value in attributes.items() if value != []}
        proto = helper.make_node(op, inputs, outputs, name, domain=domain, **attributes)
        self.nodes.append(proto)
        for name in outputs:
            self.types[name] = FLOAT if found is None else found
        if not domain:
            self._infer(proto)

    def _folded(self, op: str, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """Compute a node of small integer constants; False if it has to stay."""
        found = [self.constants.get(name) for name in inputs]
        arrays = [one for one in found if one is not None and one.size <= _FOLDED_SIZE]
        if op not in _FOLDED or len(arrays) != len(inputs) or not 0 < len(arrays) < 3:
            return False
        if any(one.dtype.kind != "i" for one in arrays) or (op == "Mod" and not np.all(arrays[1])):
            return False
        try:
            result = np.asarray(_FOLDED[op](*arrays))
        except (ValueError, IndexError):  # inconsistent operands: the node's own error reports them
            return False
        self.set_constant(outputs[0], result.astype(arrays[0].dtype))
        return True

    def _infer(self, node: onnx.NodeProto) -> None:
        """Record ONNX's inference for a node's results: element types, and sizes or ranks."""
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
        """Record the rank of a reshaped tensor: the length of its list of sizes."""
        if node.op_type in ("Reshape", "Expand") and node.output[0] not in self.shapes:
            length = self.shapes.get(node.input[1], (None,))[0:1]
            if length and length[0] is not None and node.op_type == "Reshape":
                self.shapes[node.output[0]] = (None,) * length[0]


class TensorNames:
    """Tensors that a file numbers; every number gets a unique name.

    Args:
        names: the file's names, which may be empty or repeat.
        prefix: begins every name.
        what: the kind of file, for messages.
        public: names for callers, by number, which no other tensor gets.

    Attributes:
        known: names of the tensors that others represent, by number: a body's inputs are outer
            tensors.
    """

    def __init__(
        self,
        names: Sequence[str],
        prefix: str,
        what: str,
        public: Mapping[int, str] | None = None,
    ) -> None:
        self.plain = list(names)
        self.what = what
        self.known: dict[int, str] = dict(public or {})
        self.names: list[str] = []
        taken = set(self.known.values())
        for number, name in enumerate(names):
            one = f"{prefix}{name}"
            while not name or one in taken:
                name = one = f"{one}#{number}"
            taken.add(one)
            self.names.append(one)

    def __getitem__(self, number: int) -> str:
        """Return the name of a tensor.

        Raises:
            ModelError: there is none of that number.
        """
        if number in self.known:
            return self.known[number]
        if not 0 <= number < len(self.names):
            raise ModelError(f"the {self.what} file is damaged: it has no tensor {number}")
        return self.names[number]

    def number(self, name: str) -> int:
        """Return the number of a tensor, or -1."""
        return self.plain.index(name) if name in self.plain else -1
