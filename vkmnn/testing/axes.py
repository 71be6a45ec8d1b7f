"""Checks an op's behaviour along its axes against its declaration, by numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkmnn.cpu_fallback import run_op
from vkmnn.ir import OP_TYPES, Array, DType, Op, TensorInfo
from vkmnn.shape import compute_shapes
from vkmnn.shape.axes import NEUTRAL, Kind, Known, Loop, is_broadcast, loops_of, with_sizes

Arrays = Sequence["Array | None"]


@dataclass(frozen=True)
class Use:
    """An op on arrays; None for absent inputs."""

    op: Op[Any]
    arrays: tuple[Array | None, ...]

    def results(self, arrays: Arrays | None = None, op: Op[Any] | None = None) -> list[Array]:
        """Return the op's named results, of other arrays or another op if given."""
        made = run_op(op or self.op, list(self.arrays if arrays is None else arrays))
        return [np.asarray(array) for array in made[: len(self.op.outputs)]]

    def known(self) -> Known:
        """Return a plan's knowledge of the op."""
        infos = [
            None if array is None else TensorInfo("", DType.from_numpy(array.dtype), array.shape)
            for array in self.arrays
        ]
        content = OP_TYPES[self.op.type].content
        values = [array if place in content else None for place, array in enumerate(self.arrays)]
        outputs = compute_shapes(self.op, infos, values)
        shapes = [None if info is None else info.dims for info in infos]
        return Known(shapes, [info.dims for info in outputs], values)

    def loops(self, *kinds: Kind) -> list[Loop]:
        """Return the declared loops of these kinds, or all."""
        return [loop for loop in loops_of(self.op, self.known()) if not kinds or loop.kind in kinds]

    def part(self, loop: Loop, begin: int, end: int) -> list[Array]:
        """Return the results of the op on the inputs of a range of a loop's steps."""
        known, taken = self.known(), list(self.arrays)
        for place, axis in enumerate(loop.reads):
            array = taken[place]
            if axis is None or array is None or is_broadcast(loop, place, array.shape):
                continue
            first, last = begin, end
            if loop.window is not None and place == 0:
                first, last = loop.window.part(begin, end)[0]
            elif place not in loop.longer:
                times = array.shape[axis] // _steps(loop)
                first, last = begin * times, end * times
            taken[place] = np.take(array, range(first, last), axis)
        whole = [np.empty(_ints(shape), np.bool_) for shape in known.outputs]
        dims = _sliced(whole[0], loop.writes[0], loop, begin, end).shape
        for place, content in with_sizes(self.op, known.values, dims).items():
            taken[place] = content
        attrs = loop.attrs(begin, end) if loop.attrs else self.op.attrs
        return self.results(taken, replace(self.op, attrs=attrs))


def check_axes(op: Op[Any], arrays: Arrays) -> None:
    """Check the declaration of an op's axes.

    Parts along each parallel loop are parts of the whole, broadcastable inputs may have one
    element, and neutral elements change no reduction.

    Args:
        op: the op; all of its outputs are compared.
        arrays: its inputs, None for absent ones; of more than one element along each axis.

    Raises:
        AssertionError: the op declares nothing, or does something else than it declares.
    """
    use = Use(op, tuple(arrays))
    assert use.loops(), f"{op.type} declares nothing of its axes for these inputs"
    check_parts(use)
    check_broadcast(use)
    check_neutral(use)


def check_parts(use: Use) -> None:
    """Compare parts along parallel and windowed loops with the whole."""
    whole = use.results()
    for loop in use.loops(Kind.PARALLEL, Kind.WINDOW):
        size = _steps(loop)
        if size < 2 or (loop.window is not None and loop.window.is_blind) or None in loop.writes:
            continue
        for begin, end in ((0, size // 2), (size // 2, size), (size - 1, size)):
            if use.op.type == "Squeeze" and end - begin == 1 and len(use.arrays) == 1:
                continue  # the one element would vanish too
            wanted = [
                _sliced(array, axis, loop, begin, end)
                for array, axis in zip(whole, loop.writes, strict=True)
            ]
            _compare(use.part(loop, begin, end), wanted, loop)


def check_broadcast(use: Use) -> None:
    """Compare one element with the same element for every step."""
    for loop in use.loops(Kind.PARALLEL, Kind.REDUCTION):
        for place in sorted(loop.broadcast & set(range(len(use.arrays)))):
            axis, array = loop.reads[place], use.arrays[place]
            if axis is None or array is None or is_broadcast(loop, place, array.shape):
                continue
            others = [
                one.shape[along]
                for n, (along, one) in enumerate(zip(loop.reads, use.arrays, strict=True))
                if n != place and along is not None and one is not None
            ]
            if loop.size not in others:
                continue  # the result would be smaller
            fed = list(use.arrays)
            fed[place] = np.repeat(np.take(array, [0], axis), array.shape[axis], axis)
            wanted = use.results(fed)
            fed[place] = np.take(array, [0], axis)
            _compare(use.results(fed), wanted, loop)


def check_neutral(use: Use) -> None:
    """Append neutral elements to reduced axes, or NaN if the op knows the end."""
    whole = use.results()
    for loop in use.loops(Kind.REDUCTION):
        fill = NEUTRAL.get(loop.reduces)
        fed, inputs = list(use.arrays), list(use.op.inputs)
        reads = {
            place: (axis, array)
            for place, (axis, array) in enumerate(zip(loop.reads, fed, strict=True))
            if axis is not None and array is not None
        }
        floats = all(array.dtype.kind == "f" for _, array in reads.values())
        if not floats or (fill is None and loop.count_input is None):
            continue
        for place, (axis, array) in reads.items():
            if not is_broadcast(loop, place, array.shape):
                shape = (*array.shape[:axis], 2, *array.shape[axis + 1 :])
                tail = np.full(shape, np.nan if fill is None else fill, array.dtype)
                fed[place] = np.concatenate([array, tail], axis)
        if loop.count_input is not None:
            more = loop.count_input + 1 - len(fed)
            fed, inputs = fed + [None] * more, inputs + [""] * more
            fed[loop.count_input], inputs[loop.count_input] = np.array([loop.size]), "count"
        made = use.results(fed, replace(use.op, inputs=inputs))
        found = [
            array if axis is None else np.take(array, range(_steps(loop)), axis)
            for array, axis in zip(made, loop.writes, strict=True)
        ]
        _compare(found, whole, loop)


def _steps(loop: Loop) -> int:
    assert isinstance(loop.size, int), f"the size of {loop} is not known"
    return loop.size


def _ints(shape: Sequence[object] | None) -> tuple[int, ...]:
    return tuple(dim for dim in shape or () if isinstance(dim, int))


def _sliced(array: Array, axis: int | None, loop: Loop, begin: int, end: int) -> Array:
    """Return the part of a result that belongs to a range of steps."""
    if axis is None:
        return array
    times = array.shape[axis] // _steps(loop)
    return np.take(array, range(begin * times, end * times), axis)


def _compare(found: Sequence[Array], wanted: Sequence[Array], loop: Loop) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape, f"{loop} gives {one.shape} for {other.shape}"
        first, second = one.astype(np.float64), other.astype(np.float64)
        np.testing.assert_allclose(first, second, rtol=2e-4, atol=2e-4, err_msg=str(loop))
