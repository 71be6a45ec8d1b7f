"""Segmentation: the class of each pixel, or the pixels of each object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Pipeline, Settings
from vkmnn.pipelines.heads.candidates import Candidates, sigmoid, softmax
from vkmnn.pipelines.heads.coco import BY_COUNT, VOC
from vkmnn.pipelines.heads.final import mask_per_box
from vkmnn.pipelines.heads.signature import Signature, computed_outputs, declared_outputs
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.resampling import enlarge
from vkmnn.pipelines.results.boxes import boxes_of
from vkmnn.pipelines.results.masks import Mask, Masks, from_map
from vkmnn.pipelines.vision.detect import Detecting, in_picture

_USUAL = ImageProcessor(
    Fit("stretch", (512, 512)), "bilinear", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
)
_OF_QUERIES = {"pred_masks", "masks_queries_logits"}
_SETS = {**BY_COUNT, 21: ("background", *VOC)}


def uncovered(maps: Array, placed: Placed) -> Array:
    """Return the part of maps that shows the image.

    Args:
        maps: [..., rows, columns], of the whole canvas at any scale.
        placed: the image's placement on the canvas.
    """
    rows, columns = maps.shape[-2:]
    scale = rows / placed.canvas[0], columns / placed.canvas[1]
    down, along = placed.window
    top, bottom = round(down.start * scale[0]), round(down.stop * scale[0])
    left, right = round(along.start * scale[1]), round(along.stop * scale[1])
    return maps[..., top : max(bottom, top + 1), left : max(right, left + 1)]


def on_picture(maps: Array, placed: Placed, picture: Picture) -> Array:
    """Resize maps of the canvas to the image; the cropped part has the value 0."""
    part = uncovered(maps, placed)
    whole = placed.offset[0] >= 0 and placed.offset[1] >= 0
    if whole:
        return enlarge(part, picture.height, picture.width)
    (down, along), (top, left) = placed.window, placed.offset
    size = placed.original
    box = [
        round(first * have / want)
        for first, have, want in (
            (down.start - top, size[0], placed.resized[0]),
            (down.stop - top, size[0], placed.resized[0]),
            (along.start - left, size[1], placed.resized[1]),
            (along.stop - left, size[1], placed.resized[1]),
        )
    ]
    made = np.zeros((*maps.shape[:-2], *size), np.float32)
    made[..., box[0] : box[1], box[2] : box[3]] = enlarge(part, box[1] - box[0], box[3] - box[2])
    return made


class Segment(PicturePipeline[Masks]):
    """Classifies each pixel."""

    task = "image-segmentation"
    own: ClassVar[tuple[str, ...]] = ("feeds",)
    usual = _USUAL

    @classmethod
    def variant(cls, loaded: Loaded) -> type[Pipeline]:
        """Return the class for instances if the network has boxes with masks."""
        ranks = sorted(len(arg.shape or ()) for arg in loaded.outputs)
        with_prototypes = ranks == [3, 4] and not {arg.name for arg in loaded.outputs} & _OF_QUERIES
        signature = Signature(declared_outputs(loaded.outputs))
        return SegmentThings if with_prototypes or mask_per_box(signature) else cls

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        self._names: list[str] | None = None

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Masks]:
        """Return the classes in each image, the largest first."""
        logits, is_map = self._logits(outputs, placed[0].canvas)
        if self._names is None:
            classes = int(logits.max()) + 1 if is_map else logits.shape[1]
            self._names = self.names(classes, {} if is_map else _SETS)
        made = []
        for one, where, picture in zip(logits, placed, pictures, strict=True):
            if is_map:
                part = uncovered(one, where)
                rows, columns = (
                    np.minimum(np.arange(want) * have // want, have - 1)
                    for have, want in zip(part.shape, where.original, strict=True)
                )
                classes, scores = part[rows][:, columns].astype(np.int64), None
            else:
                classes, scores = _best(on_picture(one, where, picture))
            found = Masks(from_map(classes, scores, self._names), picture)
            found.classes = classes
            made.append(found)
        return made

    def _logits(self, outputs: Mapping[str, Array], canvas: tuple[int, int]) -> tuple[Array, bool]:
        """Return scores [n, classes, rows, columns], or classes [n, rows, columns] and True."""
        queries = _by_queries(outputs)
        if queries is not None:
            return queries, False
        ranked = [one for one in outputs.values() if one.ndim in (3, 4)]
        if not ranked:
            shapes = ", ".join(f"{key} {list(np.shape(one))}" for key, one in outputs.items())
            raise InvalidInputError(
                f"no output has a value per pixel: {shapes}",
                hint="choose another task: --task",
            )
        named = [one for name, one in outputs.items() if name in ("logits", "out") and one.ndim > 2]
        array = (named or ranked)[0]
        if array.dtype.kind in "iu" or array.ndim == 3:
            return array.reshape(len(array), *array.shape[-2:]), True
        if _ends_in_classes(array.shape, canvas):
            array = array.transpose(0, 3, 1, 2)
        if array.shape[1] == 1:
            chance = sigmoid(array) if array.min() < 0 or array.max() > 1 else array
            array = np.concatenate([1 - chance, chance], 1)
        return array.astype(np.float32), False


def _ends_in_classes(shape: Sequence[int], canvas: tuple[int, int]) -> bool:
    """Return whether the last axis of a map has the classes: by the input's shape, else by size."""
    first, last = (rows * canvas[1] == columns * canvas[0]
                   for rows, columns in (shape[2:4], shape[1:3]))  # fmt: skip
    return last if first != last else shape[3] < min(shape[1:3]) and shape[1] > 64


