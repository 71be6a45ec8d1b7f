"""Lines of text in an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.results.labels import drawn
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True, eq=False)
class TextLine:
    """A line of text.

    Attributes:
        text: its text.
        score: from 0 to 1.
        corners: float64 [4, 2]: x and y of the top left, top right, bottom right and bottom left.
    """

    text: str
    score: float
    corners: Array

    def __str__(self) -> str:
        """Return the text and the score."""
        return f"'{self.text}' {self.score:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Return text, score and corners."""
        corners = [[round(float(x), 1), round(float(y), 1)] for x, y in self.corners]
        return {"text": self.text, "score": round(self.score, 5), "corners": corners}


class TextLines(Result[TextLine]):
    """The lines of text in an image, from top to bottom."""

    columns = ("text", "score", "left", "top")

    def rows(self) -> list[tuple[str, ...]]:
        """Return text, score, left and top of each."""
        return [
            (one.text, f"{one.score:.3f}", *(f"{side:.0f}" for side in one.corners.min(0)))
            for one in self.items
        ]

    def text(self) -> str:
        """Return the text, one line per row."""
        return "\n".join(one.text for one in self.items)

    def arrays(self) -> dict[str, Array]:
        """Return corners [n, 4, 2] and scores [n]."""
        return {
            "corners": np.array([one.corners for one in self.items], np.float32),
            "scores": np.array([one.score for one in self.items], np.float32),
            "texts": np.array([one.text for one in self.items], str),
        }

    def draw(self) -> Image.Image:
        """Return the image with each line outlined and its text above it."""
        from vkmnn.pipelines.results.drawing import Canvas, colour_of

        canvas = Canvas(drawn(self))
        for number, one in enumerate(self.items):
            canvas.polygon(one.corners, colour_of(number))
        for number, one in enumerate(self.items):
            x, y = map(float, one.corners[0])
            canvas.tag(x, y, one.text, colour_of(number))
        made: Image.Image = canvas.image
        return made
