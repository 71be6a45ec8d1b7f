"""Object detection: boxes around objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, ResultT, Settings
from vkmnn.pipelines.heads.candidates import Candidates
from vkmnn.pipelines.heads.coco import BY_COUNT
from vkmnn.pipelines.heads.detection import Head, head_of
from vkmnn.pipelines.heads.final import points_per_box
from vkmnn.pipelines.heads.signature import Signature, computed_outputs
from vkmnn.pipelines.heads.suppression import suppress
from vkmnn.pipelines.heads.turned import outlines, suppress_turned
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Placed
from vkmnn.pipelines.results.boxes import Boxes, boxes_of
from vkmnn.pipelines.signatures import signature_of

_THRESHOLD, _OVERLAP, _MOST = 0.25, 0.45, 300
_OVERLAP_ULTRALYTICS = 0.7
_SLACK = 0.02
_BACKGROUNDS = ("background", "__background__", "???", "unlabeled", "n/a", "")


class Detecting(PicturePipeline[ResultT]):
    """Base class of tasks that detect objects."""

    own: ClassVar[tuple[str, ...]] = ("overlap", "most", "head", "feeds")
    shows_points: ClassVar[bool] = False

    def __init__(self, loaded: Loaded, options: Options) -> None:
        self.head: Head | None = None
        super().__init__(loaded, options)
        ours = "stride" in self.about.properties and "task" in self.about.properties
        self.settings = {
            "threshold": _THRESHOLD if options.threshold is None else options.threshold,
            "overlap": options.take("overlap", _OVERLAP_ULTRALYTICS if ours else _OVERLAP),
            "most": options.take("most", _MOST),
        }
        self._labels: list[str] | None = None

    @property
    def labels(self) -> list[str]:
        """The class names by index, known after the first run."""
        return self._labels or []

    def usual_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return the default processor of the network's head."""
        found = signature_of(
            loaded, self.options, self.classes_named(loaded), lambda one: head_of(one) is not None
        )
        head = head_of(found)
        if head is None:
            raise unknown_head(loaded)
        return head.usual

    def classes_named(self, loaded: Loaded) -> int:
        """Return the number of class names in options or files."""
        given = self.options.labels
        if given is not None and not isinstance(given, str):
            return len(list(given)) if not hasattr(given, "suffix") else 0
        return len(loaded.about.labels()[0])

    def candidates(
        self, outputs: Mapping[str, Array], placed: Sequence[Placed], chosen: Settings
    ) -> list[Candidates]:
        """Return the boxes of each image after suppression, highest score first."""
        signature = Signature(
            computed_outputs(outputs),
            placed[0].canvas,
            self.classes_named(self.loaded),
            self.about.properties,
        )
        head = self.head = self.head or head_of(signature)
        if head is None:
            raise unknown_head(self.loaded)
        decoded = head.decode(outputs, signature)
        found = [_settled(one, chosen) for one in decoded]
        if self._labels is None:
            self._check_scores(head, decoded)
            if points_per_box(signature) is not None and not self.shows_points:
                self.note("boxes are shown without the keypoints that the network adds; "
                          "--task pose shows them")  # fmt: skip
            self._labels = self._names(head, max((one.count for one in found), default=0))
        return found

    def _check_scores(self, head: Head, found: Sequence[Candidates]) -> None:
        """Report scores that are no probabilities: the network may be of another kind."""
        ends = [float(end) for one in found if len(one.scores)
                for end in (one.scores.min(), one.scores.max())]  # fmt: skip
        if ends and not -_SLACK <= min(ends) <= max(ends) <= 1 + _SLACK:
            self.guess(
                f"scores from {min(ends):.3g} to {max(ends):.3g} are no probabilities: the outputs "
                f"may not be those of {head.name}, as was assumed", "--task",
            )  # fmt: skip

    def _names(self, head: Head, count: int) -> list[str]:
        """Return labels by the head's class indices."""
        names = self.names(count, {**BY_COUNT, 0: head.names})
        if head.first and names and names[0].lower() not in _BACKGROUNDS:
            names.insert(0, "background")
        return names


class Detect(Detecting[Boxes]):
    """Detects objects and their boxes."""

    task = "object-detection"

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Boxes]:
        """Return the boxes in each image."""
        found = self.candidates(outputs, placed, chosen)
        made = []
        for one, where, picture in zip(found, placed, pictures, strict=False):
            corners = in_picture(one, where)
            boxes = boxes_of(corners, one.scores, one.classes, self.labels)
            if one.turned and one.extra is not None:
                turned = where.to_picture(outlines(one.extra))
                boxes = [
                    replace(box, outline=tuple((float(x), float(y)) for x, y in corner))
                    for box, corner in zip(boxes, turned, strict=True)
                ]
            made.append(Boxes(boxes, picture))
        return made + [Boxes([], picture) for picture in pictures[len(made) :]]


def in_picture(found: Candidates, placed: Placed) -> Array:
    """Return boxes in pixels of the image, clipped to it."""
    if not found.in_picture:
        return placed.boxes(found.boxes)
    height, width = placed.original
    return np.clip(found.boxes, 0, np.array([width, height, width, height]))


def _settled(found: Candidates, chosen: Settings) -> Candidates:
    """Drop boxes with low scores, and duplicates."""
    strong = found.chosen(found.scores > chosen["threshold"])
    if strong.unique:
        return strong.chosen(np.argsort(-strong.scores, kind="stable")[: int(chosen["most"])])
    limits = chosen["overlap"], int(chosen["most"])
    if strong.turned and strong.extra is not None:
        kept = suppress_turned(strong.extra, strong.scores, strong.classes, *limits)
    else:
        kept = suppress(strong.boxes, strong.scores, strong.classes, *limits)
    return replace(strong.chosen(kept), unique=True)


def unknown_head(loaded: Loaded) -> InvalidInputError:
    """Return the error for outputs that match no head."""
    shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.outputs)
    return InvalidInputError(
        f"no known detector matches the outputs of '{loaded.about.name}': {shapes}",
        hint="choose another task (--task), or run the network on arrays: vkmnn.load(model)",
    )
