"""An op on operands in another order of axes returns the same result, in that order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tests.unit.shape.axis_cases import uses
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.renumbered import data_of, inverse, renumbered
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, TensorInfo
from vkmnn.shape.axes import AXES, numbering_of
from vkmnn.testing.axes import Use

MOVED = {"ArgMax", "ArgMin", "BinaryOp", "BitCast", "Cast", "Concat", "Elementwise", "Identity",
         "Interp", "Pad", "Reduction", "Select", "Slice", "Softmax", "Split", "Tile", "TopK",
         "UnaryOp"}  # fmt: skip
"""Ops that stay correct under some permutation of their axes, with one operand not constant."""

USES = [use for use in uses() if use.arrays and use.arrays[0] is not None]


def index_of(use: Use, constants: int) -> GraphIndex:
    """Return a graph of the op alone; operands from this number on are constants."""
    content = OP_TYPES[use.op.type].content
    fixed: dict[str, Array] = {}
    inputs = []
    for place, (name, array) in enumerate(zip(use.op.inputs, use.arrays, strict=True)):
        if array is None:
            continue
        if place in content or place >= constants:
            fixed[name] = array
        else:
            inputs.append(TensorInfo(name, DType.from_numpy(array.dtype), array.shape))
    results = [
        TensorInfo(name, DType.FLOAT32, shape)
        for name, shape in zip(use.op.outputs, use.known().outputs, strict=True)
    ]
    infos = {info.name: info for info in results}
    return GraphIndex(Graph("one", inputs, results, [use.op], fixed, infos))


def moves(use: Use, constants: int = 1) -> int:
    """Check every permutation that an op accepts; return how many these are."""
    index = index_of(use, constants)
    names = data_of(use.op, index)
    ranks = {index.rank(name) for name in names}
    if len(ranks) != 1 or numbering_of(use.op) is None:
        return 0
    whole, count = use.results(), 0
    for perm in permutations(range(ranks.pop() or 0)):
        made = renumbered(use.op, perm, index)
        if made is None or perm == tuple(range(len(perm))):
            continue
        arrays: list[Array | None] = []
        for place, (name, array) in enumerate(zip(use.op.inputs, use.arrays, strict=True)):
            moved = (
                np.transpose(array, inverse(perm)) if array is not None and name in names else None
            )
            arrays.append(made.constants.get(place, moved))
        found = use.results(tuple(arrays), replace(use.op, attrs=made.attrs))
        for one, other in zip(found, whole, strict=True):
            back = one if made.stays else np.transpose(one, perm)
            np.testing.assert_allclose(
                back.astype(np.float64), other.astype(np.float64), rtol=1e-4, atol=1e-4
            )
        count += 1
    return count


@pytest.mark.parametrize("use", USES, ids=lambda use: use.op.type)
def test_a_moved_op_gives_the_same(use: Use) -> None:
    moves(use)
    moves(use, constants=len(use.arrays))


def test_which_ops_are_moved() -> None:
    assert {use.op.type for use in USES if moves(use)} == MOVED


def test_a_declaration_that_forgets_an_attribute_moves_nothing_wrongly() -> None:
    """The loops of a Softmax whose axis is not renumbered are not the permuted ones."""
    softmax = AXES.remove("Softmax")
    try:
        AXES.register("Softmax")(replace(softmax, numbering={}))
        attrs = OP_TYPES["Softmax"].attrs
        use = Use(Op("Softmax", "s", ["x"], ["y"], attrs(axis=2)), (np.ones((2, 3, 4, 5)),))
        index = index_of(use, 1)
        assert renumbered(use.op, (0, 3, 1, 2), index) is None
        assert renumbered(use.op, (1, 0, 2, 3), index) is not None
    finally:
        AXES.remove("Softmax")
        AXES.register("Softmax")(softmax)
