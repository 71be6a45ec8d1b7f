"""Moves selections before the ops whose results they take few rows of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import IndexedPass, NoMatch
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import RESHAPES
from vkmnn.errors import ShapeError
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import AttentionAttrs, AxisAttrs, LayerNormAttrs, ReshapeAttrs
from vkmnn.shape.axes import Kind, Known, is_elementwise, loops_of
from vkmnn.shape.axes.loops import Shape
from vkmnn.shape.common import normalize_axis

_FEWER = 2
"""Rows for each that is kept, at least, if the result keeps the axis."""


@dataclass(frozen=True, slots=True)
class _Match:
    """A selection along `axis`, and the axis along which each input of `producer` is selected."""

    producer: Op[Any]
    axis: int
    reads: Sequence[int | None]
    removes: bool


class RaiseSelection(IndexedPass):
    """Gather or Slice of a few rows after an op that computes each row by itself: before it.

    Classifiers of images and texts read one row of the last layer, which then computes one row.
    """

    name = "raise_selection"

    def apply(self, index: GraphIndex) -> int:
        """Move every selection as far as it goes; return the number of ops that it has passed."""
        count = 0
        for op in index.ops():
            pending = [op] if op.type in ("Gather", "Slice") else []
            while pending:
                one = pending.pop()
                match = _match(one, index)
                if not isinstance(match, NoMatch):
                    pending += _rewrite(one, match, index)
                elif heads := _heads_before(one, index):
                    _attend_once(one, heads, index)
                else:
                    continue
                count += 1
        return count


def _match(op: Op[Any], index: GraphIndex) -> _Match | NoMatch:
    source = op.inputs[0]
    producer, shape = index.producer(source), index.shape(source)
    if producer is None or shape is None or not index.is_float(source):
        return NoMatch("no preceding op of floats")
    if not index.read_once(source) or sum(map(bool, producer.outputs)) != 1:
        return NoMatch("the rows are used elsewhere")
    found = _axis_of(op, shape, index)
    if found is None:
        return NoMatch("not a selection of fewer rows along one axis")
    axis, removes = found
    if not _computes_rows(producer, removes, index):
        return NoMatch("the op before it may combine rows")
    reads = _reads(producer, axis, index)
    if reads is None:
        return NoMatch("the op before it combines rows")
    for name, along in zip(producer.inputs, reads, strict=True):
        given = index.shape(name) if name else ()
        if given is None or (along is not None and given[along] != shape[axis]):
            return NoMatch("an operand is broadcast along the axis")
        right = len(shape) - axis  # axes from this one to the last
        fits = len(given) < right if along is None else len(given) - along == right
        is_matrix = producer.type == "MatMul" and name == producer.inputs[1]
        if removes and not fits and not is_matrix:
            return NoMatch("an operand has other axes")
    return _Match(producer, axis, reads, removes)


def _axis_of(op: Op[Any], shape: Shape, index: GraphIndex) -> tuple[int, bool] | None:
    """Return the axis along which constants select fewer elements, and whether it is removed."""
    if op.type == "Gather":
        places = index.constant(op.inputs[1])
        if places is None or places.ndim > 1:
            return None
        axis, kept = normalize_axis(op.attrs.axis, len(shape)), places.size
        if places.ndim == 0:
            return (axis, True) if shape[axis] not in (1, None) else None
    else:
        axes = index.ints(op.inputs[3]) if len(op.inputs) > 3 else None
        result = index.shape(op.outputs[0])
        constant = all(index.constant(name) is not None for name in op.inputs[1:] if name)
        if axes is None or len(axes) != 1 or result is None or not constant:
            return None
        axis = normalize_axis(axes[0], len(shape))
        size = result[axis]
        if not isinstance(size, int):
            return None
        kept = size
    size = shape[axis]
    return (axis, False) if isinstance(size, int) and 0 < _FEWER * kept <= size else None


def _computes_rows(op: Op[Any], removes: bool, index: GraphIndex) -> bool:
    """Return whether an op is worth moving, and works with an axis less if that is removed."""
    if op.type == "MatMul":
        rank = index.rank(op.inputs[0])
        matrix = index.constant(op.inputs[1])
        plain = matrix is not None and matrix.ndim == 2 and not op.attrs.transpose_a
        return plain and rank is not None and rank > (2 if removes else 1)
    if op.type == "LayerNorm":
        rank = index.rank(op.inputs[0])
        return rank is not None and op.attrs.axis in (-1, rank - 1)
    others = [name for name in op.inputs if name and index.constant(name) is None]
    return is_elementwise(op) and len(others) == 1


def _reads(op: Op[Any], axis: int, index: GraphIndex) -> Sequence[int | None] | None:
    """Return the axes of the inputs of which a row of the result needs one row."""
    known = Known(
        [index.shape(name) if name else None for name in op.inputs],
        [index.shape(name) if name else None for name in op.outputs],
        [index.constant(name) if name else None for name in op.inputs],
    )
    try:
        loops = loops_of(op, known)
    except ShapeError:
        return None
    for loop in loops:
        if loop.writes[0] == axis:
            rows = loop.kind is Kind.PARALLEL and loop.attrs is None
            return loop.reads if rows else None
    return None


def _rewrite(op: Op[Any], match: _Match, index: GraphIndex) -> list[Op[Any]]:
    """Replace a selection and the op before it; return the selections before that one."""
    producer = match.producer
    inputs, selections = list(producer.inputs), []
    for place, (name, axis) in enumerate(zip(producer.inputs, match.reads, strict=True)):
        if not name or axis is None:
            continue
        inputs[place] = index.unique_name(name)
        _describe(inputs[place], op, (name, axis), match, index)
        content = list(op.inputs[1:])
        attrs = op.attrs
        if op.type == "Gather":
            attrs = AxisAttrs(axis)
        elif axis != match.axis:
            content[2] = index.add_constant(f"{op.name}_axes", np.array([axis], np.int64))
        title = index.unique_name(op.name)
        moved = Op(op.type, title, [name, *content], [inputs[place]], attrs, op.source)
        selections.append(moved)
    attrs = producer.attrs
    if isinstance(attrs, LayerNormAttrs):
        attrs = replace(attrs, axis=-1)
    outputs = [op.outputs[0] if name else "" for name in producer.outputs]
    after = Op(producer.type, producer.name, inputs, outputs, attrs, producer.source)
    index.replace(op, *selections, after)
    return selections


def _describe(
    name: str, op: Op[Any], source: tuple[str, int], match: _Match, index: GraphIndex
) -> None:
    """Record what is known of a selection from a tensor along an axis."""
    known, result = index.info(source[0]), index.shape(op.outputs[0])
    if known is None or known.shape is None:
        return
    shape = list(known.shape)
    if match.removes:
        del shape[source[1]]
    else:
        shape[source[1]] = None if result is None else result[match.axis]
    index.add_info(name, known.dtype, tuple(shape))


# --- attention -----------------------------------------------------------------------------------


def _heads_before(op: Op[Any], index: GraphIndex) -> Op[AttentionAttrs] | None:
    """Return the attention whose joined heads [B, L, H * D] are the source of a single row."""
    shape, place = index.shape(op.inputs[0]), index.ints(op.inputs[1])
    if op.type != "Gather" or shape is None or len(shape) != 3 or place is None:
        return None
    joined = index.producer_of_type(op.inputs[0], *RESHAPES)
    moved = index.producer_of_type(joined.inputs[0], "Transpose") if joined else None
    attention = index.producer_of_type(moved.inputs[0], "Attention") if moved else None
    if joined is None or moved is None or attention is None:
        return None
    if not all(index.read_once(one.outputs[0]) for one in (joined, moved, attention)):
        return None
    heads, attrs = index.shape(attention.outputs[0]), attention.attrs
    mask = index.shape(attention.inputs[3]) if any(attention.inputs[3:4]) else ()
    if heads is None or len(heads) != 4 or None in heads or mask is None:
        return None
    # A query is the only one that a mask without rows, or no mask, treats like all others.
    alike = not attrs.causal and not attrs.window and attrs.codes is None
    alike = alike and (len(mask) < 2 or mask[-2] == 1)
    rows = moved.attrs.perm == (0, 2, 1, 3) and shape[:2] == (heads[0], heads[2])
    one = index.constants[op.inputs[1]].ndim == 0 and op.attrs.axis in (1, -2)
    return attention if alike and rows and one else None


def _attend_once(op: Op[Any], attention: Op[AttentionAttrs], index: GraphIndex) -> None:
    """Replace a row of joined heads by attention of one query."""
    queries = attention.inputs[0]
    known, result = index.info(queries), index.info(attention.outputs[0])
    place = index.add_constant(f"{op.name}_row", index.constants[op.inputs[1]].reshape(1))
    target = index.add_constant(f"{op.name}_shape", np.array([0, -1], np.int64))
    query, row = index.unique_name(queries), index.unique_name(attention.outputs[0])
    for name, info in ((query, known), (row, result)):
        if info is not None and info.shape is not None and len(info.shape) == 4:
            index.add_info(name, info.dtype, (*info.shape[:2], 1, info.shape[3]))
    inputs = [query, *attention.inputs[1:]]
    title = index.unique_name(op.name)
    index.replace(
        op,
        Op("Gather", title, [queries, place], [query], AxisAttrs(2), op.source),
        Op("Attention", attention.name, inputs, [row], attention.attrs, attention.source),
        Op("Reshape", op.name, [row, target], list(op.outputs), ReshapeAttrs(), op.source),
    )
