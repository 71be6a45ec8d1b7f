"""From a prompt to text, token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from vkmnn.decoding.sampling import DeviceSampling, StepSampler
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.llm.grammar import Constraint, Grammar
from vkmnn.llm.prefixes import Prefixes
from vkmnn.llm.sampling import Sampler, Sampling, Scored, TextSampler, drafted, scored
from vkmnn.llm.sequence import DRAFTS
from vkmnn.llm.sequence import Sequence as Cached
from vkmnn.llm.stops import Stops
from vkmnn.llm.text import Detokenizer, Tokenizer


class Settings(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`, which describes them."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str]
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    prompt_logprobs: bool
    grammar: Grammar | None
    speculate: int


@dataclass(frozen=True, slots=True)
class Options:
    """Options of text generation.

    Attributes:
        max_tokens: maximum tokens of the text; None for as many as fit.
        sampling: how tokens are selected.
        stop: strings before which generation stops.
        eos: tokens that end the text.
        speculate: tokens to guess from earlier occurrences of the last ones; 0 for none.
        logprobs: number of likeliest tokens to report with each token; None reports none.
        prompt_logprobs: whether to report them for the prompt too.
        grammar: what the text has to match.
    """

    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    eos: frozenset[int] = frozenset()
    speculate: int = 0
    logprobs: int | None = None
    prompt_logprobs: bool = False
    grammar: Grammar | None = None


@dataclass(slots=True)
class Generated:
    """A generated text; `str()` of it is the text.

    Attributes:
        text: the generated text, without the prompt.
        tokens: its tokens, without the end token.
        finish_reason: "stop" (an end token or a stop string), "length", or "" while generation
            continues.
        prompt_tokens: number of tokens of the prompt.
        cached_tokens: prompt tokens that were reused from the caches.
        prefill_seconds: time to the first token.
        decode_seconds: time for the other tokens.
        host_seconds: Python's processor time for these, without waiting for the device.
        runs: runs of the network after the prompt; fewer than tokens if guesses were right.
        logprobs: scores of the tokens, if they were asked for.
        prompt_logprobs: scores of the prompt's tokens, if they were asked for; None for the first.
        prompt_left: tokens of the prompt that have not been run yet.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    host_seconds: float = 0.0
    runs: int = 0
    logprobs: list[Scored] = field(default_factory=list)
    prompt_logprobs: list[Scored | None] = field(default_factory=list)
    prompt_left: int = 0

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt run per second."""
        return (self.prompt_tokens - self.cached_tokens) / max(self.prefill_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Tokens after the first per second."""
        return max(len(self.tokens) - 1, 0) / max(self.decode_seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a text shares with others.

    Attributes:
        crowded: returns whether other texts are being generated.
        prefixes: rows of caches by the beginnings of texts; None keeps none.
        kept: special tokens that are part of the text.
    """

    crowded: Callable[[], bool] = lambda: False
    prefixes: Prefixes | None = None
    kept: frozenset[int] = frozenset()


class Generation:
    """A text being generated: an iterator of its pieces, some of which may be empty.

    The prompt runs in chunks, with an empty piece after each, so that others can take turns.

    Args:
        sequence: the caches; their common prefix with the prompt is not run again.
        prompt: its tokens.
        options: how.
        tokenizer: converts tokens to text; None converts none.
        sharing: how it shares the device and the caches with other texts.

    Attributes:
        result: grows as pieces are consumed.

    Raises:
        InvalidInputError: the prompt is empty, or too long.
    """

    def __init__(
        self,
        sequence: Cached,
        prompt: Sequence[int],
        options: Options,
        tokenizer: Tokenizer | None,
        sharing: Sharing | None = None,
    ) -> None:
        self.result = Generated(prompt_tokens=len(prompt), prompt_left=len(prompt))
        self._sharing = sharing or Sharing()
        self._sequence = sequence
        self._prompt = list(prompt)
        self._options = options
        self._constraint = _constraint(options, tokenizer)
        guide = None if self._constraint is None else self._constraint.guide
        sampling = options.sampling
        self._sampler = Sampler(sampling, len(prompt), guide, options.logprobs)
        plain = self._constraint is None and options.logprobs is None
        self._greedy = sampling.likeliest and plain
        samples = self._greedy or sequence.samples_on_device
        self._on_device = samples and plain and not sampling.needs_host
        self._device_sampling: DeviceSampling | None = None
        self._host_sampler: TextSampler | None = None
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, self._sharing.kept) if tokenizer else None
        self._stops = Stops(options.stop)
        if options.max_tokens is not None and options.max_tokens < 0:
            raise InvalidInputError(f"max_tokens is {options.max_tokens}", hint="give 0 or more")
        if options.stop and tokenizer is None:
            raise InvalidInputError("stop texts need a tokenizer", hint="leave out `stop`")

    def __iter__(self) -> Iterator[str]:
        """Yield the pieces of the text."""
        start = time.perf_counter()
        pending = yield from self._prefill()
        result = self.result
        result.prefill_seconds = time.perf_counter() - start
        if self._options.max_tokens == 0:
            result.finish_reason = "length"
            return
        sequence, guesses = self._sequence, self._options.speculate
        if not guesses:
            sequence.prefetch(pending[-1], self._wanted() - 1, self._first_sampler(pending[-1]))
        waits = sequence.waits
        waits.together = 1
        while True:
            for token in pending:
                piece = self._told(token)
                if piece is not None:
                    yield piece
                if result.finish_reason:
                    break
            if sequence.room < 1 and not result.finish_reason:
                result.finish_reason = "length"
            if result.finish_reason:
                break
            start, busy = time.perf_counter(), time.thread_time() - waits.seconds
            last = pending[-1]
            chosen = None if guesses else self._step(last)
            pending = self._checked(last) if chosen is None else [chosen]
            result.runs += 1
            result.decode_seconds += time.perf_counter() - start
            result.host_seconds += time.thread_time() - waits.seconds - busy
        yield from self._flushed()

    def _prefill(self) -> Generator[str, None, list[int]]:
        """Run the part of the prompt that the caches lack, in chunks; return the first token."""
        sequence, prompt, options = self._sequence, self._prompt, self._options
        if not prompt:
            raise InvalidInputError("the prompt is empty", hint="a prompt has at least one token")
        capacity = sequence.room + len(sequence.tokens)
        if len(prompt) > capacity:
            raise InvalidInputError(
                f"the prompt has {len(prompt)} tokens, and there is room for {capacity}",
                hint="load the model with a larger capacity, or shorten the prompt",
            )
        if options.prompt_logprobs:
            logits = yield from self._scored_prompt()
        else:
            self._reuse()
            left = prompt[len(sequence.tokens) :]
            self.result.prompt_left = len(left)
            if len(left) == 1 and self._greedy and options.max_tokens != 0:
                sequence.begin()
                chosen = sequence.step(left[0], 0)
                if chosen is not None:
                    self._share()
                    return [chosen]
            for rows in sequence.chunks(left, crowded=self._sharing.crowded):
                logits = rows
                self.result.prompt_left = len(prompt) - len(sequence.tokens)
                if self.result.prompt_left:
                    yield ""
        self._share()
        if options.max_tokens == 0:
            return []
        sequence.begin()
        return [self._sampler.sample(logits[-1], prompt)]

    def _reuse(self) -> None:
        """Keep the beginning of the prompt that the caches hold, or copy a longer one to them."""
        sequence, prompt = self._sequence, self._prompt
        held = min(sequence.shared(prompt), len(prompt) - 1)
        prefixes = self._sharing.prefixes
        if prefixes is None or not prefixes.restore(prompt, sequence, held):
            sequence.truncate(held)
        self.result.cached_tokens = len(sequence.tokens)

    def _share(self) -> None:
        """Offer the rows of the prompt, which has been run, to other texts."""
        self.result.prompt_left = 0
        if self._sharing.prefixes is not None:
            self._sharing.prefixes.add(self._prompt, self._sequence)

    def _scored_prompt(self) -> Generator[str, None, Array]:
        """Run the whole prompt, and record the scores of its tokens; return the last logits."""
        sequence, prompt, ranks = self._sequence, self._prompt, self._options.logprobs or 0
        sequence.truncate(0)
        scores = self.result.prompt_logprobs
        scores.append(None)
        while True:
            start = len(sequence.tokens)
            part = prompt[start : start + DRAFTS]
            logits = sequence.extend(part, len(part))
            scores += [
                scored(row, token, ranks)
                for row, token in zip(
                    logits, prompt[start + 1 : start + 1 + len(part)], strict=False
                )
            ]
            self.result.prompt_left = len(prompt) - len(sequence.tokens)
            if not self.result.prompt_left:
                return logits
            yield ""

    def _checked(self, token: int) -> list[int]:
        """Run a token and guesses; return the next tokens."""
        sequence = self._sequence
        text = [*sequence.tokens, token]
        most = min(self._options.speculate, DRAFTS - 1, sequence.room - DRAFTS)
        guesses = drafted(text, most)
        held = len(sequence.tokens)
        logits = sequence.extend([token, *guesses], 1 + len(guesses))
        made: list[int] = []
        for row, guess in zip(logits, [*guesses, None], strict=True):
            made.append(self._sampler.sample(row, [*text, *made]))
            if made[-1] != guess:
                break
        sequence.truncate(held + len(made))
        return made

    def _first_sampler(self, token: int) -> StepSampler:
        """Return how to choose the token after the first one that is run."""
        if not self._on_device:
            return self._sampled_on_host(token)
        if not self._greedy:
            rows, room = len(self._sequence.tokens), self._sequence.room
            self._device_sampling = self._sampler.on_device(rows, rows + room)
        return self._device_sampling

    def _sampled_on_host(self, token: int) -> TextSampler:
        """Return a sampler on the host, the same until it is not used for a step."""
        if self._host_sampler is None:
            self._host_sampler = TextSampler(self._sampler, [*self._sequence.tokens, token])
        return self._host_sampler

    def _step(self, token: int) -> int | None:
        """Run a token, alone or in a batch with other texts; None if the host has to sample."""
        sequence, wanted = self._sequence, self._wanted()
        if self._on_device:
            chosen = sequence.step(token, wanted, self._device_sampling)
            if chosen is not None:
                self._host_sampler = None
                return chosen
        sampler = self._sampled_on_host(token)
        chosen = sequence.step(token, wanted, sampler)
        if chosen is None:
            self._host_sampler = None  # the host continues by itself
        else:
            sampler.check()
        return chosen

    def _wanted(self) -> int:
        """Return the number of steps needed after the next one, as far as known."""
        most = self._options.max_tokens
        return self._sequence.room if most is None else most - len(self.result.tokens) - 1

    def _told(self, token: int) -> str | None:
        """Process a token; return its text, or None if it ends the generation."""
        result, options = self.result, self._options
        if token in options.eos:
            result.finish_reason = "stop"
            return None
        if options.logprobs is not None:
            place = result.prompt_tokens + len(result.tokens)
            result.logprobs.append(self._sampler.scores.pop(place))
        result.tokens.append(token)
        piece = self._detokenizer.add(token) if self._detokenizer else ""
        if options.stop:
            piece = self._stops.add(piece)
        complete = self._constraint is not None and self._constraint.is_complete(result.tokens)
        if complete or self._stops.found is not None:
            result.finish_reason = "stop"
        elif options.max_tokens is not None and len(result.tokens) >= options.max_tokens:
            result.finish_reason = "length"
        result.text += piece
        return piece

    def _flushed(self) -> Iterator[str]:
        """Yield held-back text at the end."""
        if self._stops.found is not None:
            return
        rest = self._stops.add(self._detokenizer.rest() if self._detokenizer else "")
        rest += self._stops.rest()
        if rest:
            self.result.text += rest
            yield rest


def _constraint(options: Options, tokenizer: Tokenizer | None) -> Constraint | None:
    if options.grammar is None:
        return None
    if tokenizer is None:
        raise InvalidInputError("a grammar needs a tokenizer", hint="leave out `grammar`")
    return tokenizer.compiler(options.eos).start(options.grammar)
