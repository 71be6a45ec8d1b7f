"""Parts of tensors and ops that are too large as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from vkmnn.base.records import dataclass
from vkmnn.ir import Array, OpAttrs, View


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor.

    `view` and `size` give its elements in the whole, in plain order; `axis` is the axis along which
    it extends from `begin` to `end`, or -1 if it is not a range of one axis.
    """

    shape: tuple[int, ...]
    view: View
    size: tuple[int, ...]
    axis: int = -1
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Inputs and outputs of a part; an array replaces an input with different contents.

    None means that the part uses the input unchanged.
    """

    attrs: OpAttrs
    inputs: tuple[Piece | Array | None, ...]
    outputs: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to split an op: `part` returns the part from step `begin` to `end` of `size`.

    Parts begin at multiples of `unit`. `touched` numbers the tensors that get smaller, inputs
    first, then outputs. `axis` is the axis of the result.

    With `again`, each part returns one element along `axis`: these are stacked along it, and the op
    runs on the stack in place of its first input, with these attributes. `equal` then requires all
    parts to be of one size.
    """

    size: int
    unit: int
    axis: int
    touched: frozenset[int]
    part: Callable[[int, int], Part]
    again: OpAttrs | None = None
    equal: bool = False


def span_view(
    shape: Sequence[int], axis: int, begin: int, end: int
) -> tuple[View, tuple[int, int]]:
    """Return the view of elements `begin` to `end` of an axis, and its size."""
    inner = prod(shape[axis + 1 :])
    view = View(begin * inner, (shape[axis] * inner, 1))
    return view, (prod(shape[:axis]), (end - begin) * inner)


def along(shape: Sequence[int], axis: int, begin: int, end: int) -> Piece:
    """Return the part of a tensor from `begin` to `end` of an axis."""
    view, size = span_view(shape, axis, begin, end)
    return Piece((*shape[:axis], end - begin, *shape[axis + 1 :]), view, size, axis, begin, end)
