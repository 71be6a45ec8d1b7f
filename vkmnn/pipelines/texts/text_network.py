"""A network on tokens, with its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.config_file import Section, read_config
from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.llm.embedding import LENGTHS
from vkmnn.llm.text import TextTooLongError, Tokenizer
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.networks import Loaded, open_session
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.texts.inputs import TOKENS, TYPES, check_inputs

_SHIFTED = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "longformer")
"""Models whose positions start after the padding token: two positions belong to no token."""
_ENDLESS = 1 << 20
"""Tokenizers without a limit have a `model_max_length` far above this."""


class TextNetwork:
    """A network on the tokens of a text.

    Args:
        loaded: the network.
        options: device and settings of the session.

    Raises:
        InvalidInputError: it has an input that text encoders lack.
        ModelFileError: there is no tokenizer next to it.
    """

    def __init__(self, loaded: Loaded, options: Options) -> None:
        check_inputs(loaded)
        self._inputs = loaded.inputs
        folder = loaded.about.folder or Path()
        self.tokenizer = Tokenizer(folder)
        self._fixed = _fixed_length(loaded.inputs)
        self.most = _capacity(loaded.about.config, folder, self._fixed)
        self._pad = min(loaded.about.config.tokens("pad_token_id"), default=0)
        self.session = open_session(loaded, options)
        self._outputs = [arg.name for arg in self.session.get_outputs()]

    def run(self, text: Any, truncate: bool) -> tuple[dict[str, Array], Array]:
        """Return the outputs for a text, and a mask of the rows that belong to its tokens.

        Raises:
            InvalidInputError: as `feeds`.
        """
        feeds, kept = self.feeds(text, truncate)
        made = self.session.run(None, feeds)
        return dict(zip(self._outputs, made, strict=True)), kept

    def feeds(self, text: Any, truncate: bool) -> tuple[dict[str, Array], Array]:
        """Return the inputs for a text, and a mask of the rows that belong to its tokens.

        Args:
            text: the text; or a dictionary of two, `text` and `text_pair`, that belong together.
            truncate: cut off the end of a text that is too long, and of the second of two.

        Raises:
            InvalidInputError: it is not a string, or has no tokens, or too many.
        """
        tokens, types = self._tokens(text, truncate)
        size = self._fixed or next(
            (n for n in LENGTHS if len(tokens) <= n <= (self.most or n)), len(tokens)
        )
        if self._fixed is None and not any(arg.name == "attention_mask" for arg in self._inputs):
            size = len(tokens)
        kept = np.arange(size) < len(tokens)
        values: Mapping[str, Any] = {
            TOKENS: np.array(tokens + [self._pad] * (size - len(tokens))),
            "attention_mask": kept,
            "token_type_ids": np.array(types + [0] * (size - len(types))),
            "position_ids": np.arange(size),
        }
        feeds = {arg.name: values[arg.name][None].astype(TYPES[arg.type]) for arg in self._inputs}
        return feeds, kept

    def _tokens(self, text: Any, truncate: bool) -> tuple[list[int], list[int]]:
        """Return tokens, and to which of two texts each belongs: 0 or 1."""
        if isinstance(text, Mapping):
            return self._pair_tokens(text, truncate)
        tokens = self.tokenizer.encode(text)
        if not tokens:
            raise InvalidInputError("a text is empty", hint="leave it out")
        if not self.most or len(tokens) <= self.most:
            return tokens, [0] * len(tokens)
        if not truncate:
            raise self._too_long(len(tokens))
        frame = self.tokenizer.encode("")  # special tokens before and after a text
        after = 0
        while after < len(frame) - 1 and frame[-after - 1] == tokens[-after - 1]:
            after += 1
        cut = [*tokens[: self.most - after], *tokens[len(tokens) - after :]]
        return cut, [0] * len(cut)

    def _pair_tokens(self, pair: Mapping[str, Any], truncate: bool) -> tuple[list[int], list[int]]:
        if pair.keys() != {"text", "text_pair"}:
            raise InvalidInputError(
                "a pair of texts has other keys", hint='{"text": "…", "text_pair": "…"}'
            )
        tokens, types, second = self.tokenizer.encode_pair(pair["text"], pair["text_pair"])
        over = len(tokens) - self.most if self.most else 0
        if over > 0 and (not truncate or over >= len(second)):
            raise self._too_long(len(tokens))
        dropped = frozenset(second[len(second) - over :] if over > 0 else ())
        places = [place for place in range(len(tokens)) if place not in dropped]
        return [tokens[place] for place in places], [types[place] for place in places]

    def _too_long(self, count: int) -> TextTooLongError:
        return TextTooLongError(
            f"the text has {count} tokens, and the model takes {self.most}",
            "shorten it, or drop its end: truncate=True, --set truncate=true",
        )

    def close(self) -> None:
        """Release device memory."""
        self.session.close()


def _fixed_length(inputs: Sequence[NodeArg]) -> int | None:
    """Return the number of tokens if it is static."""
    shape = next(arg.shape for arg in inputs if arg.name == TOKENS)
    length = shape[-1] if shape else None
    return length if isinstance(length, int) else None


def _capacity(config: Section, folder: Path, fixed: int | None) -> int:
    """Return the maximum number of tokens of a text; 0 if unlimited."""
    positions = config.number("max_position_embeddings")
    if config.text("model_type") in _SHIFTED and positions > 2:
        positions -= 2
    longest = _model_max(read_config(folder / "tokenizer_config.json"))
    return min((one for one in (fixed, positions, longest) if one), default=0)


def _model_max(config: Section) -> int:
    if "model_max_length" not in config:
        return 0
    longest = config.real("model_max_length")
    return int(longest) if 0 < longest < _ENDLESS else 0
