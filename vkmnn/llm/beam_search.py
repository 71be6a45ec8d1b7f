"""Beam search: the likeliest of several sequences that are continued side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array

Guide = Callable[[Array, Sequence[int]], Array]
Early = bool | Literal["never"]
_NEVER = -1e9
MOST_BEAMS = 64


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """Options of a search, as transformers has them.

    Attributes:
        beams: sequences that are continued side by side, `num_beams`.
        length_penalty: exponent of the length by which sums of log probabilities are divided.
        early_stopping: True: stop with as many finished sequences as beams; False: when an
            improvement is unlikely; "never": when there can be none.
        before: tokens of the prompt that count as generated.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: Early = False
    before: int = 0

    def __post_init__(self) -> None:
        """Check the values; raise InvalidInputError."""
        if not 1 <= self.beams <= MOST_BEAMS:
            raise InvalidInputError(f"num_beams={self.beams} is not from 1 to {MOST_BEAMS}")


@dataclass(frozen=True, slots=True)
class Found:
    """A finished sequence.

    Attributes:
        score: the sum of its log probabilities by its length.
        tokens: the generated tokens, with the end token.
    """

    score: float
    tokens: tuple[int, ...]


class BeamSearch:
    """The state of a search.

    Args:
        options: the options.
        most: the most tokens of a sequence.
        eos: the end tokens.
        guide: returns log probabilities without those of tokens that must not follow.

    Attributes:
        tokens: the sequences that are continued, best first.
        done: whether the search has ended.
    """

    def __init__(
        self, options: BeamOptions, most: int, eos: Collection[int], guide: Guide | None
    ) -> None:
        self._options, self._most, self._guide = options, most, guide
        self._eos = np.array(sorted(eos), np.int64)
        self._kept = max(2, 1 + len(eos)) * options.beams
        self._scores = np.full(options.beams, _NEVER)
        self._scores[0] = 0
        self.tokens: list[tuple[int, ...]] = [()] * options.beams
        self._found: list[Found] = []
        self._improves = True
        self.done = False

    def advance(self, logits: Array) -> Array:
        """Continue the sequences by a token each.

        Args:
            logits: [beams, vocabulary].

        Returns:
            The sequences, by their old numbers, that the new ones continue.
        """
        beams, words = logits.shape
        sums = self._scores[:, None] + np.stack(
            [self._chances(row, there) for row, there in zip(logits, self.tokens, strict=True)]
        )
        flat = sums.reshape(-1)
        count = min(self._kept, len(flat))
        best = np.argpartition(-flat, count - 1)[:count]
        best = best[np.lexsort((best, -flat[best]))]
        parents, tokens = best // words, best % words
        ended = np.isin(tokens, self._eos) | (len(self.tokens[0]) + 1 >= self._most)
        longer = [(*self.tokens[parent], int(token))
                  for parent, token in zip(parents, tokens, strict=True)]  # fmt: skip
        self._finish(flat[best], longer, ended)
        running = np.argsort(-(flat[best] + ended * _NEVER), kind="stable")[:beams]
        self._scores = (flat[best] + ended * _NEVER)[running]
        self.tokens = [longer[number] for number in running]
        self._check_end(bool(ended.all()))
        return np.asarray(parents[running])

    def _chances(self, logits: Array, there: Sequence[int]) -> Array:
        """Return the log probabilities of the next token."""
        values = logits.astype(np.float32)
        values = values - values.max()
        values = values - np.log(np.exp(values).sum())
        return values if self._guide is None else self._guide(values, there)

    def _divided(self, score: float, length: int) -> float:
        return float(score / float(max(length, 1)) ** self._options.length_penalty)

    def _full(self) -> bool:
        return len(self._found) == self._options.beams

    def _finish(self, sums: Array, longer: Sequence[tuple[int, ...]], ended: Array) -> None:
        """Keep the best of the sequences that have ended among the first ones."""
        if not self._improves or (self._full() and self._options.early_stopping is True):
            return
        length = len(longer[0]) + self._options.before
        self._found += [
            Found(self._divided(float(sums[number]), length), longer[number])
            for number in range(min(self._options.beams, len(longer)))
            if ended[number] and sums[number] > _NEVER / 2
        ]
        self._found.sort(key=lambda one: -one.score)
        del self._found[self._options.beams :]

    def _check_end(self, all_ended: bool) -> None:
        early, length = self._options.early_stopping, len(self.tokens[0])
        if early == "never" and self._options.length_penalty > 0:
            length = self._most
        possible = self._divided(float(self._scores[0]), length + self._options.before)
        worst = self._found[-1].score if self._full() else _NEVER
        self._improves = self._improves and (not self._full() or possible > worst)
        self.done = not self._improves or (self._full() and early is True) or all_ended

    def best(self) -> tuple[int, ...]:
        """Return the best sequence, finished or not."""
        return self._found[0].tokens if self._found else self.tokens[0]
