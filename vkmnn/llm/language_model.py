"""`vkmnn.llm.load(folder)`: a model that generates text."""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.arguments import checked_number
from vkmnn.base.closing import Closing, OneProcess
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.llm.decoder import Decoder
from vkmnn.llm.generation import Generated, Generation, Options, Settings, Sharing
from vkmnn.llm.grammar import Grammar
from vkmnn.llm.layout import Layout
from vkmnn.llm.prefixes import Prefixes
from vkmnn.llm.sampling import Sampling
from vkmnn.llm.sampling_defaults import sampling_defaults
from vkmnn.llm.sequence import Sequence as Cached
from vkmnn.llm.text import Conversation, TextTooLongError, Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt = Any
"""A text, tokens (a list of int), or messages (a list of dictionaries with role and content)."""

LAST_TOKEN = 2**31 - 1
"""Largest token number that the device supports."""

_SAMPLING = tuple(one.name for one in fields(Sampling))

MAX_LOGPROBS = 128
"""Maximum likeliest tokens to report with each token."""

_ALONE, _TOGETHER = 8, 3
"""Tokens per wait if nothing reads along: the host handles three at once. A text that ends by
itself then takes one step more, on average.
"""


class LanguageModel(Closing):
    """A decoder with its tokenizer; created by `vkmnn.llm.load`.

    Threads may generate at the same time; one run produces tokens for several texts.

    Attributes:
        name: name of the folder.
        layout: content of the folder.
        capacity: maximum tokens of a text, prompt included.
        device: the device.
    """

    def __init__(self, layout: Layout, decoder: Decoder, name: str) -> None:
        self.name = name
        self.layout = layout
        self.capacity = decoder.capacity
        self.device = decoder.open.device
        self._decoder = decoder
        self._tokenizer: Tokenizer | None = None
        self._free: list[Cached] = []
        self._made = 0
        self._change = threading.Condition()
        self._prefixes: Prefixes | None = None

    # --- text and tokens -------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the model cannot answer because its device is lost (`InferenceSession.lost`)."""
        return self._decoder.open.core.lost

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder.

        Raises:
            ModelFileError: there is none.
            MissingExtraError: `tokenizers` is not installed.
        """
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.layout.folder, self.layout.keys)
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder has a tokenizer."""
        return Tokenizer.is_in(self.layout.folder, self.layout.keys)

    @property
    def texts_at_once(self) -> int:
        """The number of texts that are generated at a time; others wait."""
        return self._decoder.texts

    @property
    def vocabulary(self) -> int:
        """The number of logits, at least that of tokens; 2³¹ if the network does not state it."""
        return self._decoder.vocabulary or LAST_TOKEN + 1

    def has_compiled(self, grammar: Grammar) -> bool:
        """Return whether a grammar is compiled already, so that `options` is fast."""
        return self.tokenizer.has_compiled(grammar, self._eos())

    def tokens_of(
        self, prompt: Prompt, most: int | None = None, **conversation: Unpack[Conversation]
    ) -> list[int]:
        """Return the tokens of a prompt.

        Args:
            prompt: a text, tokens, or messages.
            most: maximum number of tokens; None for any number.
            conversation: for messages, `tools` and `more` of `Tokenizer.conversation`.

        Raises:
            InvalidInputError: it is not a prompt, or has more tokens.
        """
        *_, tokens = self.token_steps(prompt, most, **conversation)
        return tokens

    def token_steps(
        self, prompt: Prompt, most: int | None = None, **conversation: Unpack[Conversation]
    ) -> Iterator[list[int]]:
        """Yield nothing between pieces of a long text, and finally the tokens; as `tokens_of`.

        To stop the work, stop iterating.
        """
        if isinstance(prompt, str):
            steps = self.tokenizer.encode_steps(prompt, True, most)
        elif _is_conversation(prompt):
            text = self.tokenizer.conversation(prompt, most, **conversation)
            yield []
            steps = self.tokenizer.encode_steps(text, False, most)
        else:
            steps = iter([checked_tokens(prompt, most, self.vocabulary)])
        tokens: list[int] = []
        for tokens in steps:
            yield tokens
        if not tokens and self.layout.bos is not None:
            yield [self.layout.bos]

    def sampling_defaults(self) -> dict[str, float]:
        """Return the sampling options in the model's files; see `generate`.

        `generate` itself is greedy by default. Without a recommendation, the result is empty.

        Raises:
            ModelFileError: a value in the files is out of its range.
        """
        return sampling_defaults(self.layout)

    # --- generation ------------------------------------------------------------------------------

    def generate(
        self, prompt: Prompt, max_tokens: int | None = None, **how: Unpack[Settings]
    ) -> Any:
        """Generate text from a prompt.

        Args:
            prompt: a text, tokens, or messages; a list of several prompts returns a list of
                results, and one run produces a token for each.
            max_tokens: maximum number of tokens; None for as many as fit.
            how: options by name:

                temperature: 0, the default, is greedy; above, tokens are sampled.
                top_k: sample only from this many likeliest tokens; None or 0 for all.
                top_p: sample only from the likeliest tokens whose probabilities add up to this.
                seed: random seed; the same seed gives the same text.
                stop: strings before which generation stops.
                repetition_penalty: above 1, tokens that have occurred become less likely.
                min_p: sample only from tokens at least this many times as probable as the
                    likeliest; None or 0 for all.
                presence_penalty: subtracted from the logits of tokens that have been generated.
                frequency_penalty: subtracted once for each time that a token has been generated.
                logit_bias: a dictionary from tokens to numbers to add to their logits.
                logprobs: number of likeliest tokens to report with the score of each token, in
                    `Generated.logprobs`; None reports none.
                prompt_logprobs: whether to report the tokens of the prompt too.
                grammar: a `vkmnn.llm.Grammar` that the text has to match.
                speculate: guess up to this many tokens, at most 7, from earlier occurrences of
                    the last ones, and check them in one run; the result is the same.

        Returns:
            A `Generated`, or a list of them.

        Raises:
            InvalidInputError: a value is out of its range, or the prompt does not fit.
        """
        options = self.options(max_tokens, **how)
        if _is_batch(prompt):
            return self._batch([self.tokens_of(one, self.capacity) for one in prompt], options)
        tokens = self.tokens_of(prompt, self.capacity)
        with self.sequence(tokens) as sequence:
            made = Generation(sequence, tokens, options, self._text_of(), self._sharing())
            for _ in made:
                if len(made.result.tokens) == _ALONE + 1:
                    sequence.waits.together = _TOGETHER
            return made.result

    def stream(self, prompt: Prompt, max_tokens: int | None = None, **how: Any) -> Iterator[str]:
        """Yield the text after a prompt, piece by piece; arguments are those of `generate`.

        Raises:
            InvalidInputError: as `generate`; before the first piece.
        """
        return (piece for _, piece in self.pieces(prompt, max_tokens, **how) if piece)

    def pieces(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        kept: frozenset[int] = frozenset(),
        **how: Any,
    ) -> Iterator[tuple[Generated, str]]:
        """Yield the growing result, and the text added to it, which may be empty.

        Args:
            prompt: as for `generate`.
            max_tokens: likewise.
            kept: special tokens that are part of the text.
            how: as for `generate`.

        Raises:
            InvalidInputError: as `generate`; before the first piece.
        """
        options = self.options(max_tokens, **how)
        tokens = self.tokens_of(prompt, self.capacity)
        tokenizer = self.tokenizer

        def steps() -> Iterator[tuple[Generated, str]]:
            with self.sequence(tokens) as sequence:
                made = Generation(sequence, tokens, options, tokenizer, self._sharing(kept))
                for piece in made:
                    yield made.result, piece
            yield made.result, ""

        return steps()

    def options(self, max_tokens: int | None = None, **how: Unpack[Settings]) -> Options:
        """Return checked options; see `generate`.

        Raises:
            InvalidInputError: a value is out of its range.
        """
        unknown = [name for name in how if name not in Settings.__annotations__]
        if unknown:
            raise TypeError(f"generate() got an unexpected keyword argument '{unknown[0]}'")
        given: dict[str, Any] = {
            name: how[name]  # type: ignore[literal-required]
            for name in _SAMPLING
            if how.get(name) is not None
        }
        sampling = Sampling(**given)
        speculate, logprobs = how.get("speculate", 0), how.get("logprobs")
        stop, grammar = how.get("stop", ()), how.get("grammar")
        if max_tokens is not None:
            max_tokens = checked_number(max_tokens, "max_tokens")
        if not 0 <= checked_number(speculate, "speculate") <= 7:
            raise InvalidInputError(f"speculate is {speculate}", hint="it has to be from 0 to 7")
        eos = self._eos()
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list | tuple) or not all(isinstance(s, str) for s in stops):
            raise InvalidInputError(f"stop is {stop!r}", hint="give a text, or a list of texts")
        if logprobs is not None and not 0 <= checked_number(logprobs, "logprobs") <= MAX_LOGPROBS:
            raise InvalidInputError(f"logprobs is {logprobs}", hint=f"0 to {MAX_LOGPROBS}")
        if grammar is not None:
            if not isinstance(grammar, Grammar):
                raise InvalidInputError(
                    f"a grammar is a vkmnn.llm.Grammar, not {type(grammar).__name__}",
                    hint="Grammar.schema({…}), Grammar.regex, Grammar.lark or Grammar.json()",
                )
            self.tokenizer.compiler(eos).start(grammar)
        kept = tuple(s for s in stops if s)
        whole = how.get("prompt_logprobs", False)
        return Options(max_tokens, sampling, kept, eos, speculate, logprobs, whole, grammar)

    def _eos(self) -> frozenset[int]:
        if self.layout.eos or not self.has_tokenizer:
            return self.layout.eos
        return self.tokenizer.eos

    def _text_of(self) -> Tokenizer | None:
        return self.tokenizer if self.has_tokenizer else None

    def _batch(self, prompts: list[list[int]], options: Options) -> list[Generated]:
        """Generate several texts, a token of each in turn, as many at a time as share a step."""
        results: list[Generated] = []
        going: list[Generator[str, None, None]] = []
        waiting = deque(enumerate(prompts))
        try:
            while waiting or going:
                while waiting and (not going or self._has_free()):
                    number, tokens = waiting.popleft()
                    going.append(self._one(tokens, _reseeded(options, number), results))
                    next(going[-1])
                going = [one for one in going if next(one, None) is not None]
        finally:
            for one in going:
                one.close()
        return results

    def _one(
        self, tokens: list[int], options: Options, results: list[Generated]
    ) -> Generator[str, None, None]:
        """Generate a text of a batch: first nothing, then its pieces."""
        with self.sequence(tokens) as sequence:
            made = Generation(sequence, tokens, options, self._text_of(), self._sharing())
            results.append(made.result)
            yield ""
            yield from made

    # --- caches ----------------------------------------------------------------------------------

    @contextmanager
    def sequence(self, tokens: Sequence[int] = ()) -> Iterator[Cached]:
        """Return the caches with the longest common prefix; wait until some are free."""
        sequence = self._take(tokens)
        try:
            yield sequence
        finally:
            try:
                sequence.end()
            finally:
                self._give_back(sequence)

    def _take(self, tokens: Sequence[int]) -> Cached:
        with self._change:
            while not self._free and self._made >= self.texts_at_once:
                self._change.wait()
            if self._free:
                best = max(self._free, key=lambda one: one.shared(tokens))  # otherwise the oldest
                self._free.remove(best)
                return best
            self._made += (
                1  # no other thread may create it; not under the lock, which `_has_free` takes
            )
        try:
            return Cached(self._decoder, shared=True)
        except BaseException:
            with self._change:
                self._made -= 1
                self._change.notify()
            raise

    def _sharing(self, kept: frozenset[int] = frozenset()) -> Sharing:
        return Sharing(self._is_crowded, self._prefixes, kept)

    def _is_crowded(self) -> bool:
        """Return whether several texts are being generated."""
        return self._made - len(self._free) > 1

    def share_prefixes(self, most: int) -> None:
        """Keep rows of caches on the host for texts that begin like earlier ones.

        Args:
            most: maximum bytes; 0 for none. The rows kept so far stay if it is the same as before.
        """
        if most != (self._prefixes.most if self._prefixes else 0):
            self._prefixes = Prefixes(most) if most else None

    def _has_free(self) -> bool:
        """Return whether caches are free or can be created."""
        with self._change:
            return bool(self._free) or self._made < self.texts_at_once

    def _give_back(self, sequence: Cached) -> None:
        with self._change:
            self._free.append(sequence)
            self._change.notify()

    def session(self, path: str | Path | None = None) -> TextSession:
        """Return a text that continues from call to call, and can be saved.

        Args:
            path: a file of `TextSession.save` to continue.

        Raises:
            ModelFileError: the file is damaged, or of another kind.
            InvalidInputError: it was written with another model.
        """
        sequence = Cached(self._decoder)
        if path is not None:
            try:
                sequence.load(path)
            except BaseException:
                sequence.close()
                raise
        return TextSession(self, sequence)

    def memory(self) -> dict[str, int]:
        """Return the bytes of "weights", and of the "caches" of texts that are not active.

        With `share_prefixes`, also those of "prefixes" on the host.
        """
        with self._change:
            caches = sum(one.cache_bytes for one in self._free)
        made = {"weights": self._decoder.weight_bytes, "caches": caches}
        return made if self._prefixes is None else {**made, "prefixes": self._prefixes.held}

    def counters(self) -> dict[str, int]:
        """Return counters of avoidable work in decoding; see `InferenceSession.counters`."""
        return self._decoder.open.core.counters()

    def close(self) -> None:
        """Release the device's memory; the model cannot be used afterwards."""
        self._decoder.close()

    def __repr__(self) -> str:
        """Return the name and the device."""
        return f"<vkmnn.llm.LanguageModel {self.name} on {self.device.name}>"


