"""Element-wise ops read through Rasters: a transposed operand costs no copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from math import prod
from typing import Any

from vkmnn.geometry.regions import compose, region_elements, row_major
from vkmnn.geometry.views import stride_of, whole_region
from vkmnn.ir import Op, Region, TensorInfo, View
from vkmnn.ir.ops import StridedBinaryAttrs

MAX_AXES = 6
"""Axes that kernels count, those that merge counted once."""

MAX_ELEMENTS = 1 << 24
"""Larger tensors may have to be split to be bound, which views cannot be."""

_BLOCKED = frozenset(
    {
        *("Convolution", "Deconvolution", "QuantizedConvolution", "DynamicQuantizeConvolution"),
        *("Pooling", "Interp", "GridSample", "Scale", "GroupNorm", "LRN", "DeformColumns"),
    }
)
"""Ops that keep channels in blocks: next to them, a copy in that order costs less than two."""

_FOLLOWS = frozenset({"UnaryOp", "BinaryOp", "Elementwise", "Cast", "Select"})
"""Ops that keep the order of their operands."""


def fuse_operands(
    ops: list[Op],
    infos: Mapping[str, TensorInfo],
    keep: AbstractSet[str],
    constants: Collection[str],
) -> list[Op]:
    """Let BinaryOp read by strides instead of through a Raster of its own.

    Args:
        ops: ops in topological order; they are not changed.
        infos: every tensor, with static shapes.
        keep: names that must still be produced (the graph's outputs).
        constants: tensors whose values are known.

    Returns:
        The ops in topological order.
    """
    rasters = {op.outputs[0]: op for op in ops if op.type == "Raster"}
    wanted = {name for op in ops if op.type == "BinaryOp" for name in op.inputs}
    if wanted.isdisjoint(rasters):
        return ops
    readers = Counter(name for op in ops for name in op.inputs)
    copies = {
        name: op
        for name, op in rasters.items()
        if name in wanted and name not in keep and readers[name] == 1
    }
    neighbours = _Neighbours(ops)
    gone: set[str] = set()
    made: list[Op] = []
    for op in ops:
        if op.type == "BinaryOp" and not copies.keys().isdisjoint(op.inputs):
            strided = _strided(op, copies, infos, constants)
            if strided is not None and not neighbours.blocked(op, copies):
                gone.update(set(op.inputs) - set(strided.inputs))
                op = strided
        made.append(op)
    return [op for op in made if op.outputs[0] not in gone] if gone else ops


def _strided(
    op: Op[Any],
    copies: Mapping[str, Op[Any]],
    infos: Mapping[str, TensorInfo],
    constants: Collection[str],
) -> Op[Any] | None:
    """Return the op with strided operands; None if it cannot have them."""
    shape = infos[op.outputs[0]].dims
    if not 0 < prod(shape) <= MAX_ELEMENTS:
        return None
    inputs: list[str] = []
    steps: list[tuple[int, ...]] = []
    for name in op.inputs:
        strides = _strides(infos[name].dims, shape)
        copy = copies.get(name)
        read = None if copy is None else _through(copy, strides, shape, infos)
        if read is None:
            inputs.append(name)
            steps.append(strides)
        else:
            inputs.append(read[0])
            steps.append(read[1])
    if (
        inputs == op.inputs
        or _axes(shape, steps) > MAX_AXES
        or (constants and set(inputs) <= set(constants))
    ):
        return None
    attrs = StridedBinaryAttrs(op.attrs.kind, op.attrs.activation, shape, (steps[0], steps[1]))
    return Op("BinaryOp", op.name, inputs, op.outputs, attrs, op.source)


def _strides(shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor in plain order that is broadcast to the output."""
    own = zip(row_major(shape), shape, strict=True)
    return (*[0] * (len(output) - len(shape)), *(step if size > 1 else 0 for step, size in own))


def _through(
    copy: Op[Any],
    strides: tuple[int, ...],
    shape: tuple[int, ...],
    infos: Mapping[str, TensorInfo],
) -> tuple[str, tuple[int, ...]] | None:
    """Return the source and strides of a Raster of one region; None for others."""
    region = whole_region(copy, infos)
    if region is None:
        return None
    source = copy.inputs[region.origin]
    same = infos[source].dtype is infos[copy.outputs[0]].dtype
    if not same or prod(infos[source].dims) > MAX_ELEMENTS:
        return None
    weights = row_major(shape)
    parts = compose(Region(View(0, strides), View(0, weights), shape), region)
    if parts is None or len(parts) != 1 or region_elements(parts[0]) != prod(shape):
        return None
    part = parts[0]
    found = []
    for count, weight in zip(shape, weights, strict=True):
        step = stride_of(part, count, weight)
        if step is None or step < 0:  # kernels count upwards
            return None
        found.append(step)
    return None if part.src.offset else (source, tuple(found))


def _axes(shape: tuple[int, ...], steps: list[tuple[int, ...]]) -> int:
    """Return over how many axes a kernel walks."""
    count, last = 0, None
    for size, *here in zip(shape, *steps, strict=True):
        if size == 1:
            continue
        if last is None or last != tuple(step * size for step in here):
            count += 1
        last = tuple(here)
    return count


class _Neighbours:
    """Producers and consumers of tensors."""

    def __init__(self, ops: list[Op]) -> None:
        self._any = any(op.type in _BLOCKED for op in ops)
        self._makers = {name: op for op in ops for name in op.outputs} if self._any else {}
        self._readers: dict[str, list[Op]] = {}
        for op in ops if self._any else ():
            for name in op.inputs:
                self._readers.setdefault(name, []).append(op)

    def blocked(self, op: Op, copies: Mapping[str, Op]) -> bool:
        """Whether an op's inputs (through copies) or outputs are channel-blocked."""
        if not self._any:
            return False
        seen: set[str] = set()
        pending = [name for name in (*op.inputs, *op.outputs) if name not in copies]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = [self._makers[name]] if name in self._makers else []
            for one in (*maker, *self._readers.get(name, ())):
                if one.type in _BLOCKED:
                    return True
                if one.type in _FOLLOWS:
                    pending += [*one.inputs, *one.outputs]
        return False
