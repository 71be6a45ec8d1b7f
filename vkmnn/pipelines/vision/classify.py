"""Image classification: the most likely classes of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.description import read_labels
from vkmnn.pipelines.heads.candidates import sigmoid, softmax
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.boxes import label_of
from vkmnn.pipelines.results.labels import Labels

_TOP = 5
_IMAGENET = Path(__file__).parents[1] / "data" / "imagenet.txt"
_LOGITS_NAMES = ("logit", "score", "prob", "output", "class")


class Classify(PicturePipeline[Labels]):
    """Classifies images."""

    task = "image-classification"
    own: ClassVar[tuple[str, ...]] = ("top", "activation", "feeds")
    usual = ImageProcessor(
        Fit("shortest", (224, 224), 256), "bilinear", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
    )

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self.settings = {"top": options.take("top", _TOP), "threshold": options.threshold or 0.0}
        self._names: list[str] | None = None
        self._activation: str | None = options.take("activation", None)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Labels]:
        """Return the most likely classes of each image."""
        rows = self._rows(outputs, len(pictures))
        scores = self._activated(rows)
        if self._names is None:
            self._names = self._labels_of(scores.shape[1])
        return [
            self._labels(row, picture, chosen)
            for row, picture in zip(scores, pictures, strict=True)
        ]

    def _labels_of(self, classes: int) -> list[str]:
        """Return the class names; ImageNet's if the number of classes matches."""
        imagenet = read_labels(_IMAGENET) if classes in (1000, 1001) else ()
        names = self.names(classes, {1000: imagenet, 1001: ("background", *imagenet)})
        if len(names) == 1000 and classes == 1001:  # TensorFlow's start with a background class
            names.insert(0, "background")
        return names

    def _labels(self, row: Array, picture: Picture, chosen: Settings) -> Labels:
        best = np.argsort(-row, kind="stable")[: int(chosen["top"])]
        items = [label_of(int(one), float(row[one]), self._names or ()) for one in best]
        found = Labels([one for one in items if one.score >= chosen["threshold"]], picture)
        found.scores = row
        return found

    def _rows(self, outputs: Mapping[str, Array], count: int) -> Array:
        """Return the output with the scores as [images, classes]."""
        found = {
            name: array
            for name, array in outputs.items()
            if array.dtype.kind in "fui" and array.size > count
            and _longest(array, count) * count == array.size
        } or {
            name: array for name, array in outputs.items()
            if array.dtype.kind in "fui" and array.size == count
        }  # fmt: skip
        names = [name for word in _LOGITS_NAMES for name in found if word in name.lower()]
        name = (names or list(found) or [""])[0]
        if not name:
            shapes = ", ".join(f"{key} {list(np.shape(one))}" for key, one in outputs.items())
            raise InvalidInputError(
                f"no output has one score per class: {shapes}",
                hint="choose another task: --task",
            )
        rows = self._real(name, found[name].reshape(count, -1))
        if rows.shape[1] > 1:
            return rows
        chances = rows if rows.min() >= 0 and rows.max() <= 1 else sigmoid(rows)
        return np.concatenate([1 - chances, chances], 1)  # one score: no or yes

    def _real(self, name: str, array: Array) -> Array:
        """Return real-valued scores; quantised values by their scale, or divided by 255."""
        if array.dtype.kind == "f":
            return array.astype(np.float32)
        arg = next(one for one in self.network.session.get_outputs() if one.name == name)
        scale, zero = arg.quantization or (1 / 255, 0)
        return np.asarray((array.astype(np.float32) - zero) * np.float32(scale))

    def _activated(self, rows: Array) -> Array:
        """Return probabilities; applies softmax unless the network has."""
        if self._activation is None:
            self._activation = self._detected(rows)
        return ACTIVATIONS[self._activation](rows)

    def _detected(self, rows: Array) -> str:
        """Distinguish logits from probabilities by their range and sum."""
        if self.about.config.text("problem_type") == "multi_label_classification":
            return "sigmoid"
        within = bool(np.all(rows >= 0) and np.all(rows <= 1 + 1e-3))
        if within and np.allclose(rows.sum(1), 1, atol=2e-2):
            return "none"
        if within:
            self.guess("the scores are between 0 and 1 but do not add up to 1: they are shown as "
                       "they are", "--activation softmax|sigmoid|none")  # fmt: skip
            return "none"
        return "softmax"


def _longest(array: Array, count: int) -> int:
    """Return the size of the longest axis besides that of the images."""
    sizes = list(array.shape)
    if count in sizes:
        sizes.remove(count)
    return max(sizes, default=1)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda rows: rows,
}
"""Functions from scores to probabilities, by name."""
