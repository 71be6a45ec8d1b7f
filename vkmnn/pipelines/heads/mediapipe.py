"""Heads of MediaPipe's networks: detectors with anchors of one size, and landmarks of a crop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates, sigmoid
from vkmnn.pipelines.heads.signature import Output, Signature

_KINDS: Mapping[tuple[int, int], str] = {
    (896, 16): "face",
    (896, 12): "person",
    (2254, 12): "person",
    (2016, 18): "palm",
    (2944, 18): "palm",
}
"""What a detector finds, by the rows and columns of its values."""

_GRIDS = (((8, 2), (16, 6)), ((16, 2), (32, 6)), ((8, 2), (16, 2), (32, 6)))
"""Strides of the grids of a detector, and anchors in each cell."""


def kind_of(signature: Signature) -> str:
    """Return what a detector with values [n, rows, columns] and scores [n, rows, 1] finds."""
    for (rows, columns), name in _KINDS.items():
        found = (signature.find(None, rows, one) is not None for one in (columns, 1))
        if len(signature.outputs) == 2 and all(found):
            return name
    return ""


def decode(outputs: Mapping[str, Array], size: tuple[int, int]) -> list[Candidates]:
    """Decode centre, size and points, in pixels from the middle of an anchor's cell."""
    scores, values = (
        one.astype(np.float32) for one in sorted(outputs.values(), key=lambda one: one.shape[-1])
    )
    anchors = _anchors(size, values.shape[1])
    points = values[..., 4:].reshape(*values.shape[:2], -1, 2) + anchors[:, None]
    middle, half = anchors + values[..., :2], values[..., 2:4] / 2
    boxes = np.concatenate([middle - half, middle + half], 2)
    chances = sigmoid(scores[..., 0])
    return [
        Candidates(box, chance, np.zeros(len(box), np.int64), own.reshape(len(box), -1), count=1)
        for box, chance, own in zip(boxes, chances, points, strict=True)
    ]


def _anchors(size: tuple[int, int], count: int) -> Array:
    """Return the middle of each anchor's cell, [count, 2], by the grids that make this many."""
    for grids in _GRIDS:
        parts = []
        for stride, each in grids:
            rows, columns = (-(-side // stride) for side in size)
            cells = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)
            parts.append(np.repeat((cells + np.float32(0.5)) * np.float32(stride), each, 0))
        made: Array = np.concatenate(parts)
        if len(made) == count:
            return made
    raise ValueError(f"no grids of an input of {size[0]}×{size[1]} have {count} anchors")


# --- landmarks ------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """A network of landmarks: numbers of each point, points that are shown, and its presence."""

    numbers: int
    shown: int
    is_logit: bool = False


_MARKS: Mapping[int, Marks] = {
    195: Marks(5, 33),  # BlazePose: x, y, z, visibility and presence; six points are auxiliary
    63: Marks(3, 21),  # hands
    1404: Marks(3, 468, is_logit=True),  # faces
}
"""Networks by the numbers of their first table [n, numbers]; a presence [n, 1] follows."""


def marks_of(signature: Signature) -> tuple[Output, Output, Marks] | None:
    """Return the outputs of landmarks and of their presence; None for other networks."""
    presence = _flat(signature, 1)
    for count, marks in _MARKS.items():
        table = _flat(signature, count)
        if table is not None and presence is not None:
            return table, presence, marks
    return None


def _flat(signature: Signature, count: int) -> Output | None:
    """Return the first output [n, count], or with axes of size 1 between."""
    return signature.find(None, count) or signature.find(None, 1, 1, count)


def landmarks(
    outputs: Mapping[str, Array], signature: Signature
) -> list[tuple[Array, Array, float]]:
    """Return, for each crop, points [k, 2] in pixels of the input, their scores, and a presence."""
    found = marks_of(signature)
    assert found is not None
    table, presence, marks = found
    rows = outputs[table.name].astype(np.float32)
    points = rows.reshape(len(rows), -1, marks.numbers)[:, : marks.shown]
    sure = outputs[presence.name].astype(np.float32).reshape(len(rows))
    sure = sigmoid(sure) if marks.is_logit else sure
    seen = sigmoid(points[..., 3]) if marks.numbers > 3 else np.repeat(
        sure[:, None], marks.shown, 1)  # fmt: skip
    return [(one[:, :2], score, float(s)) for one, score, s in zip(points, seen, sure, strict=True)]
