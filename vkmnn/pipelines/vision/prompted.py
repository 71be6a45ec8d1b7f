"""Masks from points and boxes: SAM and its successors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Settings
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.networks import Model, open_session
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.parts import SAM, load_parts
from vkmnn.pipelines.pictures import Picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.results.labels import Label
from vkmnn.pipelines.results.masks import Mask, Masks
from vkmnn.pipelines.vision.segment import on_picture

_SMALL = 256


class Prompted(PicturePipeline[Masks]):
    """Segments the object that points or boxes select.

    Args:
        model: a folder or dictionary of `encoder` and `decoder`.
        options: the options.
    """

    task = "mask-generation"
    own: ClassVar[tuple[str, ...]] = ("feeds", "points", "boxes", "labels_of_points", "several")
    usual = ImageProcessor(
        Fit("longest", (1024, 1024), 1024), "bilinear", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
    )

    def __init__(self, model: Model, options: Options) -> None:
        if isinstance(model, str | Path) and Path(model).is_file():
            model = Path(model).parent
        parts = load_parts(model, SAM, ("encoder", "decoder"), options, self.task)
        super().__init__(parts["encoder"], options)
        self.decoder = open_session(parts["decoder"], options)
        self.settings = {
            "points": options.take("points", None),
            "boxes": options.take("boxes", None),
            "labels_of_points": options.take("labels_of_points", None),
            "several": options.take("several", False),
        }

    def _flow(self, pictures: Iterable[Picture], chosen: Settings) -> Iterator[Masks]:
        if not chosen["points"] and not chosen["boxes"]:
            raise InvalidInputError(
                "no point or box selects an object",
                hint="pass points=[(x, y), …] or boxes=[(left, top, right, bottom), …] in pixels "
                "of the image; --set 'points=[[120, 80]]'",
            )
        yield from super()._flow(pictures, chosen)

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[Masks]:
        """Return one mask for all points together, and one for each box."""
        made = []
        for number, (picture, where) in enumerate(zip(pictures, placed, strict=True)):
            codes = {name: one[number : number + 1] for name, one in outputs.items()}
            items: list[Mask] = []
            for points, labels in prompts(chosen, where):
                items += self._decoded(codes, points, labels, picture, where, chosen)
            made.append(Masks(items, picture))
        return made

    def _decoded(
        self,
        codes: Mapping[str, Array],
        points: Array,
        labels: Array,
        picture: Picture,
        placed: Placed,
        chosen: Settings,
    ) -> list[Mask]:
        """Return the masks for one prompt: the best, or all of them."""
        args = {arg.name: arg for arg in self.decoder.get_inputs()}
        feeds = {}
        for name, arg in args.items():
            value = _value(name, codes, points, labels, picture)
            if value is None:
                raise InvalidInputError(
                    f"the decoder has an input '{name}', whose value is unknown"
                )
            feeds[name] = value.astype(arg.dtype)
        names = [arg.name for arg in self.decoder.get_outputs()]
        found = dict(zip(names, self.decoder.run(None, feeds), strict=True))
        masks = _named(found, "low_res_masks", "pred_masks", "masks")
        scores = _named(found, "iou", "score").reshape(-1)
        maps = masks.reshape(-1, *masks.shape[-2:])
        if "low_res_masks" not in found and maps.shape[1:] == (picture.height, picture.width):
            pixels = maps > 0
        else:
            pixels = on_picture(maps.astype(np.float32), placed, picture) > 0
        order = np.argsort(-scores, kind="stable")
        return [
            Mask(Label("thing", float(scores[n]), int(n)), pixels[n])
            for n in (order if chosen["several"] else order[:1])
        ]


def _named(found: Mapping[str, Array], *words: str) -> Array:
    for word in words:
        for name, array in found.items():
            if word in name:
                return array
    raise InvalidInputError(
        f"the decoder has no output named like '{words[-1]}': {', '.join(found)}",
        hint="export it as SAM's authors or optimum do",
    )


def prompts(chosen: Settings, placed: Placed) -> Iterator[tuple[Array, Array]]:
    """Yield points [n, 2] of the canvas and their labels [n] for each prompt.

    Labels are 1 for the object, 0 for the background, 2 and 3 for the corners of a box, and -1 for
    padding.
    """
    points = _pairs(chosen["points"] or [], 2, "points")
    if len(points):
        labels = chosen["labels_of_points"]
        given = np.ones(len(points)) if labels is None else np.asarray(labels, np.float32)
        if len(given) != len(points):
            raise InvalidInputError(f"there are {len(points)} points and {len(given)} labels")
        padded = np.concatenate([placed.to_input(points), [[0.0, 0.0]]])
        yield padded.astype(np.float32), np.append(given, -1).astype(np.float32)
    for box in _pairs(chosen["boxes"] or [], 4, "boxes"):
        corners = placed.to_input(box.reshape(2, 2))
        yield corners.astype(np.float32), np.array([2, 3], np.float32)


def _pairs(value: Any, count: int, name: str) -> Array:
    try:
        made = np.asarray(value, np.float64).reshape(-1, count)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name}={value!r} is not a list of {count} numbers each",
            hint="x and y in pixels of the image, from its top left corner",
        ) from None
    return made


def _value(
    name: str, codes: Mapping[str, Array], points: Array, labels: Array, picture: Picture
) -> Array | None:
    """Return the value of a decoder input by its name."""
    known: dict[str, Array] = {
        "point_coords": points[None],
        "point_labels": labels[None],
        "input_points": points[None, None],
        "input_labels": labels[None, None],
        "mask_input": np.zeros((1, 1, _SMALL, _SMALL), np.float32),
        "has_mask_input": np.zeros(1, np.float32),
        "orig_im_size": np.array([picture.height, picture.width], np.float32),
        **codes,
    }
    if name in known:
        return known[name]
    if "embed" in name and len(codes) == 1:
        return next(iter(codes.values()))
    return None
