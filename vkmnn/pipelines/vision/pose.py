"""Poses: keypoints of people, by detectors and by single-person networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Pipeline, Settings
from vkmnn.pipelines.description import parsed
from vkmnn.pipelines.heads import mediapipe
from vkmnn.pipelines.heads.final import points_per_box
from vkmnn.pipelines.heads.signature import Signature, computed_outputs, declared_outputs
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.networks import Loaded, input_of
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.resampling import LINEAR
from vkmnn.pipelines.results.boxes import Box, boxes_of
from vkmnn.pipelines.results.keypoints import Keypoints, Poses
from vkmnn.pipelines.results.labels import Label
from vkmnn.pipelines.vision.detect import Detecting, in_picture
from vkmnn.pipelines.vision.faces import pointed
from vkmnn.pipelines.warping import crop_region

_PADDING = 1.25
"""Ratio of the region's side to the box's, for single-person networks."""


class FindPoses(Detecting[Poses]):
    """Detects people and their keypoints: YOLO-pose, RTMO, Keypoint R-CNN."""

    task = "pose-estimation"
    shows_points = True

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Poses]:
        """Return the people in each image."""
        made = []
        for one, where, picture in zip(
            self.candidates(outputs, placed, chosen), placed, pictures, strict=True
        ):
            boxes = boxes_of(in_picture(one, where), one.scores, one.classes, self.labels)
            if one.extra is None and boxes:
                raise InvalidInputError(
                    f"'{self.about.name}' detects objects but has no keypoints",
                    hint="choose another task: --task detect",
                )
            extra = np.zeros((0, 3)) if one.extra is None else one.extra
            rows = extra.reshape(len(boxes), extra.shape[1] // self._numbers, self._numbers)
            made.append(Poses([_keypoints(*pair, where) for pair in zip(rows, boxes, strict=True)],
                              picture))  # fmt: skip
        return made

    @property
    def _numbers(self) -> int:
        """Return the values per point: x and y, and usually visibility."""
        shape = parsed(self.about.properties.get("kpt_shape"))
        return int(shape[1]) if isinstance(shape, list | tuple) and len(shape) == 2 else 3


def _keypoints(row: Array, box: Box, placed: Placed) -> Keypoints:
    points = placed.to_picture(row[:, :2])
    scores = row[:, 2] if row.shape[1] > 2 else np.full(len(row), box.score)
    return Keypoints(points, scores.astype(np.float32), box)


class PoseOf(PicturePipeline[Poses]):
    """Finds the keypoints of one person, or of one per box: RTMPose, ViTPose, HRNet."""

    task = "pose-estimation"
    own: ClassVar[tuple[str, ...]] = ("boxes", "feeds")
    usual = ImageProcessor(
        Fit("letterbox", (256, 192)), LINEAR, 1 / 255, IMAGENET_MEAN, IMAGENET_STD
    )

    @classmethod
    def variant(cls, loaded: Loaded) -> type[Pipeline]:
        """Return the class for detectors if the output is a single table."""
        signature = Signature(declared_outputs(loaded.outputs), input_of(loaded).size)
        if mediapipe.kind_of(signature):
            return Anchored
        if mediapipe.marks_of(signature) is not None:
            return Landmarks
        if points_per_box(signature) is not None:
            return FindPoses
        shapes = [list(arg.shape or ()) for arg in loaded.outputs]
        if [len(one) for one in shapes] == [3] and shapes[0][1:] != [6, 56]:
            return FindPoses
        return MoveNet if shapes and shapes[0][1:] in ([1, 17, 3], [6, 56]) else cls

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self.settings = {"boxes": options.take("boxes", None)}

    def choose_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return a processor that keeps the aspect ratio of people."""
        made = super().choose_processor(loaded)
        size = made.fit.size or input_of(loaded).size or (256, 192)
        return replace(made, fit=Fit("letterbox", size), filter=LINEAR)

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[Poses]:
        """Run the regions around boxes; without boxes, whole images."""
        if chosen["boxes"] is None:
            yield from super()._flow(pictures, chosen)
            return
        for picture in pictures:
            people: list[Keypoints] = []
            size = self.network.processor.fit.size or (256, 192)
            boxes = list(map(_box, chosen["boxes"]))
            regions = [crop_region(picture.pixels, one.corners, size, _PADDING) for one in boxes]
            found = super()._flow((Picture(part) for part, _ in regions), chosen)
            for one, (_, back), box in zip(found, regions, boxes, strict=True):
                people += [replace(each, points=back(each.points), box=box) for each in one]
            yield Poses(people, picture)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Poses]:
        """Return the person in each image."""
        points, scores = keypoints_of(outputs, placed[0].canvas)
        return [
            Poses([Keypoints(where.to_picture(one), score)], picture)
            for one, score, where, picture in zip(points, scores, placed, pictures, strict=True)
        ]


class Landmarks(PoseOf):
    """Finds the points of one body, hand or face that fills the image, or each box (MediaPipe)."""

    usual = ImageProcessor(Fit("letterbox", (256, 256)), LINEAR, 1 / 255)

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        least = 0.5 if options.threshold is None else options.threshold
        self.settings = {**self.settings, "threshold": least}

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Poses]:
        """Return what each image shows; nothing below the threshold."""
        found = mediapipe.landmarks(outputs, Signature(computed_outputs(outputs)))
        return [
            Poses([Keypoints(where.to_picture(points), scores)] if sure >= chosen["threshold"]
                  else [], picture)
            for (points, scores, sure), where, picture in zip(found, placed, pictures, strict=True)
        ]  # fmt: skip


