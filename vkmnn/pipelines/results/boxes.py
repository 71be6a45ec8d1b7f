"""Boxes around objects: the result of detection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.results.labels import Label, drawn
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the image, in pixels, and its label.

    For a rotated rectangle, `outline` holds its corners (x, y), and the box is the bounding box.
    """

    label: Label
    left: float
    top: float
    right: float
    bottom: float
    outline: tuple[tuple[float, float], ...] = ()

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return self.left, self.top, self.right, self.bottom

    @property
    def score(self) -> float:
        """The label's score."""
        return self.label.score

    def __str__(self) -> str:
        """Return the label and the corners."""
        return f"{self.label} ({', '.join(f'{one:.0f}' for one in self.corners)})"

    def to_dict(self) -> dict[str, Any]:
        """Return label, score and box as transformers has them."""
        names = ("xmin", "ymin", "xmax", "ymax")
        box = {name: round(one, 2) for name, one in zip(names, self.corners, strict=True)}
        made = {**self.label.to_dict(), "box": box}
        if self.outline:
            made["outline"] = [[round(x, 2), round(y, 2)] for x, y in self.outline]
        return made


class Boxes(Result[Box]):
    """The boxes in an image, highest score first."""

    columns = ("label", "score", "left", "top", "right", "bottom")

    def rows(self) -> list[tuple[str, ...]]:
        """Return label, score and corners of each."""
        return [
            (one.label.name, f"{one.score:.3f}", *(f"{side:.1f}" for side in one.corners))
            for one in self.items
        ]

    def arrays(self) -> dict[str, Array]:
        """Return boxes [n, 4], scores [n] and classes [n]."""
        boxes = [one.corners for one in self.items]
        return {
            "boxes": np.array(boxes, np.float32).reshape(-1, 4),
            "scores": np.array([one.score for one in self.items], np.float32),
            "classes": np.array([one.label.index for one in self.items], np.int64),
        }

    def draw(self) -> Image.Image:
        """Return the image with boxes and labels."""
        from vkmnn.pipelines.results.drawing import Canvas, colour_of

        canvas = Canvas(drawn(self))
        for box in reversed(self.items):  # highest score on top
            colour = colour_of(box.label.index)
            if box.outline:
                canvas.polygon(np.array(box.outline), colour)
            else:
                canvas.box(box.corners, colour)
        for box in reversed(self.items):
            canvas.tag(box.left, box.top, str(box.label), colour_of(box.label.index))
        made: Image.Image = canvas.image
        return made


def boxes_of(corners: Array, scores: Array, classes: Array, names: Sequence[str]) -> list[Box]:
    """Return boxes from arrays [n, 4], [n] and [n], in their order."""
    made = []
    for row, score, index in zip(corners, scores, classes, strict=True):
        left, top, right, bottom = map(float, row)
        label = label_of(int(index), float(score), names)
        made.append(Box(label, left, top, right, bottom))
    return made


def label_of(index: int, score: float, names: Sequence[str]) -> Label:
    """Return the label of a class; unnamed classes are named by their index."""
    name = names[index] if 0 <= index < len(names) else str(index)
    return Label(name, score, index)
