"""Text embeddings: texts of similar meaning have similar vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from vkmnn.base.config_file import read_config
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Settings
from vkmnn.pipelines.description import Description
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Check, Options
from vkmnn.pipelines.results.maps import Embedding
from vkmnn.pipelines.texts.text_pipeline import TextPipeline

_POOLED = ("sentence_embedding", "text_embeds", "pooled_embedding")
"""Outputs that are already a single vector."""
_HIDDEN = ("last_hidden_state", "token_embeddings", "hidden")

POOLINGS: Mapping[str, Callable[[Array], Array]] = {
    "mean": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "last": lambda rows: rows[-1],
}
"""Poolings of token vectors into one vector, by name."""

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean",  # in the same direction
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Poolings by the keys of sentence-transformers' 1_Pooling/config.json."""


def _pooling(name: str, value: object) -> str:
    if value not in POOLINGS:
        raise InvalidInputError(
            f"{name}={value!r} is not known", hint=nearest(str(value), POOLINGS, "values")
        )
    return str(value)


class EmbedText(TextPipeline[Embedding]):
    """Embeds texts as unit vectors."""

    task = "feature-extraction"
    own: ClassVar[tuple[str, ...]] = (*TextPipeline.own, "pooling")
    checks: ClassVar[Mapping[str, Check]] = {**TextPipeline.checks, "pooling": _pooling}

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self._pooling: str | None = options.take("pooling", None)

    def result(self, outputs: Mapping[str, Array], kept: Array, chosen: Settings) -> Embedding:
        """Return the vector of a text."""
        by_name = {name.lower(): one for name, one in outputs.items()}
        pooled = next((by_name[name] for name in _POOLED if name in by_name), None)
        if pooled is not None and self._pooling is None:
            vector = pooled.reshape(-1)
        else:
            vector = self._pooled(by_name, kept)
        vector = vector.astype(np.float32)
        return Embedding(vector / max(float(np.linalg.norm(vector)), 1e-12))

    def _pooled(self, outputs: Mapping[str, Array], kept: Array) -> Array:
        tables = {name: one for name, one in outputs.items() if one.ndim == 3}
        chosen = [name for word in _HIDDEN for name in tables if word in name]
        name = (chosen or list(tables) or [""])[0]
        if not name:
            shapes = ", ".join(f"{key} {list(one.shape)}" for key, one in outputs.items())
            raise InvalidInputError(
                f"no output has a vector for each token: {shapes}",
                hint="choose another task: --task",
            )
        if self._pooling is None:
            self._pooling = self._said_pooling()
        return POOLINGS[self._pooling](tables[name][0][kept].astype(np.float32))

    def _said_pooling(self) -> str:
        """Return the pooling from the files; the mean by default."""
        said = said_pooling(self.about)
        if said is None:
            self.guess("no file says how vectors of tokens become one: their mean is taken",
                       "--set pooling=mean|cls|max|last")  # fmt: skip
        return said or "mean"


def said_pooling(about: Description) -> str | None:
    """Return the pooling from sentence-transformers' files; None if they have none.

    Raises:
        InvalidInputError: they concatenate several poolings, or add layers after the pooling.
    """
    if about.folder is None:
        return None
    config = read_config(about.folder / "1_Pooling" / "config.json")
    found = [how for flag, how in _FLAGS.items() if config.flag(flag)]
    if len(found) > 1 or (about.folder / "2_Dense").is_dir():
        raise InvalidInputError(
            f"'{about.folder}' joins several poolings, or has layers behind them",
            hint="export the network with an output sentence_embedding, or choose one: "
            "--set pooling=mean|cls|max|last",
        )
    return found[0] if found else None
