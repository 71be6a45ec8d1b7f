"""Loop and Scan on the device: the body is a network, run once per iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkmnn.control_flow.side_by_side import COPIES, MAX_OPS, copy_name, side_by_side
from vkmnn.core.backend import TensorPurpose
from vkmnn.core.bound import Bound
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.host_part import NestedPart, Value
from vkmnn.core.placement import PlacedOp
from vkmnn.core.plans import Planner
from vkmnn.core.program import Program
from vkmnn.errors import HostError, IntegerRangeError
from vkmnn.ir import Array, DType, Graph, Op


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes and directions of a Scan's inputs and outputs; one entry each."""

    inputs: tuple[tuple[int, bool], ...]  # axis, and whether backwards
    outputs: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a Loop or Scan as a network.

    Attributes:
        graph: the network; its outputs are the body's, in their order, without a condition that
            `still` tells.
        given: the op's inputs in the node's order, "" for an absent one: the limit and the
            condition of a Loop, initial values, the sequences of a Scan.
        formal: the body's names for its inputs, in their order.
        outer: the outer tensors that the body reads: its name there, and the op's input.
        axes: None for a Loop.
        still: whether every iteration asks for another; None where they compute that.
        sizes: sizes of each output of the network, for a loop that never iterates; 0 if unknown.
        seconds: maximum time of all iterations.
    """

    graph: Graph
    given: tuple[str, ...]
    formal: tuple[str, ...]
    outer: Mapping[str, str]
    axes: Axes | None
    still: bool | None
    sizes: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def independent(self) -> bool:
        """Whether iterations are independent of each other."""
        scanned = 2 if self.axes is None else len(self.axes.inputs)
        return len(self.formal) == scanned


class LoopPart(NestedPart):
    """A Loop or Scan: its body runs on the session's backends, iteration by iteration.

    While shapes stay the same, carried values alternate between two tensors on the device, and
    values that the body reads from outside are uploaded once.

    Iterations that carry nothing run side by side, `COPIES` of them as one network: at the same
    time, if the backend can. `program` creates the runner of a network.
    """

    def __init__(
        self,
        op: Op,
        body: Body,
        constants: Mapping[str, Array],
        program: Callable[[Graph], Program],
        main: str,
    ) -> None:
        self.ops: tuple[Op, ...] = (op,)
        self.inputs = tuple(name for name in dict.fromkeys(op.inputs) if name not in constants)
        self.outputs = tuple(name for name in op.outputs if name)
        self.engine = main
        self.busy_us = self.start_us = 0.0
        self._body = body
        self._constants = constants
        self._program = program(body.graph)
        self._wide: Program | None = None
        self._make = program
        self._results = [info.name for info in body.graph.outputs]
        self._resident: _Resident | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}  # that the resident is for, or cannot be

    @property
    def programs(self) -> Sequence[Program]:
        """The network of the body."""
        return (self._program,) if self._wide is None else (self._program, self._wide)

    def __call__(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the final values and the stacked ones.

        Raises:
            HostError: a value contradicts the model, or the time is up.
        """
        (op,) = self.ops
        body = self._body
        self.start_us = time.perf_counter_ns() / 1000
        given = {**self._constants, **{name: values[name] for name in self.inputs}}
        outer = {name: given[source] for name, source in body.outer.items()}
        if body.axes is None:
            results = self._loop([given.get(name) for name in body.given], outer)
        else:
            results = self._scan([given[name] for name in body.given], body.axes, outer)
        self.busy_us = time.perf_counter_ns() / 1000 - self.start_us
        return {name: one for name, one in zip(op.outputs, results, strict=False) if name}

    # --- iterations ------------------------------------------------------------------------------

    def _loop(self, given: Sequence[Value], outer: Mapping[str, Value]) -> list[Value]:
        body = self._body
        limit = None if given[0] is None else self._element(given[0], "trip count")
        going = given[1] is None or bool(self._element(given[1], "condition"))
        carried = list(given[2:])
        states = len(carried)
        skip = int(body.still is None)
        rows: list[list[Value]] = [[] for _ in self._results[skip + states :]]
        ranks = [info.shape for info in self._program.graph.inputs if info.name in self._flags]
        one = bool(ranks and ranks[0])
        run = _Iterations(self, carried, outer, first=2, skip=skip)

        def flags_of(turn: int) -> list[Array]:
            flags = [np.array(turn, np.int64), np.array(True)]
            return [flag.reshape(1) if one else flag for flag in flags]

        turn = 0
        if body.independent and body.still and going and limit is not None:
            turn = self._together(int(limit), outer, flags_of, rows)
        while going and (limit is None or turn < limit):
            made = run.turn(flags_of(turn), [])
            going = bool(body.still if skip == 0 else self._element(made[0], "condition"))
            for many, value in zip(rows, made[skip:], strict=True):
                many.append(value)
            turn += 1
        stacked = [
            self._stack(many, 0, False, skip + states + place) for place, many in enumerate(rows)
        ]
        return [*run.carried(), *stacked]

    def _scan(self, given: Sequence[Value], axes: Axes, outer: Mapping[str, Value]) -> list[Value]:
        states = len(given) - len(axes.inputs)
        scanned = [np.asarray(one) for one in given[states:]]
        for array, (axis, _) in zip(scanned, axes.inputs, strict=True):
            if not -array.ndim <= axis < array.ndim:
                raise self._wrong(f"an input of rank {array.ndim} has no axis {axis}")
        lengths = {a.shape[axis] for a, (axis, _) in zip(scanned, axes.inputs, strict=True)}
        if len(lengths) != 1:
            raise self._wrong(f"its inputs are {sorted(lengths)} long, not equally")
        (length,) = lengths
        rows: list[list[Value]] = [[] for _ in axes.outputs]
        run = _Iterations(self, list(given[:states]), outer, first=0, skip=0)

        def slices_of(turn: int) -> list[Array]:
            return [
                np.ascontiguousarray(np.take(a, length - 1 - turn if back else turn, axis))
                for a, (axis, back) in zip(scanned, axes.inputs, strict=True)
            ]

        done = self._together(length, outer, slices_of, rows) if self._body.independent else 0
        for turn in range(done, length):
            for many, value in zip(rows, run.turn([], slices_of(turn)), strict=True):
                many.append(value)
        stacked = [
            self._stack(many, axis, back, states + place)
            for place, (many, (axis, back)) in enumerate(zip(rows, axes.outputs, strict=True))
        ]
        return [*run.carried(), *stacked]

    def _together(
        self,
        total: int,
        outer: Mapping[str, Value],
        given: Callable[[int], Sequence[Value]],
        rows: Sequence[list[Value]],
    ) -> int:
        """Run iterations in whole batches of copies; return their number.

        Args:
            total: the iterations of the loop.
            outer: the outer tensors that all of them read.
            given: the inputs of one of them, by its number.
            rows: called with the results, one entry for each output of the body.
        """
        body = self._body
        if total < COPIES or len(body.graph.ops) > MAX_OPS:
            return 0
        known = {info.name for info in body.graph.inputs}
        own = [name for name in body.formal if name in known]
        if self._wide is None:
            self._wide = self._make(side_by_side(body.graph, own))
        infos = {info.name: info for info in self._wide.graph.inputs}
        shared = {
            name: self.fed(value, infos[name].dtype, name)
            for name, value in outer.items()
            if name in infos
        }
        deadline = time.monotonic() + body.seconds
        done = total - total % COPIES
        for first in range(0, done, COPIES):
            self.check_time(deadline)
            feeds = dict(shared)
            for number in range(COPIES):
                for name, value in zip(body.formal, given(first + number), strict=True):
                    copy = copy_name(name, number)
                    if copy in infos:
                        feeds[copy] = self.fed(value, infos[copy].dtype, name)
            made = self._wide.run(feeds)
            for number in range(COPIES):
                for many, name in zip(rows, self._results, strict=True):
                    copy = copy_name(name, number)
                    many.append(made[copy if copy in made else name])
        return done

    @property
    def _flags(self) -> tuple[str, ...]:
        return self._body.formal[:2]

    def _stack(self, rows: list[Value], axis: int, back: bool, place: int) -> Array:
        """Return scan outputs along a new axis."""
        if not rows:
            dtype = self._program.graph.outputs[place].dtype
            one = np.zeros(self._body.sizes[place], dtype.numpy)
            return np.expand_dims(one, axis).take(np.arange(0), axis)
        shapes = {np.shape(one) for one in rows}
        if len(shapes) != 1:
            raise self._wrong(f"what it stacks has the shapes {sorted(shapes)}, not one")
        return np.stack(rows[::-1] if back else rows, axis)

    def _element(self, value: Value, what: str) -> Any:
        array = np.asarray(value).reshape(-1)
        if array.size != 1:
            raise self._wrong(f"its {what} has {array.size} elements, not one")
        return array[0]

    def _wrong(self, text: str, hint: str = "") -> HostError:
        (op,) = self.ops
        kind = "Loop" if self._body.axes is None else "Scan"
        return HostError(text, op=kind, node=op.source or op.name, hint=hint)

    def check_time(self, deadline: float) -> None:
        """Refuse to go on for ever."""
        if time.monotonic() > deadline:
            raise self._wrong(
                f"a loop took more than {self._body.seconds:g} s",
                "set VKMNN_TIMEOUT to more seconds, if the loop terminates",
            )

    def fed(self, value: Value, dtype: DType, name: str) -> Value:
        """Convert a value for the body's network."""
        if dtype is DType.OBJECT:
            return value
        if not isinstance(value, np.ndarray | np.generic) or value.dtype != dtype.numpy:
            raise self._wrong(f"'{name}' is not {dtype.value}, the type that the model declares")
        return np.asarray(value, order="C")

    # --- plans -----------------------------------------------------------------------------------

    def use(self, planner: Planner) -> None:
        """Use another planner from now on."""
        for program in self.programs:
            program.use(planner)

    def drop(self) -> None:
        """Close all plans."""
        if self._resident is not None:
            self._resident.close()
        self._resident, self._shapes = None, {}
        for program in self.programs:
            program.drop()

    def resident(
        self,
        feeds: Mapping[str, Value],
        results: Mapping[str, Array],
        places: Mapping[str, str],
        changing: Sequence[str],
    ) -> _Resident | None:
        """Return bound runs that start from these values, or None if there cannot be any.

        Args:
            feeds: the inputs of the next iteration.
            results: the results of the latest.
            places: the carried inputs, and which outputs they become.
            changing: the inputs that the host writes before each iteration.
        """
        program = self._program
        if program.whole is None or program.whole.content or not program.backend.uses_geometry:
            return None
        shapes = {name: np.shape(one) for name, one in (*feeds.items(), *results.items())}
        if self._shapes != shapes:
            if self._resident is not None:
                self._resident.close()
            self._shapes = shapes
            self._resident = _Resident.of(program, feeds, results, places, changing)
        elif self._resident is not None:
            self._resident.start(feeds)
        return self._resident

    def placed(self) -> list[PlacedOp]:
        """Return where the ops of the body run, once it has."""
        (op,) = self.ops
        planned = [program for program in self.programs if program.planned]
        if not planned:
            return []
        return [replace(one, name=f"{op.name}/body/{one.name}") for one in planned[0].placement()]


