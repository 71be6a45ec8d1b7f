"""Parts of a network, selected by names, and sessions that run several parts in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.core.pipelines import Pipelines
from vkmnn.core.session import Session
from vkmnn.errors import InvalidInputError
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.opening.device import CpuInfo
from vkmnn.opening.load import network_of
from vkmnn.opening.network import Network
from vkmnn.opening.session import OpenSession, open_session
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import NetworkPath, PathNames, Precision, ScheduleConfig


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """Sessions of a network's parts, and the devices of the parts, in running order."""

    core: Session | Pipelines
    devices: tuple[DeviceInfo | CpuInfo, ...]
    precision: Precision


def open_paths(
    network: Network,
    configs: Sequence[ScheduleConfig],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> OpenPaths:
    """Open a session that runs a network, or parts of it, one part for each configuration.

    Args:
        network: the network to run.
        configs: configurations; those after the first run the parts that they name on the results
            of the parts before.
        shapes: shapes of tensors inside the network at which a path begins; others are declared.

    Raises:
        InvalidInputError: a path names nothing of the network, or its parts do not fit together.
        DeviceNotFoundError: a requested device does not exist.
    """
    if len(configs) == 1 and configs[0].path is None:
        whole = open_session(network, configs[0])
        return OpenPaths(whole.core, (whole.device,), whole.precision)
    if not configs:
        raise InvalidInputError("a session needs a configuration", hint="pass ScheduleConfig()")
    graphs = [_cut(network.source, config.path or NetworkPath()) for config in configs]
    _check_order(graphs)
    own = {info.name for info in network.source.inputs}
    inner = {name: (None,) * len(one) for name, one in (shapes or {}).items() if name not in own}
    if inner:
        graphs = [graph.with_input_shapes(inner) for graph in graphs]
    opened: list[OpenSession] = []
    try:
        for graph, config in zip(graphs, configs, strict=True):
            part = network_of(_with_handed_over(graph, graphs), network)
            opened.append(open_session(part, replace(config, path=None)))
        pipelines = Pipelines([one.core for one in opened], _outputs(graphs, opened))
    except BaseException:
        for one in opened:
            one.core.close()
        raise
    return OpenPaths(pipelines, tuple(one.device for one in opened), opened[0].precision)


def _outputs(graphs: Sequence[Graph], opened: Sequence[OpenSession]) -> list[str]:
    """Return the outputs of the whole session: those of all parts, and saved tensors."""
    handed = [{info.name for info in _handed_over(graph, graphs)} for graph in graphs]
    named = [[info.name for info in graph.outputs] for graph in graphs]
    made = [[info.name for info in one.core.graph.outputs] for one in opened]
    return list(
        dict.fromkeys(
            name
            for wanted, passed, results in zip(named, handed, made, strict=True)
            for name in results
            if name in wanted or name not in passed
        )
    )


def _with_handed_over(graph: Graph, graphs: Sequence[Graph]) -> Graph:
    """Return a part with the tensors that other parts read as additional outputs."""
    return replace(graph, outputs=[*graph.outputs, *_handed_over(graph, graphs)])


def _handed_over(graph: Graph, graphs: Sequence[Graph]) -> list[TensorInfo]:
    known, made = graph.output_names(), graph.producers()
    read = {info.name: info for other in graphs if other is not graph for info in other.inputs}
    return [info for name, info in read.items() if name in made and name not in known]


def _check_order(graphs: Sequence[Graph]) -> None:
    """Reject parts that read outputs of later parts, or produce the same tensor."""
    there: set[str] = set()
    later = [set(graph.producers()) for graph in graphs]
    for number, graph in enumerate(graphs):
        for info in graph.inputs:
            if info.name not in there and any(info.name in made for made in later[number + 1 :]):
                raise InvalidInputError(
                    f"configuration {number} reads '{info.name}', an output of a later one",
                    hint="order the configurations as the parts run",
                )
        again = there & graph.output_names()
        if again:
            raise InvalidInputError(
                f"configuration {number} produces '{min(again)}', as one before it does",
                hint="start each path where another ends",
            )
        there |= later[number] | graph.output_names()


def _cut(graph: Graph, path: NetworkPath) -> Graph:
    """Return the part of a graph that a path names.

    Raises:
        InvalidInputError: a name is unknown, or the part is empty.
    """
    given = _tensors(graph, path.inputs, path.names)
    wanted = _tensors(graph, path.outputs, path.names) or list(graph.output_names())
    needed, ops = set(wanted), []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs) - set(given):
            ops.append(op)
            needed.update(name for name in op.inputs if name)
    ops.reverse()
    if not ops:
        raise InvalidInputError(
            f"no op leads from {', '.join(path.inputs) or 'the inputs'} to "
            f"{', '.join(path.outputs) or 'the outputs'}",
            hint="inputs must precede outputs in the network",
        )
    read = {name for op in ops for name in op.inputs}
    made = {name for op in ops for name in op.outputs}
    _check_used(given, read)
    own = {info.name: info for info in graph.inputs}
    inputs = [info for name, info in own.items() if name in read]
    inputs += [_info(graph, name) for name in given if name in read and name not in own]
    outputs = [_info(graph, name) for name in wanted if name in made]
    constants = {name: array for name, array in graph.constants.items() if name in read}
    overridable = [info for info in graph.overridable if info.name in constants]
    return replace(
        graph,
        inputs=inputs,
        outputs=outputs,
        ops=ops,
        constants=constants,
        overridable=overridable,
    )


