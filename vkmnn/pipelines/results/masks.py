"""Masks: the results of segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.results.boxes import Box
from vkmnn.pipelines.results.labels import Label, drawn
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The pixels of an object or of a class.

    Attributes:
        label: the class.
        pixels: bool [height, width] of the image.
        box: the box around an object, if the network returns one.
    """

    label: Label
    pixels: Array
    box: Box | None = None

    @property
    def area(self) -> int:
        """The number of pixels."""
        return int(self.pixels.sum())

    def __str__(self) -> str:
        """Return the label and the covered fraction of the image."""
        return f"{self.label} {self.area / max(self.pixels.size, 1):.1%}"

    def to_dict(self) -> dict[str, Any]:
        """Return label, score, area and COCO's run lengths, column by column."""
        made = {**self.label.to_dict(), "area": self.area, "mask": runs_of(self.pixels)}
        return made if self.box is None else {**made, "box": self.box.to_dict()["box"]}


def runs_of(pixels: Array) -> dict[str, Any]:
    """Return run lengths in column order, starting with zeros (COCO's uncompressed RLE)."""
    flat = pixels.T.reshape(-1).astype(np.int8)
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0], changes, [len(flat)]])).tolist()
    return {"size": list(pixels.shape), "counts": [0, *counts] if flat[:1].any() else counts}


class Masks(Result[Mask]):
    """The objects or classes in an image.

    Attributes:
        classes: int64 [height, width], the class of each pixel, -1 for none; None for objects.
    """

    columns = ("label", "score", "pixels", "share")
    classes: Array | None = None

    def rows(self) -> list[tuple[str, ...]]:
        """Return label, score, number of pixels and covered fraction of each."""
        return [
            (one.label.name, f"{one.label.score:.3f}", str(one.area),
             f"{one.area / max(one.pixels.size, 1):.1%}")
            for one in self.items
        ]  # fmt: skip

    def arrays(self) -> dict[str, Array]:
        """Return masks [n, height, width], classes [n], scores [n], and the map of classes."""
        made = {
            "masks": np.array([one.pixels for one in self.items], bool),
            "classes": np.array([one.label.index for one in self.items], np.int64),
            "scores": np.array([one.label.score for one in self.items], np.float32),
        }
        return made if self.classes is None else {**made, "map": self.classes}

    def draw(self) -> Image.Image:
        """Return the image with tinted masks, boxes and labels."""
        from vkmnn.pipelines.results.drawing import Canvas, colour_of

        canvas = Canvas(drawn(self))
        for mask in self.items:
            canvas.shade(mask.pixels, colour_of(mask.label.index))
        for mask in self.items:
            if mask.box is not None:
                canvas.box(mask.box.corners, colour_of(mask.label.index))
        for mask in self.items:
            x, y = _place(mask)
            canvas.tag(x, y, str(mask.label), colour_of(mask.label.index))
        made: Image.Image = canvas.image
        return made


def _place(mask: Mask) -> tuple[float, float]:
    """Return the position of the label: the box's corner, or the middle of the pixels."""
    if mask.box is not None:
        return mask.box.left, mask.box.top
    rows, columns = np.nonzero(mask.pixels)
    if not len(rows):
        return 0, 0
    middle = len(rows) // 2
    return float(columns[middle]), float(rows[middle])


def from_map(classes: Array, scores: Array | None, names: Sequence[str]) -> list[Mask]:
    """Return a mask for each class in a map, the largest first.

    Args:
        classes: int [height, width].
        scores: the score of each pixel's class, if known.
        names: names of the classes.
    """
    found, counts = np.unique(classes, return_counts=True)
    made = []
    for index in found[np.argsort(-counts, kind="stable")]:
        pixels = classes == index
        score = 1.0 if scores is None else float(scores[pixels].mean())
        number = int(index)
        name = names[number] if 0 <= number < len(names) else str(number)
        made.append(Mask(Label(name, score, number), pixels))
    return made
