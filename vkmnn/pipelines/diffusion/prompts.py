"""Prompts as embeddings: one or two text encoders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.config_file import Section
from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.diffusion.part import Part, open_part
from vkmnn.pipelines.diffusion.tokens import ClipTokenizer
from vkmnn.pipelines.options import Options

_HIDDEN = re.compile(r"hidden_states\.(\d+)")
_ENCODERS = (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2"))


@dataclass(frozen=True, slots=True)
class Embedded:
    """Prompts as embeddings.

    Attributes:
        tokens: vectors of tokens, float32 [prompts, tokens, n].
        pooled: vectors of prompts, float32 [prompts, n]; None for a single encoder.
    """

    tokens: Array
    pooled: Array | None


class Prompts:
    """The text encoders of a folder, with their tokenizers.

    Args:
        folder: the pipeline's folder.
        index: model_index.json.
        options: device and settings of the sessions.

    Raises:
        ModelFileError: the folder has no text encoder, or one without its tokenizer.
    """

    def __init__(self, folder: Path, index: Section, options: Options) -> None:
        self._parts: list[tuple[Part, ClipTokenizer]] = []
        try:
            for encoder, tokenizer in _ENCODERS:
                part = open_part(folder, (encoder,), options)
                if part is not None:
                    self._parts.append((part, ClipTokenizer(folder / tokenizer)))
                    part.only(("input_ids", "attention_mask", "position_ids"))
        except BaseException:
            self.close()
            raise
        if not self._parts:
            raise ModelFileError(
                f"'{folder}' has no folder 'text_encoder'", hint="download the whole folder"
            )
        self.is_large = (folder / _ENCODERS[1][0]).is_dir()
        self._zeros = self.is_large and index.flag("force_zeros_for_empty_prompt", True)

    def embedded(self, prompts: Sequence[Any], truncate: bool) -> Embedded:
        """Return prompts as embeddings.

        Args:
            prompts: the texts; None in place of a negative prompt that is not given.
            truncate: cut off the ends of prompts that are too long.

        Raises:
            InvalidInputError: a prompt is too long, or not a string.
        """
        tables: list[Array] = []
        pooled: Array | None = None
        for part, tokenizer in self._parts:
            rows = [tokenizer.encode(one or "", truncate) for one in prompts]
            made = [self._encoded(part, tokens) for tokens in rows]
            tables.append(np.stack([table for table, _ in made]))
            if self.is_large and made[0][1] is not None:
                pooled = np.stack([np.asarray(vector) for _, vector in made])
        tokens = np.concatenate(tables, -1)
        if self.is_large and pooled is None:
            raise InvalidInputError("the second text encoder has no output 'text_embeds'")
        for number, prompt in enumerate(prompts):
            if prompt is None and self._zeros:
                tokens[number] = 0
                if pooled is not None:
                    pooled[number] = 0
        return Embedded(tokens, pooled)

    def _encoded(self, part: Part, tokens: list[int]) -> tuple[Array, Array | None]:
        """Return the vectors of a prompt's tokens, and the vector of the prompt."""
        values = {"input_ids": tokens, "attention_mask": [1] * len(tokens),
                  "position_ids": range(len(tokens))}  # fmt: skip
        feeds = {name: part.cast(name, [list(values[name])]) for name in part.inputs}
        made = part.run(feeds)
        if not self.is_large:
            table = made.get("last_hidden_state", next(iter(made.values())))
            return _checked(table, part)[0], None
        hidden = {int(match[1]): one for name, one in made.items()
                  if (match := _HIDDEN.fullmatch(name))}  # fmt: skip
        if len(hidden) < 2:
            raise InvalidInputError(
                f"'{part.folder}' has no outputs 'hidden_states.0', … as Stable Diffusion XL needs",
                hint="export the folder with optimum-cli export onnx",
            )
        table = hidden[sorted(hidden)[-2]]  # the layer before the last
        pooled = made.get("text_embeds")
        vector = None if pooled is None else pooled[0].astype(np.float32)
        return _checked(table, part)[0], vector

    def close(self) -> None:
        """Release device memory."""
        for part, _ in self._parts:
            part.close()


def _checked(table: Array, part: Part) -> Array:
    if table.ndim != 3:
        raise InvalidInputError(
            f"the first output of '{part.folder}' has the shape {list(table.shape)} instead of "
            "[prompts, tokens, n]"
        )
    return table.astype(np.float32)
