"""Runs that read and write the tensors of a state in place."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
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
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, Graph, TensorInfo
from vkmnn.shape.folding import Evaluator


@dataclass(slots=True)
class _Run:
    """A plan that reads and writes the state in place.

    Attributes:
        plan: the plan.
        segments: its recordings, one for each direction in which state is swapped.
        padded: the network as rewritten for caches of a fixed size, if there are any.
        ahead: rows before and after a likely next run, and its feeds.
    """

    plan: Plan
    segments: list[Segment]
    padded: PaddedGraph | None
    ahead: tuple[int, int, Mapping[str, Array]] | None = None

    def feeds(self, past: int, total: int, evaluate: Evaluator) -> Mapping[str, Array]:
        """Return the host-fed values besides the network's own inputs."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead[:2] == (past, total):
            return ahead[2]
        return {} if self.padded is None else self.padded.feeds(past, total, evaluate)

    def look_ahead(self, past: int, total: int, evaluate: Evaluator) -> None:
        """Compute the host-fed values of another run while the device works."""
        if self.padded is not None and total <= self.padded.capacity:
            self.ahead = past, total, self.padded.feeds(past, total, evaluate)

    def drain(self) -> None:
        """Do nothing: no run is queued."""

    def close(self) -> None:
        """Release the recordings and the plan."""
        for segment in self.segments:
            segment.close()
        self.plan.close()


