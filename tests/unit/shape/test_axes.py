"""The axes that ops declare match their behaviour."""

from __future__ import annotations

import pytest

from tests.unit.shape.axis_cases import uses
from vkmnn.ir import OP_TYPES
from vkmnn.shape.axes import AXES
from vkmnn.testing.axes import Use, check_broadcast, check_neutral, check_parts

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
    "StridedAttention": "the axes of a view do not match its input's",
}
"""Ops that declare nothing, and why: they are not split, batched or moved, and no cache can grow by
them (but see `strided_cuts.py`).
"""

USES = uses()
each_use = pytest.mark.parametrize("use", USES, ids=lambda use: use.op.type)


def test_every_op_declares_its_axes_or_is_known_not_to() -> None:
    assert set(OP_TYPES) - set(AXES) == set(UNKNOWN)


def test_every_declaration_is_tried() -> None:
    listed = {use.op.type for use in USES if use.loops()}
    assert listed == {name for name in AXES if not name.startswith("Custom:")}


@each_use
def test_parts_are_parts_of_the_whole(use: Use) -> None:
    check_parts(use)


@each_use
def test_one_element_stands_for_all_steps(use: Use) -> None:
    check_broadcast(use)


@each_use
def test_neutral_elements_change_nothing(use: Use) -> None:
    check_neutral(use)
