"""Restricts a decoder to the tokens whose logits are requested, from its last layer on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import AxisAttrs, LayerNormAttrs, MatMulAttrs, ReductionAttrs

ROWS = "vkmnn:rows"
"""Input of the decoder: rows whose logits are requested, int64 [rows]."""

_WANTED = "vkmnn:wanted"
_ELEMENTWISE = frozenset({"BinaryOp", "UnaryOp", "Cast", "Identity"})
_AXIS, _RANK = 1, 3  # tensors are [batch, tokens, features]


def of_wanted_rows(graph: Graph, logits: str) -> Graph:
    """Return a decoder with the input `ROWS`, if its last product allows it.

    All ops after the last attention compute the rows that `ROWS` selects: the last layer's
    projection and feed-forward network, the last normalisation, and the product by the vocabulary.

    Args:
        graph: the decoder, unoptimised.
        logits: the output that has them.
    """
    chain = _to_product(graph, logits)
    if not chain:
        return graph
    region = _rows_apart(graph, chain)
    changed = {out for op in (*chain, *region) for out in op.outputs if out}
    ops = list(_selected(graph, [*region, chain[-1]]))
    return replace(
        graph,
        ops=ops,
        inputs=[*graph.inputs, TensorInfo(ROWS, DType.INT64, (_WANTED,))],
        outputs=[_any_rows(info) if info.name in changed else info for info in graph.outputs],
        infos={
            name: _any_rows(info) if name in changed else info for name, info in graph.infos.items()
        },
    )


def _to_product(graph: Graph, logits: str) -> list[Op[Any]]:
    """Return the ops from the logits back to the product by the vocabulary; none if in doubt."""
    made = {name: op for op in graph.ops for name in op.outputs}
    chain: list[Op[Any]] = []
    name = logits
    while name in made:
        op = made[name]
        chain.append(op)
        varying = _varying(op, graph)
        if len(varying) != 1 or (op.type not in _ELEMENTWISE and "MatMul" not in op.type):
            return []
        if "MatMul" in op.type:
            break
        name = varying[0]
    if not chain or "MatMul" not in chain[-1].type or chain[-1].inputs[0] in graph.constants:
        return []
    last = chain[-1]
    read = sum(one == out for op in graph.ops for one in op.inputs for out in last.outputs)
    return [] if len(chain) > 1 and read != 1 else chain


def _rows_apart(graph: Graph, chain: Collection[Op[Any]]) -> list[Op[Any]]:
    """Return ops before the last product that serve only it, and compute each row by itself."""
    readers: dict[str, list[int]] = defaultdict(list)
    for op in graph.ops:
        for name in op.inputs:
            readers[name].append(id(op))
    kept = {info.name for info in graph.outputs}
    inside = {id(op) for op in chain}
    region = []
    for op in reversed(graph.ops):
        if id(op) in inside or kept.intersection(op.outputs):
            continue
        readers_of = [reader for name in op.outputs if name for reader in readers[name]]
        if not readers_of:
            inside.add(id(op))  # nothing needs its rows
        elif inside.issuperset(readers_of) and _computes_rows(op, graph):
            inside.add(id(op))
            region.append(op)
    return region if any("MatMul" in op.type for op in region) else []


def _varying(op: Op[Any], graph: Graph) -> list[str]:
    return [name for name in op.inputs if name and name not in graph.constants]


def _computes_rows(op: Op[Any], graph: Graph) -> bool:
    """Return whether a row of the result needs one row of each input that is no constant."""
    shapes = []
    for name in (*_varying(op, graph), op.outputs[0]):
        info = graph.infos.get(name)
        if info is None or info.shape is None or len(info.shape) != _RANK:
            return False
        shapes.append(info.shape[: _AXIS + 1])
    if len(set(shapes)) != 1 or len(shapes) == 1:
        return False
    matrices = [graph.constants[name].shape for name in op.inputs if name in graph.constants]
    attrs = op.attrs
    if op.type in _ELEMENTWISE:
        return all(len(shape) < _RANK - _AXIS or shape[-2] == 1 for shape in matrices)
    if isinstance(attrs, LayerNormAttrs):
        return attrs.axis in (-1, _RANK - 1)
    if isinstance(attrs, ReductionAttrs):
        axes = graph.constants.get(op.inputs[1]) if len(op.inputs) > 1 else None
        last = axes is not None and axes.reshape(-1).tolist() in ([-1], [_RANK - 1])
        return attrs.keepdims and last
    if isinstance(attrs, MatMulAttrs):
        right = op.inputs[1] in graph.constants and op.inputs[0] not in graph.constants
        return right and len(matrices[0]) == 2 and not attrs.transpose_a
    return op.type == "MatMulNBits"


def _selected(graph: Graph, region: Collection[Op[Any]]) -> Iterator[Op[Any]]:
    """Yield a graph's ops; those of the region read selected rows."""
    within = {id(op) for op in region}
    made = {name for op in region for name in op.outputs}
    picked: dict[str, str] = {}
    for op in graph.ops:
        if id(op) not in within:
            yield op
            continue
        for name in _varying(op, graph):
            if name not in made and name not in picked:
                picked[name] = f"{name}:rows"
                inputs = [name, ROWS]
                yield Op(
                    "Gather", picked[name], inputs, [picked[name]], AxisAttrs(_AXIS), op.source
                )
        yield replace(op, inputs=[picked.get(name, name) for name in op.inputs])


def _any_rows(info: TensorInfo) -> TensorInfo:
    if info.shape is None or len(info.shape) != _RANK:
        return replace(info, shape=None)
    return replace(info, shape=(info.shape[0], _WANTED, info.shape[2]))
