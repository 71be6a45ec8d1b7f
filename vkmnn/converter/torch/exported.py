"""Programs of torch.export as graphs, through torch's exporter to ONNX, in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.converter.front_end import Conversion
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.converter.onnx.model_file import ModelFile
from vkmnn.converter.onnx.wire import LARGE, Bytes
from vkmnn.converter.torch.exporting import exporting
from vkmnn.converter.torch.forms import with_forms
from vkmnn.converter.torch.mutations import Pure, pure_program
from vkmnn.converter.torch.packages import PROGRAM, need_torch
from vkmnn.converter.torch.sources import NEXT, Program
from vkmnn.errors import ConversionError
from vkmnn.ir import Array, Graph, GraphState

if TYPE_CHECKING:
    import onnx

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def convert_program(source: Program, conversion: Conversion) -> Graph:
    """Return the graph of a program; buffers that it writes become states.

    Raises:
        MissingExtraError: a package of the extra `torch` is not installed.
        ConversionError: the exporter refuses the program.
    """
    torch = need_torch(PROGRAM)
    with conversion.meter.paused(), exporting("the program"):
        pure = pure_program(with_forms(source.program))
        made = torch.onnx.export(pure.program, (), dynamo=True, verbose=False)
    file = _model_file(made)
    file.proto.graph.name = source.name
    _rename_sizes(file.proto.graph, _names_of_sizes(source.program))
    _name_states(file.proto.graph, pure)
    onnx = OnnxFrontEnd()
    graph = onnx.convert(onnx.read(file), conversion)
    types = {info.name: info.dtype for info in graph.inputs}
    graph.states = [
        GraphState(name, f"{name}{NEXT}", _array(value).astype(types[name].numpy, copy=False))
        for name, value in ((_state(one), value) for one, value in pure.states.items())
    ]
    return graph


def _model_file(made: Any) -> ModelFile:
    """Return what the exporter made, with large weights outside the protobuf."""
    import onnx

    held = made.model.graph.initializers
    large = {
        name: value.const_value
        for name, value in held.items()
        if value.const_value is not None and value.const_value.nbytes >= LARGE
    }
    values = {name: held.pop(name) for name in large}
    proto = made.model_proto
    weights: dict[int, Bytes] = {}
    for name, tensor in large.items():
        weights[len(proto.graph.initializer)] = np.frombuffer(tensor.tobytes(), np.uint8)
        kind, dims = int(tensor.dtype), [int(size) for size in tensor.shape]
        proto.graph.initializer.append(
            onnx.TensorProto(name=values[name].name, data_type=kind, dims=dims, raw_data=b"")
        )
    return ModelFile(proto, weights, None)


def _state(buffer: str) -> str:
    return f"state/{buffer}"


def _name_states(graph: onnx.GraphProto, pure: Pure) -> None:
    """Name what was written, and give every output a name of its own."""
    from onnx import helper

    first = []
    states = [_state(name) for name in pure.states]
    for value, name in zip(graph.input[len(graph.input) - len(states) :], states, strict=True):
        first.append(helper.make_node("Identity", [name], [value.name]))
        value.name = name
    written = [f"{name}{NEXT}" for name in [*states, *pure.inputs]]
    names = [""] * (len(graph.output) - len(written)) + written
    taken = {value.name for value in graph.input} | {one.name for one in graph.initializer}
    for value, name in zip(graph.output, names, strict=True):
        if not name and value.name in taken:
            name = f"{value.name}/{len(taken)}"  # torch writes no slashes
        if name:
            graph.node.append(helper.make_node("Identity", [value.name], [name]))
            value.name = name
        taken.add(value.name)
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*first, *nodes])


def _names_of_sizes(program: Any) -> dict[str, str]:
    """Return the names of `torch.export.Dim` by the symbols that a program has for them.

    A program in memory knows them; its file does not.
    """
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            shapes = mode.shape_env
            symbols = getattr(shapes, "source_to_var", None) or getattr(
                shapes, "source_to_symbol", {}
            )
            named = getattr(shapes, "source_name_to_debug_name", {})
            found = {
                str(symbols[source]): name for source, name in named.items() if source in symbols
            }
            return {one: name for one, name in found.items() if name.isidentifier()}
    return {}


def _rename_sizes(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    if not names:
        return
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = _SYMBOL.sub(
                    lambda found: names.get(found[0], found[0]), dim.dim_param
                )


def _array(tensor: Any) -> Array:
    """Return a tensor as an array of its own."""
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        raise ConversionError(
            "the program writes a buffer of complex numbers",
            hint="keep its real and imaginary parts: torch.view_as_real",
        )
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    array: Array = np.array(tensor.numpy())
    return array
