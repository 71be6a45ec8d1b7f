"""Loops: declarations of what an op does along each axis.

An op computes in nested loops. Each runs along one axis of some operands and results, and either
keeps its elements apart, combines them, slides a window over them, or mixes them. This determines
how an op can be split, whether an axis may end in meaningless elements, whether it can serve as a
batch axis, and whether the op works with its axes in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.errors import PluginError, ShapeError, unexpected_error
from vkmnn.ir import OP_TYPES, Array, Dim, Op, OpAttrs

Shape = tuple[Dim, ...]
NONE: frozenset[int] = frozenset()


class Kind(Enum):
    """Relation between the elements along a loop and the results."""

    PARALLEL = "result i depends on element i of the operands only"
    REDUCTION = "elements are combined, in any order and grouping"
    WINDOW = "each result depends on a range of elements"
    MIXED = "each result may depend on all elements and their order"


class Numbering(Enum):
    """How an attribute, or the content of an input, refers to axes of the first input."""

    AXES = "numbers of axes"
    PER_AXIS = "an entry for each axis, or begins and then ends; of the named axes, if any"
    SIZES = "as PER_AXIS: sizes of the result"
    KEPT = "independent of the order of axes"


NEUTRAL: Mapping[str, float] = {
    **dict.fromkeys(("SUM", "L1", "L2", "SUM_SQUARE"), 0.0),
    "PROD": 1.0,
    "LOG_SUM_EXP": -np.inf,
    "MAX": -np.inf,
    "MIN": np.inf,
}
"""Neutral elements of reductions; infinite ones exist in floating point only."""


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
        """True if some windows may be entirely inside the padding."""
        return not self.spread and max(self.begin, self.end) >= self.reach

    def part(self, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the elements that results `begin` to `end` read, and their padding."""
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
    """A loop of an op.

    Attributes:
        size: number of steps, None if unknown. The length of an axis may be a multiple of it; each
            step then covers several elements.
        reads: axis of each input, None if every step reads the whole input.
        writes: axis of each output, None if the loop runs along none of its axes.
        kind: relation between elements and results.
        reduces: how a REDUCTION combines elements, one of REDUCTION_KINDS; "" for any other way.
        window: the window of a WINDOW.
        broadcast: inputs that may have a single element along their axis.
        longer: inputs that may extend beyond the loop along their axis.
        count_input: input by which a REDUCTION can be limited to the first elements, if any.
        attrs: function of `begin` and `end` that returns the op's attributes for these steps, None
            if they do not depend on the number of steps.
    """

    size: Dim
    reads: tuple[int | None, ...]
    writes: tuple[int | None, ...]
    kind: Kind = Kind.PARALLEL
    reduces: str = ""
    window: Window | None = None
    broadcast: frozenset[int] = NONE
    longer: frozenset[int] = NONE
    count_input: int | None = None
    attrs: Callable[[int, int], OpAttrs] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Known:
    """Shapes and constant values of an op's tensors; None if absent or unknown."""

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
    """Declare the behaviour of op types along each axis; decorates a function that lists loops.

    The function takes the op and a `Known`, and returns a loop for each axis with a known
    behaviour. Axes without a loop are unknown and left alone. `reads` and `writes` may be shorter
    than the op's inputs and outputs: missing entries are None, but a single entry of `writes`
    applies to all outputs. The function raises ShapeError if it cannot determine a loop.

    Args:
        op_types: names of ops; `Custom:acme.Gate` for Custom ops.
        numbering: how attributes, by name, and contents, by number of input, refer to axes, for
            an op that works in any order of axes once they are renumbered; {} if nothing refers to
            axes. None: the op depends on the order of its axes.

    Raises:
        PluginError: a type has a declaration already.
    """

    def add(make: _F) -> _F:
        AXES.register(*op_types)(Axes(make, numbering))
        return make

    return add


