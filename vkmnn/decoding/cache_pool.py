"""Continuous batching: caches of several sequences in one memory, and their batched steps.

Decoding is bound by reading the weights: a step of eight sequences takes little longer than a step
of one. Each sequence asks for its next token alone, in any order and from any thread. The first one
without a ready token starts a step, which includes all sequences whose next input is known; their
tokens are then ready. So no sequence waits for another one, sequences start and end between steps,
and a sequence that asks for nothing is not included.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from typing import Protocol

from vkmnn.base.records import dataclass
from vkmnn.core.backend import Segment, TensorPurpose
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.core.program import Program
from vkmnn.decoding.batched_ring import BatchedRing, BatchTensors
from vkmnn.decoding.batched_step import batched_step
from vkmnn.decoding.decode_step import (
    LENGTH,
    LENGTH_STEP,
    NEXT_LENGTH,
    NEXT_TOKEN,
    UNIFORM,
    DecoderIO,
)
from vkmnn.decoding.kv_state import KVState
from vkmnn.decoding.padded_graph import CannotRewriteError
from vkmnn.decoding.sampling import DeviceSampling, StepSampler
from vkmnn.decoding.state_tensors import StateTensors, resized
from vkmnn.decoding.step_ring import RING_SIZE, recorded
from vkmnn.ir import DType, Graph, TensorInfo

_log = logging.getLogger(__name__)

ALIGNED_ROWS, ALIGNED_PACKED_ROWS = 16, 64
"""Alignment of cache capacities, so that each cache starts where devices can bind memory.

Packed rows may be of any number of words.
"""


class Member(Protocol):
    """The decode loop of a sequence, from the pool's perspective."""

    state: KVState
    io: DecoderIO

    def step_graph(self, sampled: bool, batched: bool) -> Graph:
        """Return the self-feeding step."""

    def planned(self, graph: Graph) -> Plan:
        """Return a plan for a network of static shapes."""


@dataclass(slots=True, eq=False)
class BatchSeat:
    """A sequence's place on a pool.

    Attributes:
        pool: the pool.
        member: the decode loop of the sequence.
        tensors: its caches.
        index: the index of the place.
        placed: whether the caches are in the pool.
        batchable: whether tokens are being generated.
        active: whether it takes part in steps, with this `token` next, after `rows` rows.
        until: the length up to which tokens are requested, as far as known.
        sampler: how to choose tokens.
        ready: chosen tokens that have not been requested.
        expects: token and length of the call that continues.
    """

    pool: CachePool
    member: Member
    tensors: StateTensors
    index: int
    placed: bool = False
    batchable: bool = False
    active: bool = False
    token: int = 0
    rows: int = 0
    until: int = 0
    sampler: StepSampler = None
    ready: deque[int] = field(default_factory=deque)
    expects: tuple[int, int] = (-1, -1)

    @property
    def host_samples(self) -> bool:
        """Whether the host samples."""
        return self.sampler is not None and not isinstance(self.sampler, DeviceSampling)

    def wants(self, room: int) -> bool:
        """Return whether one more step is useful."""
        few = self.rows - self.tensors.length < RING_SIZE
        return self.active and self.batchable and few and self.rows < min(self.until, room)

    def stop(self) -> None:
        """Leave later steps; drop tokens that were not requested."""
        self.active = False
        self.ready.clear()
        self.expects = (-1, -1)

    def place(self, room: int) -> bool:
        """Move the caches to the pool, with room for this many rows; False if they cannot be."""
        return self.pool.place(self, room)

    def drain(self) -> None:
        """Wait for batched steps with this sequence, and leave the batch."""
        self.pool.drain(self)

    def plan_anew(self) -> None:
        """Close the recordings of the pool."""
        self.pool.plan_anew()

    def leave(self) -> None:
        """Release the place."""
        self.pool.leave(self)


