"""Labels with scores: the result of a classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class Label:
    """A class and its score.

    Attributes:
        name: its name, or its index as a string.
        score: from 0 to 1, unless raw outputs were requested.
        index: its index.
    """

    name: str
    score: float
    index: int

    def __str__(self) -> str:
        """Return the name and the score."""
        return f"{self.name} {self.score:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Return label and score, as in transformers, and the class index."""
        return {"label": self.name, "score": round(self.score, 6), "index": self.index}


class Labels(Result[Label]):
    """The most likely classes of an image, in descending order.

    Attributes:
        scores: the scores of all classes, float32 [classes].
        tokens: number of tokens of a text; 0 for an image.
    """

    columns = ("label", "score", "class")
    scores: Array
    tokens = 0

    def rows(self) -> list[tuple[str, ...]]:
        """Return name, score and index of each."""
        return [(one.name, f"{one.score:.4f}", str(one.index)) for one in self.items]

    def arrays(self) -> dict[str, Array]:
        """Return the scores of all classes, and the indices of the most likely."""
        return {"scores": self.scores, "top": np.array([one.index for one in self.items], np.int64)}

    def draw(self) -> Image.Image:
        """Return the image with the labels in its top left corner."""
        from vkmnn.pipelines.results.drawing import Canvas, colour_of

        canvas = Canvas(drawn(self))
        y = 0.0
        for label in self.items:
            height = canvas.height_of(str(label))
            y += height
            canvas.tag(0, y, str(label), colour_of(label.index))
        made: Image.Image = canvas.image
        return made


def drawn(result: Result[Any]) -> Picture:
    """Return the image of a result."""
    if result.picture is None:
        raise InvalidInputError("the result has no image to draw on")
    return result.picture
