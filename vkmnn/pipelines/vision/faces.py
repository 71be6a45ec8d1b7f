"""Faces: detection, and embeddings that distinguish them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.heads import faces
from vkmnn.pipelines.heads.candidates import Candidates
from vkmnn.pipelines.heads.suppression import suppress
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded, Model, PictureNetwork, load
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.parts import FACES, find_parts
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.resampling import LINEAR
from vkmnn.pipelines.results.boxes import boxes_of
from vkmnn.pipelines.results.keypoints import Keypoints, Poses
from vkmnn.pipelines.warping import inverse, similarity, warp

TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
     [70.7299, 92.2041]]
)  # fmt: skip
"""Positions of the five points of a face in ArcFace's 112×112 input."""
_SCRFD = ImageProcessor(Fit("corner", (640, 640)), LINEAR, 1 / 128, (127.5 / 128,) * 3, (1.0,) * 3)
_YUNET = ImageProcessor(Fit("corner", (640, 640)), LINEAR, 1.0, channels="bgr")
_RETINAFACE = ImageProcessor(
    Fit("corner", (640, 640)), LINEAR, 1.0, (104.0, 117.0, 123.0), (1.0,) * 3, channels="bgr"
)
_BLAZEFACE = ImageProcessor(Fit("letterbox", (128, 128)), LINEAR, 1 / 255, (0.5,) * 3, (0.5,) * 3)
_USUAL = {2: _BLAZEFACE, 3: _RETINAFACE, 12: _YUNET}
_ARCFACE = ImageProcessor(Fit("stretch", (112, 112)), LINEAR, 1 / 255, (0.5,) * 3, (0.5,) * 3)


class Faces(PicturePipeline[Poses]):
    """Detects faces and, with a second network, computes their embeddings.

    Args:
        model: a detector, or a folder or dictionary of `detector` and `embedder`.
        options: the options.
    """

    task = "face-detection"
    own: ClassVar[tuple[str, ...]] = ("overlap", "feeds")

    def __init__(self, model: Model, options: Options) -> None:
        parts = find_parts(model, FACES, self.task) or {"detector": _single(model)}
        if "detector" not in parts:
            raise InvalidInputError(
                "the folder has a network for embeddings but no face detector",
                hint="use the task embed on images of single faces",
            )
        super().__init__(load(parts["detector"], options), options)
        least = 0.5 if options.threshold is None else options.threshold
        self.settings = {"threshold": least, "overlap": options.take("overlap", 0.4)}
        self._embedder: PictureNetwork | None = None
        if "embedder" in parts:
            own = replace(options, size=None, mean=None, std=None, labels=None)
            self._embedder = PictureNetwork(load(parts["embedder"], own), _ARCFACE, own)

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the processor by the number of outputs: YuNet has four for each of its grids."""
        return _USUAL.get(len(loaded.outputs), _SCRFD)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Poses]:
        """Return the faces in each image."""
        decode = faces.decoder_of(outputs, placed[0].canvas)
        if decode is None:
            shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in outputs.items())
            raise InvalidInputError(
                f"no known face detector has these outputs: {shapes}",
                hint="choose another task: --task",
            )
        made = []
        for one, where, picture in zip(
            decode(outputs, placed[0].canvas), placed, pictures, strict=True
        ):
            found = pointed(one, where, chosen, "face")
            items = [replace(p, embedding=self._embedding(picture, p.points)) for p in found]
            made.append(Poses(items, picture))
        return made

    def _embedding(self, picture: Picture, points: Array) -> Array | None:
        if self._embedder is None or len(points) != len(TEMPLATE):
            return None
        network = self._embedder
        face = Picture(aligned(picture.pixels, points))
        placed = network.processor.placed(face)
        count = network.batch or 1
        outputs = network.run(network.feeds([face] * count, [placed] * count, {}))
        return normalised(next(iter(outputs.values()))[0].reshape(-1))

    def close(self) -> None:
        """Release both networks."""
        super().close()
        if self._embedder is not None:
            self._embedder.close()


def pointed(found: Candidates, where: Placed, chosen: Settings, name: str) -> list[Keypoints]:
    """Return the boxes with a high score, without overlapping ones, and the points of each."""
    strong = found.chosen(found.scores > chosen["threshold"])
    strong = strong.chosen(
        suppress(strong.boxes, strong.scores, strong.classes, chosen["overlap"], 1000)
    )
    boxes = boxes_of(where.boxes(strong.boxes), strong.scores, strong.classes, (name,))
    extra = np.zeros((len(boxes), 0)) if strong.extra is None else strong.extra
    made = []
    for box, row in zip(boxes, extra, strict=True):
        points = where.to_picture(row.reshape(-1, 2))
        made.append(Keypoints(points, np.full(len(points), box.score, np.float32), box))
    return made


def _single(model: Model) -> Model:
    return Path(model) if isinstance(model, str) else model


def aligned(pixels: Array, points: Array, side: int = 112) -> Array:
    """Return a face transformed so that its five points match ArcFace's template."""
    matrix = similarity(points, TEMPLATE * (side / 112))
    return warp(pixels, inverse(matrix), (side, side))


def normalised(vector: Array) -> Array:
    """Return a vector scaled to length 1."""
    made = vector.astype(np.float32)
    return np.asarray(made / max(float(np.linalg.norm(made)), 1e-12))