class _Iterations:
    """The iterations of one run of a LoopPart; `first` inputs and `skip` outputs precede."""

    def __init__(
        self,
        part: LoopPart,
        carried: Sequence[Value],
        outer: Mapping[str, Value],
        first: int,
        skip: int,
    ) -> None:
        body = part._body
        self._part = part
        self._program = part.programs[0]
        self._values = list(carried)
        self._outer = outer
        self._skip = skip
        self._before = body.formal[:first]
        self._names = body.formal[first : first + len(carried)]
        self._slices = body.formal[first + len(carried) :]
        self._results = part._results
        self._infos = {info.name: info for info in self._program.graph.inputs}
        read = {name for op in self._program.graph.ops for name in op.inputs}
        self._new = {
            *self._before[:1],
            *self._slices,
        } & read  # inputs that every iteration reads again
        self._deadline = time.monotonic() + body.seconds
        self._bound: _Resident | None = None
        self._tried = False

    def turn(self, flags: Sequence[Array], slices: Sequence[Array]) -> list[Value]:
        """Run the body; return its outputs but for the carried values."""
        self._part.check_time(self._deadline)
        feeds = dict(zip((*self._before, *self._slices), (*flags, *slices), strict=True))
        kept = slice(self._skip, self._skip + len(self._values))
        if self._bound is not None:
            with suppress(IntegerRangeError):
                new = {name: feed for name, feed in feeds.items() if name in self._new}
                results = self._bound.run(self._only(new))
                return [results[name] for name in self._others(kept)]
            self._values = self._bound.values(self._names)
            self._bound = None
        whole = {**self._outer, **feeds, **dict(zip(self._names, self._values, strict=True))}
        results = self._program.run(self._only(whole))
        before, self._values = self._values, [results[name] for name in self._results[kept]]
        if not self._tried and all(map(_alike, before, self._values)):
            self._tried = True
            places = dict(zip(self._names, self._results[kept], strict=True))
            whole.update(zip(self._names, self._values, strict=True))
            with suppress(IntegerRangeError):
                self._bound = self._part.resident(
                    self._only(whole), results, places, tuple(self._new)
                )
        return [results[name] for name in self._others(kept)]

    def _others(self, kept: slice) -> Iterator[str]:
        yield from self._results[: kept.start]
        yield from self._results[kept.stop :]

    def _only(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: self._part.fed(value, self._infos[name].dtype, name)
            for name, value in feeds.items()
            if name in self._infos
        }

    def carried(self) -> list[Value]:
        """Return the carried values as they are now."""
        return self._values if self._bound is None else self._bound.values(self._names)