class TextSession(OneProcess):
    """A text that continues over several calls; created by `LanguageModel.session`."""

    def __init__(self, model: LanguageModel, sequence: Cached) -> None:
        self._model = model
        self._sequence = sequence

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""
        return list(self._sequence.tokens)

    def generate(self, prompt: Prompt, max_tokens: int | None = None, **how: Any) -> Generated:
        """Append a prompt and the generated answer; as `LanguageModel.generate`.

        A failed call leaves the text as it was. Messages replace the text: pass the whole
        conversation; the part in the caches is not run again.

        Raises:
            InvalidInputError: as `LanguageModel.generate`.
        """
        model, sequence = self._model, self._sequence
        options = model.options(max_tokens, **how)
        messages = _is_conversation(prompt)
        if isinstance(prompt, str):
            new = model.tokenizer.encode(prompt, not sequence.tokens, model.capacity)
        else:
            new = model.tokens_of(prompt, model.capacity)
        text = new if messages else [*sequence.tokens, *new]
        before = sequence.tokens.copy()
        made = Generation(sequence, text, options, model._text_of())
        try:
            for _ in made:
                pass
            whole = [*text, *made.result.tokens]
            sequence.truncate(sequence.shared(whole))
            missing = whole[len(sequence.tokens) :]
            if missing and len(missing) <= sequence.room:  # chosen, but not run yet
                sequence.append(missing)
        except BaseException:
            sequence.restart(before)  # so that the call can be repeated
            raise
        return made.result

    def save(self, path: str | Path) -> None:
        """Write the text and its caches to a file, for `LanguageModel.session`.

        The file is written completely or not at all.

        Raises:
            InvalidInputError: there is nothing to save, or the file cannot be written.
        """
        self._sequence.save(path)

    def close(self) -> None:
        """Release the caches."""
        self._sequence.close()


