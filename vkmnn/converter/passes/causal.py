"""Causal attention masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkmnn.converter.passes.attention import VERY_NEGATIVE
from vkmnn.converter.passes.base import NoMatch, PatternPass, binary_parts
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import AttentionAttrs, CastAttrs, ConstantOfShapeAttrs, TriluAttrs, UnaryAttrs
from vkmnn.shape.symbolic import is_cut

_DEPTH = 8
"""Maximum number of ops that compute a mask."""


class DetectCausalMasks(PatternPass["list[str]"]):
    """Attention with a mask of 0 up to the diagonal, and very negative after it: causal, no mask.

    The mask is a constant, a Select by a triangle, or a triangle of very negative numbers;
    triangles are slices of a constant or results of Trilu.
    """

    name = "detect_causal_masks"
    roots = frozenset({"Attention"})

    def match(self, op: Op[AttentionAttrs], index: GraphIndex) -> list[str] | NoMatch:
        if len(op.inputs) < 4 or not op.inputs[3]:
            return NoMatch("no mask")
        q, k, mask = (index.shape(op.inputs[place]) for place in (0, 1, 3))
        if op.attrs.causal or q is None or k is None or mask is None or len(mask) < 2:
            return NoMatch("the shapes are not known, or it is causal already")
        if any(dim != 1 for dim in mask[:-2]):
            return NoMatch("the mask differs between batches")
        for dim, whole in ((mask[-2], q[-2]), (mask[-1], k[-2])):
            if dim is None or (dim != whole and not is_cut(dim, whole)):
                return NoMatch("the mask is not one square of queries by keys")
        if not _hides_later_keys(op.inputs[3], index):
            return NoMatch("the mask is not triangular")
        rest = op.inputs[4:]
        return [*op.inputs[:3], *(["", *rest] if any(rest) else [])]

    def rewrite(self, op: Op[AttentionAttrs], match: list[str], index: GraphIndex) -> None:
        attrs, outputs = replace(op.attrs, causal=True), list(op.outputs)
        index.replace(op, Op(op.type, op.name, match, outputs, attrs, op.source))


def _hides_later_keys(mask: str, index: GraphIndex) -> bool:
    """True for a tensor that is 0 up to the diagonal and very negative after it."""
    array = index.constant(mask)
    if array is not None:
        return _is_triangle(array == 0) and bool((array[array != 0] <= VERY_NEGATIVE).all())
    op = index.producer_of_type(mask, "Select", "Trilu")
    if op is None:
        return False
    if op.type == "Trilu":
        fill = _fill(op.inputs[0], index)
        return fill is not None and fill <= VERY_NEGATIVE and _trilu_side(op, index) is False
    condition, chosen, otherwise = op.inputs
    first, second = index.scalar(chosen), index.scalar(otherwise)
    if first is None or second is None:
        return False
    side = _side(condition, index, _DEPTH)
    if side is False:
        first, second = second, first
    return side is not None and first == 0 and second <= VERY_NEGATIVE


def _side(name: str, index: GraphIndex, depth: int) -> bool | None:
    """Return where a tensor is not zero.

    Returns:
        True: up to the diagonal and only there; False: after it and only there; None: not known.
    """
    array = index.constant(name)
    if array is not None and array.ndim >= 2:
        if _is_triangle(array != 0):
            return True
        return False if _is_triangle(array == 0) else None
    op = index.producer(name)
    if op is None or depth == 0:
        return None
    attrs = op.attrs
    if isinstance(attrs, TriluAttrs):
        return _trilu_side(op, index) if _fill(op.inputs[0], index) else None
    if op.type == "Slice":
        starts, steps = index.ints(op.inputs[1]), op.inputs[4:]
        plain = starts is not None and set(starts) == {0}
        plain &= not steps or not steps[0] or set(index.ints(steps[0]) or (0,)) == {1}
        return _side(op.inputs[0], index, depth - 1) if plain else None
    if isinstance(attrs, CastAttrs) and attrs.to is DType.BOOL:
        return _side(op.inputs[0], index, depth - 1)
    compared = binary_parts(op, "EQUAL")
    if compared is not None and index.scalar(compared[1]) == 0:
        inner = _side(compared[0], index, depth - 1)
    elif isinstance(attrs, UnaryAttrs) and attrs.kind == "NOT":
        inner = _side(op.inputs[0], index, depth - 1)
    else:
        return None
    return None if inner is None else not inner


def _trilu_side(op: Op[TriluAttrs], index: GraphIndex) -> bool | None:
    """Return which side of the diagonal a Trilu keeps, in the terms of `_side`."""
    offsets = index.ints(op.inputs[1]) if any(op.inputs[1:]) else (0,)
    if op.attrs.upper:
        return False if offsets == (1,) else None
    return True if offsets == (0,) else None


def _fill(name: str, index: GraphIndex) -> float | None:
    """Return the number that fills a tensor."""
    op = index.producer_of_type(name, "Expand", "ConstantOfShape")
    if op is not None and isinstance(op.attrs, ConstantOfShapeAttrs):
        return float(op.attrs.value)
    array = index.constant(name if op is None else op.inputs[0])
    if array is None or array.size == 0 or not (array == array.flat[0]).all():
        return None
    return float(array.flat[0])


def _is_triangle(array: Array) -> bool:
    """True for booleans [1, ..., L, S] that are true up to the diagonal and only there."""
    if any(dim != 1 for dim in array.shape[:-2]):
        return False
    square = array.reshape(array.shape[-2:])
    return bool(np.array_equal(square, np.tril(np.ones_like(square))))