def _check_used(given: Iterable[str], read: set[str]) -> None:
    for name in given:
        if name not in read:
            raise InvalidInputError(
                f"'{name}' is not read on the way to the outputs",
                hint="leave it out of the path's inputs",
            )


def _tensors(graph: Graph, names: Sequence[str], kind: PathNames) -> list[str]:
    """Return the tensors of a path's names."""
    inputs = {info.name for info in graph.inputs}
    producers = graph.producers()
    if kind is PathNames.TENSOR:
        known = inputs | producers.keys()
        for name in names:
            if name not in known:
                raise _unknown(name, "tensor", known)
        return list(dict.fromkeys(names))
    by_node: dict[str, list[Op]] = {}
    for op in graph.ops:
        # A source is "name (Type)"; a node that became several ops is named by theirs alone.
        for name in {op.name, op.source, op.source.rpartition(" (")[0]} - {""}:
            by_node.setdefault(name, []).append(op)
    found: dict[str, None] = {}
    for name in names:
        if name in by_node:
            found.update(dict.fromkeys(_results(by_node[name], graph)))
        elif name in inputs or (kind is PathNames.ANY and name in producers):
            found[name] = None
        else:
            raise _unknown(name, "op", inputs | by_node.keys())
    return list(found)


def _results(ops: Sequence[Op], graph: Graph) -> list[str]:
    """Return the outputs of a node's ops that others read."""
    inside = {id(op) for op in ops}
    readers, outputs = graph.consumers(), graph.output_names()
    return [
        name
        for op in ops
        for name in op.outputs
        if name in outputs or any(id(reader) not in inside for reader in readers.get(name, ()))
    ]


def _unknown(name: str, kind: str, known: Iterable[str]) -> InvalidInputError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1)
    hint = f"did you mean '{near[0]}'?" if near else "`vkmnn info --tensors` lists the tensors"
    return InvalidInputError(f"the network has no {kind} '{name}'", hint=hint)


def _info(graph: Graph, name: str) -> TensorInfo:
    """Return the info of a tensor inside the network; unnamed sizes are open."""
    declared: Mapping[str, TensorInfo] = {
        info.name: info for info in (*graph.outputs, *graph.inputs)
    } | graph.infos
    info = declared.get(name)
    if info is None or info.dtype is DType.OBJECT:
        raise InvalidInputError(
            f"the element type of '{name}' is not known",
            hint="choose another tensor, or export the model with types of intermediate tensors",
        )
    symbols = {dim for one in graph.inputs for dim in one.shape or () if isinstance(dim, str)}
    if info.shape is None:
        return info
    shape = (dim if isinstance(dim, int) or dim in symbols else None for dim in info.shape)
    return replace(info, shape=tuple(shape))
