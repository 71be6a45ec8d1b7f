"""TFLite files, written by schema, and LiteRT as their oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from vkmnn.schema import Buffer, Table, load_schema, write

SCHEMA = load_schema("tflite")
OPERATORS, TYPES = SCHEMA.enums["BuiltinOperator"], SCHEMA.enums["TensorType"]
_KINDS = {
    "float32": "FLOAT32", "float16": "FLOAT16", "float64": "FLOAT64", "bool": "BOOL",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32",
}  # fmt: skip

Options = tuple[str, Mapping[str, Any]]


class Writer:
    """Builds a file; tensors are numbers, and buffers and operator codes are managed automatically.

    `with_subgraph()` starts another subgraph, to which tensors and operators are then added.
    """

    def __init__(self, description: str = "test") -> None:
        self.buffers: list[dict[str, Any]] = [{}]
        self.codes: list[dict[str, Any]] = []
        self.subgraphs: list[dict[str, Any]] = []
        self.signatures: list[dict[str, Any]] = []
        self.description = description
        self.begin()

    def begin(self) -> int:
        """Begin a subgraph, and return its number."""
        self.subgraphs.append(
            {"tensors": [], "operators": [], "inputs": [], "outputs": [], "name": ""}
        )
        return len(self.subgraphs) - 1

    @property
    def here(self) -> dict[str, Any]:
        return self.subgraphs[-1]

    def tensor(
        self,
        shape: Sequence[int],
        kind: str = "FLOAT32",
        *,
        data: Any = None,
        scale: Any = None,
        zero: Any = 0,
        axis: int = 0,
        name: str | None = None,
        **more: Any,
    ) -> int:
        """Add a tensor, and return its number; -1 in the shape is a dynamic size."""
        number = len(self.here["tensors"])
        buffer = 0
        if data is not None:
            raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
            self.buffers.append({"data": raw})
            buffer = len(self.buffers) - 1
        table = {
            "shape": [max(size, 1) if size < 0 else size for size in shape],
            "type": TYPES[kind],
            "buffer": buffer,
            "name": f"t{number}" if name is None else name,
            "has_rank": True,
            **more,
        }
        if min(shape, default=0) < 0:
            table["shape_signature"] = list(shape)
        if scale is not None:
            scales = np.atleast_1d(np.float32(scale))
            zeros = np.broadcast_to(np.int64(zero), scales.shape)
            table["quantization"] = {
                "scale": scales, "zero_point": zeros, "quantized_dimension": axis
            }  # fmt: skip
        self.here["tensors"].append(table)
        return number

    def constant(self, values: Any, **more: Any) -> int:
        """Add a constant; its element type is the array's."""
        array = np.asarray(values)
        return self.tensor(array.shape, _KINDS[array.dtype.name], data=array, **more)

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: Options | None = None,
        *,
        version: int = 1,
        custom: bytes = b"",
        **more: Any,
    ) -> None:
        """Add an operator: a builtin one, or a custom one by its name."""
        builtin = OPERATORS.get(kind)
        code: dict[str, Any] = {"version": version}
        if builtin is None:
            code |= {"builtin_code": OPERATORS["CUSTOM"], "custom_code": kind}
            code["deprecated_builtin_code"] = OPERATORS["CUSTOM"]
        else:
            code |= {"builtin_code": builtin, "deprecated_builtin_code": min(builtin, 127)}
        if code not in self.codes:
            self.codes.append(code)
        field = "builtin_options"
        if options is not None and options[0] in SCHEMA.unions["BuiltinOptions2"]:
            field = "builtin_options_2"
        self.here["operators"].append(
            {
                "opcode_index": self.codes.index(code),
                "inputs": list(inputs),
                "outputs": list(outputs),
                field: options,
                "custom_options": custom or None,
                **more,
            }
        )

    def faces(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Declare the inputs and outputs of the subgraph."""
        self.here["inputs"], self.here["outputs"] = list(inputs), list(outputs)

    def signature(
        self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], subgraph: int = 0
    ) -> None:
        """Add a signature."""

        def maps(named: Mapping[str, int]) -> list[dict[str, Any]]:
            return [{"name": name, "tensor_index": number} for name, number in named.items()]

        self.signatures.append(
            {
                "inputs": maps(inputs),
                "outputs": maps(outputs),
                "signature_key": key,
                "subgraph_index": subgraph,
            }
        )

    def finish(self) -> bytes:
        """Return the file."""
        return write(
            SCHEMA,
            {
                "version": 3,
                "operator_codes": self.codes,
                "subgraphs": self.subgraphs,
                "buffers": self.buffers,
                "description": self.description,
                "signature_defs": self.signatures or None,
            },
        )


class Oracle:
    """LiteRT's interpreter, with its reference kernels, or the optimised ones if it lacks them."""

    def __init__(self, model: bytes, *, every: bool = False) -> None:
        litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs ai-edge-litert")
        kinds = litert.OpResolverType
        for kind in (kinds.BUILTIN_REF, kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES):
            try:
                self.interpreter = litert.Interpreter(
                    model_content=model,
                    experimental_op_resolver_type=kind,
                    experimental_preserve_all_tensors=every,
                )
                self.interpreter.allocate_tensors()
                break
            except (ValueError, RuntimeError):
                if kind is kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES:
                    raise

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Return the outputs for arrays in the order of the inputs, whose sizes may be others."""
        one = self.interpreter
        details = one.get_input_details()
        if any(
            tuple(detail["shape"]) != array.shape
            for detail, array in zip(details, arrays, strict=True)
        ):
            for detail, array in zip(details, arrays, strict=True):
                one.resize_tensor_input(detail["index"], array.shape)
            one.allocate_tensors()
        for detail, array in zip(details, arrays, strict=True):
            one.set_tensor(detail["index"], array)
        one.invoke()
        return [np.array(one.get_tensor(detail["index"])) for detail in one.get_output_details()]


def values_of(table: Table) -> dict[str, Any]:
    """Return a table of a file in the form for `write`."""
    found: dict[str, Any] = {}
    for name, field in SCHEMA.tables[table.kind].items():
        if field.form == "scalar":
            found[name] = table.scalar(name)
        elif field.form == "text":
            found[name] = table.text(name) or None
        elif field.form == "table":
            inner = table.table(name)
            found[name] = None if inner is None else values_of(inner)
        elif field.form == "tables":
            found[name] = [values_of(one) for one in table.tables(name)] or None
        elif field.form == "union":
            inner = table.union(name)
            found[name] = None if inner is None else (inner.kind, values_of(inner))
        else:
            listed = table.texts(name) if field.form == "texts" else table.vector(name)
            found[name] = listed if len(listed) else None
    return found


def parsed(model: bytes) -> dict[str, Any]:
    """Return a whole file in the form for `write`."""
    return values_of(Buffer(memoryview(model), SCHEMA, "TFLite").root())


def with_every_result(model: bytes) -> bytes:
    """Return a file whose outputs are the results of all operators of its first subgraph."""
    values = parsed(model)
    graph = values["subgraphs"][0]
    made = [int(n) for op in graph["operators"] for n in op["outputs"]]
    graph["outputs"] = made
    for number, tensor in enumerate(graph["tensors"]):
        tensor["name"] = f"t{number}"
    values["signature_defs"] = None
    return write(SCHEMA, values)
