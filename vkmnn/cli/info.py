"""`vkmnn info`: the contents of a model, and whether vkmnn can run it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from vkmnn.cli.console import (
    bytes_text,
    document,
    heading,
    histogram,
    note,
    number_text,
    out,
    shape_text,
    show,
    show_error,
    show_facts,
    table,
    waiting,
)
from vkmnn.cli.feeds import Sizes, parse_sizes, settle, shapes_to_open
from vkmnn.cli.graph import export_network
from vkmnn.converter.foreign import LANGUAGE_MODEL, kind_of_folder
from vkmnn.converter.onnx import OnnxFrontEnd
from vkmnn.converter.onnx.model_file import read_model
from vkmnn.converter.onnx.stored import stored_by_type
from vkmnn.converter.onnx.types import tensor_info, type_name
from vkmnn.core.resolve import Resolved, content_inputs, resolve
from vkmnn.core.stages import cut
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import ModelFileError, UnsupportedOpError, VkmnnError, plural
from vkmnn.ir import HOST_GRAPH, SIGNATURES, Graph, HostGraphAttrs, TensorInfo
from vkmnn.ir.ops import GatherNBitsAttrs, MatMulNBitsAttrs
from vkmnn.llm.layout import Layout, read_layout
from vkmnn.llm.text import Tokenizer
from vkmnn.opening import front_end_of, load_network
from vkmnn.runtime.measurements import PROOFS, Measurements
from vkmnn.shape import flops

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output as the file declares it; `type` may be one that vkmnn does not support."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


def describe(path: Path, shapes: Sequence[str], tensors: bool, onnx: Path | None = None) -> bool:
    """Print a description of a model; False when vkmnn cannot run it.

    Args:
        path: its file.
        shapes: the options --shape.
        tensors: whether to list tensors.
        onnx: path for the optimised network, for viewers.
    """
    if not isinstance(front_end_of(path), OnnxFrontEnd | None):
        return _describe_graph(path, shapes, tensors, onnx)
    proto = read_model(path).proto
    stored = stored_by_type(proto)
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [_value(info) for info in proto.graph.input if info.name not in weights]
    outputs = [_value(info) for info in proto.graph.output]
    sizes = parse_sizes(shapes, {value.name: value.shape for value in inputs})
    heading(path.name)
    origin = _origin(proto)
    show_facts(origin)
    _show_values(inputs, outputs)
    types = [node.op_type for node in proto.graph.node]
    count = sum(size.elements for size in stored.values())
    by_type = {name: size.nbytes for name, size in stored.items()}
    facts = {"parameters": _parameters_text(count, by_type), "nodes": _count(types)}
    whole = {
        "model": str(path),
        **origin,
        **_values(inputs, outputs),
        "parameters": _totals(count, by_type),
        "nodes": dict(Counter(types)),
    }
    try:
        with waiting(f"reading {path.name}"):
            net = load_network(path)
    except UnsupportedOpError as error:
        show_facts(facts)
        out.print()
        _show_unsupported(error)
        unsupported = [dataclasses.asdict(node) for node in error.nodes]
        document("info", whole | {"runs": False, "unsupported": unsupported})
        return False
    document("info", whole | _show_network(net.graph, sizes, facts, tensors, onnx))
    return True


def _values(inputs: Sequence[Value], outputs: Sequence[Value]) -> dict[str, Any]:
    """Return inputs and outputs for a document."""
    return {
        kind: [
            {"name": one.name, "type": one.type, "shape": one.shape and list(one.shape)}
            for one in values
        ]
        for kind, values in (("inputs", inputs), ("outputs", outputs))
    }


def _totals(count: int, nbytes: Mapping[str, int]) -> dict[str, Any]:
    """Return how many parameters there are, and their bytes by element type."""
    return {"count": count, "bytes": sum(nbytes.values()), "by_type": dict(nbytes)}


def _describe_graph(path: Path, shapes: Sequence[str], tensors: bool, onnx: Path | None) -> bool:
    """Print a description of a model that is not ONNX's."""
    net = load_network(path, shapes=shapes_to_open(path, shapes))
    source = net.source
    heading(path.name)
    producer = source.metadata.producer or "unknown"
    origin = {"graph": source.name or "without a name", "producer": producer}
    if SIGNATURES in source.metadata.properties:
        origin["signatures"] = source.metadata.properties[SIGNATURES]
    show_facts(origin)
    values = [
        [Value(info.name, info.dtype.value, info.shape) for info in infos]
        for infos in map(source.without_states, (source.inputs, net.outputs))
    ]
    _show_values(*values)
    count, by_type = _graph_parameters(source)
    facts = {"parameters": _parameters_text(count, by_type)}
    packed = _packed_bytes(source)
    for device, nbytes in packed.items():
        facts[f"packed for {device}"] = bytes_text(nbytes)
    sizes = parse_sizes(shapes, {info.name: info.shape for info in source.inputs})
    whole = {
        "model": str(path),
        **origin,
        **_values(*values),
        "parameters": _totals(count, by_type),
        "packed": dict(packed),
    }
    document("info", whole | _show_network(net.graph, sizes, facts, tensors, onnx))
    return True


