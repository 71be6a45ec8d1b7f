"""Selection of the next token: greedy, or sampled."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt

from vkmnn.arguments import checked_number
from vkmnn.decoding.sampling import DeviceSampling
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array

_Floats = npt.NDArray[np.float64]
_Places = npt.NDArray[np.intp]

_HEAD = 256
"""Number of likely tokens that are sorted first."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are selected.

    Attributes:
        temperature: 0 is greedy; 1 samples from the model's distribution; higher values are more
            random.
        top_k: sample only from this many likeliest tokens; 0 for all.
        top_p: sample only from the likeliest tokens whose probabilities add up to this.
        min_p: sample only from tokens at least this many times as probable as the likeliest; 0
            for all.
        repetition_penalty: above 1, tokens that have occurred become less likely.
        seed: random seed; None for a new one each time.

    Raises:
        InvalidInputError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_p: float = 0.0

    @property
    def likeliest(self) -> bool:
        """Whether decoding is greedy, without penalties."""
        return self.temperature == 0.0 and self.forgets

    @property
    def forgets(self) -> bool:
        """Whether earlier tokens do not influence the selection."""
        return self.repetition_penalty == 1.0

    @property
    def needs_host(self) -> bool:
        """Whether the device cannot select tokens in this way."""
        return not self.forgets or (self.min_p > 0.0 and not self.likeliest)

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InvalidInputError(f"{name} is {value!r}", hint="give a number")
        for name in ("top_k", "seed"):
            if getattr(self, name) is not None:
                checked_number(getattr(self, name), name)
        for name, fits, range_ in (
            ("temperature", 0 <= self.temperature <= 100, "from 0 to 100"),
            ("top_k", 0 <= self.top_k < 2**31, "from 0 to 2,147,483,647"),
            ("top_p", 0 < self.top_p <= 1, "above 0, and 1 at most"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 100, "above 0"),
        ):
            if not fits:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)}", hint=f"it must be {range_}"
                )


class Sampler:
    """Samples the tokens of one text."""

    def __init__(self, sampling: Sampling) -> None:
        self._how = sampling
        self._random = np.random.default_rng(sampling.seed)

    def on_device(self, first: int, capacity: int) -> DeviceSampling:
        """Return the device's equivalent of `sample`, from this number of tokens on.

        Args:
            first: how many tokens there are.
            capacity: how many there may be.
        """
        how = self._how
        uniforms = np.zeros(capacity, np.float32)
        uniforms[first:] = deepcopy(self._random).random(capacity - first)
        return DeviceSampling(uniforms, 1.0 / how.temperature, how.top_k, how.top_p)

    def sample(self, logits: Array, there: Collection[int]) -> int:
        """Return the next token.

        Args:
            logits: one number for every token of the vocabulary.
            there: the tokens of the text so far.
        """
        how = self._how
        if how.repetition_penalty != 1.0 and there:
            logits = _penalised(logits, there, how.repetition_penalty)
        if how.temperature == 0.0:
            return int(logits.argmax())
        scores = logits.astype(np.float64) / how.temperature
        if how.min_p > 0.0:
            scores[scores < scores.max() + np.log(how.min_p)] = -np.inf
        number = self._random.random()
        if 0 < how.top_k < scores.size:
            order = np.argpartition(scores, -how.top_k)[-how.top_k :]
            order = order[np.argsort(-scores[order], kind="stable")]
            weights = np.exp(scores[order] - scores[order[0]])
            sums = np.cumsum(weights / weights.sum())
        else:
            order, sums = _likeliest(scores, how.top_p if how.top_p < 1.0 else number)
        if how.top_p < 1.0:
            sums = sums[: int(np.searchsorted(sums, how.top_p)) + 1]
            number *= sums[-1]
        drawn = np.searchsorted(sums, number, side="right")
        return int(order[min(int(drawn), sums.size - 1)])


def _likeliest(scores: _Floats, mass: float) -> tuple[_Places, _Floats]:
    """Return tokens in order of probability, and their cumulative sums, beyond `mass`.

    A few tokens hold most of the probability, so all are sorted only if they do not.
    """
    weights = np.exp(scores - scores.max())
    total = weights.sum()
    count = _HEAD
    while True:
        order: _Places = np.arange(scores.size)
        if count < scores.size:
            least = np.partition(scores, -count)[-count]
            order = np.flatnonzero(scores >= least)
        order = order[np.argsort(-scores[order], kind="stable")]
        sums = np.cumsum(weights[order] / total)
        if order.size == scores.size or sums[-1] > mass:
            return order, sums
        count *= 16


class TextSampler:
    """Samples the tokens of a text one after the other, on the host.

    Args:
        sampler: how.
        text: the tokens so far.
    """

    def __init__(self, sampler: Sampler, text: Iterable[int]) -> None:
        self._sampler = sampler
        self._text = list(text)

    def __call__(self, scores: Array, rows: int) -> int:
        """Return the token after the first `rows` ones, which then belongs to the text.

        A failed step is repeated with the same sampled token.
        """
        if rows == len(self._text):
            self._text.append(self._sampler.sample(scores, self._text))
        return self._text[rows]


def _penalised(logits: Array, there: Collection[int], penalty: float) -> Array:
    """Penalise tokens that have occurred: divide positive logits, multiply negative ones."""
    known = np.fromiter(set(there), np.int64)
    known = known[known < logits.size]
    made: Array = logits.copy()
    there_now = logits[known].astype(np.float32)
    made[known] = np.where(there_now > 0, there_now / penalty, there_now * penalty)
    return made


def drafted(tokens: list[int], most: int, width: int = 2) -> list[int]:
    """Return a draft: the tokens that followed an earlier occurrence of the last ones.

    Args:
        tokens: the text so far.
        most: maximum tokens to guess.
        width: number of last tokens that have to match.
    """
    last = tokens[-width:]
    if len(tokens) <= width or most < 1:
        return []
    for start in range(len(tokens) - width - 1, -1, -1):
        if tokens[start : start + width] == last:
            return tokens[start + width : start + width + most]
    return []
