"""The equation language of Einsum, and the shape that it gives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vkmnn.base.records import dataclass
from vkmnn.errors import ShapeError
from vkmnn.ir import Op
from vkmnn.ir.ops import EinsumAttrs
from vkmnn.shape.common import Infos, Outputs, Shape, Values, same_dtype, shape_of
from vkmnn.shape.registry import size_computer

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")

Label = str | int


@dataclass(frozen=True, slots=True)
class EinsumPlan:
    """A parsed equation.

    A label is a letter, or, for an axis under an ellipsis, its number from the right (0 = last).

    Attributes:
        operands: the labels of each operand's axes.
        result: the labels of the result's axes.
        sizes: the size of every label; an operand's axis may have size 1 where the label has more.
    """

    operands: tuple[tuple[Label, ...], ...]
    result: tuple[Label, ...]
    sizes: dict[Label, int]

    @property
    def shape(self) -> Shape:
        """Return the result's shape."""
        return tuple(self.sizes[label] for label in self.result)


def _labels(term: str, hidden: int) -> tuple[Label, ...]:
    before, dots, after = term.partition("...")
    return (*before, *(range(hidden - 1, -1, -1) if dots else ()), *after)


def parse_einsum(equation: str, shapes: Sequence[Shape]) -> EinsumPlan:
    """Parse an ONNX Einsum equation for operands of the given shapes.

    Without `->` the result has the ellipsis' axes, then the letters that occur once, sorted.

    Raises:
        ShapeError: the equation is malformed or does not fit the shapes.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not all(_TERM.fullmatch(term) for term in [*terms, right]):
        raise ShapeError(f"equation '{equation}' is malformed")
    if len(terms) != len(shapes):
        raise ShapeError(f"equation '{equation}' has {len(terms)} operands, got {len(shapes)}")
    operands = []
    sizes: dict[Label, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            raise ShapeError(f"'{term}' of equation '{equation}' does not fit shape {shape}")
        labels = _labels(term, hidden)
        for label, dim in zip(labels, shape, strict=True):
            if sizes.setdefault(label, dim) != dim:
                if 1 not in (sizes[label], dim):
                    raise ShapeError(
                        f"'{label}' of equation '{equation}' is {sizes[label]} and {dim}"
                    )
                sizes[label] = dim if sizes[label] == 1 else sizes[label]
        operands.append(labels)
    hidden_axes = max((label + 1 for label in sizes if isinstance(label, int)), default=0)
    if arrow:
        result = _labels(right, hidden_axes)
    else:
        letters = left.replace(",", "").replace("...", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = (*range(hidden_axes - 1, -1, -1), *once)
    if len(set(result)) != len(result) or any(label not in sizes for label in result):
        raise ShapeError(f"the result of equation '{equation}' repeats or invents a label")
    return EinsumPlan(tuple(operands), result, sizes)


@size_computer("Einsum")
def _einsum(op: Op[EinsumAttrs], inputs: Infos, values: Values) -> Outputs:
    shapes = [shape_of(inputs, index) for index in range(len(inputs))]
    plan = parse_einsum(op.attrs.equation, shapes)
    return [(same_dtype(inputs, *range(len(inputs))), plan.shape)]
