"""The language in which an op says what it does along each axis: loops, and how to declare them.

An op computes in nested loops. Each runs along one axis of some operands and results, and either
keeps its elements apart, combines them, slides a window over them, or mixes them. From this follow
the parts into which an op can be cut, whether an axis may have a tail of meaningless elements,
whether it may number texts, and whether the op works in another order of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from vkmnn.errors import PluginError, ShapeError, unexpected_error
from vkmnn.ir import OP_TYPES, Array, Dim, Op, OpAttrs
from vkmnn.records import dataclass
from vkmnn.registry import Registry

Shape = tuple[Dim, ...]
NONE: frozenset[int] = frozenset()


class Kind(Enum):
    """What becomes of the elements along a loop."""

    PARALLEL = "each result follows from the operands' elements of the same number"
    REDUCTION = "elements are combined, in any order and any grouping"
    WINDOW = "each result follows from a range of elements"
    MIXED = "each result may follow from all elements, and from their order"


class Numbering(Enum):
    """How an attribute, or the content of an input, refers to axes of the first input."""

    AXES = "numbers of axes"
    PER_AXIS = "an entry for each axis, or begins and then ends; of the named axes, if any"
    SIZES = "as PER_AXIS: sizes of the result"
    KEPT = "it does not depend on the order of axes"


NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys(("SUM", "L1", "L2", "SUM_SQUARE"), 0.0),
    "PROD": 1.0,
    "LOG_SUM_EXP": -np.inf,
    "MAX": -np.inf,
    "MIN": np.inf,
}
"""Elements that change no reduction; those that are infinite exist in floating point only."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides along one axis of `size` elements.

    With `spread`, of a transposed convolution, each element contributes to a window of results.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    spread: bool = False

    @property
    def reach(self) -> int:
        """The elements from the first of a window to its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def is_blind(self) -> bool:
        """True where some windows may lie in the pads as a whole."""
        return not self.spread and max(self.begin, self.end) >= self.reach

    def part(self, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the elements that the results from `begin` to `end` read, and their pads."""
        if self.spread:
            return self._spread_part(begin, end)
        low = begin * self.stride - self.begin
        high = (end - 1) * self.stride - self.begin + self.reach
        first = min(max(low, 0), self.size)
        last = max(min(high, self.size), first)
        return (first, last), (first - low, high - last)

    def _spread_part(self, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        stride, pad, reach = self.stride, self.begin, self.reach - 1
        first = min(max((begin + pad) // stride - reach // stride, 0), self.size - 1)
        last = max(min((end - 1 + pad) // stride + 1, self.size), first + 1)
        before = pad + begin - first * stride
        after = (last - first - 1) * stride + reach + 1 - before - (end - begin)
        return (first, last), (before, after)


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of an op.

    Attributes:
        size: how many steps it takes; an axis that is some times longer takes as many elements at
            each. None where it is not known.
        reads: the axis of each input, None where every step reads the input as a whole.
        makes: the axis of each output, None where no axis of it is the loop's.
        kind: what becomes of the elements.
        reduces: of a REDUCTION, how elements are combined: of REDUCTION_KINDS.
        window: of a WINDOW.
        broadcast: inputs that may have one element along their axis instead.
        longer: inputs that may have more elements along their axis, which nobody reads.
        told: of a REDUCTION, the input by which the op can be told how many elements there are.
        attrs: returns the attributes of the op for the steps from `begin` to `end`, where these
            depend on how many there are.
    """

    size: Dim
    reads: tuple[int | None, ...]
    makes: tuple[int | None, ...]
    kind: Kind = Kind.PARALLEL
    reduces: str = ""
    window: Window | None = None
    broadcast: frozenset[int] = NONE
    longer: frozenset[int] = NONE
    told: int | None = None
    attrs: Callable[[int, int], OpAttrs] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an op's tensors; None is for what is absent or unknown."""

    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    values: Sequence[Array | None]

    def shape(self, place: int = 0) -> Shape:
        """Return the shape of an input.

        Raises:
            ShapeError: it is not known.
        """
        return _present(self.inputs, place, "input")

    def result(self, place: int = 0) -> Shape:
        """Return the shape of an output; raises as `shape`."""
        return _present(self.outputs, place, "output")


def _present(shapes: Sequence[Shape | None], place: int, what: str) -> Shape:
    shape = shapes[place] if place < len(shapes) else None
    if shape is None:
        raise ShapeError(f"{what} {place} is absent, or its rank is not known")
    return shape


FindLoops = Callable[[Op[Any], Known], "list[Loop]"]
_F = TypeVar("_F", bound=FindLoops)


@dataclass(frozen=True, slots=True)
class Axes:
    """The declaration of an op's axes; the fields are arguments of `axes_of`."""

    make: FindLoops
    numbering: Mapping[str | int, Numbering] | None


AXES: Registry[str, Axes] = Registry("axes of")


def axes_of(
    *op_types: str, numbering: Mapping[str | int, Numbering] | None = None
) -> Callable[[_F], _F]:
    """Declare what ops of these types do along each axis; decorates what lists the loops.

    The function gets the op and what is known of its tensors. It lists a loop for each axis of
    which something is known; what is not listed is unknown, and nothing is done along it. `reads`
    and `makes` may be shorter than the op's inputs and outputs: the rest is None, but a single
    entry of `makes` stands for all outputs. It raises ShapeError where nothing can be said.

    Args:
        op_types: names of ops; `Custom:acme.Gate` for Custom ops.
        numbering: attributes, by name, and contents, by number of input, that refer to axes, and
            how, if the op works in every order of axes once these are renumbered; {} where nothing
            refers to any. None: the op is bound to the order of its axes.

    Raises:
        PluginError: there is a declaration.
    """

    def add(make: _F) -> _F:
        AXES.register(*op_types)(Axes(make, numbering))
        return make

    return add


def loops_of(op: Op[Any], known: Known) -> list[Loop]:
    """Return what is known of the loops of an op; empty where that is nothing.

    Raises:
        PluginError: the declaration of an op's axes failed, or names axes that there are not.
    """
    declared = AXES.get(op.kernel)
    if declared is None or _lacks_ranks(op, known):
        return []
    try:
        loops = declared.make(op, known)
    except ShapeError:
        return []
    except Exception as error:
        raise unexpected_error(
            error, "listing the axes", kind=PluginError, op=op.type, node=op.name
        ) from error
    return [_checked(op, loop, known) for loop in loops]


def numbering_of(op: Op[Any]) -> Mapping[str | int, Numbering] | None:
    """Return how an op refers to axes; None where it is bound to their order, or unknown."""
    declared = AXES.get(op.kernel)
    return None if declared is None else declared.numbering


def _lacks_ranks(op: Op[Any], known: Known) -> bool:
    content = OP_TYPES[op.type].content
    return any(
        name and shape is None and place not in content
        for place, (name, shape) in enumerate(zip(op.inputs, known.inputs, strict=True))
    )


def _checked(op: Op[Any], loop: Loop, known: Known) -> Loop:
    """Return a loop with an entry for every input and output."""
    makes = loop.makes * len(known.outputs) if len(loop.makes) == 1 else loop.makes
    reads = _filled(op, loop.reads, known.inputs, "input")
    makes = _filled(op, makes, known.outputs, "output")
    if reads == loop.reads and makes == loop.makes:
        return loop
    # In a third of the time of `replace`: a plan asks for hundreds.
    more = loop.kind, loop.reduces, loop.window, loop.broadcast, loop.longer, loop.told, loop.attrs
    return Loop(loop.size, reads, makes, *more)


def _filled(
    op: Op[Any], axes: Sequence[int | None], shapes: Sequence[Shape | None], what: str
) -> tuple[int | None, ...]:
    filled = [*axes[: len(shapes)], *[None] * (len(shapes) - len(axes))]
    for place, axis in enumerate(filled):
        shape = shapes[place]
        if axis is None:
            continue
        if shape is None and what == "input":  # an absent one
            filled[place] = None
        elif axis < 0 or (shape is not None and axis >= len(shape)):
            raise PluginError(
                f"a loop runs along axis {axis} of {what} {place}, of shape {shape}",
                op=op.type,
                node=op.name,
                hint="count axes from the front, or raise ShapeError where the op does not fit",
            )
    return tuple(filled)


def common_loop(
    loops: Sequence[Loop], along: Mapping[int, int], shapes: Sequence[Shape | None]
) -> Loop | None:
    """Return the loop that runs along the given axes of inputs, and of no others.

    Args:
        loops: of an op.
        along: axes by number of input.
        shapes: of the inputs. Others may take part with one element that is broadcast.
    """
    for loop in loops:
        if all(loop.reads[place] == axis for place, axis in along.items()) and all(
            axis is None or place in along or is_broadcast(loop, place, shapes[place])
            for place, axis in enumerate(loop.reads)
        ):
            return loop
    return None


def is_broadcast(loop: Loop, place: int, shape: Shape | None) -> bool:
    """Tell whether an input has one element for all steps of a loop."""
    axis = loop.reads[place]
    return axis is not None and place in loop.broadcast and shape is not None and shape[axis] == 1


def with_sizes(
    op: Op[Any], values: Sequence[Array | None], dims: Sequence[int]
) -> dict[int, Array]:
    """Return the contents, by input, that tell an op that its result has these sizes."""
    told = {}
    for place, how in (numbering_of(op) or {}).items():
        value = values[place] if isinstance(place, int) and place < len(values) else None
        if how is Numbering.SIZES and value is not None and value.size:
            named = getattr(op.attrs, "axes", ()) or range(len(dims))
            told[int(place)] = np.array([dims[axis] for axis in named], value.dtype)
    return told


# --- ways to write loops --------------------------------------------------------------------------

Places = int | None | Sequence[int | None]


def parallel(
    size: Dim,
    reads: Sequence[int | None],
    makes: Places,
    *,
    broadcast: frozenset[int] = NONE,
    longer: frozenset[int] = NONE,
    attrs: Callable[[int, int], OpAttrs] | None = None,
) -> Loop:
    """Return a loop that keeps its elements apart; one axis in `makes` is that of all outputs."""
    return Loop(size, tuple(reads), _each(makes), broadcast=broadcast, longer=longer, attrs=attrs)


def mixed(size: Dim, reads: Sequence[int | None], makes: Places = None) -> Loop:
    """Return a loop that mixes its elements."""
    return Loop(size, tuple(reads), _each(makes), Kind.MIXED)


def reduction(
    kind: str,
    size: Dim,
    reads: Sequence[int | None],
    makes: Places = None,
    *,
    broadcast: frozenset[int] = NONE,
    told: int | None = None,
) -> Loop:
    """Return a loop that combines its elements; with `makes`, each is then set against the rest."""
    return Loop(
        size, tuple(reads), _each(makes), Kind.REDUCTION, kind, broadcast=broadcast, told=told
    )


def sliding(
    size: Dim,
    reads: Sequence[int | None],
    makes: Places,
    window: Window,
    attrs: Callable[[int, int], OpAttrs] | None = None,
) -> Loop:
    """Return a loop that slides a window; only the first input is read through it."""
    return Loop(size, tuple(reads), _each(makes), Kind.WINDOW, window=window, attrs=attrs)


def _each(makes: Places) -> tuple[int | None, ...]:
    return tuple(makes) if isinstance(makes, Sequence) else (makes,)
