"""Runs of a network on state that stays in place on the device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from vkmnn.base.packed_rows import Packing
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.program import Program
from vkmnn.decoding.in_place import InPlaceRuns
from vkmnn.decoding.padded_graph import CannotRewriteError
from vkmnn.decoding.state_tensors import Shape, StateTensors, resized
from vkmnn.decoding.step_ring import Waits
from vkmnn.errors import InvalidInputError, ShapeError, StateLostError
from vkmnn.ir import Array

_log = logging.getLogger(__name__)


class KVState:
    """State that runs of a network read and write.

    A run is in place if the network allows it: rows are appended to caches, and values of a fixed
    size are swapped. Otherwise it runs as usual, and its outputs become the state.

    Args:
        program: the network; this is fastest when it is a single stage on the device.
        pairs: each input with the output that feeds it in the next run.
        capacity: the maximum number of rows in a cache; None for no limit.
        initial: initial values; by default caches are empty and everything else is zero.
        waits: how to wait for steps; a new object by default.
        packing: how rows of caches are packed in memory. Where they are, runs after the first have
            to be in place.

    A call that fails leaves the rows of the caches as they were; `restore` may leave none.

    Attributes:
        program: the network.
        tensors: the state.
        in_place: runs in place; None if the network does not allow them.
        begun: whether anything has run since the state was reset.
        waits: the argument.
        closed: whether the state has been closed.
        lost: whether its device was lost.

    Raises:
        InvalidInputError: the initial rows exceed the capacity, or rows cannot be packed.
    """

    def __init__(
        self,
        program: Program,
        pairs: Mapping[str, str],
        capacity: int | None,
        initial: Mapping[str, Array],
        waits: Waits | None = None,
        packing: Packing = "",
    ) -> None:
        self.program = program
        self._initial = dict(initial)
        self.tensors = StateTensors(program, pairs, capacity, packing)
        self.begun = False
        self._first_rows = self.tensors.length = self._initial_rows()
        self.waits = Waits() if waits is None else waits
        fits = InPlaceRuns.fit(program)
        self.in_place = InPlaceRuns(program, self.tensors, self.waits) if fits else None
        if not fits:
            self._check_packed("the network does not run on one device alone")
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
                hint="create it with a larger capacity",
            )
        return rows

    # --- runs ------------------------------------------------------------------------------------

    def prepare(self, feeds: Mapping[str, Any], growing: Mapping[str, int]) -> bool:
        """Make room for caches that are still empty, so that their first run is in place, too.

        Args:
            feeds: those of a first run.
            growing: the other inputs with an axis as long as the caches after a run, and that axis.

        Returns:
            Whether there is room; if not, an ordinary run has to come first.
        """
        tensors, in_place = self.tensors, self.in_place
        if in_place is None or self._initial or self.begun:
            return False
        if tensors.caches:
            return tensors.only_caches
        first = {name: self._first(name, feeds) for name in tensors.pairs}
        before = {name: array.shape for name, array in first.items()}
        try:
            after = in_place.state_after({**{n: x.shape for n, x in feeds.items()}, **before})
        except ShapeError:  # the run itself says where
            return False
        axes, rows, regular = self._growth(before, {n: info.dims for n, info in after.items()})
        kept = all(info.dtype.numpy == first[name].dtype for name, info in after.items())
        if not regular or not kept or axes.keys() != tensors.pairs.keys():
            return False
        in_place.padded_axes = dict(growing)
        tensors.axes = axes
        tensors.values = {n: tensors.upload(tensors.packed(n, x)) for n, x in first.items()}
        tensors.make_room(rows)
        return True

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once; return the outputs that are not state, as arrays.

        Raises:
            InvalidInputError: the state is closed or full, or an input does not match.
        """
        self.drain()
        in_place = self.in_place
        if in_place is not None and (self._goes_on() or self._starts_in_place(in_place, feeds)):
            try:
                outputs, total = in_place.run(feeds)
            except CannotRewriteError as error:
                self._check_packed(str(error))
                _log.warning("the state is planned anew for every length: %s", error)
                self._leave_place()
            else:
                self.tensors.length, self.begun = total, True
                self.tensors.swap()
                return outputs
        return self._run_anew(feeds)

    def _goes_on(self) -> bool:
        return self.begun and (self.tensors.length > 0 or not self.tensors.axes)

    def _starts_in_place(self, in_place: InPlaceRuns, feeds: Mapping[str, Any]) -> bool:
        """Return whether a new sequence fits the memory and the plans of an earlier one."""
        tensors = self.tensors
        if tensors.length or not tensors.caches or tensors.swapped:
            return False
        if in_place.padded_axes is None or self._initial:
            return False
        return all(
            resized(tensors.stored_shape(self._first(name, feeds).shape), axis, tensors.room)
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
        axes, length, regular = self._growth(
            {name: value.shape for name, value in before.items()},
            {name: after[output].shape for name, output in tensors.pairs.items()},
        )
        tensors.check_capacity(length)
        outputs = {name: np.array(as_array(results[name])) for name in names if name not in after}
        values = {
            name: tensors.upload(tensors.packed(name, after[output])) if name in axes
            else after[output] for name, output in tensors.pairs.items()
        }  # fmt: skip
        if self.in_place is not None and regular:
            tensors.take_over(values, axes, length)
        elif self.in_place is not None:
            self._check_packed("its caches grow in different ways")
            self.in_place = None
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
                f"the initial shape of '{name}' is not known: {info.shape}",
                hint="pass its initial value: initial={name: array}",
            )
        return np.zeros([0 if size is None else size for size in shape], info.dtype.numpy)

    def _growth(
        self, before: Mapping[str, Shape], after: Mapping[str, Shape]
    ) -> tuple[dict[str, int], int, bool]:
        """Return the axes that grew, the rows after a run, and whether the next can be in place."""
        tensors = self.tensors
        axes: dict[str, int] = {}
        for name, old in before.items():
            new = after[name]
            if old == new:
                continue
            axis = [n for n, sizes in enumerate(zip(old, new, strict=False)) if len(set(sizes)) > 1]
            if len(old) != len(new) or len(axis) != 1:
                return tensors.axes, tensors.length, False
            axes[name] = axis[0]
        lengths = {after[name][axis] for name, axis in axes.items()}
        regular = len(lengths) < 2 and (not tensors.axes or axes == tensors.axes)
        return tensors.axes or axes, max(lengths, default=0), regular

    def _leave_place(self) -> None:
        """Run as usual from now on, with a plan for every length."""
        tensors = self.tensors
        tensors.values = {name: self.value(name) for name in tensors.pairs}
        self.in_place = None
        tensors.drop()

    def _check_packed(self, reason: str) -> None:
        """Raise InvalidInputError if rows should be packed, which only runs in place can read."""
        if self.tensors.packing:
            raise InvalidInputError(
                f"the caches cannot be stored as {self.tensors.packing}: {reason}",
                hint="load the model without kv_cache_dtype, or with 'f32'",
            )

    @property
    def steps_in_place(self) -> bool:
        """Whether a one-row step can be recorded: all caches are in place."""
        tensors = self.tensors
        return (
            self.in_place is not None
            and self.in_place.padded_axes is not None
            and self.begun
            and tensors.length > 0
            and bool(tensors.caches)
            and tensors.only_caches
        )

    # --- state outside a run ----------------------------------------------------------------------

    def drain(self) -> None:
        """Wait for queued steps and discard their tokens.

        Raises:
            InvalidInputError: the state has been closed.
            StateLostError: its device was lost.
        """
        self.check_open()
        self.tensors.drain()

    def check_open(self) -> None:
        """Raise as `drain` does if the state can no longer be used."""
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
        """Return the whole memory of a cache, including spare room; other state as `value`."""
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
                hint=f"keep 0 to {tensors.length} of them",
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
        packed = {name: tensors.packed(name, row) for name, row in rows.items()}
        length = self._length_of(packed)
        tensors.check_capacity(length)
        values = {name: tensors.upload(packed[name]) for name in tensors.axes}
        self.reset()
        tensors.load(values, length)
        self.begun = True

    def _length_of(self, rows: Mapping[str, Array | DeviceTensor]) -> int:
        tensors = self.tensors
        if not tensors.axes or not tensors.only_caches:
            raise InvalidInputError(
                "the state cannot be restored",
                hint="only caches can be restored, after the first run",
            )
        if rows.keys() != tensors.axes.keys():
            given = ", ".join(map(str, rows)) or "none"
            raise InvalidInputError(f"rows are needed for {', '.join(tensors.axes)}, got {given}")
        lengths = set()
        for name, (held, axis) in tensors.rows().items():
            one = rows[name]
            fits = one.ndim == len(held.shape) and one.dtype == held.dtype
            if not fits or resized(one.shape, axis, 0) != resized(held.shape, axis, 0):
                raise InvalidInputError(
                    f"'{name}' holds {held.dtype} {list(held.shape)}, which cannot take "
                    f"{one.dtype} {list(one.shape)}",
                    hint="rows are of another model, or were stored in another way "
                    "(kv_cache_dtype)",
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
        """Release memory and plans; `lost` says that they were lost with the device."""
        self.lost = lost and not self.closed
        self.closed = True
        self.tensors.length = 0
        self.tensors.values.clear()
        self.tensors.drop()
