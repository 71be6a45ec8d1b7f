"""Parts of tensors and of ops, for what is too large as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from vkmnn.base.records import dataclass
from vkmnn.ir import Array, OpAttrs, View


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor.

    `view` and `size` say where its elements lie in the whole, in plain order; `axis` is the one
    along which it runs from `begin` to `end`, or -1 where it is not a range of one axis.
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

    None is an input that the part takes as it is.
    """

    attrs: OpAttrs
    inputs: tuple[Piece | Array | None, ...]
    outputs: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to split an op: `part` returns the part from step `begin` to `end` of `size`.

    Parts begin at multiples of `unit`. `touched` numbers the tensors that get smaller, inputs
    first, then outputs. `axis` is that of the result.

    With `again`, parts give what has one element along `axis`: these are stacked along it, and the
    op takes the stack in place of its first input, with these attributes. `equal` says that all
    parts must be of one size then.
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
