"""Shapes that follow from the ops, and shape arithmetic that gives the same for all inputs."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.passes.base import IndexedPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Dim, Op
from vkmnn.shape.symbolic import Facts, NamedShape, infer, infer_values


class RefineShapes(IndexedPass):
    """Completes `graph.infos`, and turns invariant shape vectors into constants.

    Dimensions that are not known as ints get names, the same name for the same value ("2*batch"),
    so that other passes can prove shapes equal. An unnamed dimension of a graph input is named
    after the input.
    """

    name = "refine_shapes"

    def apply(self, index: GraphIndex) -> int:
        """Refine; return how many infos and ops changed."""
        graph = index.graph
        facts = Facts(graph.constants)
        changes = 0
        for info in graph.inputs:
            shape = _named(info.name, info.shape)
            facts.add(info.name, info.dtype, shape)
            if index.shape(info.name) != shape:
                index.add_info(info.name, info.dtype, shape)
                changes += 1
        for op in index.ops():
            changes += _learn(op, facts, index)
            if _make_constant(op, facts, index):
                changes += 1
        return changes


def _named(name: str, shape: NamedShape | None) -> NamedShape | None:
    """Name the unknown dimensions of a tensor."""
    if shape is None:
        return None
    return tuple(f"{name}[{axis}]" if dim is None else dim for axis, dim in enumerate(shape))


def _learn(op: Op, facts: Facts, index: GraphIndex) -> int:
    """Compute the shapes and values of an op's results; return how many infos improved."""
    found = infer(op, facts)
    better = 0
    for place, name in enumerate(op.outputs):
        if not name:
            continue
        dtype, shape = found[place] if place < len(found) else (None, None)
        known = index.info(name)
        if known is not None:
            dtype, shape = known.dtype, _merged(shape, known.shape)
        shape = _named(name, shape)
        facts.add(name, dtype, shape)
        if dtype is not None and (known is None or known.shape != shape):
            index.add_info(name, dtype, shape)
            better += 1
    facts.add_values(op.outputs[0], infer_values(op, facts))
    return better


def _merged(found: NamedShape | None, known: NamedShape | None) -> NamedShape | None:
    """Join two descriptions of one shape: ints first, then names that were worked out."""
    if found is None or known is None or len(found) != len(known):
        return known if found is None else found if known is None else known
    return tuple(map(_merged_dim, found, known))


def _merged_dim(found: Dim, known: Dim) -> Dim:
    if isinstance(known, int):
        return known
    return known if found is None else found


def _make_constant(op: Op, facts: Facts, index: GraphIndex) -> bool:
    """Replace an op by the value of its result, if that is known."""
    (name, *_) = op.outputs
    info = index.info(name)
    if info is None or len(op.outputs) != 1 or name in index.constants:
        return False
    value, shape = facts.known_values_of(name), facts.shape_of(name)
    if value is None or shape is None:
        return False
    array = np.array(value, info.dtype.numpy)
    index.make_constant(op, [array if shape else array.reshape(())])
    return True
