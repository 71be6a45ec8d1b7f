"""Caches of several states in one memory, side by side, and the steps that they take at once.

Decoding is bound by reading the weights: a step of eight texts takes little longer than one of a
single text. Each state asks for its next token alone, in any order and from any thread. The first
that has none left starts a step of all that go on with the token they got last; the others find
theirs made already. So nobody waits for anybody, texts begin and end between steps, and a text that
asks for nothing takes no part.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from typing import Protocol

from vkmnn.core.backend import Segment, TensorPurpose
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.core.program import Program
from vkmnn.decoding.batched_ring import Joint, Places
from vkmnn.decoding.batched_step import joined
from vkmnn.decoding.decode_step import (
    CHOSEN,
    GOES_ON,
    LENGTH,
    NEXT,
    NUMBER,
    Drawing,
    Following,
)
from vkmnn.decoding.padded_graph import CannotGrowError
from vkmnn.decoding.step_ring import QUEUE
from vkmnn.ir import Array, DType, Graph, TensorInfo
from vkmnn.records import dataclass

_log = logging.getLogger(__name__)

Pick = Callable[[Array, int], int]
"""Chooses the token after as many by scores on the host; asked again, it chooses the same."""

ALIGNED_ROWS = 16
"""Caches have room for a multiple of it, so that each begins where devices bind memory."""


class Member(Protocol):
    """A state, as a pool sees it."""

    length: int

    def caches(self) -> Mapping[str, tuple[DeviceTensor, int]]:
        """Return what it holds, and the axes that grow."""

    def settle_alone(self) -> None:
        """Wait for steps of its own."""

    def move(self, caches: Mapping[str, DeviceTensor], room: int) -> None:
        """Take other memory; recordings on the memory before are closed."""

    def chain(self, following: Following, candidates: int, alone: bool) -> Graph:
        """Return a step on a token that the device knows."""

    def planned(self, graph: Graph, infos: Mapping[str, TensorInfo]) -> Plan:
        """Return a plan."""


@dataclass(slots=True, eq=False)
class _Row:
    """A state on the pool.

    Attributes:
        member: the state. place: where its caches are.
        placed: whether they are on the pool.
        shared: whether its text is being generated.
        going: whether it takes part in steps: with this `token` next, after `rows` rows.
        until: rows up to which tokens are wanted, as far as that is known.
        drawing: how to draw. pick: chooses on the host instead.
        pending: tokens that have been chosen and not been asked for.
        expects: token and rows of the call that goes on.
    """

    member: Member
    place: int
    placed: bool = False
    shared: bool = False
    going: bool = False
    token: int = 0
    rows: int = 0
    until: int = 0
    drawing: Drawing | None = None
    pick: Pick | None = None
    pending: deque[int] = field(default_factory=deque)
    expects: tuple[int, int] = (-1, -1)

    def wants(self, room: int) -> bool:
        """Tell whether one more step is of use."""
        few = self.rows - self.member.length < QUEUE
        return self.going and self.shared and few and self.rows < min(self.until, room)

    def stop(self) -> None:
        """Take no part from now on; forget tokens that were not asked for."""
        self.going = False
        self.pending.clear()
        self.expects = (-1, -1)


class CachePool:
    """Memory for the caches of several states, and the recordings of their steps.

    Args:
        program: the network.
        most: how many states there may be.

    Attributes:
        busy: whether steps may be taken at once, or have been.
        waited: CPU seconds that waiting for steps took.
    """

    def __init__(self, program: Program, most: int) -> None:
        self._program = program
        self._most = most
        self._rows: list[_Row | None] = []
        self._tensors: dict[str, DeviceTensor] = {}
        self._room = self._places = 0
        self._joints: dict[tuple[int, int, bool], Joint] = {}
        self._joint: Joint | None = None
        self._taking: list[_Row] = []
        self._goes_on = False  # the device knows what the next step runs
        self._broken = False  # an error or an interruption: nothing that is queued is wanted
        self._joins = True
        self.busy = False
        self.waited = 0.0

    # --- states ----------------------------------------------------------------------------------

    def add(self, member: Member) -> bool:
        """Give a state a place; False where there is none left."""
        if None in self._rows:
            place = self._rows.index(None)
            self._rows[place] = _Row(member, place)
            return True
        if len(self._rows) == self._most:
            return False
        self._rows.append(_Row(member, len(self._rows)))
        return True

    def leave(self, member: Member) -> None:
        """Take back the place of a state, which has other memory now, or none."""
        row = self._row(member)
        self._rows[row.place] = None
        row.stop()
        if row in self._taking:
            self._taking, self._broken = [], True
        if not any(self._rows):
            self._close_joints()
            self._tensors.clear()
            self._room = self._places = 0
            self._rows.clear()

    def share(self, member: Member, shared: bool) -> None:
        """Say whether a state's text is being generated."""
        row = self._row(member)
        row.shared = shared  # first: whatever settling raises, its text has ended
        if not shared:
            self.settle(member)
        self.busy = self.busy or (self._joins and self._several())

    def settle(self, member: Member) -> None:
        """Let a state alone with its caches: it takes part in no step from now on."""
        row = self._row(member)
        was, row.going = row.going, False
        if was and row in self._taking:
            with self._watched():
                self._drain()
        row.stop()

    def place(self, member: Member, room: int) -> bool:
        """Give a state memory for `room` rows; False where its caches cannot be put together."""
        held = member.caches()
        room = max(-(-room // ALIGNED_ROWS) * ALIGNED_ROWS, self._room)
        places = 1 << (len(self._rows) - 1).bit_length()
        if any(not axis or tensor.shape[0] != 1 for tensor, axis in held.values()):
            return False
        if room == self._room and places == self._places:
            caches = _images(self._tensors, self._row(member).place)
            for name, (tensor, axis) in held.items():
                caches[name].copy_rows_from(tensor, axis, member.length)
            self._row(member).placed = True
            member.move(caches, room)
            return True
        made = {
            name: self._program.backend.new_tensor(
                (places, *_with(tensor.shape, axis, room)[1:]), DType.from_numpy(tensor.dtype)
            )
            for name, (tensor, axis) in held.items()
        }
        if any(one.images(n, 1) is None for one in made.values() for n in range(places)):
            return False
        self._move_all(member, made, room, places)
        return True

    def _move_all(
        self, member: Member, made: dict[str, DeviceTensor], room: int, places: int
    ) -> None:
        """Copy all caches into larger memory."""
        with self._watched():
            self._drain()
        moving = [row for row in self._members() if row.member is member or row.placed]
        moved = []
        for row in moving:
            row.member.settle_alone()
            count = max(row.member.length, row.rows if row.going else 0)
            own = _images(made, row.place)
            for name, (tensor, axis) in row.member.caches().items():
                own[name].copy_rows_from(tensor, axis, count)
            moved.append((row, own))
        self._tensors, self._room, self._places = made, room, places
        with ExitStack() as all_of_it:  # whatever raises
            all_of_it.callback(self._close_joints)
            for row, own in moved:
                row.placed = True
                all_of_it.callback(row.member.move, own, room)

    def _members(self) -> Iterator[_Row]:
        return (row for row in self._rows if row is not None)

    def _row(self, member: Member) -> _Row:
        return next(row for row in self._members() if row.member is member)

    # --- steps -----------------------------------------------------------------------------------

    def follow(
        self,
        member: Member,
        token: int,
        following: Following,
        ahead: int,
        drawing: Drawing | None,
        pick: Pick | None,
    ) -> int | None:
        """Run a token of a state, with the next ones of others; see `State.follow`.

        Returns:
            None where the state had better run it alone.
        """
        row, length = self._row(member), member.length
        if self._broken:
            self._forget()
        goes_on = (
            row.going
            and row.expects == (token, length)
            and row.drawing is drawing
            and row.pick is pick
        )
        if not (goes_on and row.pending):
            if not (self._joins and row.shared and self._places > 1 and self._several()):
                self.settle(member)
                self.busy = (self._joins and self._several()) or any(
                    one.going for one in self._members()
                )
                return None
            if not goes_on:
                self._start(row, token, drawing, pick)
        row.until = length + 1 + ahead
        try:
            with self._watched():
                while not row.pending:
                    self._advance(row, following)
        except CannotGrowError as error:
            _log.info("texts take turns: %s", error)
            self._joins = False
            row.stop()
            return None
        chosen = row.pending.popleft()
        row.expects = chosen, length + 1
        return chosen

    def announce(
        self, member: Member, token: int, ahead: int, drawing: Drawing | None, pick: Pick | None
    ) -> None:
        """Say what `follow` will be called with next, so that others' steps may take it along."""
        row = self._row(member)
        if self._joins and row.shared and row.placed and not self._broken:
            self._start(row, token, drawing, pick)
            row.expects, row.until = (token, member.length), member.length + 1 + ahead

    def _several(self) -> bool:
        return sum(row.shared for row in self._members()) > 1

    def _start(self, row: _Row, token: int, drawing: Drawing | None, pick: Pick | None) -> None:
        """Let a state take part."""
        self.settle(row.member)
        row.member.settle_alone()
        row.token, row.rows, row.going = token, row.member.length, True
        row.drawing, row.pick = drawing, pick
        self._goes_on = False

    def _advance(self, row: _Row, following: Following) -> None:
        """Finish the oldest step with this state; queue more, as far as they are of use."""
        if row not in self._taking:
            self._drain()
        if not self._queued():
            self._compose(row, following)
        while self._queued() < QUEUE and self._all_want():
            self._submit()
        self._take()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note an error or an interruption: it may have left anything half done."""
        try:
            yield
        except CannotGrowError:
            raise
        except BaseException:
            self._broken = True
            raise

    def _queued(self) -> int:
        return self._joint.queued if self._joint is not None else 0

    def _all_want(self) -> bool:
        """Tell whether one more step may be queued: all want it, and the device knows its tokens.

        While a text that is being generated takes no part, the next step may be one with it.
        """
        missing = any(row.shared and row not in self._taking for row in self._members())
        return not missing and all(
            row.wants(self._room) and row.pick is None for row in self._taking
        )

    def _compose(self, row: _Row, following: Following) -> None:
        """Queue a step of this state and of others that want one."""
        taking = [one for one in self._members() if one is row or one.wants(self._room)]
        draws = {one.place: one.drawing for one in taking if one.drawing is not None}
        texts = 1 << max(taking[-1].place, 1).bit_length()
        candidates = max(
            (one.candidates(following.vocabulary) for one in draws.values()), default=0
        )
        key = texts, candidates, any(one.pick is not None for one in taking)
        joint = self._joints.get(key)
        if joint is None:
            joint = self._joints[key] = self._new_joint(row.member, following, *key)
        if joint is not self._joint or taking != self._taking or not self._goes_on:
            tokens = {one.place: one.token for one in taking}
            joint.set(tokens, {one.place: one.rows for one in taking}, draws)
        self._joint, self._taking, self._goes_on = joint, taking, True
        self._submit()

    def _submit(self) -> None:
        assert self._joint is not None
        drawn = [row for row in self._taking if row.drawing is not None]
        self._joint.submit(
            {row.place: float(row.drawing.numbers[row.rows]) for row in drawn if row.drawing}
        )
        for row in self._taking:
            row.rows += 1

    def _take(self) -> None:
        """Finish the oldest step, and give each state its token."""
        joint = self._joint
        assert joint is not None
        before = joint.waited
        tokens, scores = joint.finish()
        self.waited += joint.waited - before
        for row in self._taking:
            if not row.going:
                self._goes_on = False
            elif row.pick is not None and scores is not None:
                row.token = row.pick(scores[row.place], row.rows)
                self._goes_on = False
            else:
                row.token = int(tokens[row.place])
            if row.going:
                row.pending.append(row.token)

    def _drain(self) -> None:
        """Finish all steps that are queued; each state keeps its tokens."""
        while self._queued():
            self._take()

    def _forget(self) -> None:
        """Wait for what is queued after an error; each state begins anew."""
        if self._joint is not None:
            self._joint.forget()
        for row in self._members():
            row.stop()
        self._goes_on = self._broken = False

    # --- recordings ------------------------------------------------------------------------------

    def _new_joint(
        self, member: Member, following: Following, texts: int, candidates: int, scored: bool
    ) -> Joint:
        """Record the step of as many texts.

        Raises:
            CannotGrowError: that is impossible.
        """
        graph = member.chain(following, candidates, alone=False)
        if not scored:
            chosen = [info for info in graph.outputs if info.name in (CHOSEN, NEXT)]
            graph = replace(graph, outputs=chosen)
        graph = joined(graph, texts)
        infos = {info.name: info for info in graph.inputs}
        plan = member.planned(graph, infos)
        places = self._new_places(graph, infos, following, scored)
        caches = {name: tensor.images(0, texts) for name, tensor in self._tensors.items()}
        segments: list[Segment] = []
        for turn in range(QUEUE):
            after = (turn + 1) % QUEUE
            own = {following.token: places.tokens[turn], LENGTH: places.lengths[turn]}
            there = {name: one for name, one in caches.items() if one is not None}
            inputs = {**there, **places.of(turn), **own}
            outputs = {NEXT: places.lengths[after], CHOSEN: places.tokens[after]}
            if scored:
                outputs[following.scores] = places.scores[turn]
            segment = plan.bound_segment(inputs, outputs, {*inputs, *outputs})
            if segment is None:
                for one in segments:
                    one.close()
                plan.close()
                raise CannotGrowError("a step of several texts is not one plan of the device")
            segments.append(segment)
        return Joint(plan, segments, places)

    def _new_places(
        self, graph: Graph, infos: Mapping[str, TensorInfo], following: Following, scored: bool
    ) -> Places:
        new = self._program.backend.new_tensor

        def each(info: TensorInfo, purpose: TensorPurpose = "readback") -> list[DeviceTensor]:
            return [new(info.dims, info.dtype, purpose) for _ in range(QUEUE)]

        known = {*self._tensors, following.token, LENGTH, NUMBER}
        settings = {
            name: new(info.dims, info.dtype, "upload")
            for name, info in infos.items()
            if name not in known
        }
        assert GOES_ON in settings
        numbers = each(infos[NUMBER], "upload") if NUMBER in infos else []
        scores = next((i for i in graph.outputs if scored and i.name == following.scores), None)
        return Places(
            each(infos[following.token]),
            each(infos[LENGTH]),
            numbers,
            [] if scores is None else each(scores),
            settings,
        )

    def plan_anew(self) -> None:
        """Forget recordings, and steps that are queued."""
        for row in self._members():
            row.stop()
        self._broken = False
        self._close_joints()

    def _close_joints(self) -> None:
        closing = list(self._joints.values())
        self._joints.clear()
        self._joint, self._taking, self._goes_on = None, [], False
        for joint in closing:
            joint.close()


def _images(tensors: Mapping[str, DeviceTensor], place: int) -> dict[str, DeviceTensor]:
    """Return the parts of tensors at a place."""
    found = {name: tensor.images(place, 1) for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])
