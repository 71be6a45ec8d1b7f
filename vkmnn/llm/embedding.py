"""Encoders that turn texts into vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.closing import Closing
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.ir import Array
from vkmnn.llm.layout import Layout
from vkmnn.llm.text import Tokenizer
from vkmnn.opening import open_model
from vkmnn.schedule_config import ScheduleConfig

if TYPE_CHECKING:
    pass

LENGTHS = (16, 64, 256, 512)
"""Texts are padded to one of these, so that there are few plans."""

_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")


class EmbeddingModel(Closing):
    """An encoder with its tokenizer; created by `vkmnn.llm.load_embedding`.

    A vector is the mean over a text's tokens, normalised to length 1, or the network's output
    `sentence_embedding`.
    """

    def __init__(self, layout: Layout, config: ScheduleConfig, name: str) -> None:
        self.name = name
        self.layout = layout
        self.tokenizer = Tokenizer(layout.folder)
        network, self._open = open_model(layout.decoder, config)
        self.device = self._open.device
        self._inputs = {info.name: info for info in network.graph.inputs}
        outputs = [info.name for info in network.outputs]
        unknown = set(self._inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown or "input_ids" not in self._inputs:
            raise ModelFileError(
                f"'{layout.decoder}' is not a text encoder: its inputs are "
                f"{', '.join(self._inputs)}"
            )
        self._output = next((one for one in _OUTPUTS if one in outputs), outputs[0])
        self.capacity = layout.context or LENGTHS[-1]

    @property
    def lost(self) -> bool:
        """Whether the model cannot answer because its device is lost (`InferenceSession.lost`)."""
        return self._open.core.lost

    def embed(self, texts: str | Sequence[str]) -> Array:
        """Return a vector for each text, float32 [texts, width]; for one text, [width].

        Raises:
            InvalidInputError: a text is empty, or too long for the model.
        """
        if isinstance(texts, str):
            only: Array = self.embed([texts])[0]
            return only
        vectors = [vector for vector, _ in self.each(texts)]
        if not vectors:
            raise InvalidInputError("there are no texts", hint="give at least one")
        return np.stack(vectors)

    def each(self, texts: Iterable[str]) -> Iterator[tuple[Array, int]]:
        """Yield the vector of each text, float32 [width], and its number of tokens.

        Raises:
            InvalidInputError: as `embed`.
        """
        for text in texts:
            tokens = self.tokenizer.encode(text, most=self.capacity)
            if not tokens:
                raise InvalidInputError("a text is empty", hint="leave it out")
            yield self._vector(tokens), len(tokens)

    def _vector(self, tokens: list[int]) -> Array:
        size = next((n for n in LENGTHS if len(tokens) <= n <= self.capacity), len(tokens))
        if "attention_mask" not in self._inputs:
            size = len(tokens)
        kept = np.arange(size) < len(tokens)
        values: dict[str, Any] = {
            "input_ids": np.array(tokens + [0] * (size - len(tokens))),
            "attention_mask": kept,
            "token_type_ids": np.zeros(size),
        }
        feeds = {n: values[n][None].astype(i.dtype.numpy) for n, i in self._inputs.items()}
        made = np.asarray(self._open.core.run(feeds)[self._output], np.float32)[0]
        vector = made if made.ndim == 1 else made[kept].mean(0)
        result: Array = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return result

    def close(self) -> None:
        """Release the device's memory."""
        self._open.core.close()