def _packed_bytes(graph: Graph) -> Counter[str]:
    """Return the bytes of packed weights for each device."""
    found: Counter[str] = Counter()
    for form in graph.packed:
        found[form.device] += form.packed.nbytes
    return found


def _show_network(
    graph: Graph, sizes: Sizes, facts: dict[str, str], tensors: bool, onnx: Path | None
) -> dict[str, Any]:
    """Print a model's properties, and its graph after the passes.

    Returns:
        The same, for a document.
    """
    settled, *_ = settle({info.name: info.shape for info in graph.inputs}, sizes)
    resolved = _resolved(graph, settled)
    types = [op.type for op in graph.ops]
    facts["after passes"] = _count(types)
    facts["operations"] = _operations(resolved, settled)
    if hosted := [op.attrs.kind for op in graph.ops if isinstance(op.attrs, HostGraphAttrs)]:
        facts["on the host"] = _count(hosted)
    show_facts(facts)
    refusals = _refusals()
    for refusal in refusals:
        note(refusal)
    whole: dict[str, Any] = {
        "runs": True,
        "refusals": refusals,
        "after_passes": dict(Counter(types)),
        "flops": None if isinstance(resolved, str) else _flops(resolved),
        "on_host": dict(Counter(hosted)),
    }
    if tensors:
        whole["tensors"] = _tensor_rows(graph, resolved)
        _show_tensors(whole["tensors"])
    if onnx is not None:
        export_network(graph, onnx, settled)
    return whole


def _refusals() -> list[str]:
    """Return what devices here proved not to be used for."""
    if not Measurements(PROOFS).stored():
        return []
    from vkmnn.vulkan.proof import stored_refusals  # takes a while, and most have nothing stored

    return stored_refusals()


def describe_folder(path: Path) -> None:
    """Print the content of a language model's folder, or of a GGUF file, and its variants.

    Raises:
        ModelFileError: its layout is not known.
    """
    try:
        layout = read_layout(path)
    except ModelFileError as error:
        kind = kind_of_folder(path) if path.is_dir() else None
        if kind in (None, LANGUAGE_MODEL):
            raise
        raise ModelFileError(f"'{path}' is {kind.name}", hint=kind.advice) from error
    heading(path.resolve().name)
    config, described = layout.config, layout.described
    there = Tokenizer.is_in(layout.folder, layout.keys)
    missing = "no vocabulary" if layout.keys else "no tokenizer.json"
    family = config.text("type") or config.text("model_type") or "unknown"
    facts = {
        "kind": _KINDS[layout.kind],
        "family": described.architecture.family if described else family,
        "context": f"{layout.context:,} tokens" if layout.context else "unknown",
        "tokenizer": "yes" if there else missing,
    }
    if described:
        facts["layers"] = str(described.architecture.layers)
        facts["weights"] = ", ".join(
            f"{count} {name}" for name, count in described.kinds.most_common()
        )
    show_facts(facts)
    rows = table("variant", "file", "size", "", right=("size",))
    for variant, file in layout.variants.items():
        taken = "the default" if file == layout.decoder else ""
        rows.add_row(variant or "fp32", _within(file, layout), bytes_text(_size(file)), taken)
    out.print()
    show(rows)
    variants = [
        {"name": name or "fp32", "file": _within(file, layout)}
        for name, file in layout.variants.items()
    ]
    document("info", {"model": str(path), **facts, "variants": variants})


def _within(path: Path, layout: Layout) -> str:
    """Return a file's name in its folder, or the kind of a folder whose network is built."""
    return "*.safetensors" if path == layout.folder else str(path.relative_to(layout.folder))


def _size(path: Path) -> int:
    """Return the bytes of a network with its weights."""
    if path.is_dir():
        return sum(part.stat().st_size for part in path.glob("*.safetensors"))
    if path.suffix == ".onnx":
        return sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}.onnx*"))
    return path.stat().st_size


_KINDS = {
    "decoder": "writes text",
    "seq2seq": "encoder and decoder",
    "embedding": "embeddings",
}


def _count(types: Sequence[str]) -> str:
    return f"{len(types)}: {histogram(types)}" if types else "none"


def _value(info: onnx.ValueInfoProto) -> Value:
    known = tensor_info(info.name, info.type)
    if known is not None:
        return Value(info.name, known.dtype.value, known.shape)
    kind = info.type.WhichOneof("value") or "unknown type"
    if kind == "tensor_type":
        return Value(info.name, type_name(info.type.tensor_type.elem_type).lower(), None)
    return Value(info.name, kind.removesuffix("_type"), None)


