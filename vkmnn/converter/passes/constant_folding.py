"""Evaluation of ops with constant inputs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from vkmnn.converter.passes.base import IndexedPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.slice_assignment import feeds_box
from vkmnn.errors import VkmnnError
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.host import HOST_GRAPH
from vkmnn.ir.op_type import OP_TYPES
from vkmnn.shape import new_bytes
from vkmnn.shape.folding import Evaluator, Folder, operands

log = logging.getLogger(__name__)

SIZE_LIMIT = 16 * 2**20
"""Maximum bytes of a folded result that is larger than its inputs."""

CONTENT_SIZE_LIMIT = 16 * SIZE_LIMIT
"""The same for results whose content decides shapes: these have to be known anyway."""

Inputs = Sequence["Array | None"]

_NEVER = frozenset({"Raster", "ConvertTensor", "StridedAttention", HOST_GRAPH})
"""Ops that exist for a device only, or outside of the vocabulary's numpy executions."""


class FoldConstants(IndexedPass):
    """Evaluates ops whose inputs are all constant, and Shape and Size of tensors of known shape.

    A result larger than its inputs and than 16 MiB is computed at run time, so that a small model
    cannot turn into a huge one. Large parts of indices that `AssignSlices` does without are not
    computed at all.

    Args:
        evaluate: computes an op; where it raises, the op stays, to fail where the model runs.
    """

    name = "fold_constants"

    def __init__(self, evaluate: Evaluator) -> None:
        self._evaluate = evaluate

    def apply(self, index: GraphIndex) -> int:
        """Fold; return how many ops became constants."""
        folded = 0
        for op in index.ops():
            arrays = self._fold(op, index)
            if arrays is not None:
                index.make_constant(op, arrays)
                folded += 1
        return folded

    def _fold(self, op: Op, index: GraphIndex) -> list[Array] | None:
        if op.type in ("Shape", "Size"):
            return _known_shape(op, index)
        if op.type in _NEVER or not op.inputs or feeds_box(op, index):
            return None
        inputs = operands(op, index.constant)
        if inputs is None:
            return None
        try:
            folder = Folder(self._evaluate, index.meter)
            made = folder.compute_if_small(op, inputs, _limit(op, inputs, index))
            if made is None:
                log.debug("%s '%s' is constant, but takes too much", op.type, op.name)
                return None
            arrays = [np.asarray(array, order="C") for array in made]
            index.meter.charge(new_bytes(arrays, inputs), op.type, op.name)
            return arrays
        except (VkmnnError, ArithmeticError, LookupError, ValueError, MemoryError) as error:
            log.debug("%s '%s' is constant, but cannot be computed: %s", op.type, op.name, error)
            return None


def _known_shape(op: Op[Any], index: GraphIndex) -> list[Array] | None:
    shape = index.shape(op.inputs[0])
    if shape is None:
        return None
    if op.type == "Size":
        static = index.static_shape(op.inputs[0])
        return None if static is None else [np.array(prod(static), np.int64)]
    asked = shape[slice(op.attrs.start, op.attrs.end)]
    if not all(isinstance(dim, int) for dim in asked):
        return None
    return [np.array(asked, np.int64)]


def _limit(op: Op, inputs: Inputs, index: GraphIndex) -> int:
    """Return the maximum size of a kept result; a tensor that is read twice counts once."""
    given = {id(array): array.nbytes for array in inputs if array is not None}
    limit = CONTENT_SIZE_LIMIT if _decides_shapes(op, index) else SIZE_LIMIT
    return max(limit, sum(given.values()))


def _decides_shapes(op: Op, index: GraphIndex) -> bool:
    return any(
        reader.inputs[place] == name
        for name in op.outputs
        for reader in index.readers(name)
        for place in OP_TYPES[reader.type].content
        if place < len(reader.inputs)
    )
