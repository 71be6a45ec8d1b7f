"""Splitting of an op along an axis: parts of its operands that compute a part of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, Op, OpAttrs, View
from vkmnn.records import dataclass
from vkmnn.registry import Registry

Operands = Sequence["Tensor | None"]
Span = Callable[[int, int], tuple[int, int]]


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


FindCuts = Callable[[Op[Any], Operands, Sequence[Tensor]], list[Cut]]

CUTS: Registry[str, FindCuts] = Registry("cuts of")


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


def cut_along(
    op: Op,
    inputs: Operands,
    outputs: Sequence[Tensor],
    reads: Sequence[int | None],
    makes: int | Sequence[int],
    *,
    size: int | None = None,
    unit: int = 1,
    attrs: Callable[[int, int], OpAttrs] | None = None,
    spans: dict[int, Span] | None = None,
) -> Cut:
    """Return the cut along one axis of each tensor.

    Args:
        op: what is cut.
        inputs: its operands.
        outputs: its results.
        reads: the axis of each input, None for what every part takes as a whole; may be shorter.
        makes: the axis of each output, or of all.
        size: steps along the axis; those of the first output where None. An axis that is some times
            longer takes as many steps at once.
        unit: parts begin at multiples of it.
        attrs: those of the part from `begin` to `end`; those of `op` where None.
        spans: by number of input, which range of its axis a part reads, where that is another.
    """
    made = [makes] * len(outputs) if isinstance(makes, int) else list(makes)
    steps = outputs[0].shape[made[0]] if size is None else size
    axes = {
        number: axis
        for number, axis in enumerate(reads)
        if axis is not None and number < len(inputs) and inputs[number] is not None
    }

    def ranged(shape: Sequence[int], axis: int, begin: int, end: int) -> Piece:
        times = shape[axis] // steps
        return along(shape, axis, begin * times, end * times)

    def part(begin: int, end: int) -> Part:
        taken: list[Piece | Array | None] = [None] * len(inputs)
        for number, axis in axes.items():
            tensor = inputs[number]
            assert tensor is not None
            if spans and number in spans:
                taken[number] = along(tensor.shape, axis, *spans[number](begin, end))
            else:
                taken[number] = ranged(tensor.shape, axis, begin, end)
        given = tuple(
            ranged(out.shape, axis, begin, end) for out, axis in zip(outputs, made, strict=True)
        )
        return Part(attrs(begin, end) if attrs else op.attrs, tuple(taken), given)

    touched = frozenset(axes) | {len(inputs) + number for number in range(len(outputs))}
    return Cut(steps, unit, made[0], touched, part)