class InPlaceRuns:
    """Plans of a network for the memory of a state, and runs on them.

    Args:
        program: the network, a single stage on the device.
        tensors: the state.
        waits: accumulates the time spent on waiting.

    Attributes:
        padded_axes: for inputs with an axis as long as the caches, that axis; None before it is
            known.
    """

    def __init__(self, program: Program, tensors: StateTensors, waits: Waits) -> None:
        self._program = program
        self._tensors = tensors
        self._waits = waits
        self._rows: dict[tuple[object, ...], int] = {}
        self.padded_axes: dict[str, int] | None = None

    @staticmethod
    def fit(program: Program) -> bool:
        """Return whether runs of a network can be in place, as far as known in advance."""
        whole = program.whole
        return program.backend.records and whole is not None and not whole.content

    def run(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Run once; return the outputs that are not state, and the rows after the run.

        The caller records the rows, and that swapped tensors have changed their roles.

        Raises:
            CannotRewriteError: the network cannot run in place.
            InvalidInputError: the state is full, or an input does not match.
        """
        tensors = self._tensors
        past = tensors.length
        rows = self._new_rows(feeds) if tensors.axes else 0
        total = past + rows
        if tensors.axes:
            tensors.make_room(total)
        axes = self.padded_axes or {}
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
        self._waits.seconds += time.thread_time() - start
        ends = run.padded.padded_axes if run.padded is not None else {}
        outputs = {
            name: _first_rows(array, ends[name], total) if name in ends else array
            for name, array in results.items()
        }
        return outputs, total

    @property
    def evaluate(self) -> Evaluator:
        """Computes one op on arrays."""
        return self._plans.planner.evaluate

    @property
    def _plans(self) -> Plans:
        assert self._program.whole is not None
        return self._program.whole

    def _new_rows(self, feeds: Mapping[str, Any]) -> int:
        """Return the number of rows that the run appends."""
        length = self._tensors.length
        if self.padded_axes:
            name, axis = next(iter(self.padded_axes.items()))
            return int(feeds[name].shape[axis]) - length
        shapes = tuple(sorted((name, value.shape) for name, value in feeds.items()))
        if shapes not in self._rows:
            self._rows[shapes] = self._resolved_rows(dict(shapes))
        if self.padded_axes is None:
            self.padded_axes = self._find_padded(feeds, length + self._rows[shapes])
        return self._rows[shapes]

    def _resolved_rows(self, shapes: Mapping[str, Shape]) -> int:
        tensors = self._tensors
        state = {
            name: tensors.float_shape(name, tensors.length)
            if name in tensors.axes
            else tensors.current(name).shape
            for name in tensors.pairs
        }
        name, axis = next(iter(tensors.axes.items()))
        return self.state_after({**shapes, **state})[name].dims[axis] - tensors.length

    def state_after(self, shapes: Mapping[str, Shape]) -> dict[str, TensorInfo]:
        """Return the state after a run, by input.

        Args:
            shapes: the shapes of all inputs.

        Raises:
            ShapeError: they do not fit.
        """
        graph, planner = self._plans.graph, self._plans.planner
        infos = {info.name: replace(info, shape=shapes[info.name]) for info in graph.inputs}
        resolved = resolve(graph, infos, {}, planner.evaluate, planner.meter())
        return {name: resolved.infos[output] for name, output in self._tensors.pairs.items()}

    def _find_padded(self, feeds: Mapping[str, Any], total: int) -> dict[str, int]:
        """Return the inputs with an axis as long as the caches after the run."""
        infos = {info.name: info for info in self._plans.graph.inputs}
        other = {
            dim
            for name, axis in self._tensors.axes.items()
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

    def _recorded_run(self, shapes: Mapping[str, Shape], rows: int) -> _Run:
        """Return the recorded run that appends this many rows."""
        recordings = self._tensors.recordings
        key = (self._tensors.room, rows, *sorted(shapes.items()))
        run = recordings.get(key)
        if run is None:
            run = recordings[key] = self._record(shapes, rows)
        assert isinstance(run, _Run)
        return run

    def _record(self, shapes: Mapping[str, Shape], rows: int) -> _Run:
        graph, infos, padded = self.padded_network(shapes, rows)
        plan = self.planned(graph, infos)
        turns = 2 if self._tensors.swapped else 1
        segments = recorded(plan, turns, lambda turn: self._bound(plan, infos, turn), "the network")
        return _Run(plan, segments, padded)

    def padded_network(
        self, shapes: Mapping[str, Shape], rows: int, fuse: bool = True
    ) -> tuple[Graph, dict[str, TensorInfo], PaddedGraph | None]:
        """Return the network for the current capacity, its inputs, and the rewriting.

        Args:
            shapes: shapes of the inputs that are not state; see `padded_shapes`.
            rows: rows that a run appends.
            fuse: whether rotary embedding, appends and attention may become one op.

        Raises:
            CannotRewriteError: an op may mix rows.
        """
        graph, planner, tensors = self._plans.graph, self._plans.planner, self._tensors
        padded = None
        infos = {}
        for info in graph.inputs:
            shape = shapes.get(info.name)
            if info.name in tensors.axes:
                shape = tensors.float_shape(info.name, tensors.room - rows)
            elif shape is None:
                shape = tensors.swapped[info.name][0].shape
            infos[info.name] = replace(info, shape=shape)
        if tensors.axes:
            caches = {name: (tensors.pairs[name], axis) for name, axis in tensors.axes.items()}
            spec = CacheSpec(caches, self.padded_axes or {}, tensors.room, fuse, tensors.packing)
            padded = pad_caches(graph, infos, spec, planner.evaluate, planner.meter())
            graph, infos = padded.graph, {info.name: info for info in padded.graph.inputs}
        return graph, infos, padded

    def padded_shapes(self, feeds: Mapping[str, Any]) -> dict[str, Shape]:
        """Return the shapes of non-state inputs when the caches are full."""
        axes, room = self.padded_axes or {}, self._tensors.room
        return {name: resized(one.shape, axes.get(name), room) for name, one in feeds.items()}

    def planned(self, graph: Graph, infos: Mapping[str, TensorInfo]) -> Plan:
        """Return a plan for a network of static shapes."""
        self._plans.made += 1
        of = self._plans.planner
        return Plan(graph, infos, {}, of.main, of.backup, of.evaluate, of.meter())

    def _bound(self, plan: Plan, infos: Mapping[str, TensorInfo], turn: int) -> Segment | None:
        new, tensors = self._program.backend.new_tensor, self._tensors
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


def _first_rows(array: Array, axis: int, rows: int) -> Array:
    """Return the valid rows."""
    cut: Array = np.moveaxis(np.moveaxis(array, axis, 0)[:rows], 0, axis)
    return cut