class CachePool:
    """Memory for the caches of several sequences, and the recordings of their batched steps.

    Its methods are for `core.Session.call`.

    Args:
        program: the network.
        max_batch: maximum number of sequences.

    Attributes:
        batching: whether steps can be batched, or batched steps are in use.
        waited: CPU seconds spent on waiting for steps.
    """

    def __init__(self, program: Program, max_batch: int) -> None:
        self._program = program
        self._max_batch = max_batch
        self._seats: list[BatchSeat | None] = []
        self._tensors: dict[str, DeviceTensor] = {}
        self._room = self._places = 0
        self._rings: dict[tuple[int, bool, bool], BatchedRing] = {}
        self._ring: BatchedRing | None = None
        self._batch: list[BatchSeat] = []
        self._chained = False  # the device knows the input of the next step
        self._failed = False  # after an error or an interruption: queued steps are discarded
        self._possible = True
        self.batching = False
        self.waited = 0.0

    # --- seats -----------------------------------------------------------------------------------

    def join(self, member: Member) -> BatchSeat | None:
        """Return a place for a sequence, or None if all are in use."""
        if None in self._seats:
            index = self._seats.index(None)
        elif len(self._seats) < self._max_batch:
            index = len(self._seats)
            self._seats.append(None)
        else:
            return None
        seat = self._seats[index] = BatchSeat(self, member, member.state.tensors, index)
        return seat

    def leave(self, seat: BatchSeat) -> None:
        """Free the place of a sequence, which no longer uses it."""
        self._seats[seat.index] = None
        seat.stop()
        if seat in self._batch:
            self._batch, self._failed = [], True
        if not any(self._seats):
            self._close_rings()
            self._tensors.clear()
            self._room = self._places = 0
            self._seats.clear()

    def set_batchable(self, seat: BatchSeat, batchable: bool) -> None:
        """Note whether tokens of a sequence are being generated."""
        seat.batchable = batchable  # first: draining may raise, although the text has ended
        if not batchable:
            self.drain(seat)
        self.batching = self.batching or (self._possible and self._several())

    def drain(self, seat: BatchSeat) -> None:
        """Wait for batched steps with a sequence, and remove it from the batch."""
        was, seat.active = seat.active, False
        if was and seat in self._batch:
            with self._watched():
                self._finish_all()
        seat.stop()

    def place(self, seat: BatchSeat, room: int) -> bool:
        """Move caches to memory with room for this many rows; False if they cannot be batched."""
        held = seat.tensors.rows()
        aligned = ALIGNED_PACKED_ROWS if seat.tensors.packing else ALIGNED_ROWS
        room = max(-(-room // aligned) * aligned, self._room)
        places = 1 << (len(self._seats) - 1).bit_length()
        if any(not axis or tensor.shape[0] != 1 for tensor, axis in held.values()):
            return False
        if room == self._room and places == self._places:
            caches = _images(self._tensors, seat.index)
            for name, (tensor, axis) in held.items():
                caches[name].copy_rows_from(tensor, axis, seat.tensors.length)
            seat.placed = True
            seat.tensors.move(caches, room)
            return True
        made = {
            name: self._program.backend.new_tensor(
                (places, *resized(tensor.shape, axis, room)[1:]), DType.from_numpy(tensor.dtype)
            )
            for name, (tensor, axis) in held.items()
        }
        if any(one.images(n, 1) is None for one in made.values() for n in range(places)):
            return False
        self._move_all(seat, made, room, places)
        return True

    def _move_all(
        self, new: BatchSeat, made: dict[str, DeviceTensor], room: int, places: int
    ) -> None:
        """Copy all caches into larger memory."""
        with self._watched():
            self._finish_all()
        moved = []
        for seat in [one for one in self._taken() if one is new or one.placed]:
            seat.tensors.drain_recordings()
            count = max(seat.tensors.length, seat.rows if seat.active else 0)
            own = _images(made, seat.index)
            for name, (tensor, axis) in seat.tensors.rows().items():
                own[name].copy_rows_from(tensor, axis, count)
            moved.append((seat, own))
        self._tensors, self._room, self._places = made, room, places
        with ExitStack() as all_of_it:  # whatever raises
            all_of_it.callback(self._close_rings)
            for seat, own in moved:
                seat.placed = True
                all_of_it.callback(seat.tensors.move, own, room)

    def _taken(self) -> Iterator[BatchSeat]:
        return (seat for seat in self._seats if seat is not None)

    # --- steps -----------------------------------------------------------------------------------

    def step(self, seat: BatchSeat, token: int, ahead: int, sampler: StepSampler) -> int | None:
        """Run a token of a sequence, with the next ones of others; see `DecodeLoop.step`.

        Returns:
            None if the sequence should run it alone.
        """
        length = seat.tensors.length
        if self._failed:
            self._recover()
        goes_on = seat.active and seat.expects == (token, length) and seat.sampler is sampler
        if not (goes_on and seat.ready):
            if not (self._possible and seat.batchable and self._places > 1 and self._several()):
                self.drain(seat)
                self.batching = (self._possible and self._several()) or any(
                    one.active for one in self._taken()
                )
                return None
            if not goes_on:
                self._start(seat, token, sampler)
        seat.until = length + 1 + ahead
        try:
            with self._watched():
                while not seat.ready:
                    self._advance(seat)
        except CannotRewriteError as error:
            _log.info("sequences take turns: %s", error)
            self._possible = False
            seat.stop()
            return None
        chosen = seat.ready.popleft()
        seat.expects = chosen, length + 1
        return chosen

    def prefetch(self, seat: BatchSeat, token: int, ahead: int, sampler: StepSampler) -> None:
        """Announce the next call of `step`, so that steps of others can include it."""
        if self._possible and seat.batchable and seat.placed and not self._failed:
            self._start(seat, token, sampler)
            length = seat.tensors.length
            seat.expects, seat.until = (token, length), length + 1 + ahead

    def _several(self) -> bool:
        return sum(seat.batchable for seat in self._taken()) > 1

    def _start(self, seat: BatchSeat, token: int, sampler: StepSampler) -> None:
        """Add a sequence to the batch."""
        self.drain(seat)
        seat.tensors.drain_recordings()
        seat.token, seat.rows, seat.active = token, seat.tensors.length, True
        seat.sampler = sampler
        self._chained = False

    def _advance(self, seat: BatchSeat) -> None:
        """Finish the oldest step with this sequence; queue more while they are useful."""
        if seat not in self._batch:
            self._finish_all()
        if not self._queued():
            self._compose(seat)
        while self._queued() < RING_SIZE and self._all_want():
            self._submit()
        self._finish()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Handle an error or an interruption, which leaves queued steps in doubt."""
        try:
            yield
        except CannotRewriteError:
            raise
        except BaseException:
            self._failed = True
            raise

    def _queued(self) -> int:
        return self._ring.queued if self._ring is not None else 0

    def _all_want(self) -> bool:
        """Return whether one more step may be queued: all need it, and the device has its tokens.

        If a sequence that is being generated is not included yet, the next step may include it.
        """
        missing = any(seat.batchable and seat not in self._batch for seat in self._taken())
        return not missing and all(
            seat.wants(self._room) and not seat.host_samples for seat in self._batch
        )

    def _compose(self, seat: BatchSeat) -> None:
        """Queue a step of this sequence and of others that need one."""
        batch = [one for one in self._taken() if one is seat or one.wants(self._room)]
        sampling = {
            one.index: one.sampler for one in batch if isinstance(one.sampler, DeviceSampling)
        }
        size = 1 << max(batch[-1].index, 1).bit_length()
        key = size, bool(sampling), any(one.host_samples for one in batch)
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = self._new_ring(seat.member, *key)
        if ring is not self._ring or batch != self._batch or not self._chained:
            tokens = {one.index: one.token for one in batch}
            ring.set(tokens, {one.index: one.rows for one in batch}, sampling)
        self._ring, self._batch, self._chained = ring, batch, True
        self._submit()

    def _submit(self) -> None:
        assert self._ring is not None
        self._ring.submit(
            {
                seat.index: float(seat.sampler.uniforms[seat.rows])
                for seat in self._batch
                if isinstance(seat.sampler, DeviceSampling)
            }
        )
        for seat in self._batch:
            seat.rows += 1

    def _finish(self) -> None:
        """Finish the oldest step, and give each sequence its token."""
        ring = self._ring
        assert ring is not None
        before = ring.waited
        tokens, logits = ring.finish()
        self.waited += ring.waited - before
        for seat in self._batch:
            sampler = seat.sampler
            if not seat.active:
                self._chained = False
                continue
            if logits is None or sampler is None or isinstance(sampler, DeviceSampling):
                seat.token = int(tokens[seat.index])
            else:
                seat.token = sampler(logits[seat.index], seat.rows)
                self._chained = False
            seat.ready.append(seat.token)

    def _finish_all(self) -> None:
        """Finish all queued steps; each sequence keeps its tokens."""
        while self._queued():
            self._finish()

    def _recover(self) -> None:
        """Wait for queued steps after an error; each sequence starts anew."""
        if self._ring is not None:
            self._ring.drain()
        for seat in self._taken():
            seat.stop()
        self._chained = self._failed = False

    # --- recordings ------------------------------------------------------------------------------

    def _new_ring(
        self, member: Member, size: int, sampled: bool, host_samples: bool
    ) -> BatchedRing:
        """Record a batched step of this size.

        Raises:
            CannotRewriteError: that is impossible.
        """
        graph, io = member.step_graph(sampled, batched=True), member.io
        if not host_samples:
            chosen = [info for info in graph.outputs if info.name in (NEXT_TOKEN, NEXT_LENGTH)]
            graph = replace(graph, outputs=chosen)
        graph = batched_step(graph, size)
        infos = {info.name: info for info in graph.inputs}
        tensors = self._new_tensors(graph, infos, io, host_samples)
        images = {name: tensor.images(0, size) for name, tensor in self._tensors.items()}
        caches = {name: one for name, one in images.items() if one is not None}
        plan = member.planned(graph)

        def record(turn: int) -> Segment | None:
            after = (turn + 1) % RING_SIZE
            own = {io.token: tensors.tokens[turn], LENGTH: tensors.lengths[turn]}
            inputs = {**caches, **tensors.inputs(turn), **own}
            outputs = {NEXT_LENGTH: tensors.lengths[after], NEXT_TOKEN: tensors.tokens[after]}
            if host_samples:
                outputs[io.logits] = tensors.logits[turn]
            return plan.bound_segment(inputs, outputs, {*inputs, *outputs})

        segments = recorded(plan, RING_SIZE, record, "a batched step")
        return BatchedRing(plan, segments, tensors)

    def _new_tensors(
        self, graph: Graph, infos: Mapping[str, TensorInfo], io: DecoderIO, host_samples: bool
    ) -> BatchTensors:
        new = self._program.backend.new_tensor

        def each(info: TensorInfo, purpose: TensorPurpose = "readback") -> list[DeviceTensor]:
            return [new(info.dims, info.dtype, purpose) for _ in range(RING_SIZE)]

        known = {*self._tensors, io.token, LENGTH, UNIFORM}
        settings = {
            name: new(info.dims, info.dtype, "upload")
            for name, info in infos.items()
            if name not in known
        }
        assert LENGTH_STEP in settings
        logits = [info for info in graph.outputs if host_samples and info.name == io.logits]
        return BatchTensors(
            each(infos[io.token]),
            each(infos[LENGTH]),
            each(infos[UNIFORM], "upload") if UNIFORM in infos else [],
            each(logits[0]) if logits else [],
            settings,
        )

    def plan_anew(self) -> None:
        """Drop recordings and queued steps."""
        for seat in self._taken():
            seat.stop()
        self._failed = False
        self._close_rings()

    def _close_rings(self) -> None:
        closing = list(self._rings.values())
        self._rings.clear()
        self._ring, self._batch, self._chained = None, [], False
        for ring in closing:
            ring.close()


def _images(tensors: Mapping[str, DeviceTensor], index: int) -> dict[str, DeviceTensor]:
    """Return the parts of tensors at a place."""
    found = {name: tensor.images(index, 1) for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}
