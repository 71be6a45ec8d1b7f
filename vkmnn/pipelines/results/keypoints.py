"""Keypoints of bodies and faces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.results.boxes import Box
from vkmnn.pipelines.results.labels import drawn
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image

BODY = ("nose", "left eye", "right eye", "left ear", "right ear", "left shoulder",
        "right shoulder", "left elbow", "right elbow", "left wrist", "right wrist", "left hip",
        "right hip", "left knee", "right knee", "left ankle", "right ankle")  # fmt: skip
"""COCO's keypoints of people."""
FACE = ("left eye", "right eye", "nose", "left corner of the mouth", "right corner of the mouth")
LIMBS = ((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11),
         (6, 12), (11, 12), (11, 13), (13, 15), (12, 14), (14, 16))  # fmt: skip
_NAMES = {len(BODY): BODY, len(FACE): FACE}


@dataclass(frozen=True, slots=True, eq=False)
class Keypoints:
    """The keypoints of one person or face.

    Attributes:
        points: float64 [n, 2], x and y in the image.
        scores: float32 [n].
        box: the box around it, if the network returns one.
        embedding: a vector that distinguishes faces, if requested.
    """

    points: Array
    scores: Array
    box: Box | None = None
    embedding: Array | None = None

    @property
    def names(self) -> Sequence[str]:
        """The names of the points; numbers if they are not standard ones."""
        return _NAMES.get(len(self.points)) or [str(one) for one in range(len(self.points))]

    @property
    def score(self) -> float:
        """The box's score, or the mean of the points'."""
        return self.box.score if self.box else float(self.scores.mean())

    def __str__(self) -> str:
        """Return the score and the number of points."""
        return f"{len(self.points)} points {self.score:.2f}"

    def similarity(self, other: Keypoints) -> float:
        """Return the similarity of two faces: the cosine of their embeddings."""
        if self.embedding is None or other.embedding is None:
            return float("nan")
        return float(self.embedding @ other.embedding)

    def to_dict(self) -> dict[str, Any]:
        """Return box, score and points by name."""
        points = {
            name: {"x": round(float(x), 2), "y": round(float(y), 2), "score": round(float(s), 4)}
            for name, (x, y), s in zip(self.names, self.points, self.scores, strict=True)
        }
        made: dict[str, Any] = {"score": round(self.score, 6), "keypoints": points}
        if self.box is not None:
            made |= {"label": self.box.label.name, "box": self.box.to_dict()["box"]}
        if self.embedding is not None:
            made["embedding"] = [round(float(one), 6) for one in self.embedding]
        return made


class Poses(Result[Keypoints]):
    """The people or faces in an image, highest score first.

    Attributes:
        least: points below this score are not drawn.
    """

    columns = ("what", "score", "box", "sure points")
    least = 0.3

    def rows(self) -> list[tuple[str, ...]]:
        """Return label, score, box and the number of confident points of each."""
        return [
            (
                one.box.label.name if one.box else "person",
                f"{one.score:.3f}",
                ", ".join(f"{side:.0f}" for side in one.box.corners) if one.box else "–",
                f"{int((one.scores >= self.least).sum())} of {len(one.points)}",
            )
            for one in self.items
        ]

    def arrays(self) -> dict[str, Array]:
        """Return points [n, k, 2] and scores [n, k]; boxes [n, 4] and embeddings if available."""
        made = {
            "points": np.array([one.points for one in self.items], np.float32),
            "scores": np.array([one.scores for one in self.items], np.float32),
        }
        boxes = [one.box.corners for one in self.items if one.box is not None]
        if len(boxes) == len(self.items) and boxes:
            made["boxes"] = np.array(boxes, np.float32)
        vectors = [one.embedding for one in self.items if one.embedding is not None]
        if vectors:
            made["embeddings"] = np.array(vectors, np.float32)
        return made

    def draw(self) -> Image.Image:
        """Return the image with points, limbs and boxes."""
        from vkmnn.pipelines.results.drawing import Canvas, colour_of

        canvas = Canvas(drawn(self))
        for number, one in enumerate(self.items):
            colour = colour_of(number)
            if one.box is not None:
                canvas.box(one.box.corners, colour)
            sure = one.scores >= self.least
            for first, second in LIMBS if len(one.points) == len(BODY) else ():
                if sure[first] and sure[second]:
                    canvas.line(one.points[first], one.points[second], colour)
            for (x, y), shown in zip(one.points, sure, strict=True):
                if shown:
                    canvas.dot(float(x), float(y), colour)
            if one.box is not None:
                canvas.tag(one.box.left, one.box.top, str(one.box.label), colour)
        made: Image.Image = canvas.image
        return made
