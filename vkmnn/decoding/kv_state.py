"""Outputs that feed the next run: kept on the device, and swapped or appended to in place."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.core.backend import Segment
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.plan import Plan
from vkmnn.core.plans import Plans
from vkmnn.core.program import Program
from vkmnn.core.resolve import resolve
from vkmnn.decoding.cache_pool import CachePool, Pick
from vkmnn.decoding.decode_step import CHOSEN, LENGTH, NEXT, Drawing, Following, chained
from vkmnn.decoding.padded_graph import CannotGrowError, Grown, Growth, grow, padded
from vkmnn.decoding.step_ring import QUEUE, Follower, Waits
from vkmnn.errors import InvalidInputError, StateLostError
from vkmnn.folding import Evaluator
from vkmnn.ir import Array, DType, Graph, TensorInfo
from vkmnn.records import dataclass

_log = logging.getLogger(__name__)

MIN_ROWS = 256
"""Initial room in caches: unused rows cost little."""

Shape = tuple[int, ...]


@dataclass(slots=True)
class _Loop:
    """A plan that reads and writes the state in place; swapped state takes two of them.

    Attributes:
        plan: the plan.
        segments: its recordings, one for each direction of what is swapped.
        grown: the network as rewritten for caches that grow, if there are any.
        ahead: rows before and after a run that may come next, and what the host feeds it.
    """

    plan: Plan
    segments: tuple[Segment, ...]
    grown: Grown | None
    ahead: tuple[int, int, Mapping[str, Array]] | None = None

    def feeds(self, past: int, total: int, evaluate: Evaluator) -> Mapping[str, Array]:
        """Return what the host feeds in addition to the network's own inputs."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead[:2] == (past, total):
            return ahead[2]
        return {} if self.grown is None else self.grown.feeds(past, total, evaluate)

    def look_ahead(self, past: int, total: int, evaluate: Evaluator) -> None:
        """Compute what the host would feed to another step; meanwhile the device works."""
        if self.grown is not None and total <= self.grown.capacity:
            self.ahead = past, total, self.grown.feeds(past, total, evaluate)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        self.plan.close()


