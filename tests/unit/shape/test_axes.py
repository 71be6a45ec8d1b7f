"""What ops declare of their axes is what they do along them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.shape.axis_cases import Use, sliced, uses
from vkmnn.ir import OP_TYPES, Array, Op
from vkmnn.shape.axes import AXES, NEUTRAL, Kind, Loop, is_broadcast, loops_of

UNKNOWN = {
    "CachedAttention": "the caches are written where they lie",
    "ConstantOfShape": "no operand has axes",
    "ConvertTensor": "about memory, not values",
    "Custom": "by the types of Custom ops",
    "HostGraph": "an evaluator of ONNX runs it",
    "MelWeightMatrix": "no operand has axes",
    "NonMaxSuppression": "chosen boxes of all images are one axis",
    "Range": "no operand has axes",
    "Raster": "regions are along any axes",
    "Shape": "no element is read",
    "Size": "no element is read",
    "StridedAttention": "views have axes of their own",
}
"""Ops that declare nothing, and why: they are not cut, batched or moved, and no cache grows by them
(but see `strided_cuts.py`)."""

USES = uses()
each_use = pytest.mark.parametrize("use", USES, ids=lambda use: use.op.type)


def test_every_op_declares_its_axes_or_is_known_not_to() -> None:
    assert set(OP_TYPES) - set(AXES) == set(UNKNOWN)


def test_every_declaration_is_tried() -> None:
    listed = {use.op.type for use in USES if loops_of(use.op, use.known())}
    assert listed == {name for name in AXES if not name.startswith("Custom:")}


def loops(use: Use, *kinds: Kind) -> list[Loop]:
    return [loop for loop in loops_of(use.op, use.known()) if loop.kind in kinds]


def close(found: list[Array], wanted: list[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=2e-4, atol=2e-4
        )


@each_use
def test_parts_are_parts_of_the_whole(use: Use) -> None:
    whole = use.results()
    for loop in loops(use, Kind.PARALLEL, Kind.WINDOW):
        size = loop.size
        assert isinstance(size, int)
        blind = loop.window is not None and loop.window.is_blind
        if size < 2 or blind or None in loop.makes:
            continue
        for begin, end in ((0, size // 2), (size // 2, size), (size - 1, size)):
            if use.op.type == "Squeeze" and end - begin == 1 and len(use.arrays) == 1:
                continue  # one element would vanish, too
            wanted = [
                sliced(array, axis, size, begin, end)
                for array, axis in zip(whole, loop.makes, strict=True)
            ]
            close(use.part(loop, begin, end), wanted)


@each_use
def test_what_is_broadcast_may_be_one_element(use: Use) -> None:
    for loop in loops(use, Kind.PARALLEL, Kind.REDUCTION):
        for place in sorted(loop.broadcast):
            axis = loop.reads[place] if place < len(loop.reads) else None
            array = use.arrays[place] if place < len(use.arrays) else None
            if axis is None or array is None or is_broadcast(loop, place, array.shape):
                continue
            others = [
                None if n == place or other is None else np.shape(use.arrays[n])[other]
                for n, other in enumerate(loop.reads)
            ]
            if loop.size not in others:
                continue  # the result would be smaller
            one = np.take(array, [0], axis)
            fed = list(use.arrays)
            fed[place] = np.repeat(one, array.shape[axis], axis)
            wanted = use.results(tuple(fed))
            fed[place] = one
            close(use.results(tuple(fed)), wanted)


@each_use
def test_neutral_elements_change_nothing(use: Use) -> None:
    whole = use.results()
    for loop in loops(use, Kind.REDUCTION):
        fill = NEUTRAL.get(loop.reduces)
        reads = {place: axis for place, axis in enumerate(loop.reads) if axis is not None}
        first = next(iter(reads))
        if use.arrays[first].dtype.kind != "f" or (fill is None and loop.told is None):
            continue
        fed, inputs = list(use.arrays), list(use.op.inputs)
        for place, axis in reads.items():
            array = fed[place]
            assert array is not None
            if not is_broadcast(loop, place, array.shape):
                tail = np.take(array, [0, 0], axis)
                tail[...] = np.nan if fill is None else fill
                fed[place] = np.concatenate([array, tail], axis)
        if loop.told is not None:
            while len(fed) <= loop.told:
                fed.append(None)
                inputs.append("")
            fed[loop.told], inputs[loop.told] = np.array([loop.size]), "count"
        op = Op(use.op.type, "longer", inputs, list(use.op.outputs), use.op.attrs)
        made = use.results(tuple(fed), op)
        size = loop.size
        assert isinstance(size, int)
        close(
            [
                array if axis is None else np.take(array, range(size), axis)
                for array, axis in zip(made, loop.makes, strict=True)
            ],
            whole,
        )
