"""Recordings of a decode step in a ring: each writes the inputs of the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.backend import Segment
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.decoding.decode_step import SAMPLING, UNIFORMS
from vkmnn.decoding.padded_graph import CannotRewriteError
from vkmnn.decoding.sampling import DeviceSampling
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.ir import Array

RING_SIZE = 4
"""Recordings of a step, and so the number of steps that may be queued."""

REFILL = 3
"""With fewer steps queued, the missing ones are submitted.

Submitting several in a row costs less than one at a time: a device that runs on the CPU evicts the
host's code from the processor's caches.
"""

NO_FEEDS: dict[str, Array] = {}
"""Host-fed inputs of a self-feeding step."""


@dataclass(slots=True)
class Waits:
    """How to wait for steps, and the CPU seconds spent on it.

    Attributes:
        seconds: so far.
        together: queued steps to wait for at once, if no token is needed before the last.
    """

    seconds: float = 0.0
    together: int = 1


def recorded(
    plan: Plan, count: int, record: Callable[[int], Segment | None], what: str
) -> list[Segment]:
    """Record a plan several times; if a recording fails, close the others and the plan.

    Args:
        plan: the plan.
        count: how many recordings.
        record: creates a recording by its number; None if the network is not a single plan of the
            device.
        what: name of the recordings, for the message.

    Raises:
        CannotRewriteError: a recording is None.
    """
    segments: list[Segment] = []
    try:
        for turn in range(count):
            segment = record(turn)
            if segment is None:
                raise CannotRewriteError(f"{what} is not one plan of the device")
            segments.append(segment)
    except BaseException:
        for one in segments:
            one.close()
        plan.close()
        raise
    return segments


class Ring:
    """Recordings that are submitted in turn and finished in order.

    Args:
        plan: plan of the step.
        segments: its recordings.
    """

    def __init__(self, plan: Plan, segments: Sequence[Segment]) -> None:
        self._plan: Plan | None = plan
        self._segments = list(segments)
        self._turn = 0
        self._queue: deque[int] = deque()
        self._begun: set[int] = set()

    @property
    def queued(self) -> int:
        """Submitted steps whose results have not been read."""
        return len(self._queue)

    def _free_turn(self) -> int:
        """Return the index of the next recording, after waiting for all that may still run.

        They would write its inputs; an error or an interruption hid their ends.
        """
        for turn in sorted(self._begun):
            self._end(turn)
        return self._turn

    def _end(self, turn: int) -> None:
        """Wait for a recording."""
        try:
            self._segments[turn].end(None)
        except InvalidInputError:  # reported by a kernel of a run that has ended
            self._begun.discard(turn)
            raise
        self._begun.discard(turn)

    def _finish(self) -> int:
        """Wait for the oldest step and return its index; if interrupted, it stays queued."""
        try:
            self._end(self._queue[0])
        except VkmnnError:
            self._queue.popleft()
            raise
        return self._queue.popleft()

    def drain(self) -> None:
        """Wait for queued steps and discard their tokens."""
        while self._queue:
            self._finish()

    def close(self) -> None:
        """Wait for the recordings, and release them and the plan."""
        self._queue.clear()
        segments, plan = self._segments, self._plan
        self._segments, self._plan = (
            [],
            None,
        )  # frees the memory without waiting for the ring to be dropped
        for segment in segments:
            segment.close()
        if plan is not None:
            plan.close()


class StepRing(Ring):
    """The recordings of a step of one sequence.

    Args:
        plan: plan of the step.
        segments: its recordings.
        tokens: the input token of each recording, [1, 1].
        lengths: the input length of each recording, [1].
        settings: inputs that control sampling; empty for greedy steps.
        waits: accumulates the time spent on waiting.

    Attributes:
        ended: number of queued steps known to have ended.
        live: whether steps may continue: the ring has not been drained or closed since the last.
    """

    def __init__(
        self,
        plan: Plan,
        segments: Sequence[Segment],
        tokens: Sequence[DeviceTensor],
        lengths: Sequence[DeviceTensor],
        settings: Mapping[str, DeviceTensor],
        waits: Waits,
    ) -> None:
        super().__init__(plan, segments)
        self._tokens = list(tokens)
        self._lengths = list(lengths)
        self._chosen = [token.storage.reader() for token in (*tokens[1:], tokens[0])]
        self._next_turns = [*range(1, len(segments)), 0]
        self._settings = dict(settings)
        self._sampling: DeviceSampling | None = None
        self._after = (-1, -1)
        self._waits = waits
        self.ended = 0
        self.live = False

    def step(self, token: int, rows: int, wanted: int, sampling: DeviceSampling | None) -> int:
        """Run a token after `rows` rows; return the next one, as chosen by the device.

        Args:
            token: the one to run.
            rows: how many rows the caches hold.
            wanted: how many steps to have queued, including this one.
            sampling: how to sample; None chooses the likeliest.
        """
        if self._after != (token, rows) or self._sampling is not sampling:
            self._begin(token, rows, sampling)
        queue = self._queue
        if len(queue) < REFILL:
            while len(queue) < wanted:
                turn = self._turn
                self._begun.add(turn)
                self._segments[turn].begin(NO_FEEDS)
                queue.append(turn)
                self._turn = self._next_turns[turn]
        self._after = (-1, -1)
        start = time.thread_time()
        if self.ended:
            self.ended -= 1
        elif self._waits.together > 1:
            self._end_together()
        turn = self._finish()
        self._waits.seconds += time.thread_time() - start
        chosen = self._chosen[turn]()
        self._after = (chosen, rows + 1)
        return chosen

    def _begin(self, token: int, rows: int, sampling: DeviceSampling | None) -> None:
        """Write the token and the length for the next step."""
        self.drain()
        if sampling is not None and self._sampling is not sampling:
            self._set(sampling)
        self._sampling = sampling
        turn = self._free_turn()
        place = self._tokens[turn]
        place.copy_from(np.array([[token]], place.dtype))
        self._lengths[turn].copy_from(np.array([rows], np.int64))
        self.live = True

    def _set(self, sampling: DeviceSampling) -> None:
        uniforms = np.zeros(self._settings[UNIFORMS].shape, np.float32)
        given = sampling.uniforms[: uniforms.size]
        uniforms[: given.size, 0] = given
        self._settings[UNIFORMS].copy_from(uniforms)
        self._settings[SAMPLING].copy_from(np.array([sampling.settings], np.float32))

    def _end_together(self) -> None:
        """Wait for several steps at once."""
        more = min(self._waits.together, len(self._queue)) - 1
        if more:
            self._segments[self._queue[more]].end(None)
            self.ended = more

    def drain(self) -> None:
        """Wait for queued steps and discard their tokens."""
        self._after = (-1, -1)
        self.ended = 0
        self.live = False
        super().drain()

    def close(self) -> None:
        """Wait for the recordings, and release them and the plan."""
        self.live = False
        self._tokens, self._lengths, self._chosen, self._settings = [], [], [], {}
        super().close()