def _purpose(carried: bool) -> TensorPurpose:
    return "device" if carried else "readback"


def _alike(one: Value, other: Value) -> bool:
    arrays = isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray)
    return arrays and (one.shape, one.dtype) == (other.shape, other.dtype)


class _Resident:
    """A body bound twice, with carried values in tensors that are swapped every iteration."""

    def __init__(
        self,
        inputs: Mapping[str, DeviceTensor],
        places: Mapping[str, str],
        ways: tuple[Bound, Bound],
    ) -> None:
        self._inputs = inputs
        self._places = places
        self._ways = ways
        self._next = 0

    @classmethod
    def of(
        cls,
        program: Program,
        feeds: Mapping[str, Value],
        results: Mapping[str, Array],
        places: Mapping[str, str],
        changing: Sequence[str],
    ) -> _Resident | None:
        """Return one that starts from these values, or None if runs would copy them."""
        new = program.backend.new_tensor
        inputs: dict[str, DeviceTensor] = {}
        for name, feed in feeds.items():
            purpose: TensorPurpose = "upload" if name in changing else "device"
            inputs[name] = new(np.shape(feed), DType.from_numpy(feed.dtype), purpose)
            inputs[name].copy_from(feed)
        carried = {place: name for name, place in places.items() if name in feeds}
        outputs = {
            name: new(one.shape, DType.from_numpy(one.dtype), _purpose(name in carried))
            for name, one in results.items()
        }
        there = program.bind(inputs, outputs)
        if there.copies:
            return None
        swapped = {name: outputs[place] for place, name in carried.items()}
        back_to = {place: inputs[name] for place, name in carried.items()}
        try:
            back = program.bind({**inputs, **swapped}, {**outputs, **back_to})
        except BaseException:
            there.close()
            raise
        return cls(inputs, places, (there, back))

    def start(self, feeds: Mapping[str, Value]) -> None:
        """Begin again from these values."""
        self._next = 0
        for name, feed in feeds.items():
            self._inputs[name].copy_from(feed)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run one iteration on its new inputs; return the outputs that are not carried."""
        way = self._ways[self._next]
        for name, feed in feeds.items():
            way.inputs[name].copy_from(feed)
        way.run()
        self._next ^= 1
        held = set(self._places.values())
        return {name: np.array(out) for name, out in way.outputs.items() if name not in held}

    def values(self, names: Sequence[str]) -> list[Array]:
        """Return copies of the carried values."""
        way = self._ways[self._next]
        last = self._ways[self._next ^ 1]
        return [
            np.array(way.inputs[name] if name in way.inputs else last.outputs[self._places[name]])
            for name in names
        ]

    def close(self) -> None:
        """Release both; the plan may go."""
        for way in self._ways:
            way.close()