class State:
    """Data that a sequence of runs carries from one run to the next.

    Args:
        program: the network; this is fastest when it is a single stage on the device.
        pairs: each input with the output that feeds it in the next run.
        capacity: the maximum number of rows in a cache; None for no limit.
        initial: initial values; by default caches are empty and everything else is zero.
        pool: where its caches lie beside those of others, to take steps at once with them.
        waits: how steps are waited for; another one by default.

    Whatever fails in a call, `length` and the rows of the caches are as before it, but for
    `restore`, which may leave the state empty. So memory is made, and copies are, before the state
    takes note of them.

    Attributes:
        length: rows of the caches.
        closed: whether it has been closed. lost: whether its device was lost.

    Raises:
        InvalidInputError: the initial rows exceed the capacity.
    """

    def __init__(
        self,
        program: Program,
        pairs: Mapping[str, str],
        capacity: int | None,
        initial: Mapping[str, Array],
        pool: CachePool | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._program = program
        self._pairs = dict(pairs)
        self._capacity = capacity
        self._initial = dict(initial)
        self._values: dict[str, DeviceTensor] = {}
        self._axes: dict[str, int] = {}  # of inputs that grow
        self._caches: dict[str, DeviceTensor] = {}
        self._swapped: dict[str, tuple[DeviceTensor, DeviceTensor]] = {}
        self._turn = 0
        self._room = 0
        self._tails: dict[str, int] | None = None
        self._rows: dict[tuple[object, ...], int] = {}
        self._loops: dict[tuple[object, ...], _Loop] = {}
        self._followers: dict[int, Follower] = {}  # by how many tokens they draw from
        self._last: Follower | None = None  # the one that may go on, and how it draws
        self._drawing: Drawing | None = None
        self._follows = True
        self._in_place = (
            program.backend.records and program.whole is not None and not program.whole.content
        )
        self._begun = False  # whether anything has run since the state was reset
        self._first_rows = self._rows_given()
        self.length = self._first_rows
        self.waits = Waits() if waits is None else waits
        self.closed = False
        self.lost = False
        self._pool = pool if pool is not None and pool.add(self) else None

    def _rows_given(self) -> int:
        """Return how many rows the initial values have, where declared shapes tell what grows."""
        graph = self._program.graph
        before = {info.name: info.shape or () for info in graph.inputs}
        after = {
            info.name: info.shape or graph.infos.get(info.name, info).shape or ()
            for info in graph.outputs
        }
        rows = 0
        for name, array in self._initial.items():
            old, new = before[name], after[self._pairs[name]]
            axes = [
                axis
                for axis, (one, other) in enumerate(zip(old, new, strict=False))
                if not isinstance(one, int) and (one is None or one != other)
            ]
            if len(axes) == 1 and len(old) == len(new):
                rows = max(rows, array.shape[axes[0]])
        if self._capacity is not None and rows > self._capacity:
            raise InvalidInputError(
                f"the initial values have {rows} rows, and the state has room for {self._capacity}",
                hint="make it with more capacity",
            )
        return rows

    # --- runs ------------------------------------------------------------------------------------

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once; return the outputs that are not state, as arrays.

        Raises:
            InvalidInputError: the state is closed or full, or an input does not match.
        """
        self._settle()
        if self._in_place and (self._goes_on() or self._starts_in_place(feeds)):
            try:
                return self._run_in_place(feeds)
            except CannotGrowError as error:
                _log.warning("the state is planned anew for every length: %s", error)
                self._leave_place()
        return self._run_anew(feeds)

    def _goes_on(self) -> bool:
        return self._begun and (self.length > 0 or not self._axes)

    def _starts_in_place(self, feeds: Mapping[str, Any]) -> bool:
        """Tell whether a new sequence fits the memory and the plans of an earlier one."""
        if self.length or not self._caches or self._tails is None or self._swapped or self._initial:
            return False
        return all(
            _with(self._first(name, feeds).shape, axis, self._room) == self._caches[name].shape
            for name, axis in self._axes.items()
        )

    def _run_anew(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run on the plan for the current shapes and replace the state with the outputs."""
        given = {
            name: self._held(name)
            if self._begun and (self.length or name not in self._axes)
            else self._first(name, feeds)
            for name in self._pairs
        }
        names = list(self._program.outputs)
        results = self._program.run_on_device({**feeds, **given}, names)
        made = {name: self._on_device(results[name]) for name in self._pairs.values()}
        axes, length, regular = self._growth({n: v.shape for n, v in given.items()}, made)
        if self._capacity is not None and length > self._capacity:
            raise self._full(length)
        states = set(self._pairs.values())
        told = {name: np.array(as_array(results[name])) for name in names if name not in states}
        values = {name: made[output] for name, output in self._pairs.items()}
        if self._in_place and regular:
            self._take_over(values, axes, length)
        elif self._in_place:
            self._in_place = False
            self._drop()
        self._values, self._axes, self.length, self._begun = values, axes, length, True
        return told

    def _on_device(self, value: Any) -> DeviceTensor:
        if isinstance(value, DeviceTensor):
            return value
        tensor = self._program.backend.new_tensor(value.shape, DType.from_numpy(value.dtype))
        tensor.copy_from(value)
        return tensor

    def _first(self, name: str, feeds: Mapping[str, Any]) -> Any:
        """Return the initial value of an input."""
        if name in self._initial and not self._begun:
            return self._initial[name]
        infos = {info.name: info for info in self._program.graph.inputs}
        info = infos[name]
        sizes = {
            dim: size
            for other, value in feeds.items()
            if other in infos
            for dim, size in zip(infos[other].shape or (), value.shape, strict=False)
            if isinstance(dim, str)
        }
        shape = [dim if isinstance(dim, int) else sizes.get(dim or "") for dim in info.shape or ()]
        if info.shape is None or shape.count(None) > 1:
            raise InvalidInputError(
                f"the shape that '{name}' begins with is not known: {info.shape}",
                hint="pass its first value: initial={name: array}",
            )
        return np.zeros([0 if size is None else size for size in shape], info.dtype.numpy)

    def _growth(
        self, before: Mapping[str, Shape], made: Mapping[str, DeviceTensor]
    ) -> tuple[dict[str, int], int, bool]:
        """Return the axes that grew, the rows after a run, and whether it can go on in place."""
        axes: dict[str, int] = {}
        for name, output in self._pairs.items():
            old, new = before[name], made[output].shape
            if old == new:
                continue
            axis = [n for n, sizes in enumerate(zip(old, new, strict=False)) if len(set(sizes)) > 1]
            if len(old) != len(new) or len(axis) != 1:
                return self._axes, self.length, False
            axes[name] = axis[0]
        lengths = {made[self._pairs[name]].shape[axis] for name, axis in axes.items()}
        regular = len(lengths) < 2 and (not self._axes or axes == self._axes)
        return self._axes or axes, max(lengths, default=0), regular

    # --- state kept in place ---------------------------------------------------------------------

    def _run_in_place(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        past = self.length
        rows = self._new_rows(feeds) if self._axes else 0
        total = past + rows
        if self._axes:
            self._make_room(total)
        tails = self._tails or {}
        for name, axis in tails.items():
            if feeds[name].shape[axis] != total:
                raise InvalidInputError(
                    f"input '{name}' has {feeds[name].shape[axis]} rows, but the state {total}",
                    hint=f"it holds {past} rows, and {rows} are new",
                )
        shapes = {
            name: _with(value.shape, tails.get(name), self._room) for name, value in feeds.items()
        }
        key = (self._room, rows, *sorted(shapes.items()))
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = self._new_loop(shapes, rows)
        host: dict[str, Any] = {
            name: padded(as_array(value), shapes[name]) if name in tails else value
            for name, value in feeds.items()
        }
        evaluate = self._plans.planner.evaluate
        host |= loop.feeds(past, total, evaluate)
        segment = loop.segments[self._turn]
        segment.begin(host)
        if rows == 1:  # another token may follow
            loop.look_ahead(total, total + 1, evaluate)
        results: dict[str, Any] = {}
        start = time.thread_time()
        segment.end(results)
        self.waits.seconds += time.thread_time() - start
        ends = loop.grown.tails if loop.grown is not None else {}
        told = {
            name: _cut(array, ends[name], total) if name in ends else array
            for name, array in results.items()
        }
        self.length, self._begun = total, True
        if self._swapped:
            self._turn = 1 - self._turn
        return told

    @property
    def _plans(self) -> Plans:
        assert self._program.whole is not None
        return self._program.whole

    def _new_rows(self, feeds: Mapping[str, Any]) -> int:
        """Return how many rows the run appends."""
        if self._tails:
            name, axis = next(iter(self._tails.items()))
            return int(feeds[name].shape[axis]) - self.length
        shapes = tuple(sorted((name, value.shape) for name, value in feeds.items()))
        if shapes not in self._rows:
            self._rows[shapes] = self._resolved_rows(dict(shapes))
        if self._tails is None:
            self._tails = self._find_tails(feeds, self.length + self._rows[shapes])
        return self._rows[shapes]

    def _resolved_rows(self, shapes: Mapping[str, Shape]) -> int:
        graph, planner = self._plans.graph, self._plans.planner
        infos = {}
        for info in graph.inputs:
            shape = shapes.get(info.name)
            if info.name in self._axes:
                shape = _with(self._caches[info.name].shape, self._axes[info.name], self.length)
            elif shape is None:
                shape = self._held(info.name).shape
            infos[info.name] = replace(info, shape=shape)
        resolved = resolve(graph, infos, {}, planner.evaluate, planner.meter())
        name, axis = next(iter(self._axes.items()))
        return resolved.infos[self._pairs[name]].dims[axis] - self.length

    def _find_tails(self, feeds: Mapping[str, Any], total: int) -> dict[str, int]:
        """Return the inputs with an axis as long as the caches after the run."""
        infos = {info.name: info for info in self._plans.graph.inputs}
        other = {
            dim
            for name, axis in self._axes.items()
            for place, dim in enumerate(infos[name].shape or ())
            if place != axis
        }
        found = {}
        for name, value in feeds.items():
            declared = infos[name].shape or (None,) * len(value.shape)
            axes = [
                axis
                for axis, (dim, size) in enumerate(zip(declared, value.shape, strict=True))
                if size == total and not isinstance(dim, int) and (dim is None or dim not in other)
            ]
            if len(axes) > 1:
                raise CannotGrowError(f"the input '{name}' grows along several axes")
            found.update(dict.fromkeys([name], axes[0]) if axes else {})
        return found

    def _make_room(self, total: int) -> None:
        """Make room in the caches, which grow by powers of two."""
        if self._capacity is not None and total > self._capacity:
            raise self._full(total)
        if total > self._room:
            self._grow_to(total)

    def _full(self, total: int) -> InvalidInputError:
        return InvalidInputError(
            f"the state is full: it holds {self.length} of {self._capacity} rows, and "
            f"{total - self.length} would be added",
            hint="make it with more capacity, or reset it",
        )

    def _grow_to(self, total: int) -> None:
        room = max(MIN_ROWS, 1 << max(total - 1, 0).bit_length())
        room = min(room, self._capacity or room)
        if self._pool is not None:
            if self._axes.keys() == self._pairs.keys() and self._pool.place(self, room):
                return
            self._leave_pool()
        self._close_loops()
        self._room = 0  # until all caches have as much: some may have more than others
        for name, (old, axis) in self.caches().items():
            shape = _with(old.shape, axis, room)
            if name not in self._caches or old.shape != shape:
                self._caches[name] = self._copied(old, axis, shape, self.length)
        self._room = room

    def _copied(self, old: DeviceTensor, axis: int, shape: Shape, rows: int) -> DeviceTensor:
        """Return a new tensor of this shape, with the first rows of another one."""
        tensor = self._program.backend.new_tensor(shape, DType.from_numpy(old.dtype))
        tensor.copy_rows_from(old, axis, rows)
        return tensor

    def _take_over(
        self, values: dict[str, DeviceTensor], axes: dict[str, int], length: int
    ) -> None:
        """Move the results of a run that began anew into the memory that holds the state."""
        kept = self._values, self._axes, self.length
        self._values, self._axes, self.length = values, axes, length
        try:
            if axes:
                self._rows_take_over()
            self._fixed_take_over({n: value for n, value in values.items() if n not in axes})
        except BaseException:
            self._values, self._axes, self.length = kept
            raise

    def _fixed_take_over(self, fixed: Mapping[str, DeviceTensor]) -> None:
        """Move what keeps its size to where it is swapped."""
        if any(pair[0].shape != fixed[name].shape for name, pair in self._swapped.items()):
            self._close_loops()
            self._swapped.clear()
            self._turn = 0
        for name, value in fixed.items():
            if name in self._swapped:
                self._swapped[name][self._turn].copy_from(value)
            else:
                other = self._program.backend.new_tensor(value.shape, DType.from_numpy(value.dtype))
                self._swapped[name] = value, other

    def _rows_take_over(self) -> None:
        """Move rows from values to caches."""
        fits = all(
            _with(self._values[name].shape, axis, self._room) == self._caches[name].shape
            for name, axis in self._axes.items()
            if name in self._caches
        )
        if self._caches and not fits:  # another batch, for example
            self._leave_pool()
        if self.length > self._room or not fits:
            self._close_loops()
            self._caches.clear()
            self._room = 0
        if self.length > self._room:
            self._grow_to(self.length)
        else:
            for name, axis in self._axes.items():
                self._caches[name].copy_rows_from(self._values[name], axis, self.length)

    def _new_loop(self, shapes: Mapping[str, Shape], rows: int) -> _Loop:
        graph, infos, grown = self._grown(shapes, rows)
        plan = self.planned(graph, infos)
        segments = []
        for turn in range(2 if self._swapped else 1):
            segment = self._bound(plan, infos, turn)
            if segment is None:
                plan.close()
                raise CannotGrowError("the network is not one plan of the device")
            segments.append(segment)
        return _Loop(plan, tuple(segments), grown)

    def _grown(
        self, shapes: Mapping[str, Shape], rows: int, apart: bool = False
    ) -> tuple[Graph, dict[str, TensorInfo], Grown | None]:
        """Return the network for the memory of the caches, and its inputs."""
        graph, planner, grown = self._plans.graph, self._plans.planner, None
        infos = {}
        for info in graph.inputs:
            shape = shapes.get(info.name)
            if info.name in self._axes:
                room = self._room - rows
                shape = _with(self._caches[info.name].shape, self._axes[info.name], room)
            elif shape is None:
                shape = self._swapped[info.name][0].shape
            infos[info.name] = replace(info, shape=shape)
        if self._axes:
            caches = {name: (self._pairs[name], axis) for name, axis in self._axes.items()}
            growth = Growth(caches, self._tails or {}, self._room, apart)
            grown = grow(graph, infos, growth, planner.evaluate, planner.meter())
            graph, infos = grown.graph, {info.name: info for info in grown.graph.inputs}
        return graph, infos, grown

    def planned(self, graph: Graph, infos: Mapping[str, TensorInfo]) -> Plan:
        """Return a plan for a network of static shapes."""
        self._plans.made += 1
        of = self._plans.planner
        return Plan(graph, infos, {}, of.main, of.backup, of.evaluate, of.meter())

    def _bound(self, plan: Plan, infos: Mapping[str, TensorInfo], turn: int) -> Segment | None:
        new = self._program.backend.new_tensor
        inputs: dict[str, DeviceTensor] = {}
        for name, info in infos.items():
            if name in self._axes:
                inputs[name] = self._caches[name]
            elif name in self._swapped:
                inputs[name] = self._swapped[name][turn]
            else:
                inputs[name] = new(info.dims, info.dtype, "upload")
        outputs = {}
        for name in plan.output_names:
            info = plan.infos[name]
            outputs[name] = new(info.dims, info.dtype, "readback")
        for name, pair in self._swapped.items():
            outputs[self._pairs[name]] = pair[1 - turn]
        resident = {*self._pairs, *self._pairs.values()}
        return plan.bound_segment(inputs, outputs, resident)

    # --- on tokens of its own --------------------------------------------------------------------

    def follow(
        self,
        token: int,
        following: Following,
        ahead: int,
        drawing: Drawing | None = None,
        pick: Pick | None = None,
    ) -> int | None:
        """Run a token that the host knows; return the likeliest next one, or one that is drawn.

        Steps on the tokens that follow are queued, and are forgotten unless the next call goes on
        with what this one returned.

        Args:
            token: what is run.
            following: which inputs and outputs are tokens; the same in every call.
            ahead: how many steps after this one are wanted, as far as that is known.
            drawing: how to draw; None takes the likeliest. The same object as long as it goes on.
            pick: chooses on the host instead, in steps that are taken with other states only.

        Returns:
            None if the network cannot be run like this; nothing has been run then.

        Raises:
            InvalidInputError: the state is closed, or full.
        """
        if self._pool is not None and self._pool.busy:
            joined = self._follow_others(self._pool, token, following, ahead, drawing, pick)
            if joined is not None:
                return joined
        if pick is not None:
            return None
        follower, length = self._last, self.length
        if follower is None or drawing is not self._drawing or length >= self._room:
            follower = self._follower_of(following, drawing)
            if follower is None:
                return None
            self._last, self._drawing = follower, drawing
        wanted = min(1 + ahead, QUEUE, self._room - length)
        chosen = follower.step(token, length, wanted, drawing)
        self.length = length + 1
        return chosen

    def _follow_others(
        self,
        pool: CachePool,
        token: int,
        following: Following,
        ahead: int,
        drawing: Drawing | None,
        pick: Pick | None,
    ) -> int | None:
        """Run a token in a step that other states take, too; None where none do."""
        if not self._can_follow() or (drawing is not None and not following.vocabulary):
            return None
        self._make_room(self.length + 1)
        before = pool.waited
        chosen = pool.follow(self, token, following, ahead, drawing, pick)
        self.waits.seconds += pool.waited - before
        self.length += chosen is not None
        return chosen

    def announce(
        self,
        token: int,
        following: Following,
        ahead: int,
        drawing: Drawing | None,
        pick: Pick | None,
    ) -> None:
        """Say what `follow` will be called with next: others' steps may take it along.

        `pick` chooses only where the device cannot draw, or is not to.
        """
        pool = self._pool
        if pool is None or not pool.busy or not self._can_follow() or self.length >= self._room:
            return
        if drawing is not None and following.vocabulary:
            pool.announce(self, token, ahead, drawing, None)
        else:
            pool.announce(self, token, ahead, None, pick)

    def share(self, shared: bool) -> None:
        """Say whether its text is being generated, so that steps may be taken with others."""
        if self._pool is not None:
            self._pool.share(self, shared)

    def _leave_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.leave(self)

    def caches(self) -> dict[str, tuple[DeviceTensor, int]]:
        """Return what holds its rows, and their axes; nothing where there has been no run."""
        held = {**self._values, **self._caches}
        return {name: (held[name], axis) for name, axis in self._axes.items() if name in held}

    def move(self, caches: Mapping[str, DeviceTensor], room: int) -> None:
        """Take memory for the caches that holds the same rows."""
        self._caches, self._room = dict(caches), room
        self._close_loops()

    def _follower_of(self, following: Following, drawing: Drawing | None) -> Follower | None:
        """Return recordings with room for one more row; None if there cannot be any."""
        self._check_open()
        if not self._begun or (drawing is not None and not following.vocabulary):
            return None
        candidates = 0 if drawing is None else drawing.candidates(following.vocabulary)
        follower = self._followers.get(candidates)
        if (
            follower is not None
            and self.length < self._room
            and not any(other.queued for other in self._followers.values() if other is not follower)
        ):
            return follower
        self._settle()
        if not self._can_follow():
            return None
        self._make_room(self.length + 1)
        if candidates not in self._followers:
            made = self._new_follower(following, candidates)
            if made is None:
                return None
            self._followers[candidates] = made
        return self._followers[candidates]

    def _can_follow(self) -> bool:
        return (
            self._follows
            and self._in_place
            and self._begun
            and self.length > 0
            and bool(self._caches)
            and self._axes.keys() == self._pairs.keys()
            and self._tails is not None
        )

    def _settle(self) -> None:
        """Wait for steps that were queued: nobody asked for them."""
        self._check_open()
        self.settle_alone()
        if self._pool is not None:
            self._pool.settle(self)

    def _check_open(self) -> None:
        if self.lost:
            raise StateLostError(
                "the state was lost with its device", hint="make a new one, and fill it again"
            )
        if self.closed:
            raise InvalidInputError("the state has been closed", hint="make a new one")

    def settle_alone(self) -> None:
        """Wait for queued steps that no other state takes part in."""
        self._last = None
        for follower in self._followers.values():
            follower.forget()

    def _new_follower(self, following: Following, candidates: int) -> Follower | None:
        """Record the steps; None, from now on, if that is impossible."""
        try:
            return self._recorded(following, candidates)
        except CannotGrowError as error:
            _log.info("tokens are chosen on the host: %s", error)
            self._follows = False
            return None

    def chain(self, following: Following, candidates: int, alone: bool = True) -> Graph:
        """Return the step on a token that the device knows; see `chained`.

        Raises:
            CannotGrowError: there is none.
        """
        tails, evaluate = self._tails or {}, self._plans.planner.evaluate
        shapes = {
            name: _with(value.shape, tails.get(name), self._room)
            for name, value in following.feeds(0).items()
        }
        _, _, grown = self._grown({**shapes, following.token: (1, 1)}, 1, apart=not alone)
        assert grown is not None

        def feeds(past: int) -> dict[str, Array]:
            own = following.feeds(past)
            made = {name: padded(value, shapes[name]) for name, value in own.items()}
            return made | grown.feeds(past, past + 1, evaluate)

        return chained(grown, following, feeds, evaluate, candidates, alone)

    def _recorded(self, following: Following, candidates: int) -> Follower:
        graph = self.chain(following, candidates)
        infos = {info.name: info for info in graph.inputs}
        plan, new = self.planned(graph, infos), self._program.backend.new_tensor
        token = infos[following.token]
        tokens = [new(token.dims, token.dtype, "readback") for _ in range(QUEUE)]
        lengths = [new((1,), DType.INT64) for _ in range(QUEUE)]
        known = {*self._caches, following.token, LENGTH}
        settings = {n: new(i.dims, i.dtype) for n, i in infos.items() if n not in known}
        segments: list[Segment] = []
        for turn in range(QUEUE):
            own = {following.token: tokens[turn], LENGTH: lengths[turn]}
            inputs = {**self._caches, **settings, **own}
            after = (turn + 1) % QUEUE
            outputs = {NEXT: lengths[after], CHOSEN: tokens[after]}
            segment = plan.bound_segment(inputs, outputs, {*inputs, *outputs})
            if segment is None:
                for one in segments:
                    one.close()
                plan.close()
                raise CannotGrowError("a step is not one plan of the device")
            segments.append(segment)
        return Follower(plan, segments, tokens, lengths, settings, self.waits)

    def _leave_place(self) -> None:
        """Fall back to a plan per length."""
        self._values = {name: self.value(name) for name in self._pairs}
        self._in_place = False
        self._drop()

    # --- what it holds ---------------------------------------------------------------------------

    def value(self, name: str) -> DeviceTensor:
        """Return an input's value in the next run; for a cache, a separate tensor."""
        self._settle()
        if not self._begun and name in self._initial:
            return self._on_device(self._initial[name])
        if not self._begun and name not in self._caches:
            raise InvalidInputError(f"there is no '{name}' before the first run")
        return self._held(name)

    def _held(self, name: str) -> DeviceTensor:
        if name in self._axes and name in self._caches:
            cache, axis = self._caches[name], self._axes[name]
            return self._copied(cache, axis, _with(cache.shape, axis, self.length), self.length)
        if name in self._swapped:
            return self._swapped[name][self._turn]
        return self._values[name]

    def memory(self, name: str) -> DeviceTensor:
        """Return the whole memory of a cache, spare room included; other state as `value`."""
        self._settle()
        return self._caches[name] if name in self._caches else self.value(name)

    def truncate(self, length: int) -> None:
        """Forget all rows of the caches from `length` on.

        Raises:
            InvalidInputError: there are fewer rows, or part of the state does not grow.
        """
        if not 0 <= length <= self.length:
            raise InvalidInputError(
                f"the state holds {self.length} rows and cannot keep {length}",
                hint="keep between none and all of them",
            )
        if length == self.length:
            return
        self._settle()
        if not self._begun:
            raise InvalidInputError(
                "the initial rows cannot be forgotten", hint="begin with fewer, or run once first"
            )
        if self._axes.keys() != self._pairs.keys():
            fixed = next(name for name in self._pairs if name not in self._axes)
            raise InvalidInputError(
                f"the state '{fixed}' has no rows to forget", hint="reset it, and run again"
            )
        if length == 0 and not self._initial:
            self.reset()
            return
        if not self._caches:
            self._values = {
                name: self._copied(value, axis, _with(value.shape, axis, length), length)
                for name, (value, axis) in self.caches().items()
            }
        self.length = length

    def restore(self, rows: Mapping[str, Array]) -> None:
        """Begin a new sequence with these rows in the caches.

        Raises:
            InvalidInputError: nothing has run yet, an array is missing or does not fit, or part of
                the state does not grow.
        """
        self._check_open()
        length = self._length_of(rows)
        if self._capacity is not None and length > self._capacity:
            raise self._full(length)
        values = {name: self._on_device(rows[name]) for name in self._axes}
        self.reset()
        if self._caches:
            self.length = 0  # none have to be kept
            try:
                if length > self._room:
                    self._grow_to(length)
                for name, axis in self._axes.items():
                    self._caches[name].copy_rows_from(values[name], axis, length)
            except BaseException:
                self.length = self._first_rows
                raise
        self._values, self.length, self._begun = values, length, True

    def _length_of(self, rows: Mapping[str, Array]) -> int:
        if not self._axes or self._axes.keys() != self._pairs.keys():
            raise InvalidInputError(
                "the state cannot be restored", hint="only caches can, once something has run"
            )
        if rows.keys() != self._axes.keys():
            raise InvalidInputError(
                f"the caches are {', '.join(self._axes)}, got {', '.join(map(str, rows)) or 'none'}"
            )
        lengths = set()
        for name, (held, axis) in self.caches().items():
            given = rows[name]
            fits = given.ndim == len(held.shape) and given.dtype == held.dtype
            if not fits or _with(given.shape, axis, 0) != _with(held.shape, axis, 0):
                raise InvalidInputError(
                    f"'{name}' holds {held.dtype} {list(held.shape)}, which cannot take "
                    f"{given.dtype} {list(given.shape)}"
                )
            lengths.add(given.shape[axis])
        if len(lengths) != 1 or 0 in lengths:
            raise InvalidInputError(f"the caches have {sorted(lengths)} rows", hint="give all one")
        return int(lengths.pop())

    def reset(self) -> None:
        """Start again from the initial state, keeping memory and plans."""
        self._settle()
        self.length, self._begun = self._first_rows, False

    def plan_anew(self) -> None:
        """Forget plans, and steps that are queued; keep what the state holds."""
        self._close_loops()
        if self._pool is not None:
            self._pool.plan_anew()

    def close(self, lost: bool = False) -> None:
        """Release memory and plans; `lost` says that they went down with the device."""
        self.lost = lost and not self.closed
        self.closed = True
        self.length = 0
        self._values.clear()
        self._drop()

    def _close_loops(self) -> None:
        closing: list[_Loop | Follower] = [*self._loops.values(), *self._followers.values()]
        self._loops.clear()  # first: none may be used again, whatever closing raises
        self._followers.clear()
        self._last = None
        for one in closing:
            one.close()

    def _drop(self) -> None:
        self._caches.clear()
        self._swapped.clear()
        self._room = self._turn = 0
        self._leave_pool()
        self._close_loops()


def _with(shape: Shape, axis: int | None, size: int) -> Shape:
    return shape if axis is None else (*shape[:axis], size, *shape[axis + 1 :])


def _cut(array: Array, axis: int, rows: int) -> Array:
    """Return the valid rows."""
    cut: Array = np.moveaxis(np.moveaxis(array, axis, 0)[:rows], 0, axis)
    return cut
