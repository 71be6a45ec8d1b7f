"""Texts from texts by encoders with decoders: translations, summaries, and other answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from vkmnn.base.config_file import Section
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.llm.beam_search import MOST_BEAMS, BeamOptions
from vkmnn.llm.text import TextTooLongError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Pipeline, Settings
from vkmnn.pipelines.options import Check, Options, real_from, whole_from
from vkmnn.pipelines.results.texts import Written
from vkmnn.pipelines.seq2seq import open_seq2seq

_CAPACITY = 512
_TRANSLATION = "translation_"


def _early_stopping(name: str, value: Any) -> Any:
    if value != "never" and not isinstance(value, bool):
        raise InvalidInputError(f'{name}={value!r} is neither true nor false nor "never"')
    return value


_BEAMS: Mapping[str, Check] = {
    "num_beams": whole_from(1, MOST_BEAMS),
    "length_penalty": real_from(-100, 100),
    "early_stopping": _early_stopping,
}
"""Checks of the settings of beam search."""


class TextToText(Pipeline):
    """Writes a text for a text; the base of translations and summaries.

    Args:
        model: a folder with an encoder, a decoder and a tokenizer.
        options: the options.
    """

    task = "text2text-generation"
    key: ClassVar[str] = "generated_text"
    own: ClassVar[tuple[str, ...]] = ("max_tokens", "prefix", *_BEAMS)
    checks: ClassVar[Mapping[str, Check]] = _BEAMS

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(options)
        self.model = open_seq2seq(model, options, self.task, _CAPACITY)
        layout = self.model.layout
        self.said = self.params(layout.config)
        sections = (self.said, layout.search, layout.config)  # the first one counts
        self._least = _number(sections, "min_length")
        self._ngram = _number(sections, "no_repeat_ngram_size")
        self._start = _tokens(sections, "decoder_start_token_id")
        self._forced = _tokens(sections, "forced_bos_token_id")
        self._never = sorted(_tokens(sections, "pad_token_id") - layout.eos)
        self._positions = layout.config.number("max_position_embeddings")
        self._ends = sorted(_tokens(sections, "forced_eos_token_id"))
        self._longest = _number(sections, "max_length")
        self.settings = {
            "max_tokens": options.take("max_tokens", None),
            "prefix": options.take("prefix", self.said.text("prefix")),
            "num_beams": options.take("num_beams", _number(sections, "num_beams") or 1),
            "length_penalty": options.take("length_penalty", _real(sections, "length_penalty")),
            "early_stopping": options.take("early_stopping", _early(sections)),
        }

    def params(self, config: Section) -> Section:
        """Return what config.json says of the task in `task_specific_params`."""
        return config.section("task_specific_params").section(self.task)

    def forced(self, chosen: Settings) -> list[int]:
        """Return the tokens that a text begins with, after the decoder's start."""
        del chosen
        return sorted(self._forced)

    @property
    def device(self) -> str:
        """The name of the device that it runs on."""
        return self.model.device.name

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return what is written for a text, or a list of results for a list of texts.

        Args:
            inputs: a text, or a list of them.
            settings: `max_tokens`; `prefix`, which is put before the text; `num_beams`, sequences
                that are searched side by side, with `length_penalty` and `early_stopping` (true,
                false or "never") as in transformers.

        Raises:
            InvalidInputError: a text is too long or none, or a setting is not known.
        """
        chosen = self.chosen(settings)
        if isinstance(inputs, list | tuple):
            return [self._written(one, chosen) for one in inputs]
        return self._written(inputs, chosen)

    def _written(self, text: Any, chosen: Settings) -> Written:
        if not isinstance(text, str):
            raise InvalidInputError(f"a text is a str, not {type(text).__name__}")
        tokens = self.model.tokenizer.encode(f"{chosen['prefix'] or ''}{text}")
        if self._positions and len(tokens) > self._positions:
            raise TextTooLongError(
                f"the text has {len(tokens)} tokens, and the model takes {self._positions}",
                "cut it into parts",
            )
        if not self._start:
            raise InvalidInputError("config.json names no decoder_start_token_id")
        prompt = [min(self._start), *self.forced(chosen)]

        options = BeamOptions(
            int(chosen["num_beams"]),
            float(chosen["length_penalty"]),
            chosen["early_stopping"],
            len(prompt) - 1,
        )
        most = chosen["max_tokens"] or self._longest or None
        if options.beams > 1 and most and not chosen["max_tokens"]:
            most = max(most - len(prompt), 1)  # transformers' max_length counts the prompt

        def guide(logits: Array, there: Sequence[int]) -> Array:
            if self._ends and options.beams > 1 and most and len(there) + 1 == most:
                made = np.full_like(logits, -np.inf)
                made[self._ends] = 0
                return made
            return self._guided(logits, there, prompt)

        if options.beams > 1:
            made = self.model.searched(tokens, prompt, most, options, guide)
        else:
            made = self.model.guided(tokens, prompt, most, guide=guide)
        return Written(made.text.strip(), self.key, made.finish_reason == "stop")

    def _guided(self, logits: Array, there: Sequence[int], prompt: Sequence[int]) -> Array:
        """Return the logits without padding, early ends, and repetitions of n tokens."""
        banned = [*self._never, *repeated([*prompt, *there], self._ngram)]
        if len(prompt) + len(there) < self._least:
            banned += self.model.layout.eos
        made: Array = logits.copy()
        made[[one for one in banned if one < len(made)]] = -np.inf
        return made

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        self.model.close()


class Summarize(TextToText):
    """Says in short what a text says."""

    task = "summarization"
    key = "summary_text"


def _language(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"{name}={value!r} is not the code of a language")
    return value


class Translate(TextToText):
    """Translates a text."""

    task = "translation"
    key = "translation_text"
    own: ClassVar[tuple[str, ...]] = (*TextToText.own, "source", "target")
    checks: ClassVar[Mapping[str, Check]] = {
        **TextToText.checks,
        "source": _language,
        "target": _language,
    }

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(model, options)
        self._target: str | None = options.take("target", None)
        self._begin: list[int] | None = None
        if self._target is None or self.said.keys():
            return
        if self.model.layout.config.text("model_type") == "marian":  # the text says the language
            mark = f">>{self._target}<<"
            self._token_of(self._target, (mark,))
            self.settings = {**self.settings, "prefix": f"{mark} {self.settings['prefix'] or ''}"}
        else:
            self._begin = [self._token_of(self._target, (self._target, f"__{self._target}__"))]

    def params(self, config: Section) -> Section:
        """Return what config.json says of the pair of languages."""
        said = config.section("task_specific_params")
        pairs = [key for key in said.keys() if key.startswith(_TRANSLATION)]  # noqa: SIM118
        ends = [self.options.take(name, None) for name in ("source", "target")]
        if not pairs:
            return said.section(self.task)
        fitting = [key for key in pairs if _fits(key, *ends)]
        if not fitting:
            self.model.close()
            raise InvalidInputError(
                f"the model's files name no translation from {ends[0] or '?'} to {ends[1] or '?'}",
                hint=f"they have {', '.join(key.removeprefix(_TRANSLATION) for key in pairs)}",
            )
        if len(fitting) > 1:
            pair = fitting[0].removeprefix(_TRANSLATION)
            self.guess(f"the languages are {pair}, the first of {len(fitting)} pairs",
                       "--set source=en, --set target=de")  # fmt: skip
        return said.section(fitting[0])

    def _token_of(self, language: str, names: Sequence[str]) -> int:
        """Return the token that stands for a language."""
        for name in names:
            tokens = self.model.tokenizer.encode(name, special=False)
            if len(tokens) == 1:
                return tokens[0]
        self.model.close()
        raise InvalidInputError(
            f"the tokenizer has no token for the language '{language}'",
            hint="codes are the model's own: de, deu, deu_Latn …; see its card",
        )

    def forced(self, chosen: Settings) -> list[int]:
        """Return the token of the language."""
        return super().forced(chosen) if self._begin is None else self._begin


def _fits(key: str, source: str | None, target: str | None) -> bool:
    """Return whether a key, "translation_en_to_de", is of these languages."""
    begin, _, end = key.removeprefix(_TRANSLATION).partition("_to_")
    return source in (None, begin) and target in (None, end)


def repeated(there: Sequence[int], count: int) -> list[int]:
    """Return the tokens with which the last ones would repeat a run of `count` tokens."""
    if count < 1 or len(there) < count:
        return []
    last = list(there[len(there) - count + 1 :])
    runs = (there[start : start + count] for start in range(len(there) - count + 1))
    return [run[-1] for run in runs if list(run[:-1]) == last]


def _number(sections: Sequence[Section], key: str) -> int:
    return next((one.number(key) for one in sections if key in one), 0)


def _real(sections: Sequence[Section], key: str) -> float:
    return next((one.real(key) for one in sections if key in one), 1.0)


def _early(sections: Sequence[Section]) -> Any:
    """Return `early_stopping`: a flag, or "never"."""
    found = next((one for one in sections if "early_stopping" in one), None)
    if found is None:
        return False
    try:
        return found.flag("early_stopping")
    except ModelFileError:
        if found.text("early_stopping") != "never":
            raise
        return "never"


def _tokens(sections: Sequence[Section], key: str) -> frozenset[int]:
    return next((one.tokens(key) for one in sections if key in one), frozenset())
