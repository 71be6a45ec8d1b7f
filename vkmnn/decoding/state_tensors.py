"""The tensors of a state: growing caches, and values swapped between two tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from vkmnn.base.packed_rows import Packing, pack_rows, packed_words
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.program import Program
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, DType

MIN_ROWS = 256
"""Initial rows of caches: unused rows cost little."""

Shape = tuple[int, ...]


class Recorded(Protocol):
    """Runs that are recorded on the tensors of a state."""

    def drain(self) -> None:
        """Wait for queued runs and discard their results."""

    def close(self) -> None:
        """Release the recordings and their plans."""


class Seat(Protocol):
    """A part of shared memory, owned by one of several states."""

    def place(self, room: int) -> bool:
        """Move the caches to the part, with room for this many rows; False if they do not fit."""

    def drain(self) -> None:
        """Wait for batched steps with this state, and leave the batch."""

    def plan_anew(self) -> None:
        """Close the recordings on the whole memory."""

    def leave(self) -> None:
        """Release the part."""


class StateTensors:
    """The state between runs, in memory that plans are recorded on.

    A call that fails leaves `length` and the rows of the caches as they were: memory is allocated,
    and rows are copied, before anything here changes.

    Args:
        program: the network.
        pairs: each input with the output that feeds it in the next run.
        capacity: the maximum number of rows in a cache; None for no limit.
        packing: how the rows of caches are packed.

    Attributes:
        length: rows of the caches.
        axes: the axis that grows, of each input that is a cache.
        depths: elements of a packed row, by input; the last axis of its tensors counts words.
        values: results of an ordinary run, by input; caches and swapped tensors take precedence.
        caches: memory for `room` rows, by input.
        swapped: two tensors of equal size, by input; a run reads the one at `turn`, and writes the
            other.
        recordings: runs recorded on the memory, by any key; closed when it moves.
        seat: the part of shared memory that holds the caches, or None.
    """

    def __init__(
        self,
        program: Program,
        pairs: Mapping[str, str],
        capacity: int | None,
        packing: Packing = "",
    ) -> None:
        self._program = program
        self.pairs = dict(pairs)
        self.capacity = capacity
        self.packing = packing
        self.length = 0
        self.room = 0
        self.axes: dict[str, int] = {}
        self.depths: dict[str, int] = {}
        self.values: dict[str, DeviceTensor] = {}
        self.caches: dict[str, DeviceTensor] = {}
        self.swapped: dict[str, tuple[DeviceTensor, DeviceTensor]] = {}
        self.turn = 0
        self.recordings: dict[object, Recorded] = {}
        self.seat: Seat | None = None

    @property
    def only_caches(self) -> bool:
        """Whether the state consists of caches only."""
        return self.axes.keys() == self.pairs.keys()

    def upload(self, value: DeviceTensor | Array) -> DeviceTensor:
        """Return a tensor on the device with these elements."""
        if isinstance(value, DeviceTensor):
            return value
        tensor = self._program.backend.new_tensor(value.shape, DType.from_numpy(value.dtype))
        tensor.copy_from(value)
        return tensor

    def packed(self, name: str, rows: DeviceTensor | Array) -> DeviceTensor | Array:
        """Return rows of a cache as its memory holds them: floats are packed, if it is."""
        if not self.packing or not DType.from_numpy(rows.dtype).is_float:
            return rows
        self.depths[name] = rows.shape[-1]
        return pack_rows(np.asarray(rows), self.packing)

    def stored_shape(self, shape: Shape) -> Shape:
        """Return the shape in memory of a cache of floats."""
        return (*shape[:-1], packed_words(self.packing, shape[-1])) if self.packing else shape

    def float_shape(self, name: str, rows: int) -> Shape:
        """Return the shape of a cache as the network declares it."""
        *sizes, last = resized(self.caches[name].shape, self.axes[name], rows)
        return (*sizes, self.depths.get(name, last))

    def current(self, name: str) -> DeviceTensor:
        """Return the tensor that the next run reads; for a cache, a copy of its rows."""
        if name in self.axes and name in self.caches:
            cache, axis = self.caches[name], self.axes[name]
            return self._copied(cache, axis, resized(cache.shape, axis, self.length), self.length)
        if name in self.swapped:
            return self.swapped[name][self.turn]
        return self.values[name]

    def rows(self) -> dict[str, tuple[DeviceTensor, int]]:
        """Return the tensors that hold rows, and their axes; none before the first run."""
        held = {**self.values, **self.caches}
        return {name: (held[name], axis) for name, axis in self.axes.items() if name in held}

    def swap(self) -> None:
        """Swap inputs and outputs for the next run."""
        if self.swapped:
            self.turn = 1 - self.turn

    # --- capacity --------------------------------------------------------------------------------

    def make_room(self, total: int) -> None:
        """Increase the capacity to at least this many rows, as a power of two.

        Raises:
            InvalidInputError: they exceed the capacity.
        """
        self.check_capacity(total)
        if total > self.room:
            self._grow_to(total)

    def check_capacity(self, total: int) -> None:
        """Refuse more rows than the capacity."""
        if self.capacity is not None and total > self.capacity:
            raise InvalidInputError(
                f"the state is full: it holds {self.length} of {self.capacity} rows, and "
                f"{total - self.length} would be added",
                hint="create it with a larger capacity, or reset it",
            )

    def _grow_to(self, total: int) -> None:
        room = max(MIN_ROWS, 1 << max(total - 1, 0).bit_length())
        room = min(room, self.capacity or room)
        if self.seat is not None:
            if self.only_caches and self.seat.place(room):
                return
            self.leave_seat()
        self.close_recordings()
        self.room = 0  # until all caches have as much: some may have more than others
        for name, (old, axis) in self.rows().items():
            shape = resized(old.shape, axis, room)
            if name not in self.caches or old.shape != shape:
                self.caches[name] = self._copied(old, axis, shape, self.length)
        self.room = room

    def _copied(self, old: DeviceTensor, axis: int, shape: Shape, rows: int) -> DeviceTensor:
        """Return a new tensor of this shape, with the first rows of another one."""
        tensor = self._program.backend.new_tensor(shape, DType.from_numpy(old.dtype))
        tensor.copy_rows_from(old, axis, rows)
        return tensor

    def move(self, caches: Mapping[str, DeviceTensor], room: int) -> None:
        """Switch to other memory that holds the same rows."""
        self.caches, self.room = dict(caches), room
        self.close_recordings()

    # --- results of an ordinary run --------------------------------------------------------------

    def take_over(self, values: dict[str, DeviceTensor], axes: dict[str, int], length: int) -> None:
        """Copy the results of an ordinary run into the memory that holds the state."""
        kept = self.values, self.axes, self.length
        self.values, self.axes, self.length = values, axes, length
        try:
            if axes:
                self._take_over_rows()
            self._take_over_fixed({n: value for n, value in values.items() if n not in axes})
        except BaseException:
            self.values, self.axes, self.length = kept
            raise

    def _take_over_fixed(self, fixed: Mapping[str, DeviceTensor]) -> None:
        """Copy values of a fixed size to their swapped tensors."""
        if any(pair[0].shape != fixed[name].shape for name, pair in self.swapped.items()):
            self.close_recordings()
            self.swapped.clear()
            self.turn = 0
        for name, value in fixed.items():
            if name in self.swapped:
                self.swapped[name][self.turn].copy_from(value)
            else:
                other = self._program.backend.new_tensor(value.shape, DType.from_numpy(value.dtype))
                self.swapped[name] = value, other

    def _take_over_rows(self) -> None:
        """Copy rows from values to caches."""
        fits = all(
            resized(self.values[name].shape, axis, self.room) == self.caches[name].shape
            for name, axis in self.axes.items()
            if name in self.caches
        )
        if self.caches and not fits:  # another batch, for example
            self.leave_seat()
        if self.length > self.room or not fits:
            self.close_recordings()
            self.caches.clear()
            self.room = 0
        if self.length > self.room:
            self._grow_to(self.length)
        else:
            for name, axis in self.axes.items():
                self.caches[name].copy_rows_from(self.values[name], axis, self.length)

    # --- changes of length -----------------------------------------------------------------------

    def truncate(self, length: int) -> None:
        """Keep the first rows."""
        if not self.caches:
            self.values = {
                name: self._copied(value, axis, resized(value.shape, axis, length), length)
                for name, (value, axis) in self.rows().items()
            }
        self.length = length

    def load(self, values: dict[str, DeviceTensor], length: int) -> None:
        """Load these rows; on failure, the length stays, and rows may be lost."""
        if self.caches:
            before, self.length = self.length, 0  # none need to be kept
            try:
                if length > self.room:
                    self._grow_to(length)
                for name, axis in self.axes.items():
                    self.caches[name].copy_rows_from(values[name], axis, length)
            except BaseException:
                self.length = before
                raise
        self.values, self.length = values, length

    # --- recordings ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Wait for all queued steps and discard their tokens."""
        self.drain_recordings()
        if self.seat is not None:
            self.seat.drain()

    def drain_recordings(self) -> None:
        """Wait for queued steps of this state alone."""
        for one in self.recordings.values():
            one.drain()

    def close_recordings(self) -> None:
        """Release everything that is recorded on the memory."""
        closing = list(self.recordings.values())
        self.recordings.clear()  # first: none may be used again, whatever closing raises
        for one in closing:
            one.close()

    def leave_seat(self) -> None:
        """Leave the shared memory."""
        seat, self.seat = self.seat, None
        if seat is not None:
            seat.leave()

    def drop(self) -> None:
        """Release the memory; `values` stay."""
        self.caches.clear()
        self.swapped.clear()
        self.room = self.turn = 0
        self.leave_seat()
        self.close_recordings()


def resized(shape: Shape, axis: int | None, size: int) -> Shape:
    """Return a shape with another size of one axis; None changes nothing."""
    return shape if axis is None else (*shape[:axis], size, *shape[axis + 1 :])
