"""A TFLite file as a model of ONNX: signatures, inputs and outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vkmnn.converter.nodes import finish_model
from vkmnn.converter.nodes.quantized import QUANTISED
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.converter.tflite.reading import read_subgraph
from vkmnn.converter.tflite.subgraph import LiteFile, Subgraph
from vkmnn.converter.tflite.tensors import LiteTensor
from vkmnn.errors import InvalidInputError, ModelError, nearest
from vkmnn.ir import QUANTIZATION, SIGNATURES, Dim
from vkmnn.schema import Table


class LiteModel(LiteFile):
    """A file that is read, signature by signature."""

    def convert(self, name: str, signature: str) -> ModelFile:
        """Return the model of a signature.

        Args:
            name: name of the graph.
            signature: its key; "" for the first, or the first subgraph where there is none.

        Raises:
            ModelError: the file is damaged.
            UnsupportedOpError: unsupported operators, all of which are listed.
        """
        chosen = self._signature(signature)
        number = chosen.integer("subgraph_index") if chosen else 0
        inputs, outputs = self._faces(number, chosen)
        scope = self.scope
        public = {tensor: name for name, tensor in (outputs | inputs).items()}
        main = Subgraph(self, number, scope, public=public)
        shapes = {name: self._input(main, tensor, name) for name, tensor in inputs.items()}
        read_subgraph(main)
        self.reading.check()
        for face, tensor in outputs.items():
            if main.tensors[tensor].is_complex:
                raise ModelError(
                    f"output '{face}' has complex elements",
                    hint="give its real and imaginary parts (tf.math.real, tf.math.imag)",
                )
            main.constants([tensor])
            made = main.names[tensor]
            if made not in scope.types:
                raise self.buffer.fail(f"no op produces the output '{face}'")
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
            raise self.buffer.fail("an input occurs twice")
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
                hint="vkmnn runs networks on numbers: cut off the part that reads strings",
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
