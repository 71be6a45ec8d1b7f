"""Speech to text by Whisper: sounds of any length, with times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError, nearest
from vkmnn.llm.spectrogram import RATE
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Pipeline, Settings
from vkmnn.pipelines.options import Check, Options, is_flag
from vkmnn.pipelines.results.sounds import Segment, Transcript
from vkmnn.pipelines.seq2seq import open_seq2seq
from vkmnn.pipelines.sounds.reading import read_sound
from vkmnn.pipelines.sounds.timestamps import STEP, Timestamps, pieces_of, without

_CAPACITY = 448
"""Tokens of Whisper's decoder."""
_LEAST = 0.1
"""Seconds of a rest that is worth a run."""


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{name}={value!r} is not a text")
    return value


class Transcribe(Pipeline):
    """Writes down what is said.

    Args:
        model: a folder with Whisper's encoder, decoder and tokenizer.
        options: the options.
    """

    task = "automatic-speech-recognition"
    own: ClassVar[tuple[str, ...]] = ("language", "translate")
    checks: ClassVar[Mapping[str, Check]] = {"language": _word, "translate": is_flag}

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(options)
        self.model = open_seq2seq(model, options, self.task, _CAPACITY)
        if not self.model.hears:
            self.model.close()
            raise InvalidInputError(
                f"'{model}' does not accept spectrograms", hint="pass a folder of Whisper's"
            )
        said = self.model.layout.search
        self._languages = _numbers(said, "lang_to_id")
        self._tasks = _numbers(said, "task_to_id")
        sections = (said, self.model.layout.config)
        starts = [one.tokens("decoder_start_token_id") for one in sections]
        self._begins = min(starts[0] or starts[1], default=None)
        plain = min(said.tokens("no_timestamps_token_id"), default=None)
        if self._begins is None or plain is None:
            self.model.close()
            key = "no_timestamps" if plain is None else "decoder_start"
            raise InvalidInputError(
                f"'{said.path}' lacks {key}_token_id",
                hint="download the whole folder, generation_config.json too",
            )
        self._longest = min(said.number("max_length") or _CAPACITY, _CAPACITY)
        self._rules = Timestamps(
            plain,
            min(self.model.layout.eos, default=plain),
            frozenset(said.tokens("suppress_tokens")),
            frozenset(said.tokens("begin_suppress_tokens")),
            said.number("max_initial_timestamp_index"),
        )
        self.settings = {
            "language": options.take("language", None),
            "translate": options.take("translate", False),
        }

    @property
    def device(self) -> str:
        """The name of the device that it runs on."""
        return self.model.device.name

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return what is said in a sound, or a list of transcripts for a list of sounds.

        Args:
            inputs: a path, bytes, (samples, rate), or samples at 16,000 per second; or a list.
            settings: `language`, its code; `translate`, into English.

        Raises:
            InvalidInputError: a sound cannot be read, or the model does not know the language.
        """
        chosen = self.chosen(settings)
        if isinstance(inputs, list):
            return [self._transcript(one, chosen) for one in inputs]
        return self._transcript(inputs, chosen)

    def steps(self, inputs: Any, **settings: Any) -> Iterator[Transcript]:
        """Yield the growing transcript of a sound after each part; as calling the pipeline.

        Raises:
            InvalidInputError: as calling the pipeline.
        """
        yield from self._growing(inputs, self.chosen(settings))

    def _transcript(self, source: Any, chosen: Settings) -> Transcript:
        *_, made = self._growing(source, chosen)
        return made

    def _growing(self, source: Any, chosen: Settings) -> Iterator[Transcript]:
        samples = read_sound(source, RATE)
        window = round(self.model.seconds * RATE)
        prompt, language = self._prompt(samples[:window], chosen)
        most = max(self._longest - len(prompt), 1)
        made = Transcript([], language)
        start, end = 0, len(samples)
        while start < end and (start == 0 or end - start >= _LEAST * RATE):
            part = samples[start : start + window]
            step = len(part)
            if np.any(part):
                told = self.model.guided(part, prompt, most, guide=self._rules.guide)
                pieces, heard = pieces_of(told.tokens, self._rules.first, step / RATE)
                if heard is not None and start + window < end:
                    step = max(round(heard * RATE), round(STEP * RATE))
                    pieces = [piece for piece in pieces if piece[0] < heard]
                made.items += [
                    Segment(start / RATE + begin, min(start / RATE + stop, end / RATE), text)
                    for begin, stop, tokens in pieces
                    if (text := self.model.tokenizer.decode(tokens).strip())
                ]
            start += step
            yield made

    def _prompt(self, samples: Array, chosen: Settings) -> tuple[list[int], str]:
        """Return the decoder's first tokens, and the language."""
        assert self._begins is not None
        if not self._languages:
            return [self._begins], ""
        language = chosen["language"] or self._heard_language(samples)
        token = self._languages.get(f"<|{language}|>")
        if token is None:
            names = [name.strip("<|>") for name in self._languages]
            raise InvalidInputError(
                f"the model knows no language '{language}'",
                hint=nearest(str(language), names, "languages"),
            )
        task = self._tasks.get("translate" if chosen["translate"] else "transcribe")
        return [self._begins, token, *([] if task is None else [task])], str(language)

    def _heard_language(self, samples: Array) -> str:
        """Return the code of the likeliest language of the beginning."""
        assert self._begins is not None
        tokens = list(self._languages.values())

        def guide(logits: Array, there: Any) -> Array:
            del there
            return without(logits, np.setdiff1d(np.arange(len(logits)), tokens))

        made = self.model.guided(samples, [self._begins], 1, guide=guide).tokens
        return next(name for name, one in self._languages.items() if one in made).strip("<|>")

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        self.model.close()


def _numbers(section: Any, key: str) -> dict[str, int]:
    """Return an object of tokens by name."""
    if key not in section:
        return {}
    inner = section.section(key)
    return {name: inner.number(name) for name in inner.keys()}  # noqa: SIM118 - it is no dictionary
