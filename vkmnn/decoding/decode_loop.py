"""The decode loop of one sequence: steps that feed themselves, alone or batched."""

from __future__ import annotations

import logging

from vkmnn.core.backend import Segment
from vkmnn.core.plan import Plan
from vkmnn.decoding.cache_pool import BatchSeat, CachePool
from vkmnn.decoding.decode_step import LENGTH, NEXT_LENGTH, NEXT_TOKEN, DecoderIO, decode_step
from vkmnn.decoding.in_place import InPlaceRuns
from vkmnn.decoding.kv_state import KVState
from vkmnn.decoding.padded_graph import CannotRewriteError, zero_padded
from vkmnn.decoding.sampling import DeviceSampling, StepSampler
from vkmnn.decoding.step_ring import RING_SIZE, StepRing, recorded
from vkmnn.ir import Array, DType, Graph

_log = logging.getLogger(__name__)


class DecodeLoop:
    """Self-feeding steps of one sequence, alone or in a batch with others.

    The constructor and the methods are for `core.Session.call`.

    Args:
        state: the caches.
        io: the token input, the logits and the other inputs of the network.
        pool: memory shared with other sequences, so that steps can be batched; or None.
    """

    def __init__(self, state: KVState, io: DecoderIO, pool: CachePool | None = None) -> None:
        self.state = state
        self.io = io
        self._tensors = state.tensors
        self._pool = pool
        self._tensors.seat = None if pool is None else pool.join(self)
        self._ring: StepRing | None = None
        self._sampling: DeviceSampling | None = None  # of the last step
        self._possible = True

    def step(self, token: int, ahead: int, sampler: StepSampler) -> int | None:
        """Run a token and return the next one.

        Steps on the tokens that follow are queued. They are dropped unless the next call passes
        the token that this one returned.

        Args:
            token: the token to run.
            ahead: number of steps needed after this one, as far as known.
            sampler: how to choose the next token. The host samples in batched steps only.

        Returns:
            None if the network cannot run in steps; nothing has run then.

        Raises:
            InvalidInputError: the state is closed, or full.
        """
        pool, tensors = self._pool, self._tensors
        if pool is not None and pool.batching:
            chosen = self._batched(pool, token, ahead, sampler)
            if chosen is not None:
                return chosen
        if sampler is not None and not isinstance(sampler, DeviceSampling):
            return None
        ring, length = self._ring, tensors.length
        if ring is None or not ring.live or sampler is not self._sampling or length >= tensors.room:
            ring = self._ring_for(sampler)
            if ring is None:
                return None
            self._ring, self._sampling = ring, sampler
        wanted = min(1 + ahead, RING_SIZE, tensors.room - length)
        chosen = ring.step(token, length, wanted, sampler)
        tensors.length = length + 1
        return chosen

    def _batched(self, pool: CachePool, token: int, ahead: int, sampler: StepSampler) -> int | None:
        """Run a token as part of a batched step; None if no such step is due."""
        tensors = self._tensors
        if not self._can_step() or not self._samples(sampler):
            return None
        tensors.make_room(tensors.length + 1)
        seat = self._seat
        if seat is None:
            return None
        before = pool.waited
        chosen = pool.step(seat, token, ahead, sampler)
        self.state.waits.seconds += pool.waited - before
        tensors.length += chosen is not None
        return chosen

    def prefetch(self, token: int, ahead: int, sampler: StepSampler) -> None:
        """Announce the next call of `step`, so that batched steps of others can include it."""
        seat, tensors = self._seat, self._tensors
        if seat is None or not seat.pool.batching:
            return
        if self._can_step() and self._samples(sampler) and tensors.length < tensors.room:
            seat.pool.prefetch(seat, token, ahead, sampler)

    def set_batchable(self, batchable: bool) -> None:
        """Allow or end batched steps: whether tokens are being generated."""
        seat = self._seat
        if seat is not None:
            seat.pool.set_batchable(seat, batchable)

    @property
    def _seat(self) -> BatchSeat | None:
        """The place on the pool, while it holds the caches; the only reference on this side."""
        seat = self._tensors.seat
        assert seat is None or isinstance(seat, BatchSeat)
        return seat

    def _samples(self, sampler: StepSampler) -> bool:
        """Return whether a step supports the sampler."""
        return bool(self.io.vocabulary) or not isinstance(sampler, DeviceSampling)

    @property
    def _in_place(self) -> InPlaceRuns:
        assert self.state.in_place is not None  # see `_can_step`
        return self.state.in_place

    def _can_step(self) -> bool:
        return self._possible and self.state.steps_in_place

    # --- recordings ------------------------------------------------------------------------------

    def _ring_for(self, sampling: DeviceSampling | None) -> StepRing | None:
        """Return a ring with room for one more row; None if steps cannot be recorded."""
        state, tensors = self.state, self._tensors
        state.check_open()
        if not state.begun or not self._samples(sampling):
            return None
        sampled = sampling is not None
        ring = self._recorded_ring(sampled)
        if ring is not None and tensors.length < tensors.room and not self._others_queued(ring):
            return ring
        state.drain()
        if not self._can_step():
            return None
        tensors.make_room(tensors.length + 1)
        return self._recorded_ring(sampled) or self._new_ring(sampled)

    def _recorded_ring(self, sampled: bool) -> StepRing | None:
        ring = self._tensors.recordings.get(sampled)
        assert ring is None or isinstance(ring, StepRing)
        return ring

    def _others_queued(self, ring: StepRing) -> bool:
        others = (one for one in self._tensors.recordings.values() if one is not ring)
        return any(isinstance(one, StepRing) and one.queued for one in others)

    def _new_ring(self, sampled: bool) -> StepRing | None:
        """Record a ring; None if that is impossible, now and later."""
        try:
            ring = self._tensors.recordings[sampled] = self._record(sampled)
        except CannotRewriteError as error:
            _log.info("tokens are chosen on the host: %s", error)
            self._possible = False
            return None
        return ring

    def step_graph(self, sampled: bool, batched: bool) -> Graph:
        """Return the self-feeding step; see `decode_step`.

        Raises:
            CannotRewriteError: the network cannot be rewritten.
        """
        in_place, io = self._in_place, self.io
        evaluate = in_place.evaluate
        shapes = in_place.padded_shapes(io.feeds(0))
        _, _, padded = in_place.padded_network({**shapes, io.token: (1, 1)}, 1, fuse=not batched)
        assert padded is not None

        def feeds(past: int) -> dict[str, Array]:
            own = {name: zero_padded(value, shapes[name]) for name, value in io.feeds(past).items()}
            return own | padded.feeds(past, past + 1, evaluate)

        return decode_step(padded, io, feeds, evaluate, sampled, batched)

    def planned(self, graph: Graph) -> Plan:
        """Return a plan for a network of static shapes."""
        return self._in_place.planned(graph, {info.name: info for info in graph.inputs})

    def _record(self, sampled: bool) -> StepRing:
        graph = self.step_graph(sampled, batched=False)
        io, caches = self.io, self._tensors.caches
        infos = {info.name: info for info in graph.inputs}
        new, token = self.state.program.backend.new_tensor, infos[io.token]
        tokens = [new(token.dims, token.dtype, "readback") for _ in range(RING_SIZE)]
        lengths = [new((1,), DType.INT64) for _ in range(RING_SIZE)]
        known = {*caches, io.token, LENGTH}
        settings = {n: new(i.dims, i.dtype) for n, i in infos.items() if n not in known}
        plan = self.planned(graph)

        def record(turn: int) -> Segment | None:
            inputs = {**caches, **settings, io.token: tokens[turn], LENGTH: lengths[turn]}
            after = (turn + 1) % RING_SIZE
            outputs = {NEXT_LENGTH: lengths[after], NEXT_TOKEN: tokens[after]}
            return plan.bound_segment(inputs, outputs, {*inputs, *outputs})

        segments = recorded(plan, RING_SIZE, record, "a step")
        return StepRing(plan, segments, tokens, lengths, settings, self.state.waits)
