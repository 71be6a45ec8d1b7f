"""Selection of the next token: greedy, or sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.arguments import checked_number
from vkmnn.decoding.sampling import DeviceSampling
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array

_Floats = npt.NDArray[np.float64]
_Places = npt.NDArray[np.intp]

Guide = Callable[[Array, Sequence[int]], Array]
"""Gets the logits [vocabulary] and the tokens generated so far; returns the logits to select by."""

_HEAD = 256
"""Number of likely tokens that are sorted first."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token, and the logarithm of its probability in the model's distribution."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a token of the text, and those of the likeliest tokens at its place."""

    chosen: TokenScore
    likeliest: tuple[TokenScore, ...]


def scored(logits: Array, token: int, count: int) -> Scored:
    """Return the score of a token, with those of the `count` likeliest.

    Args:
        logits: one number for every token of the vocabulary.
        token: the token.
        count: number of likeliest tokens to list.
    """
    numbers = logits.astype(np.float32)
    numbers -= numbers.max()
    numbers -= np.log(np.exp(numbers).sum())
    best = np.argpartition(numbers, -count)[-count:] if 0 < count < numbers.size else range(count)
    order = sorted((int(one) for one in best), key=lambda one: (-numbers[one], one))
    scores = [TokenScore(one, float(numbers[one])) for one in order if one < numbers.size]
    return Scored(TokenScore(token, float(numbers[token])), tuple(scores))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are selected.

    Attributes:
        temperature: 0 is greedy; 1 samples from the model's distribution; higher values are more
            random. Less than 1e-5 counts as 0.
        top_k: sample only from this many likeliest tokens; 0 for all.
        top_p: sample only from the likeliest tokens whose probabilities add up to this.
        min_p: sample only from tokens at least this many times as probable as the likeliest; 0
            for all.
        repetition_penalty: above 1, tokens that have occurred become less likely.
        seed: random seed; None for a new one each time.
        presence_penalty: subtracted from the logits of tokens that have been generated.
        frequency_penalty: subtracted from the logits of tokens as often as they were generated.
        logit_bias: numbers to add to the logits of tokens.

    Raises:
        InvalidInputError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def likeliest(self) -> bool:
        """Whether decoding is greedy, without penalties and biases."""
        return self.temperature == 0.0 and self.forgets and not self.logit_bias

    @property
    def forgets(self) -> bool:
        """Whether earlier tokens do not influence the selection."""
        return self.repetition_penalty == 1.0 and not (
            self.presence_penalty or self.frequency_penalty
        )

    @property
    def needs_host(self) -> bool:
        """Whether the device cannot select tokens in this way."""
        return not self.forgets or bool(self.logit_bias)

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in _NUMBERS:
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
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100, "from 0.01 to 100"),
            ("presence_penalty", abs(self.presence_penalty) <= 2, "from -2 to 2"),
            ("frequency_penalty", abs(self.frequency_penalty) <= 2, "from -2 to 2"),
        ):
            if not fits:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name)}", hint=f"it must be {range_}"
                )
        _check_bias(self.logit_bias)
        if self.temperature < _COLDEST:
            object.__setattr__(self, "temperature", 0.0)


_COLDEST = 1e-5
"""Logits divided by less may overflow."""

_NUMBERS = (
    *("temperature", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
)
_MOST_BIASES = 4096


def _check_bias(bias: Mapping[Any, Any]) -> None:
    if not isinstance(bias, Mapping):
        raise InvalidInputError(
            f"logit_bias is {type(bias).__name__}", hint="give a dictionary: {token: number}"
        )
    if len(bias) > _MOST_BIASES:
        raise InvalidInputError(
            f"logit_bias has {len(bias)} tokens", hint=f"it may have {_MOST_BIASES}"
        )
    for token, value in bias.items():
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        known = isinstance(token, int) and not isinstance(token, bool) and token >= 0
        if not (number and known and abs(value) <= 100):
            raise InvalidInputError(
                f"logit_bias has {str(token)[:40]}: {str(value)[:40]}",
                hint="it maps numbers of tokens to numbers from -100 to 100",
            )


class Sampler:
    """Samples the tokens of one text.

    Args:
        sampling: how.
        prompt: number of tokens of the prompt; those after it are generated.
        guide: changes the logits first, for example to rule out tokens.
        ranks: number of likeliest tokens to record for each token; None records nothing.

    Attributes:
        scores: recorded scores, by the place of a token in the text.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: int = 0,
        guide: Guide | None = None,
        ranks: int | None = None,
    ) -> None:
        self._how = sampling
        self._prompt = prompt
        self._guide = guide
        self._ranks = ranks
        self._random = np.random.default_rng(sampling.seed)
        self.scores: dict[int, Scored] = {}

    def on_device(self, first: int, capacity: int) -> DeviceSampling:
        """Return the device's equivalent of `sample`, from this number of tokens on.

        Args:
            first: how many tokens there are.
            capacity: how many there may be.
        """
        how = self._how
        uniforms = np.zeros(capacity, np.float32)
        uniforms[first:] = deepcopy(self._random).random(capacity - first)
        top_p = how.top_p if how.top_p < 1.0 else np.inf  # rounded sums may exceed 1
        return DeviceSampling(uniforms, 1.0 / how.temperature, how.top_k, top_p, how.min_p)

    def sample(self, logits: Array, there: Sequence[int]) -> int:
        """Return the next token.

        Args:
            logits: one number for every token of the vocabulary.
            there: the tokens of the text so far.
        """
        altered = self._altered(logits, there)
        kept = None if self._guide is None else np.flatnonzero(np.isfinite(altered))
        if kept is not None and kept.size:  # few tokens may follow: the others need no sorting
            token = int(kept[self._chosen(altered[kept])])
        else:
            token = self._chosen(altered)
        if self._ranks is not None:
            self.scores[len(there)] = scored(logits, token, self._ranks)
        return token

    def _altered(self, logits: Array, there: Sequence[int]) -> Array:
        """Return logits with biases and penalties; what a guide rules out stays ruled out."""
        how = self._how
        if how.repetition_penalty != 1.0 and there:
            logits = _penalised(logits, there, how.repetition_penalty)
        if how.presence_penalty or how.frequency_penalty:
            logits = _repeated_less(logits, there[self._prompt :], how)
        if how.logit_bias:
            tokens = [token for token in how.logit_bias if token < logits.size]
            added = np.array([how.logit_bias[token] for token in tokens], np.float32)
            biased = logits.astype(np.float32)
            biased[tokens] += added
            logits = biased
        if self._guide is not None:
            logits = self._guide(logits, there[self._prompt :])
        return logits

    def _chosen(self, logits: Array) -> int:
        how = self._how
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
        last = np.searchsorted(sums, sums[-1])  # those after it have no probability
        return int(order[min(int(drawn), int(last))])


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
        self._error: InvalidInputError | None = None

    def __call__(self, scores: Array, rows: int) -> int:
        """Return the token after the first `rows` ones, which then belongs to the text.

        A failed step is repeated with the same sampled token. In a batched step, the caller may be
        another text: an error is kept for this one, which must call `check`.
        """
        if rows == len(self._text):
            try:
                token = self._sampler.sample(scores, self._text)
            except InvalidInputError as error:
                self._error, token = error, self._text[-1]
            self._text.append(token)
        return self._text[rows]

    def check(self) -> None:
        """Raise the error of an earlier call.

        Raises:
            InvalidInputError: no token could be chosen.
        """
        if self._error is not None:
            raise self._error


def _repeated_less(logits: Array, made: Sequence[int], how: Sampling) -> Array:
    """Lower the logits of generated tokens, by presence and by frequency."""
    tokens, counts = np.unique(np.array(made, np.int64), return_counts=True)
    kept = tokens < logits.size
    altered = logits.astype(np.float32)
    altered[tokens[kept]] -= how.presence_penalty + how.frequency_penalty * counts[kept]
    return altered


def _penalised(logits: Array, there: Iterable[int], penalty: float) -> Array:
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
