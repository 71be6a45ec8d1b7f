"""The recordings of a step that several texts take at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from vkmnn.core.backend import Segment
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.plan import Plan
from vkmnn.decoding.decode_step import GOES_ON, NUMBER, SHARPNESS, TOP_K, TOP_P, Drawing
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array
from vkmnn.records import dataclass

_NOTHING: dict[str, Array] = {}  # is what the host feeds
LEFT_OUT = -1
"""The number of rows of a text that takes no part: its caches stay as they are."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the recordings of a step read and write, those of lists in turn.

    Attributes:
        tokens: what is run, and what the step before chose, [texts, 1].
        lengths: rows of the caches, [texts].
        numbers: from 0 to 1, for steps that draw, [texts, 1]; else none.
        scores: where the host reads them, [texts, …]; else none.
        settings: `GOES_ON`, and of steps that draw, how.
    """

    tokens: Sequence[DeviceTensor]
    lengths: Sequence[DeviceTensor]
    numbers: Sequence[DeviceTensor]
    scores: Sequence[DeviceTensor]
    settings: Mapping[str, DeviceTensor]

    def of(self, turn: int) -> dict[str, DeviceTensor]:
        """Return what a recording reads beside tokens, lengths and caches."""
        own = {NUMBER: self.numbers[turn]} if self.numbers else {}
        return {**self.settings, **own}


class Joint:
    """The recordings of a step, taken in turns; each writes what the next one reads.

    Args:
        plan: of the step.
        segments: its recordings.
        places: where they read and write.

    Attributes:
        waited: CPU seconds that waiting for steps took.
    """

    def __init__(self, plan: Plan, segments: Sequence[Segment], places: Places) -> None:
        self._plan = plan
        self._segments = list(segments)
        self._places = places
        self._turn = 0
        self._queue: deque[int] = deque()
        self._begun: set[int] = set()
        self.waited = 0.0

    @property
    def queued(self) -> int:
        """Steps that have been submitted, and whose tokens have not been taken."""
        return len(self._queue)

    def set(
        self, tokens: Mapping[int, int], lengths: Mapping[int, int], how: Mapping[int, Drawing]
    ) -> None:
        """Say what the next step runs, while none is queued.

        Args:
            tokens: by the place of a text; the others take no part.
            lengths: how many rows the caches of these texts hold.
            how: of texts that draw. Others take the likeliest token.
        """
        turn, places = self._turn, self._places
        if turn in self._begun:  # an interruption hid whether it runs
            self._segments[turn].end(None)
        _put(places.tokens[turn], tokens, 0)
        _put(places.lengths[turn], lengths, LEFT_OUT)
        _put(places.settings[GOES_ON], dict.fromkeys(tokens, 1), 0)
        if places.numbers:
            _put(places.settings[SHARPNESS], {n: one.sharpness for n, one in how.items()}, 1)
            _put(places.settings[TOP_K], {n: one.top_k or np.inf for n, one in how.items()}, 1)
            _put(places.settings[TOP_P], {n: one.top_p for n, one in how.items()}, 1)

    def submit(self, numbers: Mapping[int, float]) -> None:
        """Queue a step on what the one before chose, or on what was set.

        Args:
            numbers: from 0 to 1, of texts that draw.
        """
        turn = self._turn
        if self._places.numbers:
            _put(self._places.numbers[turn], numbers, 0)
        self._begun.add(turn)
        self._segments[turn].begin(_NOTHING)
        self._queue.append(turn)
        self._turn = (turn + 1) % len(self._segments)

    def finish(self) -> tuple[Array, Array | None]:
        """Wait for the oldest step; return the tokens that it chose, and scores for the host."""
        turn, start = self._queue[0], time.thread_time()
        try:
            self._segments[turn].end(None)
        except VkmnnError:
            self._begun.discard(self._queue.popleft())
            raise
        finally:
            self.waited += time.thread_time() - start
        self._begun.discard(turn)
        self._queue.popleft()
        places = self._places
        tokens = places.tokens[(turn + 1) % len(places.tokens)].numpy().reshape(-1)
        if not places.scores:
            return tokens, None
        scores = places.scores[turn].numpy()
        return tokens, scores.reshape(len(scores), -1)

    def forget(self) -> None:
        """Wait for what is queued; its tokens are not wanted."""
        while self._queue:
            self.finish()

    def close(self) -> None:
        """Release the recordings, which are waited for, and the plan."""
        self._queue.clear()
        for segment in self._segments:
            segment.close()
        self._plan.close()


def _put(place: DeviceTensor, values: Mapping[int, float], other: float) -> None:
    """Write a number for each text."""
    array = np.full(place.shape[0], other, place.dtype)
    for text, value in values.items():
        array[text] = value
    place.copy_from(array.reshape(place.shape))
