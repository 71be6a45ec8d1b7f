"""The tokenizer of CLIP's text encoders: prompts of a fixed number of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vkmnn.base.config_file import Section, read_config, read_text
from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.llm.text import TextTooLongError

_START, _END = "<|startoftext|>", "<|endoftext|>"
_LENGTH = 77
_MOST = 1 << 16
_WORDS = r"'(?:s|t|re|ve|m|ll|d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
"""Pieces that no token crosses: contractions, words, digits, other characters."""


class ClipTokenizer:
    """A tokenizer of prompts.

    Args:
        folder: a folder with tokenizer.json, or with vocab.json and merges.txt.

    Attributes:
        length: the tokens of a prompt, with the first, the last and the padding.

    Raises:
        ModelFileError: the files are missing or damaged.
        MissingExtraError: `tokenizers` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        config = read_config(folder / "tokenizer_config.json")
        specials = read_config(folder / "special_tokens_map.json")
        self._tokenizer = _read(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        longest = config.limit("model_max_length", _LENGTH)
        self.length = int(longest) if 2 < longest < _MOST else _LENGTH
        self._start = self._token("bos_token", (config, specials), _START, folder)
        self._end = self._token("eos_token", (config, specials), _END, folder)
        self._pad = self._token("pad_token", (config, specials), _END, folder)

    def _token(self, key: str, sections: tuple[Section, ...], usual: str, folder: Path) -> int:
        text = next((one.special(key) for one in sections if key in one), usual)
        token = self._tokenizer.token_to_id(text)
        if token is None:
            raise ModelFileError(
                f"the tokenizer in '{folder}' has no token '{text}'",
                hint="download the whole folder again",
            )
        return int(token)

    def encode(self, text: Any, truncate: bool) -> list[int]:
        """Return the tokens of a prompt, padded to `length`.

        Args:
            text: the prompt.
            truncate: cut off the end of a prompt that is too long.

        Raises:
            InvalidInputError: it is not a string.
            TextTooLongError: it has too many tokens.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a prompt is a str, not {type(text).__name__}")
        try:
            text.encode()
            found = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except UnicodeError as error:
            raise InvalidInputError("the prompt is not Unicode: it has a lone surrogate") from error
        most = self.length - 2
        if len(found) > most and not truncate:
            raise TextTooLongError(
                f"the prompt has {len(found)} tokens, and the model takes {most}",
                "shorten it, or drop its end: truncate=True, --set truncate=true",
            )
        found = [self._start, *found[:most], self._end]
        return found + [self._pad] * (self.length - len(found))


def _read(folder: Path) -> Any:
    """Return the tokenizer in a folder."""
    tokenizers = need("tokenizers", "reading tokens")
    whole, vocabulary, merges = (
        folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
    )
    if not whole.is_file() and not (vocabulary.is_file() and merges.is_file()):
        raise ModelFileError(
            f"'{folder}' has neither tokenizer.json nor vocab.json and merges.txt",
            hint="download the whole folder",
        )
    try:
        if whole.is_file():
            return tokenizers.Tokenizer.from_file(str(whole))
        return _built(tokenizers, json.loads(read_text(vocabulary)), read_text(merges))
    except ModelFileError:
        raise
    except Exception as error:  # the package raises bare exceptions
        raise ModelFileError(f"the tokenizer in '{folder}' cannot be read: {error}") from error


def _built(tokenizers: Any, vocabulary: dict[str, int], merges: str) -> Any:
    """Return CLIP's tokenizer for a vocabulary and its merges."""
    pairs = [
        (parts[0], parts[1])
        for line in merges.splitlines()
        if not line.startswith("#version") and len(parts := line.split()) == 2
    ]
    model = tokenizers.models.BPE(
        vocabulary, pairs, unk_token=_END, end_of_word_suffix="</w>", fuse_unk=False
    )
    made = tokenizers.Tokenizer(model)
    changes, pieces = tokenizers.normalizers, tokenizers.pre_tokenizers
    made.normalizer = changes.Sequence(
        [changes.NFC(), changes.Replace(tokenizers.Regex(r"\s+"), " "), changes.Lowercase()]
    )
    made.pre_tokenizer = pieces.Sequence(
        [
            pieces.Split(tokenizers.Regex(_WORDS), "removed", invert=True),
            pieces.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    known = [word for word in (_START, _END) if word in vocabulary]
    made.add_special_tokens([tokenizers.AddedToken(word, normalized=False) for word in known])
    return made
