"""From texts to the inputs of networks that speak: characters or phonemes as numbers."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from vkmnn.base.config_file import Section, read_config
from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, ModelFileError

_START, _END, _BLANK = "^", "$", "_"
_SPACES = re.compile(r"\s+")
_FOREIGN = 0x250
"""Letters from here on are of the phonetic alphabet, not of a Latin spelling."""


class Spelling(ABC):
    """Turns texts into numbers.

    Args:
        phonemes: whether texts are phonemes already; None where their letters tell.
    """

    def __init__(self, phonemes: bool | None) -> None:
        self._phonemes = phonemes

    def numbers(self, text: Any) -> list[int]:
        """Return the numbers of a text.

        Raises:
            InvalidInputError: it is not a string, or nothing in it can be spoken.
            MissingExtraError: a package that its spelling takes is not installed.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a text is a str, not {type(text).__name__}")
        made = self._numbers(_SPACES.sub(" ", text).strip())
        if not made:
            raise InvalidInputError(
                "the text has no character that the model knows",
                hint="is it in the model's language and script?",
            )
        return made

    @abstractmethod
    def _numbers(self, text: str) -> list[int]:
        """Return the numbers of a text; none if it has no known character."""

    def _phonetic(self, text: str, voice: str) -> str:
        """Return the phonemes of a text, by espeak."""
        known = any(ord(mark) >= _FOREIGN and unicodedata.category(mark)[0] == "L" for mark in text)
        if self._phonemes or (self._phonemes is None and known):
            return text
        phonemizer = need(
            "phonemizer",
            "finding the phonemes of a text",
            hint="pip install phonemizer, and espeak-ng; or give phonemes: "
            "phonemes=True, --set phonemes=true",
        )
        try:
            made = phonemizer.phonemize(
                text, language=voice, backend="espeak", strip=True,
                preserve_punctuation=True, with_stress=True,
            )  # fmt: skip
        except RuntimeError as error:  # no espeak, or no such language
            raise InvalidInputError(
                f"espeak has no phonemes of the text: {error}", hint="install espeak-ng"
            ) from error
        return _SPACES.sub(" ", str(made)).strip()


class VitsSpelling(Spelling):
    """The vocabulary of transformers' VITS and MMS.

    Args:
        folder: a folder with vocab.json and tokenizer_config.json.
        phonemes: as for `Spelling`.

    Raises:
        ModelFileError: the vocabulary is missing or damaged.
    """

    def __init__(self, folder: Path, phonemes: bool | None) -> None:
        super().__init__(phonemes)
        found = read_config(folder / "vocab.json")
        if not found.keys():
            raise ModelFileError(f"'{folder}' has no vocab.json", hint="download the whole folder")
        self._known = {key: found.number(key) for key in found.keys()}  # noqa: SIM118
        config = read_config(folder / "tokenizer_config.json")
        self._blank = config.flag("add_blank", True)
        self._normalises = config.flag("normalize", True)
        self._speaks = config.flag("phonemize", True)
        self._roman = config.flag("is_uroman")
        self._language = config.text("language")
        pad, unknown = config.special("pad_token"), config.special("unk_token")
        self._unknown = self._known.get(unknown, self._known.get(pad))

    def _numbers(self, text: str) -> list[int]:
        if self._normalises:
            text = "".join(one if one in self._known else one.lower() for one in text)
        if self._language == "ron":
            text = text.replace("\N{LATIN SMALL LETTER T WITH COMMA BELOW}",
                                "\N{LATIN SMALL LETTER T WITH CEDILLA}")  # fmt: skip
        if self._roman and not text.isascii():
            text = _romanised(text)
        if self._speaks:
            text = self._phonetic(text, "en-us")
        elif self._normalises:
            text = "".join(one for one in text if one in self._known).strip()
        found = [self._known.get(one, self._unknown) for one in text]
        made = [one for one in found if one is not None]
        if not self._blank or not made:
            return made
        return [0, *(one for number in made for one in (number, 0))]


def _romanised(text: str) -> str:
    """Return a text in Latin letters."""
    uroman = need(
        "uroman",
        "reading letters that are not Latin",
        hint="pip install uroman, or give the text in Latin letters",
    )
    return str(uroman.Uroman().romanize_string(text))


class PiperSpelling(Spelling):
    """The phonemes of piper's voices.

    Args:
        config: the voice's .onnx.json.
        phonemes: as for `Spelling`.

    Raises:
        ModelFileError: the map of phonemes is damaged.
    """

    def __init__(self, config: Section, phonemes: bool | None) -> None:
        super().__init__(phonemes)
        table = config.section("phoneme_id_map")
        self._known = {
            key: [int(one) for one in table.reals(key)]
            for key in table.keys()  # noqa: SIM118
        }
        for mark in (_START, _END, _BLANK):
            if mark not in self._known:
                raise ModelFileError(f"'{config.path}' has no phoneme '{mark}'")
        self._spelt = config.text("phoneme_type") == "text"
        self._voice = config.section("espeak").text("voice", "en-us")

    def _numbers(self, text: str) -> list[int]:
        text = text.casefold() if self._spelt else self._phonetic(text, self._voice)
        found = [self._known[one] for one in unicodedata.normalize("NFD", text)
                 if one in self._known]  # fmt: skip
        if not found:
            return []
        made = [*self._known[_START], *self._known[_BLANK]]
        for numbers in found:
            made += [*numbers, *self._known[_BLANK]]
        return [*made, *self._known[_END]]
