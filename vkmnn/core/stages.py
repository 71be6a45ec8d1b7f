"""Cut a network into stages: device parts, each planned as a whole, and host steps.

A stage ends where the host has to compute, or where a shape depends on a result of the stage: the
next one is planned when that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.errors import ModelError
from vkmnn.ir import HOST_GRAPH, OP_TYPES, DType, Graph, Op, TensorInfo


@dataclass(frozen=True, slots=True)
class Stage:
    """Ops that run in sequence; `graph` is None for a host step.

    `inputs` are the network's inputs and results of earlier stages that it reads, `outputs` those
    that later stages and the caller read.
    """

    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    graph: Graph | None


def cut(graph: Graph) -> list[Stage]:
    """Return the stages of a network in running order; most networks are one.

    Raises:
        ModelError: an element type is not known at the edge of a stage.
    """
    groups = _groups(graph)
    # A device only takes tensors: other inputs that no op reads stay with the host.
    tensors = all(info.dtype is not DType.OBJECT for info in graph.inputs)
    if tensors and (not groups or (len(groups) == 1 and groups[0][0].type != HOST_GRAPH)):
        return [_device_stage(graph, graph.ops, None, None)]
    return _stages(graph, groups)


def cut_everywhere(graph: Graph) -> list[Stage]:
    """Return a stage for every op, in running order.

    Raises:
        ModelError: an element type is not known.
    """
    return _stages(graph, [[op] for op in graph.ops])


def _stages(graph: Graph, groups: Sequence[Sequence[Op]]) -> list[Stage]:
    stages = []
    later = [set(graph.output_names()) for _ in groups]
    for number in range(len(groups) - 1, 0, -1):
        later[number - 1] = later[number] | {name for op in groups[number] for name in op.inputs}
    infos = {info.name: info for info in (*graph.outputs, *graph.inputs)} | graph.infos
    for ops, wanted in zip(groups, later, strict=True):
        made = {name for op in ops for name in op.outputs if name}
        read = dict.fromkeys(name for op in ops for name in op.inputs if name)
        inputs = tuple(name for name in read if name not in made and name not in graph.constants)
        outputs = tuple(sorted(made & wanted))
        if ops[0].type == HOST_GRAPH:
            stages.append(Stage(tuple(ops), inputs, outputs, None))
        else:
            edges = [_info(infos, name) for name in (*inputs, *outputs)]
            stages.append(_device_stage(graph, ops, edges[: len(inputs)], edges[len(inputs) :]))
    return stages


def _device_stage(
    graph: Graph,
    ops: Sequence[Op],
    inputs: list[TensorInfo] | None,
    outputs: list[TensorInfo] | None,
) -> Stage:
    inputs = graph.inputs if inputs is None else inputs
    outputs = graph.outputs if outputs is None else outputs
    read = {name for op in ops for name in op.inputs} | {info.name for info in outputs}
    constants = {name: array for name, array in graph.constants.items() if name in read}
    part = replace(graph, inputs=inputs, outputs=outputs, ops=list(ops), constants=constants)
    given = tuple(info.name for info in inputs)
    return Stage(tuple(ops), given, tuple(info.name for info in outputs), part)


def _info(infos: Mapping[str, TensorInfo], name: str) -> TensorInfo:
    info = infos.get(name)
    if info is None or info.dtype is DType.OBJECT:
        raise ModelError(
            f"the element type of '{name}' is not known",
            hint="the model does not say it; export it again, with types of intermediate tensors",
        )
    return info


def _groups(graph: Graph) -> list[list[Op]]:
    """Return the ops of each stage: as many as possible at a time, alternating device and host."""
    there = {*graph.constants, *(info.name for info in graph.inputs), ""}
    infos = {info.name: info for info in graph.inputs} | graph.infos
    pending = list(graph.ops)
    groups: list[list[Op]] = []
    on_host = False
    stuck = 0
    while pending:
        taken: list[Op] = []
        made: dict[str, bool] = {}  # produced in this stage, and whether planning knows its value
        left: list[Op] = []
        for op in pending:
            ready = all(name in there or name in made for name in op.inputs)
            if ready and (op.type == HOST_GRAPH) == on_host and (on_host or _plannable(op, made)):
                known = not on_host and _known_when_planned(op, made, graph, infos)
                made.update(dict.fromkeys(filter(None, op.outputs), known))
                taken.append(op)
            else:
                left.append(op)
        if taken:
            groups.append(taken)
            there.update(made)
        stuck = 0 if taken else stuck + 1
        if stuck == 2:  # a valid graph is sorted, so its first op is always ready
            raise ModelError("the graph is not sorted", op=left[0].type, node=left[0].name)
        pending, on_host = left, not on_host
    return groups


def _plannable(op: Op, made: Mapping[str, bool]) -> bool:
    """Return whether the op's shapes are independent of values computed in the same stage."""
    content = OP_TYPES[op.type].content
    return all(made.get(op.inputs[index], True) for index in content if index < len(op.inputs))


def _known_when_planned(
    op: Op, made: Mapping[str, bool], graph: Graph, infos: Mapping[str, TensorInfo]
) -> bool:
    """Return whether planning can compute an op: from shapes, constants and short inputs.

    Values computed from inputs run on numpy, and every new content requires a new plan.
    """
    if OP_TYPES[op.type].shape_only:
        return True
    return all(
        not name or name in graph.constants or made.get(name, _is_short(infos.get(name)))
        for name in op.inputs
    )


def _is_short(info: TensorInfo | None) -> bool:
    return info is not None and info.shape is not None and len(info.shape) <= 1