def _best(logits: Array) -> tuple[Array, Array]:
    """Return the best class of each pixel and its probability."""
    classes = logits.argmax(0)
    within = bool(logits.min() >= 0 and logits.max() <= 1 + 1e-3)
    chances = logits if within else softmax(logits, 0)
    return classes, np.take_along_axis(chances, classes[None], 0)[0]


def _by_queries(outputs: Mapping[str, Array]) -> Array | None:
    """Return scores [n, classes, rows, columns] from the queries of MaskFormer and similar ones."""
    classes = outputs.get("class_queries_logits", outputs.get("logits"))
    masks = outputs.get("masks_queries_logits", outputs.get("pred_masks"))
    if classes is None or masks is None or classes.ndim != 3 or masks.ndim != 4:
        return None
    return np.asarray(np.einsum("nqc,nqhw->nchw", softmax(classes)[:, :, :-1], sigmoid(masks)))


class SegmentThings(Detecting[Masks]):
    """Detects objects and their pixels."""

    task = "instance-segmentation"

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Masks]:
        """Return the objects in each image, highest score first."""
        found = self.candidates(outputs, placed, chosen)
        made = []
        for number, (one, where, picture) in enumerate(zip(found, placed, pictures, strict=True)):
            corners = in_picture(one, where)
            pixels = self._pixels(outputs, number, one, corners, where, picture)
            boxes = boxes_of(corners, one.scores, one.classes, self.labels)
            items = [Mask(box.label, mask, box) for box, mask in zip(boxes, pixels, strict=True)]
            made.append(Masks([one for one in items if one.pixels.any()], picture))
        return made

    def _pixels(
        self,
        outputs: Mapping[str, Array],
        number: int,
        found: Candidates,
        corners: Array,
        placed: Placed,
        picture: Picture,
    ) -> Array:
        """Return the masks of objects, bool [n, height, width]."""
        if found.extra is None or not len(found.boxes):
            shape = len(found.boxes), picture.height, picture.width
            if len(found.boxes):
                raise InvalidInputError(
                    f"'{self.about.name}' detects objects but has no masks: "
                    f"{[one.shape for one in computed_outputs(outputs)]}",
                    hint="choose another task: --task detect",
                )
            return np.zeros(shape, bool)
        maps = next(one for one in outputs.values() if one.ndim == 4)
        if found.extra.shape[1] == 1:
            return _per_box(maps[found.extra[:, 0], 0], corners, placed, picture)
        logits = np.tensordot(found.extra.astype(np.float32), maps[number].astype(np.float32), 1)
        part = uncovered(logits, placed)
        return np.array(
            [
                _within(enlarge(one, picture.height, picture.width) > 0, box)
                for one, box in zip(part, corners, strict=True)
            ]
        )


def _per_box(chances: Array, corners: Array, placed: Placed, picture: Picture) -> Array:
    """Return masks from the probabilities of each box's pixels (Mask R-CNN).

    Args:
        chances: [n, rows, columns], of the whole canvas, or of each box in fewer pixels.
        corners: the boxes in the image, [n, 4].
        placed: the image's placement on the canvas.
        picture: the image.
    """
    if chances.shape[1:] == placed.canvas:
        whole = on_picture(chances.astype(np.float32), placed, picture)
        return np.array([_within(one > 0.5, box) for one, box in zip(whole, corners, strict=True)])
    made = np.zeros((len(chances), picture.height, picture.width), bool)
    for mask, one, box in zip(made, chances.astype(np.float32), corners, strict=True):
        left, top = np.floor(box[:2]).astype(int)
        right, bottom = np.ceil(box[2:]).astype(int)
        if right > left and bottom > top:
            mask[top:bottom, left:right] = enlarge(one, bottom - top, right - left) > 0.5
    return made


def _within(mask: Array, corners: Array) -> Array:
    """Return a mask without the pixels outside a box."""
    height, width = mask.shape
    left, top, right, bottom = corners
    rows, columns = np.arange(height), np.arange(width)
    inside = ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
    return np.asarray(mask & inside)
