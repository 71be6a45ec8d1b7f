"""Text in images: one network each to detect, to orient and to recognise lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import PicturePipeline, Pipeline, Settings, listed
from vkmnn.pipelines.films import frames_of
from vkmnn.pipelines.heads.candidates import sigmoid, softmax
from vkmnn.pipelines.heads.regions import spelt, text_boxes
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import Loaded, Model, input_of, load
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.parts import OCR, find_parts
from vkmnn.pipelines.pictures import Picture, read_picture
from vkmnn.pipelines.placing import Fit, Placed
from vkmnn.pipelines.resampling import LINEAR
from vkmnn.pipelines.results.text_lines import TextLine, TextLines
from vkmnn.pipelines.warping import warp

_HALF = (0.5, 0.5, 0.5)
_PAGE = ImageProcessor(
    Fit("limited", None, 0, 960, 32), LINEAR, 1 / 255, (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225), "bgr",
)  # fmt: skip
_LINE = ImageProcessor(Fit("line", None, 48, 320, 32), LINEAR, 1 / 255, _HALF, _HALF, "bgr", (127,))
_TALL = 1.5
"""Lines whose height exceeds their width by this factor are rotated by 90°."""
_ROW = 10
"""Largest difference in height between lines of a row, in pixels."""


class _Part(PicturePipeline[TextLines]):
    """A network of OCR; preprocessing guesses are not reported, as all of these networks agree."""

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, replace(options, tell=len))


class FindLines(_Part):
    """Detects lines of text: DBNet."""

    task = "text-detection"
    usual = _PAGE

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(loaded, options)
        least = 0.5 if options.threshold is None else options.threshold
        self.settings = {"threshold": least, "ink": 0.3, "growth": options.take("growth", 1.6)}

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[TextLines]:
        """Return the lines of each image, without their text, from top to bottom."""
        maps = next((one for one in outputs.values() if one.ndim == 4), None)
        if maps is None:
            raise InvalidInputError("the detection network has no text map")
        chances = maps[:, 0].astype(np.float32)
        chances = sigmoid(chances) if chances.min() < -0.01 or chances.max() > 1.01 else chances
        made = []
        for one, where, picture in zip(chances, placed, pictures, strict=True):
            scale = np.array([where.canvas[1] / one.shape[1], where.canvas[0] / one.shape[0]])
            found = text_boxes(one, chosen["ink"], chosen["threshold"], chosen["growth"])
            limits = np.array([picture.width, picture.height])
            lines = [
                TextLine("", score, np.clip(where.to_picture(corners * scale), 0, limits))
                for corners, score in found
            ]
            made.append(TextLines(in_reading_order(lines), picture))
        return made


class ReadLines(_Part):
    """Recognises images of single lines: CRNN, SVTR."""

    task = "text-recognition"
    usual = _LINE

    def choose_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return a processor for the network's line height."""
        made = super().choose_processor(loaded)
        taken = input_of(loaded)
        rows = taken.height or (self.options.size or (48, 0))[0]
        size = (rows, taken.width) if taken.width else None
        return replace(made, fit=Fit("line", size, rows, rows * 20 // 3, 32))

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[TextLines]:
        """Return the text of each image."""
        table = next((one for one in outputs.values() if one.ndim == 3), None)
        if table is None:
            raise InvalidInputError("the recognition network has no table of characters")
        if len(table) != len(pictures):  # columns first
            table = table.transpose(1, 0, 2)
        sums = table.sum(2)
        chances = table if np.allclose(sums, 1, atol=1e-2) else softmax(table)
        characters = self.characters(table.shape[2])
        made = []
        for one, picture in zip(chances, pictures, strict=True):
            text, score = spelt(one, characters)
            corners = np.array([[0, 0], [picture.width, 0], [picture.width, picture.height],
                                [0, picture.height]], np.float64)  # fmt: skip
            made.append(TextLines([TextLine(text, score, corners)], picture))
        return made

    def characters(self, classes: int) -> list[str]:
        """Return the characters by class: a blank, the dictionary, usually a space."""
        said = self.about.properties.get("character", "").split("\n")
        names = [line.rstrip("\r") for line in said] if len(said) > 1 else self.names(classes)
        while len(names) > classes - 1 and names and not names[-1]:
            names.pop()
        if len(names) == classes:
            return names
        if len(names) not in (classes - 1, classes - 2):
            raise InvalidInputError(
                f"the network distinguishes {classes} characters, but {len(names)} are named",
                hint="pass its dictionary: labels=path, one character per line",
            )
        return ["", *names, *([" "] if len(names) == classes - 2 else [])]


class TurnLines(_Part):
    """Detects lines that are upside down."""

    task = "text-direction"
    usual = _LINE

    def choose_processor(self, loaded: Loaded) -> ImageProcessor:
        """Return a processor for the network's size."""
        made = super().choose_processor(loaded)
        taken = input_of(loaded)
        size = taken.height or 48, taken.width or 192
        return replace(made, fit=Fit("line", size, size[0]))

    def results(
        self,
        outputs: Mapping[str, Array],
        pictures: Sequence[Picture],
        placed: Sequence[Placed],
        chosen: Settings,
    ) -> list[TextLines]:
        """Return "180" with its score for each image."""
        table = next(one for one in outputs.values() if one.ndim == 2)
        return [
            TextLines([TextLine("180", float(row[1]), np.zeros((4, 2)))], picture)
            for row, picture in zip(table, pictures, strict=True)
        ]


class ReadText(Pipeline):
    """Reads the text in images.

    Args:
        model: a folder or dictionary of `detection`, `recognition` and, if lines may be upside
            down, `direction`; or a single network that detects lines or recognises images of single
            lines.
        options: the options; `labels` is the dictionary of characters.
    """

    task = "optical-character-recognition"
    own: ClassVar[tuple[str, ...]] = ("growth", "least")

    def __init__(self, model: Model, options: Options) -> None:
        super().__init__(options)
        parts = find_parts(model, OCR, self.task)
        if not parts:
            loaded = load(model, options)
            parts = {_role_of(loaded): loaded}
        opened = {
            role: one if isinstance(one, Loaded) else load(one, options)
            for role, one in parts.items()
        }
        plain = replace(options, labels=None, size=None)
        self._find = (
            FindLines(opened["detection"], replace(options, labels=None))
            if ("detection" in opened)
            else None
        )
        self._read = (
            ReadLines(opened["recognition"], replace(options, size=None))
            if ("recognition" in opened)
            else None
        )
        self._turn = TurnLines(opened["direction"], plain) if "direction" in opened else None
        self.settings = {"threshold": 0.5 if options.threshold is None else options.threshold,
                         "least": options.take("least", 0.5)}  # fmt: skip

    @property
    def device(self) -> str:
        """The name of the device."""
        return next(one.device for one in self._parts)

    @property
    def _parts(self) -> list[_Part]:
        return [one for one in (self._find, self._read, self._turn) if one is not None]

    def __call__(self, inputs: object, **settings: object) -> TextLines | list[TextLines]:
        """Return the lines of an image, or a list for a list of images.

        Lines with a score below the setting `least` are left out.
        """
        chosen = self.chosen(settings)
        several = listed(inputs)
        if several is None:
            return self._lines(read_picture(inputs), chosen)
        return [self._lines(read_picture(one), chosen) for one in several]

    def stream(self, source: object, **settings: object) -> Iterator[TextLines]:
        """Yield the lines of each frame of a video, a camera or an iterable of images."""
        chosen = self.chosen(settings)
        for frame in frames_of(source):
            yield self._lines(frame, chosen)

    def _lines(self, picture: Picture, chosen: Settings) -> TextLines:
        if self._find is None:
            whole = np.array([[0, 0], [picture.width, 0], [picture.width, picture.height],
                              [0, picture.height]], np.float64)  # fmt: skip
            lines = [TextLine("", 1.0, whole)]
        else:
            lines = self._find([picture], threshold=chosen["threshold"])[0].items
        if self._read is None or not lines:
            return TextLines(lines, picture)
        cuts = [cut(picture.pixels, one.corners) for one in lines]
        if self._turn is not None:
            turned = self._turn([Picture(one) for one in cuts])
            cuts = [
                np.ascontiguousarray(one[::-1, ::-1]) if each[0].score > _SURE else one
                for one, each in zip(cuts, turned, strict=True)
            ]
        order = np.argsort([one.shape[1] / one.shape[0] for one in cuts], kind="stable")
        texts: dict[int, TextLine] = {}
        read = self._read([Picture(cuts[n]) for n in order])
        for number, one in zip(order, read, strict=True):
            texts[int(number)] = replace(one[0], corners=lines[int(number)].corners)
        sure = [texts[n] for n in range(len(lines)) if texts[n].score >= chosen["least"]]
        return TextLines([one for one in sure if one.text], picture)

    def close(self) -> None:
        """Release all networks."""
        for one in self._parts:
            one.close()


_SURE = 0.9
"""Lowest score at which a line is rotated."""


def _role_of(loaded: Loaded) -> str:
    """Return the role of a single network, from the rank of its output."""
    ranks = {len(arg.shape or ()) for arg in loaded.outputs}
    named = [role for role, rank in (("detection", 4), ("recognition", 3)) if rank in ranks]
    if not named:
        raise InvalidInputError(
            f"'{loaded.about.name}' neither detects nor recognises lines of text",
            hint="pass a dictionary: {'detection': path, 'recognition': path, 'direction': path}",
        )
    return named[0]


def cut(pixels: Array, corners: Array) -> Array:
    """Return the image within four corners; tall ones are rotated by 90°."""
    width = max(np.linalg.norm(corners[1] - corners[0]), np.linalg.norm(corners[2] - corners[3]))
    height = max(np.linalg.norm(corners[3] - corners[0]), np.linalg.norm(corners[2] - corners[1]))
    size = max(int(height), 1), max(int(width), 1)
    along, down = (corners[1] - corners[0]) / size[1], (corners[3] - corners[0]) / size[0]
    matrix = np.stack([along, down, corners[0]], 1)
    made = warp(pixels, matrix, size, fill=None)
    return np.ascontiguousarray(np.rot90(made)) if size[0] >= _TALL * size[1] else made


def in_reading_order(lines: Iterable[TextLine]) -> list[TextLine]:
    """Return lines from top to bottom, and within a row from left to right."""
    left = sorted(lines, key=lambda one: (one.corners[0, 1], one.corners[0, 0]))
    for end in range(1, len(left)):
        for at in range(end, 0, -1):
            above, here = left[at - 1].corners[0], left[at].corners[0]
            if abs(above[1] - here[1]) < _ROW and here[0] < above[0]:
                left[at - 1], left[at] = left[at], left[at - 1]
            else:
                break
    return left