def loops_of(op: Op[Any], known: Known) -> list[Loop]:
    """Return the declared loops of an op; empty if it has no declaration or ranks are unknown.

    Raises:
        PluginError: the declaration fails, or names axes that do not exist.
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
    """Return how an op refers to axes; None if it depends on their order, or is undeclared."""
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
    writes = loop.writes * len(known.outputs) if len(loop.writes) == 1 else loop.writes
    reads = _filled(op, loop.reads, known.inputs, "input")
    writes = _filled(op, writes, known.outputs, "output")
    if reads == loop.reads and writes == loop.writes:
        return loop
    # In a third of the time of `replace`: a plan asks for hundreds.
    more = (
        loop.kind,
        loop.reduces,
        loop.window,
        loop.broadcast,
        loop.longer,
        loop.count_input,
        loop.attrs,
    )
    return Loop(loop.size, reads, writes, *more)


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
        loops: loops of an op.
        along: axes by number of input.
        shapes: shapes of the inputs. Others may take part with one element that is broadcast.
    """
    for loop in loops:
        if all(loop.reads[place] == axis for place, axis in along.items()) and all(
            axis is None or place in along or is_broadcast(loop, place, shapes[place])
            for place, axis in enumerate(loop.reads)
        ):
            return loop
    return None


def is_broadcast(loop: Loop, place: int, shape: Shape | None) -> bool:
    """Return whether an input has a single element for all steps of a loop."""
    axis = loop.reads[place]
    return axis is not None and place in loop.broadcast and shape is not None and shape[axis] == 1


def with_sizes(
    op: Op[Any], values: Sequence[Array | None], dims: Sequence[int]
) -> dict[int, Array]:
    """Return the contents, by input, that give the sizes of an op's result, for these sizes."""
    contents = {}
    for place, how in (numbering_of(op) or {}).items():
        value = values[place] if isinstance(place, int) and place < len(values) else None
        if how is Numbering.SIZES and value is not None and value.size:
            named = getattr(op.attrs, "axes", ()) or range(len(dims))
            contents[int(place)] = np.array([dims[axis] for axis in named], value.dtype)
    return contents


# --- ways to write loops --------------------------------------------------------------------------

Places = int | None | Sequence[int | None]


def parallel(
    size: Dim,
    reads: Sequence[int | None],
    writes: Places,
    *,
    broadcast: frozenset[int] = NONE,
    longer: frozenset[int] = NONE,
    attrs: Callable[[int, int], OpAttrs] | None = None,
) -> Loop:
    """Return a parallel loop; a single axis in `writes` applies to all outputs."""
    return Loop(size, tuple(reads), _each(writes), broadcast=broadcast, longer=longer, attrs=attrs)


def mixed(size: Dim, reads: Sequence[int | None], writes: Places = None) -> Loop:
    """Return a loop that mixes its elements."""
    return Loop(size, tuple(reads), _each(writes), Kind.MIXED)


def reduction(
    kind: str,
    size: Dim,
    reads: Sequence[int | None],
    writes: Places = None,
    *,
    broadcast: frozenset[int] = NONE,
    count_input: int | None = None,
) -> Loop:
    """Return a loop that combines its elements; with `writes`, results keep the axis (Softmax)."""
    return Loop(
        size,
        tuple(reads),
        _each(writes),
        Kind.REDUCTION,
        kind,
        broadcast=broadcast,
        count_input=count_input,
    )


def sliding(
    size: Dim,
    reads: Sequence[int | None],
    writes: Places,
    window: Window,
    attrs: Callable[[int, int], OpAttrs] | None = None,
) -> Loop:
    """Return a loop that slides a window; only the first input is read through it."""
    return Loop(size, tuple(reads), _each(writes), Kind.WINDOW, window=window, attrs=attrs)


def _each(writes: Places) -> tuple[int | None, ...]:
    return tuple(writes) if isinstance(writes, Sequence) else (writes,)
