"""Copies of a network side by side in one: iterations that do not wait for each other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from vkmnn.ir import Graph, Op, TensorInfo

COPIES = 8
"""Iterations that are planned and run as one."""

MAX_OPS = 256
"""Maximum ops of a body that is copied: planning copies of larger ones takes too long."""


def copy_name(name: str, number: int) -> str:
    """Return the name of a tensor in a copy."""
    return f"{name}@{number}"


def side_by_side(graph: Graph, own: Collection[str]) -> Graph:
    """Return a network of `COPIES` copies of another.

    Args:
        graph: the network.
        own: the inputs that are separate for every copy; the others, and constants, are shared.
    """
    made = {*own, *graph.producers()}
    inputs = {info.name: info for info in graph.inputs if info.name not in own}
    outputs: dict[str, TensorInfo] = {}
    ops: list[Op] = []
    infos = {name: info for name, info in graph.infos.items() if name not in made}
    types = dict(graph.types)
    for number in range(COPIES):
        names = {name: copy_name(name, number) for name in made}

        def renamed(info: TensorInfo, names: dict[str, str] = names) -> TensorInfo:
            return replace(info, name=names.get(info.name, info.name))

        for info in map(renamed, (one for one in graph.inputs if one.name in own)):
            inputs[info.name] = info
        for info in map(renamed, graph.outputs):
            outputs[info.name] = info
        for info in map(renamed, (one for name, one in graph.infos.items() if name in made)):
            infos[info.name] = info
        types |= {names[name]: kind for name, kind in graph.types.items() if name in names}
        ops += [
            replace(
                op,
                name=copy_name(op.name, number),
                inputs=[names.get(name, name) for name in op.inputs],
                outputs=[names.get(name, name) for name in op.outputs],
            )
            for op in graph.ops
        ]
    return replace(
        graph,
        inputs=list(inputs.values()),
        outputs=list(outputs.values()),
        ops=ops,
        infos=infos,
        types=types,
    )
