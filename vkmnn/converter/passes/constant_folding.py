"""Evaluation of what depends on constants only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from vkmnn.converter.passes.base import Evaluator, IndexedPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.errors import VkmnnError
from vkmnn.ir.graph import Array, Op
from vkmnn.ir.ops import OP_TYPES, ConstantOfShapeAttrs, MatMulAttrs, ShapeAttrs

log = logging.getLogger(__name__)

SIZE_LIMIT = 16 * 2**20
"""Bytes that a folded result may take when it is larger than what it was made from."""

CONTENT_SIZE_LIMIT = 16 * SIZE_LIMIT
"""The same for results whose content decides shapes: these have to be known anyway."""

Inputs = Sequence["Array | None"]


def _ints(array: Array | None) -> list[int]:
    # As Python ints: a hostile shape must not overflow.
    return [] if array is None else [int(value) for value in array.reshape(-1)]


def _broadcast(op: Op, inputs: Inputs) -> int:
    return prod(np.broadcast_shapes(*(array.shape for array in inputs if array is not None)))


def _expand(op: Op, inputs: Inputs) -> int:
    shape = inputs[0].shape if inputs[0] is not None else ()
    target = _ints(inputs[1])
    rank = max(len(shape), len(target))
    pairs = zip(
        [1] * (rank - len(shape)) + [*shape], [1] * (rank - len(target)) + target, strict=True
    )
    return prod(max(pair) for pair in pairs)


def _tile(op: Op, inputs: Inputs) -> int:
    return (inputs[0].size if inputs[0] is not None else 0) * prod(_ints(inputs[1]))


def _of_shape(op: Op, inputs: Inputs) -> int:
    return prod(_ints(inputs[0]))


def _range(op: Op, inputs: Inputs) -> int:
    start, limit, step = (float(array.reshape(-1)[0]) for array in inputs if array is not None)
    return int(max(0.0, (limit - start) / step)) + 1


def _one_hot(op: Op, inputs: Inputs) -> int:
    return (inputs[0].size if inputs[0] is not None else 0) * prod(_ints(inputs[1]))


def _pad(op: Op, inputs: Inputs) -> int:
    shape = list(inputs[0].shape) if inputs[0] is not None else []
    pads = _ints(inputs[1])
    axes = _ints(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else range(len(shape))
    half = len(pads) // 2
    for axis, begin, end in zip(axes, pads[:half], pads[half:], strict=False):
        shape[axis] += begin + end
    return prod(max(dim, 0) for dim in shape)


def _gather(op: Op, inputs: Inputs) -> int:
    data, indices = inputs[:2]
    return 0 if data is None or indices is None else data.size * max(indices.size, 1)


def _matmul(op: Op, inputs: Inputs) -> int:
    attrs, (a, b) = op.attrs, inputs[:2]
    assert isinstance(attrs, MatMulAttrs)
    if a is None or b is None or a.ndim < 2 or b.ndim < 2:
        return 0
    rows = a.shape[-1 if attrs.transpose_a else -2]
    columns = b.shape[-2 if attrs.transpose_b else -1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return prod((*batch, rows, columns))


def _interp(op: Op, inputs: Inputs) -> int:
    data, _, scales, sizes = (*inputs, None, None, None)[:4]
    if data is None:
        return 0
    if sizes is not None:
        return data.size * prod(_ints(sizes))
    return 0 if scales is None else int(data.size * prod(float(value) for value in scales.flat))


GROWTH: dict[str, Callable[[Op, Inputs], int]] = {
    "BinaryOp": _broadcast,
    "ConstantOfShape": _of_shape,
    "Einsum": lambda op, inputs: prod(array.size for array in inputs if array is not None),
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather,
    "Interp": _interp,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Select": _broadcast,
    "Tile": _tile,
}
"""A bound on the elements of the result, for ops whose result may be larger than their inputs."""

_NEVER = frozenset({"Raster", "ConvertTensor", "StridedAttention"})
"""Ops that exist for a device only."""


class FoldConstants(IndexedPass):
    """Evaluates ops whose inputs are all constant, and Shape and Size of tensors of known shape.

    A result that is larger than its inputs and than 16 MiB is left to be made at run time, so that
    a small model cannot turn into a huge one.

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
        if op.type in _NEVER or not op.inputs:
            return None
        inputs: list[Array | None] = []
        for name in op.inputs:
            array = index.constant(name)
            if array is None and name:
                return None
            inputs.append(array)
        try:
            if not _is_small(op, inputs, index):
                log.debug("%s '%s' is constant, but too large to store", op.type, op.name)
                return None
            with np.errstate(all="ignore"):
                return [np.asarray(array, order="C") for array in self._evaluate(op, inputs)]
        except (VkmnnError, ArithmeticError, LookupError, ValueError, MemoryError) as error:
            log.debug("%s '%s' is constant, but cannot be computed: %s", op.type, op.name, error)
            return None


def _known_shape(op: Op, index: GraphIndex) -> list[Array] | None:
    shape = index.shape(op.inputs[0])
    if shape is None:
        return None
    if op.type == "Size":
        static = index.static_shape(op.inputs[0])
        return None if static is None else [np.array(prod(static), np.int64)]
    assert isinstance(op.attrs, ShapeAttrs)
    asked = shape[slice(op.attrs.start, op.attrs.end)]
    if not all(isinstance(dim, int) for dim in asked):
        return None
    return [np.array(asked, np.int64)]


def _is_small(op: Op, inputs: Inputs, index: GraphIndex) -> bool:
    bound = GROWTH.get(op.type)
    if bound is None:
        return True
    given = [array for array in inputs if array is not None]
    if isinstance(op.attrs, ConstantOfShapeAttrs):
        itemsize = op.attrs.dtype.numpy.itemsize
    else:
        itemsize = max(array.itemsize for array in given)
    size = bound(op, inputs) * itemsize
    limit = CONTENT_SIZE_LIMIT if _decides_shapes(op, index) else SIZE_LIMIT
    return size <= max(limit, sum(array.nbytes for array in given))


def _decides_shapes(op: Op, index: GraphIndex) -> bool:
    return any(
        reader.inputs[place] == name
        for name in op.outputs
        for reader in index.readers(name)
        for place in OP_TYPES[reader.type].content
        if place < len(reader.inputs)
    )
