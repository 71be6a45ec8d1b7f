"""Steps on tokens that the device chooses, some of them queued before the host looks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from vkmnn.core.backend import Segment
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.decoding.decode_step import DRAWS, SHARPNESS, TOP_K, TOP_P, Drawing
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array
from vkmnn.records import dataclass

QUEUE = 4
"""Recordings of a step, and so the number of steps that may be queued."""

REFILL = 3
"""With fewer steps queued, as many are submitted as are missing.

One after the other they cost less than one at a time: what a token runs on the host is not in the
processor's caches, where a device that computes on the CPU has put weights meanwhile.
"""

_NOTHING: dict[str, Array] = {}  # is what the host feeds


@dataclass(slots=True)
class Waits:
    """How steps are waited for, and CPU seconds that waiting for the device has taken.

    Attributes:
        seconds: so far.
        together: how many steps to wait for at once, where they are queued: nobody wants a token
            before the others are there.
    """

    seconds: float = 0.0
    together: int = 1


class Follower:
    """The recordings of a step, taken in turns; each writes what the next one reads.

    Args:
        plan: of the step.
        segments: its recordings.
        tokens: for each recording, where it finds the token, [1, 1].
        lengths: for each recording, where it finds the number of rows, [1].
        settings: of steps that draw, where they find how; empty for others.
        waits: what waiting for steps is added to.

    Attributes:
        ended: how many of the queued steps are known to have ended.
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
        self._plan = plan
        self._segments = list(segments)
        self._tokens = list(tokens)
        self._lengths = list(lengths)
        self._chosen = [token.storage.reader() for token in (*tokens[1:], tokens[0])]
        self._next_turns = [*range(1, len(segments)), 0]
        self._settings = dict(settings)
        self._drawing: Drawing | None = None
        self._turn = 0
        self._queue: deque[int] = deque()
        self._begun: set[int] = set()
        self._after = (-1, -1)
        self._waits = waits
        self.ended = 0

    @property
    def queued(self) -> int:
        """Steps that have been submitted, and whose token has not been taken."""
        return len(self._queue)

    def step(self, token: int, rows: int, wanted: int, drawing: Drawing | None) -> int:
        """Run a token after `rows` rows; return the one that the device chose.

        Args:
            token: the one to run.
            rows: how many rows the caches hold.
            wanted: how many steps to have queued, this one included.
            drawing: how to draw; None takes the likeliest.
        """
        if self._after != (token, rows) or self._drawing is not drawing:
            self._begin(token, rows, drawing)
        queue = self._queue
        if len(queue) < REFILL:
            while len(queue) < wanted:
                turn = self._turn
                self._begun.add(turn)
                self._segments[turn].begin(_NOTHING)
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

    def _begin(self, token: int, rows: int, drawing: Drawing | None) -> None:
        """Make this token the next one to be run, with `rows` rows in the caches."""
        self.forget()
        if drawing is not None and self._drawing is not drawing:
            self._set(drawing)
        self._drawing = drawing
        if self._turn in self._begun:  # an interruption hid whether it runs
            self._segments[self._turn].end(None)
        place = self._tokens[self._turn]
        place.copy_from(np.array([[token]], place.dtype))
        self._lengths[self._turn].copy_from(np.array([rows], np.int64))

    def _set(self, drawing: Drawing) -> None:
        numbers = np.zeros(self._settings[DRAWS].shape, np.float32)
        given = drawing.numbers[: numbers.size]
        numbers[: given.size] = given
        self._settings[DRAWS].copy_from(numbers)
        for name, value in (
            (SHARPNESS, drawing.sharpness),
            (TOP_K, drawing.top_k or np.inf),
            (TOP_P, drawing.top_p),
        ):
            self._settings[name].copy_from(np.array([[value]], np.float32))

    def _end_together(self) -> None:
        """Wait for several steps by waiting for the last of them."""
        more = min(self._waits.together, len(self._queue)) - 1
        if more:
            self._segments[self._queue[more]].end(None)
            self.ended = more

    def _finish(self) -> int:
        """Wait for the oldest step; return its number. Interrupted, it remains to be waited for."""
        turn = self._queue[0]
        try:
            self._segments[turn].end(None)
        except VkmnnError:
            self._begun.discard(self._queue.popleft())
            raise
        self._begun.discard(turn)
        return self._queue.popleft()

    def forget(self) -> None:
        """Wait for what is queued; its tokens are not wanted."""
        self._after = (-1, -1)
        self.ended = 0
        while self._queue:
            self._finish()

    def close(self) -> None:
        """Release the recordings, which are waited for, and the plan."""
        self._queue.clear()
        for segment in self._segments:
            segment.close()
        self._plan.close()
