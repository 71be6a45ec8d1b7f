"""Text classification: the most likely classes of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Settings
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.results.boxes import label_of
from vkmnn.pipelines.results.labels import Labels
from vkmnn.pipelines.texts.text_pipeline import TextPipeline
from vkmnn.pipelines.vision.classify import ACTIVATIONS

_TOP = 5
_BY_PROBLEM = {
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
    "regression": "none",
}
"""Functions from logits to scores, by `problem_type` of config.json."""


class ClassifyText(TextPipeline[Labels]):
    """Classifies texts."""

    task = "text-classification"
    own: ClassVar[tuple[str, ...]] = (*TextPipeline.own, "top", "activation")

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self.settings = {
            **self.settings,
            "top": options.take("top", _TOP),
            "threshold": options.threshold or 0.0,
        }
        self._activation: str | None = options.take("activation", None)
        self._names: list[str] | None = None

    def result(self, outputs: Mapping[str, Array], kept: Array, chosen: Settings) -> Labels:
        """Return the most likely classes."""
        logits = next((one for name, one in outputs.items() if "logit" in name.lower()), None)
        if logits is None:
            logits = next(iter(outputs.values()))
        if logits.ndim != 2 or len(logits) != 1:
            raise InvalidInputError(
                f"no output has a score for each class: it is {list(logits.shape)}",
                hint="choose another task: --task",
            )
        row = logits[0].astype(np.float32)
        if self._names is None:
            self._names = self.names(len(row))
        scores = ACTIVATIONS[self._chosen_activation(len(row))](row)
        best = np.argsort(-scores, kind="stable")[: int(chosen["top"])]
        items = [label_of(int(one), float(scores[one]), self._names) for one in best]
        made = Labels([one for one in items if one.score >= chosen["threshold"]])
        made.scores = scores
        made.tokens = int(kept.sum())
        return made

    def _chosen_activation(self, classes: int) -> str:
        """Return the activation for logits: from the files, else transformers' default."""
        if self._activation is None:
            said = self.about.config.text("problem_type")
            self._activation = _BY_PROBLEM.get(said, "softmax" if classes > 1 else "sigmoid")
        return self._activation