def _reseeded(options: Options, number: int) -> Options:
    """Return options with a separate seed for each text of a batch."""
    seed = options.sampling.seed
    if seed is None:
        return options
    return replace(options, sampling=replace(options.sampling, seed=seed + number))


def _is_conversation(prompt: Prompt) -> bool:
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], dict)


def _is_batch(prompt: Prompt) -> bool:
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return isinstance(prompt[0], str | list | tuple)


def checked_kind(layout: Layout, kind: str, hint: str) -> None:
    """Raise ModelFileError unless a folder holds a model of this kind."""
    if layout.kind != kind:
        raise ModelFileError(
            f"'{layout.folder}' holds a model of the kind {layout.kind}", hint=hint
        )


def checked_tokens(prompt: Any, most: int | None, vocabulary: int) -> list[int]:
    """Return tokens as a list of int; raise InvalidInputError for invalid or too many tokens."""
    if most is not None and isinstance(prompt, Sized) and len(prompt) > most:
        raise TextTooLongError(f"the prompt has {len(prompt)} tokens, and there is room for {most}")
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError
        tokens = [operator.index(one) for one in prompt]
    except TypeError as error:
        raise InvalidInputError(
            f"a prompt is a text, a list of tokens or a list of messages, not "
            f"{type(prompt).__name__}"
        ) from error
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise InvalidInputError(f"the prompt has the token {wrong}; they are 0 to {vocabulary - 1}")
    return tokens
