"""TorchScript as graphs, by three roads of PyTorch's own in turn.

| road | what it takes |
|---|---|
| the older exporter to ONNX | most modules, and control flow |
| TorchScript to torch.export | modules with operators that the older exporter lacks |
| a recording of one run | the rest; branches and sizes are those of the run, which a warning says |
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

from vkmnn.converter.front_end import Conversion
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.converter.torch.arguments import Arguments, arguments_of
from vkmnn.converter.torch.exported import convert_program
from vkmnn.converter.torch.exporting import exporting
from vkmnn.converter.torch.packages import need_torch
from vkmnn.converter.torch.script_forms import script_forms
from vkmnn.converter.torch.sources import Program, Script
from vkmnn.errors import BudgetError, ConversionError, ModelError
from vkmnn.ir import Graph

if TYPE_CHECKING:
    import onnx

_LOG = logging.getLogger(__name__)
_OPSET = 17
Road = Callable[[Any, Arguments, Script, Conversion], Graph]


def convert_script(source: Script, conversion: Conversion) -> Graph:
    """Return the graph of a TorchScript module.

    Raises:
        MissingExtraError: a package of the extra `torch` is not installed.
        ConversionError: the shapes of its inputs are not known, it writes its own buffers, or no
            road takes it.
    """
    torch = need_torch("a TorchScript module")
    module = source.module
    with warnings.catch_warnings(), _for_inference(module):
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        suspected = _suspected(torch, module)
        with conversion.meter.paused():
            arguments = arguments_of(torch, module, source, conversion)
            _refuse_written(torch, module, suspected, arguments.tensors)
        refusals = []
        for name, road in _ROADS.items():
            try:
                return road(torch, arguments, source, conversion)
            except BudgetError:
                raise
            except (ConversionError, ModelError) as error:
                refusals.append(f"{name}: {error.message}")
                _LOG.debug("%s", refusals[-1])
    raise ConversionError(
        "none of PyTorch's ways takes the TorchScript module:\n  " + "\n  ".join(refusals),
        hint="export the module that it was made from: vkmnn.torch.compile(module, args)",
    )


@contextmanager
def _for_inference(module: Any) -> Iterator[None]:
    """Have a module in the mode eval; leave it as it was."""
    training = bool(module.training)
    wanted = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    module.eval()
    try:
        yield
    finally:
        if training:
            module.train()
        for parameter, gradient in wanted:
            parameter.requires_grad_(gradient)


def _exporter(torch: Any, given: Arguments, source: Script, conversion: Conversion) -> Graph:
    stream = BytesIO()
    paused = conversion.meter.paused()
    forms = script_forms(torch, _OPSET)
    with paused, exporting("the TorchScript module"), _no_dump(torch), forms:
        torch.onnx.export(
            source.module,
            given.tensors,
            stream,
            dynamo=False,
            opset_version=_OPSET,
            input_names=given.names,
            dynamic_axes=given.open,
        )
    front_end = OnnxFrontEnd()
    file = front_end.read(stream.getvalue())
    file.proto.graph.name = source.name
    _count_axes(file.proto.graph)
    return front_end.convert(file, conversion)


@contextmanager
def _no_dump(torch: Any) -> Iterator[None]:
    """Keep the exporter from printing graphs that it refuses, which it does by mistake."""
    print_graph = getattr(torch._C, "_jit_onnx_log", None)
    if print_graph is None:
        yield
        return
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = print_graph


def _count_axes(graph: onnx.GraphProto) -> None:
    """Count the axes of Transpose from the front: the exporter keeps negative ones of permute."""
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Transpose" and attribute.name == "perm":
                rank = len(attribute.ints)
                attribute.ints[:] = [axis + rank if axis < 0 else axis for axis in attribute.ints]
            if attribute.HasField("g"):
                _count_axes(attribute.g)


def _program(torch: Any, given: Arguments, source: Script, conversion: Conversion) -> Graph:
    with conversion.meter.paused(), exporting("the TorchScript module"):
        from importlib import import_module

        converter: Any = import_module("torch._export.converter").TS2EPConverter
        program = converter(source.module, given.tensors).convert()
    return _fixed(given, program, source, conversion)


def _recording(torch: Any, given: Arguments, source: Script, conversion: Conversion) -> Graph:
    """Record the operators of one run, with gradients on: without, torch takes fused ones."""
    module = source.module
    paused = conversion.meter.paused()
    with paused, exporting("the TorchScript module"), torch.enable_grad():
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda *args: module(*args))(
            *given.tensors
        )
        expected = module(*given.tensors)
        flat = torch.utils._pytree.tree_leaves
        for want, made in zip(flat(expected), flat(traced(*given.tensors)), strict=True):
            if isinstance(want, torch.Tensor) and not torch.allclose(want, made, 1e-3, 1e-4):
                raise ConversionError("a second run gives another result")
        program = torch.export.export(traced, given.tensors)
    graph = _fixed(given, program, source, conversion)
    _LOG.warning(
        "'%s' was recorded in one run, since PyTorch exports it in no other way: branches, loops "
        "and sizes are fixed to those of its example arguments",
        source.name,
    )
    return graph


_ROADS: dict[str, Road] = {
    "torch.onnx.export": _exporter,
    "TorchScript to torch.export": _program,
    "a recording of one run": _recording,
}


def _fixed(given: Arguments, program: Any, source: Script, conversion: Conversion) -> Graph:
    """Convert a program that has the sizes of the example arguments; refuse open ones."""
    if given.open:
        names = sorted({name for axes in given.open.values() for name in axes.values()})
        raise ConversionError(f"this way takes fixed sizes only: {', '.join(names)} is open")
    graph = convert_program(Program(program, source.name), replace(conversion, shapes={}))
    names_now = {info.name: name for info, name in zip(graph.inputs, given.names, strict=True)}
    return _renamed(graph, names_now)


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """Return the graph with other names of inputs."""
    taken = {name for op in graph.ops for name in op.outputs} | set(graph.constants)
    for old, new in names.items():
        if new == old or new in taken:
            continue
        graph.inputs = [
            replace(info, name=new) if info.name == old else info for info in graph.inputs
        ]
        graph.infos = {new if name == old else name: info for name, info in graph.infos.items()}
        for op in graph.ops:
            op.inputs = [new if name == old else name for name in op.inputs]
    return graph


def _suspected(torch: Any, module: Any) -> list[str]:
    """Return names of buffers that the graph may write; refuse a graph that sets attributes.

    Aliases are an estimate from above, so parameters, which no module writes, do not count.
    """
    buffers = {name.rpartition(".")[2] for name, _ in module.named_buffers()}
    parameters = {name.rpartition(".")[2] for name, _ in module.named_parameters()} - buffers
    inlined = module.graph.copy()
    torch._C._jit_pass_inline(inlined)
    aliases = inlined.alias_db()
    found = []
    for node in _nodes(inlined):
        if node.kind() == "prim::SetAttr":
            raise _writes(node.s("name"), node.kind())
        if node.kind() == "prim::GetAttr":
            value = node.output()
            tensor = value.type().isSubtypeOf(torch._C.TensorType.get())
            stored = tensor and node.s("name") not in parameters
            if stored and aliases.has_writers(value):
                found.append(node.s("name"))
    inner = [one for node in inlined.nodes() for block in node.blocks() for one in _nodes(block)]
    if found and any(_mutates(torch, node) for node in inner):
        raise _writes(found[0])  # one run does not go through all branches
    return found


def _mutates(torch: Any, node: Any) -> bool:
    """Return whether an operator writes an argument in place."""
    text = node.schema()
    if "(" not in text or text.startswith("("):  # control flow has none
        return False
    arguments = torch._C.parse_schema(text).arguments
    return any(one.alias_info is not None and one.alias_info.is_write for one in arguments)


def _refuse_written(torch: Any, module: Any, suspected: list[str], tensors: Any) -> None:
    """Refuse a module that changes what it holds, outside of branches: no road keeps that."""
    if not suspected:
        return
    held = dict(module.named_buffers())
    before = {name: (one._version, one.clone()) for name, one in held.items()}
    with torch.no_grad():
        module(*tensors)
        changed = [name for name, one in held.items() if one._version != before[name][0]]
        for name in changed:
            held[name].copy_(before[name][1])
    known = {name.rpartition(".")[2] for name in held}
    unknown = [name for name in suspected if name not in known]  # attributes, not buffers
    if changed or unknown:
        raise _writes((changed or unknown)[0].rpartition(".")[2])


def _writes(name: str, op: str = "prim::GetAttr") -> ConversionError:
    return ConversionError(
        f"the TorchScript module writes its own buffer or attribute '{name}'",
        op=op,
        hint="vkmnn keeps what programs of torch.export write: "
        "vkmnn.torch.compile(module, args), with the module itself",
    )


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