class Anchored(PicturePipeline[Poses]):
    """Detects palms, or people, with the points that give their direction (MediaPipe)."""

    task = "pose-estimation"
    own: ClassVar[tuple[str, ...]] = ("overlap", "feeds")

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        least = 0.5 if options.threshold is None else options.threshold
        self.settings = {"threshold": least, "overlap": options.take("overlap", 0.3)}

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return a processor for values from 0 to 1 for palms, from -1 to 1 for people."""
        palm = mediapipe.kind_of(Signature(declared_outputs(loaded.outputs))) == "palm"
        size = (192, 192) if palm else (224, 224)
        middle = ((0.0,), (1.0,)) if palm else ((0.5,) * 3, (0.5,) * 3)
        return ImageProcessor(Fit("letterbox", size), LINEAR, 1 / 255, *middle)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Poses]:
        """Return the palms or people in each image."""
        name = mediapipe.kind_of(Signature(computed_outputs(outputs)))
        found = mediapipe.decode(outputs, placed[0].canvas)
        return [
            Poses(pointed(one, where, chosen, name), picture)
            for one, where, picture in zip(found, placed, pictures, strict=True)
        ]


class MoveNet(PicturePipeline[Poses]):
    """Finds one person, or up to six, by row, column and score of each point (MoveNet)."""

    task = "pose-estimation"
    own: ClassVar[tuple[str, ...]] = ("feeds",)
    usual = ImageProcessor(Fit("letterbox", (256, 256)), LINEAR, 1.0)

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self.settings = {"threshold": 0.25 if options.threshold is None else options.threshold}

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Poses]:
        """Return the people in each image."""
        (table,) = outputs.values()
        return [
            Poses(_people(rows, where, float(chosen["threshold"])), picture)
            for rows, where, picture in zip(table, placed, pictures, strict=True)
        ]


def _people(rows: Array, where: Placed, least: float) -> list[Keypoints]:
    """Return the people of MoveNet's rows; a row may end in a box and its score."""
    whole = np.array(where.canvas[::-1], np.float64)
    people = []
    for row in rows.reshape(len(rows), -1).astype(np.float64):
        points, rest = row[:51].reshape(17, 3), row[51:]
        sure = float(rest[4]) if len(rest) else float(points[:, 2].mean())
        if sure < least:
            continue
        box = None
        if len(rest):
            corners = where.boxes(rest[None, [1, 0, 3, 2]] * np.tile(whole, 2))
            (box,) = boxes_of(corners, np.array([sure]), np.zeros(1, int), ("person",))
        found = where.to_picture(points[:, 1::-1] * whole)
        people.append(Keypoints(found, points[:, 2].astype(np.float32), box))
    return people


def _box(value: Any) -> Box:
    """Return a box from a Box or four numbers."""
    if isinstance(value, Box):
        return value
    left, top, right, bottom = map(float, value)
    return Box(Label("person", 1.0, 0), left, top, right, bottom)


def keypoints_of(outputs: Mapping[str, Array], size: tuple[int, int]) -> tuple[Array, Array]:
    """Return points [n, k, 2] in pixels of the input, and scores [n, k].

    Args:
        outputs: heat maps [n, k, rows, columns], or SimCC's two tables [n, k, width · split] and
            [n, k, height · split].
        size: height and width of the input.

    Raises:
        InvalidInputError: neither exists.
    """
    maps = next((one for one in outputs.values() if one.ndim == 4), None)
    if maps is not None:
        return _from_maps(maps.astype(np.float32), size)
    tables = [one for one in outputs.values() if one.ndim == 3]
    if len(tables) != 2:
        shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in outputs.items())
        raise InvalidInputError(
            f"no output has keypoints: {shapes}", hint="choose another task: --task"
        )
    named = {name.lower()[-1]: one for name, one in outputs.items()}
    x, y = (named["x"], named["y"]) if {"x", "y"} <= named.keys() else tables
    split = x.shape[2] / size[1]
    points = np.stack([x.argmax(2), y.argmax(2)], 2) / split
    scores = np.minimum(x.max(2), y.max(2)).astype(np.float32)
    return points, scores


def _from_maps(maps: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    """Return the maxima, moved a quarter of a pixel towards the higher neighbour."""
    n, k, rows, columns = maps.shape
    flat = maps.reshape(n, k, -1)
    best = flat.argmax(2)
    y, x = np.divmod(best, columns)
    points = np.stack([x, y], 2).astype(np.float64)
    padded = np.pad(maps, ((0, 0), (0, 0), (1, 1), (1, 1)), "edge")
    i, j = np.indices((n, k))
    inside = (x > 0) & (x < columns - 1) & (y > 0) & (y < rows - 1)
    for axis, (dy, dx) in enumerate(((0, 1), (1, 0))):
        rise = padded[i, j, y + 1 + dy, x + 1 + dx] - padded[i, j, y + 1 - dy, x + 1 - dx]
        points[:, :, axis] += np.sign(rise) * 0.25 * inside
    scale = np.array([size[1] / columns, size[0] / rows])
    return points * scale, flat.max(2).astype(np.float32)
