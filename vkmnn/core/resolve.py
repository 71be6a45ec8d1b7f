"""Resolve a graph for concrete input shapes: all shapes static, all constants folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.base.budget import Meter, unlimited
from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.errors import ShapeError
from vkmnn.geometry import fuse_operands, fuse_rasters, fuse_views, lower_graph
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, TensorInfo
from vkmnn.shape import AlikeShapes, is_too_large
from vkmnn.shape.folding import Evaluator, Folder, keep, operands
from vkmnn.shape.registry import MAX_ELEMENTS

# Larger results of lowered ops are recomputed in every run instead of kept.
FOLD_LIMIT_BYTES = 16 << 20

_NONE: Mapping[str, Tensor] = {}


@dataclass(slots=True)
class Resolved:
    """The remaining ops, the static description of every tensor, and all known values."""

    ops: list[Op]
    infos: dict[str, TensorInfo]
    constants: dict[str, Array]


def content_inputs(graph: Graph) -> frozenset[str]:
    """Return the graph inputs whose *content* determines some shape.

    A walk back from the inputs that OP_TYPES marks as content; Shape and Size stop it.
    """
    producers = graph.producers()
    pending = [
        op.inputs[index]
        for op in graph.ops
        for index in OP_TYPES[op.type].content
        if index < len(op.inputs)
    ]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        producer = producers.get(name)
        if producer is not None and not OP_TYPES[producer.type].shape_only:
            pending.extend(producer.inputs)
    return frozenset(info.name for info in graph.inputs if info.name in seen)


def fold_constants(graph: Graph, evaluate: Evaluator, meter: Meter | None = None) -> Graph:
    """Return the graph with every op folded that depends on no input and no input's shape.

    Unlike the converter's pass, this folds everything that the budget allows: plans of different
    shapes share the results.

    Raises:
        BudgetError: the results would exceed the budget.
    """
    folder = Folder(evaluate, meter)
    values = dict(graph.constants)
    ops: list[Op] = []
    for op in graph.ops:
        inputs = operands(op, values.get)
        if inputs is None:
            ops.append(op)
        else:
            keep(op, folder.compute(op, inputs), values)
    return replace(graph, ops=ops, constants=values)


def resolve(
    graph: Graph,
    inputs: Mapping[str, TensorInfo],
    known: Mapping[str, Array],
    evaluate: Evaluator,
    meter: Meter | None = None,
    described: Mapping[str, Tensor] = _NONE,
) -> Resolved:
    """Compute all shapes and fold all constants (MNN's shape computation, first loop).

    Args:
        graph: the network.
        inputs: static description of every graph input.
        known: content of the inputs that `content_inputs` names.
        evaluate: runs one op on arrays; the backup backend's.
        meter: limits of the values; None for no limits.
        described: constants that other plans have described, by name.

    Raises:
        BudgetError: the known values would take more memory or time than allowed.
        ShapeError: shapes do not match, or a shape depends on unknown content.
    """
    meter = meter or unlimited()
    folder = Folder(evaluate, meter)
    values: dict[str, Array] = {**graph.constants, **known}
    infos: dict[str, TensorInfo] = dict(inputs)
    for info in inputs.values():
        if is_too_large(info.dims):
            raise ShapeError(
                f"input '{info.name}' would be {info.dtype.value}{list(info.dims)}",
                hint=f"tensors have at most {MAX_ELEMENTS} elements, axes of size 0 left out",
            )
    for name, array in values.items():
        tensor = described.get(name)
        if tensor is not None and tensor.value is array:
            infos[name] = tensor.info
        else:
            infos[name] = TensorInfo(name, _dtype(array), array.shape)
    shapes = AlikeShapes()
    ops: list[Op] = []
    for op in graph.ops:
        meter.check_time(op.type, op.name)
        declared = OP_TYPES[op.type]
        op_infos = [infos[name] if name else None for name in op.inputs]
        op_values = [values.get(name) if name else None for name in op.inputs]
        if declared.shape_only and op_infos[0] is not None:
            info = op_infos[0]
            op_values[0] = np.broadcast_to(np.zeros((), info.dtype.numpy), info.dims)
        unknown = [
            name for name, value in zip(op.inputs, op_values, strict=True) if value is None and name
        ]
        if not unknown:
            arrays = folder.compute(op, op_values)
            keep(op, arrays, values)
            for name, array in zip(op.outputs, arrays, strict=True):
                if name:
                    infos[name] = TensorInfo(name, _dtype(array), array.shape)
            continue
        if declared.content:
            _require_content(op, op_values)
        for info in shapes.compute(op, op_infos, op_values):
            if info.name:
                infos[info.name] = info
        ops.append(op)
    ops = _live(ops, {info.name for info in graph.outputs})
    needed = {name for op in ops for name in op.inputs} | graph.output_names()
    return Resolved(ops, infos, {name: values[name] for name in needed if name in values})


def lower(
    resolved: Resolved, outputs: set[str], evaluate: Evaluator, meter: Meter | None = None
) -> Resolved:
    """Lower data movement to Raster, fold new constants, collapse chains of copies.

    Raises:
        BudgetError: lowering would take more pieces or time than the meter allows.
    """
    meter = meter or unlimited()
    ops, infos, constants = lower_graph(resolved.ops, resolved.infos, resolved.constants, meter)
    folder = Folder(evaluate, meter)
    values = dict(constants)
    left: list[Op] = []
    for op in ops:
        inputs = operands(op, values.get)
        arrays = None
        if inputs is not None:
            out = [infos[name] for name in op.outputs if name]
            arrays = folder.compute_if_small(op, inputs, FOLD_LIMIT_BYTES, out)
        if arrays is None:
            left.append(op)
        else:
            keep(op, arrays, values)
    fused = fuse_views(fuse_rasters(left, infos, outputs, meter), infos, outputs)
    fused = fuse_operands(fused, infos, outputs, values)
    return Resolved(fused, infos, values)


def _dtype(array: Array) -> DType:
    return DType.from_numpy(array.dtype)


def _require_content(op: Op, values: Sequence[Array | None]) -> None:
    for index in OP_TYPES[op.type].content:
        if index < len(op.inputs) and op.inputs[index] and values[index] is None:
            raise ShapeError(
                f"the content of input {index} ('{op.inputs[index]}') decides a shape but is "
                "not known before the network runs",
                op=op.type,
                node=op.name,
                hint="feed it as a graph input or make it a constant",
            )


def _live(ops: list[Op], outputs: set[str]) -> list[Op]:
    """Drop ops that no output needs."""
    needed = set(outputs)
    live: list[Op] = []
    for op in reversed(ops):
        if not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            if "" in op.inputs:
                needed.discard("")  # an absent input, which no unnamed output produces
            live.append(op)
    live.reverse()
    return live
