"""Ops that compute the same thing twice."""

from __future__ import annotations

from vkmnn.converter.passes.base import IndexedPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import OpAttrs

_SMALL = 256
"""Bytes up to which constants are compared by value: scalars, shapes, short vectors."""

_Key = tuple[str, OpAttrs, int, tuple[object, ...]]


class MergeCommonSubexpressions(IndexedPass):
    """Of ops with equal type, attributes and inputs, only the first remains.

    Small constants are compared by value, large ones by identity. An op that gives a graph output
    its name stays.
    """

    name = "merge_common_subexpressions"

    def apply(self, index: GraphIndex) -> int:
        """Merge; return the number of removed ops."""
        constants: dict[str, object] = {}
        first: dict[_Key, Op] = {}
        merged = 0
        for op in index.ops():
            inputs = tuple(_identity(name, index, constants) for name in op.inputs)
            key = (op.type, op.attrs, len(op.outputs), inputs)
            twin = first.setdefault(key, op)
            if twin is not op and index.can_merge(op, twin):
                index.merge(op, twin)
                merged += 1
        return merged


def _identity(name: str, index: GraphIndex, known: dict[str, object]) -> object:
    array = index.constant(name)
    if array is None:
        return name
    if name not in known:
        small = array.nbytes <= _SMALL
        known[name] = (array.dtype.str, array.shape, array.tobytes()) if small else id(array)
    return known[name]
