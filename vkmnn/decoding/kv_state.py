"""Runs of a network on state that stays in place on the device."""

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
from vkmnn.decoding.padded_graph import (
    CacheSpec,
    CannotRewriteError,
    PaddedGraph,
    pad_caches,
    zero_padded,
)
from vkmnn.decoding.state_tensors import Shape, StateTensors, resized
from vkmnn.decoding.step_ring import Waits, recorded
from vkmnn.errors import InvalidInputError, StateLostError
from vkmnn.folding import Evaluator
from vkmnn.ir import Array, Graph, TensorInfo
from vkmnn.records import dataclass

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _InPlaceRun:
    """A plan that reads and writes the state in place.

    Attributes:
        plan: the plan.
        segments: its recordings, one for each direction in which state is swapped.
        padded: the network as rewritten for caches of a fixed size, if there are any.
        ahead: rows before and after a run that may come next, and what the host feeds it.
    """

    plan: Plan
    segments: list[Segment]
    padded: PaddedGraph | None
    ahead: tuple[int, int, Mapping[str, Array]] | None = None

    def feeds(self, past: int, total: int, evaluate: Evaluator) -> Mapping[str, Array]:
        """Return what the host feeds in addition to the network's own inputs."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead[:2] == (past, total):
            return ahead[2]
        return {} if self.padded is None else self.padded.feeds(past, total, evaluate)

    def look_ahead(self, past: int, total: int, evaluate: Evaluator) -> None:
        """Compute what the host would feed to another run, while the device works."""
        if self.padded is not None and total <= self.padded.capacity:
            self.ahead = past, total, self.padded.feeds(past, total, evaluate)

    def drain(self) -> None:
        """Do nothing: no run is queued."""

    def close(self) -> None:
        """Release the recordings and the plan."""
        for segment in self.segments:
            segment.close()
        self.plan.close()


class KVState:
    """State that runs of a network read and write.

    A run is in place where the network allows it: caches are appended to, and values of a fixed
    size are swapped. Otherwise it runs as usual, and its outputs become the state.

    Args:
        program: the network; this is fastest when it is a single stage on the device.
        pairs: each input with the output that feeds it in the next run.
        capacity: the maximum number of rows in a cache; None for no limit.
        initial: initial values; by default caches are empty and everything else is zero.
        waits: how steps are waited for; another one by default.

    A call that fails leaves the rows of the caches as they were; `restore` may leave none.

    Attributes:
        program: the network.
        tensors: the state.
        begun: whether anything has run since the state was reset.
        waits: as the argument.
        closed: whether the state has been closed.
        lost: whether its device was lost.

    Raises:
        InvalidInputError: the initial rows exceed the capacity.
    """

    def __init__(
        self,
        program: Program,
        pairs: Mapping[str, str],
        capacity: int | None,
        initial: Mapping[str, Array],
        waits: Waits | None = None,
    ) -> None:
        self.program = program
        self._initial = dict(initial)
        self._padded_axes: dict[str, int] | None = None
        self._rows: dict[tuple[object, ...], int] = {}
        self._in_place = (
            program.backend.records and program.whole is not None and not program.whole.content
        )
        self.tensors = StateTensors(program, pairs, capacity)
        self.begun = False
        self._first_rows = self.tensors.length = self._initial_rows()
        self.waits = Waits() if waits is None else waits
        self.closed = False
        self.lost = False

    def _initial_rows(self) -> int:
        """Return the rows of the initial values, if declared shapes tell which axis grows."""
        graph, tensors = self.program.graph, self.tensors
        before = {info.name: info.shape or () for info in graph.inputs}
        after = {
            info.name: info.shape or graph.infos.get(info.name, info).shape or ()
            for info in graph.outputs
        }
        rows = 0
        for name, array in self._initial.items():
            old, new = before[name], after[tensors.pairs[name]]
            axes = [
                axis
                for axis, (one, other) in enumerate(zip(old, new, strict=False))
                if not isinstance(one, int) and (one is None or one != other)
            ]
            if len(axes) == 1 and len(old) == len(new):
                rows = max(rows, array.shape[axes[0]])
        if tensors.capacity is not None and rows > tensors.capacity:
            raise InvalidInputError(
                f"the initial values have {rows} rows, and the state has room for "
                f"{tensors.capacity}",
                hint="make it with more capacity",
            )
        return rows

    # --- runs ------------------------------------------------------------------------------------

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once; return the outputs that are not state, as arrays.

        Raises:
            InvalidInputError: the state is closed or full, or an input does not match.
        """
        self.drain()
        if self._in_place and (self._goes_on() or self._starts_in_place(feeds)):
            try:
                return self._run_in_place(feeds)
            except CannotRewriteError as error:
                _log.warning("the state is planned anew for every length: %s", error)
                self._leave_place()
        return self._run_anew(feeds)

    def _goes_on(self) -> bool:
        return self.begun and (self.tensors.length > 0 or not self.tensors.axes)

    def _starts_in_place(self, feeds: Mapping[str, Any]) -> bool:
        """Return whether a new sequence fits the memory and the plans of an earlier one."""
        tensors = self.tensors
        if tensors.length or not tensors.caches or tensors.swapped:
            return False
        if self._padded_axes is None or self._initial:
            return False
        return all(
            resized(self._first(name, feeds).shape, axis, tensors.room)
            == tensors.caches[name].shape
            for name, axis in tensors.axes.items()
        )

    def _run_anew(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run on the plan for the current shapes and replace the state with the outputs."""
        tensors = self.tensors
        before = {
            name: tensors.current(name)
            if self.begun and (tensors.length or name not in tensors.axes)
            else self._first(name, feeds)
            for name in tensors.pairs
        }
        names = list(self.program.outputs)
        results = self.program.run_on_device({**feeds, **before}, names)
        after = {name: tensors.upload(results[name]) for name in tensors.pairs.values()}
        axes, length, regular = self._growth({n: v.shape for n, v in before.items()}, after)
        tensors.check_capacity(length)
        outputs = {name: np.array(as_array(results[name])) for name in names if name not in after}
        values = {name: after[output] for name, output in tensors.pairs.items()}
        if self._in_place and regular:
            tensors.take_over(values, axes, length)
        elif self._in_place:
            self._in_place = False
            tensors.drop()
        tensors.values, tensors.axes, tensors.length = values, axes, length
        self.begun = True
        return outputs

    def _first(self, name: str, feeds: Mapping[str, Any]) -> Any:
        """Return the initial value of an input."""
        if name in self._initial and not self.begun:
            return self._initial[name]
        infos = {info.name: info for info in self.program.graph.inputs}
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
        self, before: Mapping[str, Shape], after: Mapping[str, DeviceTensor]
    ) -> tuple[dict[str, int], int, bool]:
        """Return the axes that grew, the rows after a run, and whether the next can be in place."""
        tensors = self.tensors
        axes: dict[str, int] = {}
        for name, output in tensors.pairs.items():
            old, new = before[name], after[output].shape
            if old == new:
                continue
            axis = [n for n, sizes in enumerate(zip(old, new, strict=False)) if len(set(sizes)) > 1]
            if len(old) != len(new) or len(axis) != 1:
                return tensors.axes, tensors.length, False
            axes[name] = axis[0]
        lengths = {after[tensors.pairs[name]].shape[axis] for name, axis in axes.items()}
        regular = len(lengths) < 2 and (not tensors.axes or axes == tensors.axes)
        return tensors.axes or axes, max(lengths, default=0), regular

    # --- runs in place ---------------------------------------------------------------------------

    def _run_in_place(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        tensors = self.tensors
        past = tensors.length
        rows = self._new_rows(feeds) if tensors.axes else 0
        total = past + rows
        if tensors.axes:
            tensors.make_room(total)
        axes = self._padded_axes or {}
        for name, axis in axes.items():
            if feeds[name].shape[axis] != total:
                raise InvalidInputError(
                    f"input '{name}' has {feeds[name].shape[axis]} rows, but the state {total}",
                    hint=f"it holds {past} rows, and {rows} are new",
                )
        shapes = self.padded_shapes(feeds)
        run = self._recorded_run(shapes, rows)
        host: dict[str, Any] = {
            name: zero_padded(as_array(value), shapes[name]) if name in axes else value
            for name, value in feeds.items()
        }
        evaluate = self.evaluate
        host |= run.feeds(past, total, evaluate)
        segment = run.segments[tensors.turn]
        segment.begin(host)
        if rows == 1:  # another token may follow
            run.look_ahead(total, total + 1, evaluate)
        results: dict[str, Any] = {}
        start = time.thread_time()
        segment.end(results)
        self.waits.seconds += time.thread_time() - start
        ends = run.padded.padded_axes if run.padded is not None else {}
        outputs = {
            name: _first_rows(array, ends[name], total) if name in ends else array
            for name, array in results.items()
        }
        tensors.length, self.begun = total, True
        if tensors.swapped:
            tensors.turn = 1 - tensors.turn
        return outputs

    @property
    def evaluate(self) -> Evaluator:
        """Computes one op on arrays."""
        return self._plans.planner.evaluate

    @property
    def _plans(self) -> Plans:
        assert self.program.whole is not None
        return self.program.whole

    def _new_rows(self, feeds: Mapping[str, Any]) -> int:
        """Return the number of rows that the run appends."""
        length = self.tensors.length
        if self._padded_axes:
            name, axis = next(iter(self._padded_axes.items()))
            return int(feeds[name].shape[axis]) - length
        shapes = tuple(sorted((name, value.shape) for name, value in feeds.items()))
        if shapes not in self._rows:
            self._rows[shapes] = self._resolved_rows(dict(shapes))
        if self._padded_axes is None:
            self._padded_axes = self._find_padded(feeds, length + self._rows[shapes])
        return self._rows[shapes]

    def _resolved_rows(self, shapes: Mapping[str, Shape]) -> int:
        graph, planner, tensors = self._plans.graph, self._plans.planner, self.tensors
        infos = {}
        for info in graph.inputs:
            shape = shapes.get(info.name)
            if info.name in tensors.axes:
                cache, axis = tensors.caches[info.name], tensors.axes[info.name]
                shape = resized(cache.shape, axis, tensors.length)
            elif shape is None:
                shape = tensors.current(info.name).shape
            infos[info.name] = replace(info, shape=shape)
        resolved = resolve(graph, infos, {}, planner.evaluate, planner.meter())
        name, axis = next(iter(tensors.axes.items()))
        return resolved.infos[tensors.pairs[name]].dims[axis] - tensors.length

    def _find_padded(self, feeds: Mapping[str, Any], total: int) -> dict[str, int]:
        """Return the inputs with an axis as long as the caches after the run."""
        infos = {info.name: info for info in self._plans.graph.inputs}
        other = {
            dim
            for name, axis in self.tensors.axes.items()
            for place, dim in enumerate(infos[name].shape or ())
            if place != axis
        }
        result: dict[str, int] = {}
        for name, value in feeds.items():
            declared = infos[name].shape or (None,) * len(value.shape)
            axes = [
                axis
                for axis, (dim, size) in enumerate(zip(declared, value.shape, strict=True))
                if size == total and not isinstance(dim, int) and (dim is None or dim not in other)
            ]
            if len(axes) > 1:
                raise CannotRewriteError(f"the input '{name}' grows along several axes")
            if axes:
                result[name] = axes[0]
        return result

    def _recorded_run(self, shapes: Mapping[str, Shape], rows: int) -> _InPlaceRun:
        """Return the recorded run that appends this many rows."""
        recordings = self.tensors.recordings
        key = (self.tensors.room, rows, *sorted(shapes.items()))
        run = recordings.get(key)
        if run is None:
            run = recordings[key] = self._record(shapes, rows)
        assert isinstance(run, _InPlaceRun)
        return run

    def _record(self, shapes: Mapping[str, Shape], rows: int) -> _InPlaceRun:
        graph, infos, padded = self.padded_network(shapes, rows)
        plan = self.planned(graph, infos)
        turns = 2 if self.tensors.swapped else 1
        segments = recorded(plan, turns, lambda turn: self._bound(plan, infos, turn), "the network")
        return _InPlaceRun(plan, segments, padded)

    def padded_network(
        self, shapes: Mapping[str, Shape], rows: int, fuse: bool = True
    ) -> tuple[Graph, dict[str, TensorInfo], PaddedGraph | None]:
        """Return the network for the present room of the caches, its inputs, and the rewriting.

        Args:
            shapes: of the inputs that are not state; see `padded_shapes`.
            rows: how many a run appends.
            fuse: whether rotary embedding, appends and attention may become one op.

        Raises:
            CannotRewriteError: an op mixes rows in a way that is not known to be safe.
        """
        graph, planner, padded, tensors = self._plans.graph, self._plans.planner, None, self.tensors
        infos = {}
        for info in graph.inputs:
            shape = shapes.get(info.name)
            if info.name in tensors.axes:
                cache, axis = tensors.caches[info.name], tensors.axes[info.name]
                shape = resized(cache.shape, axis, tensors.room - rows)
            elif shape is None:
                shape = tensors.swapped[info.name][0].shape
            infos[info.name] = replace(info, shape=shape)
        if tensors.axes:
            caches = {name: (tensors.pairs[name], axis) for name, axis in tensors.axes.items()}
            spec = CacheSpec(caches, self._padded_axes or {}, tensors.room, fuse)
            padded = pad_caches(graph, infos, spec, planner.evaluate, planner.meter())
            graph, infos = padded.graph, {info.name: info for info in padded.graph.inputs}
        return graph, infos, padded

    def padded_shapes(self, feeds: Mapping[str, Any]) -> dict[str, Shape]:
        """Return the shapes of inputs that are not state, where caches are full."""
        axes, room = self._padded_axes or {}, self.tensors.room
        return {name: resized(one.shape, axes.get(name), room) for name, one in feeds.items()}

    def planned(self, graph: Graph, infos: Mapping[str, TensorInfo]) -> Plan:
        """Return a plan for a network of static shapes."""
        self._plans.made += 1
        of = self._plans.planner
        return Plan(graph, infos, {}, of.main, of.backup, of.evaluate, of.meter())

    def _bound(self, plan: Plan, infos: Mapping[str, TensorInfo], turn: int) -> Segment | None:
        new, tensors = self.program.backend.new_tensor, self.tensors
        inputs: dict[str, DeviceTensor] = {}
        for name, info in infos.items():
            if name in tensors.axes:
                inputs[name] = tensors.caches[name]
            elif name in tensors.swapped:
                inputs[name] = tensors.swapped[name][turn]
            else:
                inputs[name] = new(info.dims, info.dtype, "upload")
        outputs = {}
        for name in plan.output_names:
            info = plan.infos[name]
            outputs[name] = new(info.dims, info.dtype, "readback")
        for name, pair in tensors.swapped.items():
            outputs[tensors.pairs[name]] = pair[1 - turn]
        resident = {*tensors.pairs, *tensors.pairs.values()}
        return plan.bound_segment(inputs, outputs, resident)

    def _leave_place(self) -> None:
        """Run as usual from now on, with a plan for every length."""
        tensors = self.tensors
        tensors.values = {name: self.value(name) for name in tensors.pairs}
        self._in_place = False
        tensors.drop()

    @property
    def steps_in_place(self) -> bool:
        """Whether a step of one row can be recorded: caches in place, and nothing else."""
        tensors = self.tensors
        return (
            self._in_place
            and self.begun
            and tensors.length > 0
            and bool(tensors.caches)
            and tensors.only_caches
            and self._padded_axes is not None
        )

    # --- state outside a run ----------------------------------------------------------------------

    def drain(self) -> None:
        """Wait for queued steps, whose tokens are not wanted.

        Raises:
            InvalidInputError: the state has been closed.
            StateLostError: its device was lost.
        """
        self.check_open()
        self.tensors.drain()

    def check_open(self) -> None:
        """Raise as `drain` where the state cannot be used any more."""
        if self.lost:
            raise StateLostError(
                "the state was lost with its device", hint="make a new one, and fill it again"
            )
        if self.closed:
            raise InvalidInputError("the state has been closed", hint="make a new one")

    def value(self, name: str) -> DeviceTensor:
        """Return an input's value in the next run; for a cache, a copy of its rows."""
        self.drain()
        if not self.begun and name in self._initial:
            return self.tensors.upload(self._initial[name])
        if not self.begun and name not in self.tensors.caches:
            raise InvalidInputError(f"there is no '{name}' before the first run")
        return self.tensors.current(name)

    def memory(self, name: str) -> DeviceTensor:
        """Return the whole memory of a cache, spare room included; other state as `value`."""
        self.drain()
        caches = self.tensors.caches
        return caches[name] if name in caches else self.value(name)

    def truncate(self, length: int) -> None:
        """Drop all rows of the caches from `length` on.

        Raises:
            InvalidInputError: there are fewer rows, or part of the state does not grow.
        """
        tensors = self.tensors
        if not 0 <= length <= tensors.length:
            raise InvalidInputError(
                f"the state holds {tensors.length} rows and cannot keep {length}",
                hint="keep between none and all of them",
            )
        if length == tensors.length:
            return
        self.drain()
        if not self.begun:
            raise InvalidInputError(
                "the initial rows cannot be forgotten", hint="begin with fewer, or run once first"
            )
        if not tensors.only_caches:
            fixed = next(name for name in tensors.pairs if name not in tensors.axes)
            raise InvalidInputError(
                f"the state '{fixed}' has no rows to forget", hint="reset it, and run again"
            )
        if length == 0 and not self._initial:
            self.reset()
        else:
            tensors.truncate(length)

    def restore(self, rows: Mapping[str, Array]) -> None:
        """Begin a new sequence with these rows in the caches.

        Raises:
            InvalidInputError: nothing has run yet, an array is missing or does not fit, or part of
                the state does not grow.
        """
        self.check_open()
        tensors = self.tensors
        length = self._length_of(rows)
        tensors.check_capacity(length)
        values = {name: tensors.upload(rows[name]) for name in tensors.axes}
        self.reset()
        tensors.load(values, length)
        self.begun = True

    def _length_of(self, rows: Mapping[str, Array]) -> int:
        tensors = self.tensors
        if not tensors.axes or not tensors.only_caches:
            raise InvalidInputError(
                "the state cannot be restored", hint="only caches can, once something has run"
            )
        if rows.keys() != tensors.axes.keys():
            given = ", ".join(map(str, rows)) or "none"
            raise InvalidInputError(f"the caches are {', '.join(tensors.axes)}, got {given}")
        lengths = set()
        for name, (held, axis) in tensors.rows().items():
            one = rows[name]
            fits = one.ndim == len(held.shape) and one.dtype == held.dtype
            if not fits or resized(one.shape, axis, 0) != resized(held.shape, axis, 0):
                raise InvalidInputError(
                    f"'{name}' holds {held.dtype} {list(held.shape)}, which cannot take "
                    f"{one.dtype} {list(one.shape)}"
                )
            lengths.add(one.shape[axis])
        if len(lengths) != 1 or 0 in lengths:
            raise InvalidInputError(f"the caches have {sorted(lengths)} rows", hint="give all one")
        return int(lengths.pop())

    def reset(self) -> None:
        """Start again from the initial state, keeping memory and plans."""
        self.drain()
        self.tensors.length, self.begun = self._first_rows, False

    def plan_anew(self) -> None:
        """Drop plans and queued steps; keep the state."""
        self.tensors.close_recordings()
        if self.tensors.seat is not None:
            self.tensors.seat.plan_anew()

    def close(self, lost: bool = False) -> None:
        """Release memory and plans; `lost` says that they went down with the device."""
        self.lost = lost and not self.closed
        self.closed = True
        self.tensors.length = 0
        self.tensors.values.clear()
        self.tensors.drop()


def _first_rows(array: Array, axis: int, rows: int) -> Array:
    """Return the valid rows."""
    cut: Array = np.moveaxis(np.moveaxis(array, axis, 0)[:rows], 0, axis)
    return cut
