"""Rewrites ops for operands whose axes are in another order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.transpose import Perm
from vkmnn.ir import OP_TYPES
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import OpAttrs
from vkmnn.shape.axes import Known, Loop, Numbering, is_elementwise, loops_of, numbering_of
from vkmnn.shape.axes.loops import Shape
from vkmnn.shape.symbolic import Facts, infer


def inverse(perm: Perm) -> Perm:
    """Return the permutation that undoes another."""
    return tuple([perm.index(axis) for axis in range(len(perm))])


@dataclass(frozen=True, slots=True)
class Moved:
    """An op for operands with their axes in another order.

    constants: its constant inputs in their new form, by place; contents among them.
    stays: its results are what they were; those of other ops have the new order, too.
    """

    attrs: OpAttrs
    constants: Mapping[int, Array] = field(default_factory=dict)
    stays: bool = False


def data_of(op: Op[Any], index: GraphIndex) -> list[str]:
    """Return the operands whose axes are permuted: all except constants and contents."""
    content = OP_TYPES[op.type].content
    return [
        name
        for place, name in enumerate(op.inputs)
        if name and place not in content and index.constant(name) is None
    ]


def renumbered(op: Op[Any], perm: Perm, index: GraphIndex) -> Moved | None:
    """Return an op whose axis i has become axis perm[i]; None when it cannot be moved.

    Its non-constant operands have as many axes as `perm`. Only the order of its axes changes if the
    loops of the new op are those of the old one, along the permuted axes.
    """
    numbering = numbering_of(op)
    if numbering is None:
        return None
    found = _renumbered(op, numbering, perm, index)
    if found is None:
        return None
    if is_elementwise(op):  # in any order; most ops that are moved
        arrays = dict(enumerate(map(index.constant, op.inputs)))
        constants = _permuted_constants(arrays, frozenset(arrays), perm)
        return None if constants is None else Moved(op.attrs, constants)
    before = _known(op, len(perm), index)
    loops = loops_of(op, before)
    if not _covers(loops, op, perm, index):
        return None
    arrays = {p: array for p, array in enumerate(before.values) if p not in found.constants}
    along = {p for p in arrays if any(loop.reads[p] is not None for loop in loops)}
    others = _permuted_constants(arrays, along, perm)
    if others is None:
        return None
    constants = {**found.constants, **others}
    for stays in (False, True):
        known = _permuted(before, constants, perm, stays)
        if known is None:
            continue
        after = loops_of(replace(op, attrs=found.attrs), known)
        keys = _keys(after, known)
        placed = _placed(loops, before, known, perm, stays)
        if len(keys) == len(placed) and all(key in keys for key in placed):
            return Moved(found.attrs, constants, stays)
    return None


# --- references to axes by number ------------------------------------------------------------


def _renumbered(
    op: Op[Any], numbering: Mapping[str | int, Numbering], perm: Perm, index: GraphIndex
) -> Moved | None:
    """Renumber attributes and contents."""
    if not numbering and not OP_TYPES[op.type].content:
        return Moved(op.attrs)
    contents = {
        place: index.constant(name)
        for place, name in enumerate(op.inputs)
        if name and place in OP_TYPES[op.type].content
    }
    named = _named_axes(op, numbering, contents)
    if any(not -len(perm) <= axis < len(perm) for axis in named):
        return None  # the op's shape will report the error
    entries = {Numbering.PER_AXIS, Numbering.SIZES} & set(numbering.values())
    if Numbering.AXES in numbering.values() and not named and not entries:
        return None  # it works along all axes, or none
    attrs: dict[str, Any] = {}
    constants: dict[int, Array] = {}
    for key in numbering:
        if isinstance(key, str):
            attrs[key] = _new_axes(getattr(op.attrs, key), perm)
    for place, array in contents.items():
        if place not in numbering or array is None:
            return None
        content = _new_content(array, numbering[place], bool(named), perm)
        if content is None:
            return None
        constants[place] = content
    return Moved(replace(op.attrs, **attrs) if attrs else op.attrs, constants)


def _named_axes(
    op: Op[Any],
    numbering: Mapping[str | int, Numbering],
    contents: Mapping[int, Array | None],
) -> list[int]:
    """Return the axes that an op names, in attributes or contents."""
    named: list[int] = []
    for key, how in numbering.items():
        if how is not Numbering.AXES:
            continue
        given = getattr(op.attrs, key) if isinstance(key, str) else contents.get(key)
        if given is not None:
            named += [int(axis) for axis in np.reshape(given, -1)]
    return named


def _new_axes(value: Any, perm: Perm) -> Any:
    if isinstance(value, int):
        return perm[value]
    return tuple(perm[axis] for axis in value)


def _new_content(array: Array, how: Numbering, named: bool, perm: Perm) -> Array | None:
    """Return a content with its entries permuted; None if it has too few."""
    if how is Numbering.AXES:
        axes = [perm[int(axis)] for axis in array.reshape(-1)]
        return np.array(axes, array.dtype).reshape(array.shape)
    if how is Numbering.KEPT or named or not array.size:
        return array
    if array.size not in (len(perm), 2 * len(perm)):
        return None
    entries = array.reshape(-1, len(perm))[:, list(inverse(perm))]
    return np.ascontiguousarray(entries).reshape(array.shape)


# --- operands, and whether the loops are the same ------------------------------------------------


def _known(op: Op[Any], rank: int, index: GraphIndex) -> Known:
    """Return what is known of an op whose operands have a known rank."""
    values = [index.constant(name) if name else None for name in op.inputs]
    shapes: list[Shape | None] = []
    for name, value in zip(op.inputs, values, strict=True):
        shape = index.shape(name) if name else None
        if name and shape is None and value is None:
            shape = (None,) * rank
        shapes.append(shape)
    results = [index.shape(name) if name else None for name in op.outputs]
    if None in results:
        facts = Facts(index.constants)
        for name, shape in zip(op.inputs, shapes, strict=True):
            facts.add(name, index.dtype(name), shape)
        found = [shape for _, shape in infer(op, facts)] + [None] * len(results)
        results = [known or shape for known, shape in zip(results, found, strict=False)]
    return Known(shapes, results, values)


def _covers(loops: Sequence[Loop], op: Op[Any], perm: Perm, index: GraphIndex) -> bool:
    """Return whether every axis of the operands has a known behaviour."""
    every = set(range(len(perm)))
    data = set(data_of(op, index))
    return all(
        {loop.reads[place] for loop in loops} >= every
        for place, name in enumerate(op.inputs)
        if name in data
    )


def _permuted_constants(
    arrays: Mapping[int, Array | None], along: Collection[int], perm: Perm
) -> dict[int, Array] | None:
    """Return constants, with those at the positions `along` permuted; None for too many axes."""
    constants = {}
    for place, array in arrays.items():
        if array is None:
            continue
        if array.ndim > len(perm):
            return None
        if array.size != 1 and place in along:
            whole = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            array = np.ascontiguousarray(whole.transpose(inverse(perm)))
        constants[place] = array
    return constants


def _permuted(
    before: Known, constants: Mapping[int, Array], perm: Perm, stays: bool
) -> Known | None:
    """Return the facts about the new op; None if its results cannot be permuted."""
    order = inverse(perm)
    inputs: list[Shape | None] = []
    for place, shape in enumerate(before.inputs):
        if place in constants:
            inputs.append(constants[place].shape)
        else:
            inputs.append(shape and tuple([shape[axis] for axis in order]))
    outputs = list(before.outputs)
    if not stays:
        if any(shape is None or len(shape) != len(perm) for shape in outputs):
            return None
        outputs = [shape and tuple([shape[axis] for axis in order]) for shape in outputs]
    return Known(inputs, outputs, [constants.get(place) for place in range(len(inputs))])


def _keys(loops: Iterable[Loop], known: Known) -> list[tuple[object, ...]]:
    """Return the part that must be equal; an operand of one element may have it on any axis."""
    return [
        (
            loop.size,
            _significant(loop.reads, loop, known),
            loop.writes,
            loop.kind,
            loop.reduces,
            loop.window,
        )
        for loop in loops
    ]


def _placed(
    loops: Iterable[Loop], before: Known, after: Known, perm: Perm, stays: bool
) -> list[tuple[object, ...]]:
    """Return the same of the old loops, along the axes where these are now."""
    shapes = zip(before.inputs, after.inputs, strict=True)
    more = [0 if old is None or new is None else len(new) - len(old) for old, new in shapes]
    rank = len(perm)
    keys: list[tuple[object, ...]] = []
    for loop in loops:
        # A constant of one element has stayed as it is, whatever its rank.
        reads = [
            axis if axis is None or axis + new >= rank else perm[axis + new]
            for axis, new in zip(loop.reads, more, strict=True)
        ]
        writes = loop.writes
        if not stays:
            writes = tuple([None if axis is None else perm[axis] for axis in writes])
        told = _significant(reads, loop, after)
        keys.append((loop.size, told, writes, loop.kind, loop.reduces, loop.window))
    return keys


def _significant(reads: Sequence[int | None], loop: Loop, known: Known) -> tuple[int | None, ...]:
    """Return the axes of operands, without those that are broadcast."""
    if not loop.broadcast:
        return tuple(reads)
    return tuple(
        [
            None if place in loop.broadcast and _is_one(known.inputs[place], axis) else axis
            for place, axis in enumerate(reads)
        ]
    )


def _is_one(shape: Shape | None, axis: int | None) -> bool:
    return axis is not None and shape is not None and axis < len(shape) and shape[axis] == 1