def _origin(proto: onnx.ModelProto) -> dict[str, str]:
    domains = [f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in proto.opset_import]
    return {
        "graph": proto.graph.name or "without a name",
        "opset": f"{', '.join(domains)}; IR version {proto.ir_version}",
        "producer": f"{proto.producer_name} {proto.producer_version}".strip() or "unknown",
    }


def _show_values(inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    rows = table("", "name", "type", "shape")
    for kind, values in (("input", inputs), ("output", outputs)):
        for value in values:
            rows.add_row(kind, Text(value.name), value.type, Text(shape_text(value.shape)))
    out.print()
    show(rows)


def _parameters_text(count: int, sizes: Mapping[str, int]) -> str:
    """Return the number of parameters and their bytes, by element type unless all are float32."""
    text = f"{count:,} ({bytes_text(sum(sizes.values()))})"
    return text if not sizes.keys() - {"float32"} else f"{text}: {_by_type(sizes)}"


def _graph_parameters(graph: Graph) -> tuple[int, dict[str, int]]:
    """Return the number of a graph's parameters, and their bytes by element type."""
    codes = {
        op.inputs[at]: op.attrs.bits
        for op in graph.ops
        for kind, at in ((MatMulNBitsAttrs, 1), (GatherNBitsAttrs, 0))
        if isinstance(op.attrs, kind)
    }
    count, sizes = 0, Counter[str]()
    for name, array in graph.constants.items():
        bits = codes.get(name)
        count += array.nbytes * 8 // bits if bits else array.size
        sizes[f"{bits}-bit codes" if bits else str(array.dtype)] += array.nbytes
    return count, dict(sizes.most_common())


def _by_type(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {bytes_text(size)}" for name, size in sizes.items())


def _show_unsupported(error: UnsupportedOpError) -> None:
    heading(f"{plural(len(error.nodes), 'node')} that nothing runs")
    rows = table("operator", "opset", "node", "why, or what instead", right=("opset",))
    for node in error.nodes:
        name = f"{node.domain}::{node.op}" if node.domain else node.op
        rows.add_row(Text(name), str(node.opset), Text(node.node), Text(node.reason))
    show(rows)
    if error.hint:
        note(error.hint)


def _resolved(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Resolved | str:
    """Return the graph with static shapes, or why there are none."""
    for info in graph.inputs:
        if info.name not in shapes:
            return (
                f"input {info.name} {shape_text(info.shape)} has no fixed shape; give --shape "
                f"{info.name}={_example(info)}"
            )
    if len(cut(graph)) > 1 or any(op.type == HOST_GRAPH for op in graph.ops):
        return "some shapes are known only at run time"
    content = content_inputs(graph)
    if content:
        return f"shapes depend on the content of {', '.join(sorted(content))}"
    infos = {info.name: replace(info, shape=shapes[info.name]) for info in graph.inputs}
    try:
        return resolve(graph, infos, {}, run_op)
    except VkmnnError as error:
        show_error(error)
        return "the shapes do not fit the network"


def _example(info: TensorInfo) -> str:
    """Return a shape to type for an input of dynamic size."""
    if info.shape is None:
        return "…"
    shapes, *_ = settle({info.name: info.shape}, Sizes(), assume=1)
    return ",".join(map(str, shapes[info.name]))


def _operations(resolved: Resolved | str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the number of floating-point operations of a run, or why it is unknown."""
    if isinstance(resolved, str):
        return f"unknown: {resolved}"
    given = ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
    number, _, unit = number_text(_flops(resolved)).partition(" ")
    return f"{number} {unit}FLOP per run with {given}"


def _flops(resolved: Resolved) -> int:
    infos = resolved.infos
    return sum(
        flops(
            op,
            [infos[name] if name else None for name in op.inputs],
            [infos[name] for name in op.outputs if name],
        )
        for op in resolved.ops
    )


def _tensor_rows(graph: Graph, resolved: Resolved | str) -> list[dict[str, Any]]:
    infos: Mapping[str, TensorInfo] = graph.infos if isinstance(resolved, str) else resolved.infos
    rows = []
    for op in graph.ops:
        for name in filter(None, op.outputs):
            info = infos.get(name)
            shape = list(info.shape) if info and info.shape is not None else None
            dtype = info.dtype.value if info else None
            rows.append({"name": name, "type": dtype, "shape": shape, "made_by": op.type})
    return rows


def _show_tensors(tensors: Sequence[Mapping[str, Any]]) -> None:
    rows = table("tensor", "type", "shape", "made by")
    for row in tensors:
        shape = "?" if row["type"] is None else shape_text(row["shape"])
        rows.add_row(Text(row["name"]), row["type"] or "?", Text(shape), row["made_by"])
    out.print()
    show(rows)
