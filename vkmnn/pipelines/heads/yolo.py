"""YOLO heads with one table of boxes.

The layout depends on the exporter: boxes are rows, or columns. A box is centre x, centre y, width
and height in pixels of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.description import parsed
from vkmnn.pipelines.heads.candidates import Candidates, best_of, corners_of
from vkmnn.pipelines.heads.signature import Output, Signature
from vkmnn.pipelines.heads.turned import around

STRIDES = (8, 16, 32)
_GRIDS = (STRIDES, (*STRIDES, 64), (16, 32))
_COLUMNS = (84, 85, 116, 117)
"""Values per box, with COCO's 80 classes."""
_MASKS = 32
"""Mask coefficients per box in networks with prototypes."""
_POSE_VALUES = 51
"""Column, row and score of COCO's 17 points."""
_END = 6
_MAX_FINAL = 1000


def cells(size: tuple[int, int] | None, strides: Sequence[int] = STRIDES) -> int:
    """Return the number of grid cells for these strides; 0 for an unknown size."""
    if size is None:
        return 0
    return sum(-(-size[0] // one) * -(-size[1] // one) for one in strides)


def table_output(signature: Signature) -> Output | None:
    """Return the table of boxes: an output [n, rows, columns] of floats."""
    found = [one for one in signature.outputs if one.rank == 3 and not one.integer]
    return found[0] if found else None


def prototypes(signature: Signature) -> Output | None:
    """Return the output of mask prototypes [n, 32, rows, columns]."""
    found = [one for one in signature.outputs if one.rank == 4 and not one.integer]
    return found[0] if len(found) == 1 and found[0].shape[1] not in (1, None) else None


def extra_columns(signature: Signature) -> int:
    """Return the number of values after the scores of each box."""
    masks = prototypes(signature)
    if masks is not None:
        return int(masks.shape[1] or _MASKS)
    if is_pose(signature):
        return _POSE_VALUES
    task = signature.properties.get("task", "")
    shape = parsed(signature.properties.get("kpt_shape"))
    if task == "pose" and isinstance(shape, list | tuple) and len(shape) == 2:
        return int(shape[0]) * int(shape[1])
    return 1 if task == "obb" else 0


def is_pose(signature: Signature) -> bool:
    """A table with the values of a person, no file says of what: box, scores, 17 points of COCO."""
    one = table_output(signature)
    if one is None or signature.classes > 1 or "task" in signature.properties:
        return False
    return len(signature.outputs) == 1 and bool({56, 57} & set(one.shape[1:]))


# --- with built-in suppression ------------------------------------------------------------------


def is_end_to_end(signature: Signature) -> bool:
    """Rows (left, top, right, bottom, score, class, extra): YOLOv10, ultralytics' nms=True."""
    one = table_output(signature)
    if one is None or one.shape[2] is None:
        return False
    few = one.shape[1] is None or one.shape[1] <= _MAX_FINAL
    return few and one.shape[2] == _END + extra_columns(signature)


def end_to_end(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode rows after suppression; empty ones have a score of 0."""
    one = table_output(signature)
    assert one is not None
    made = []
    for rows in outputs[one.name].astype(np.float32):
        rows = rows[rows[:, 4] > 0]
        boxes = in_pixels(rows[:, :4], signature)
        extra = rows[:, _END:] if rows.shape[1] > _END else None
        made.append(Candidates(boxes, rows[:, 4], rows[:, 5].astype(np.int64), extra, unique=True))
    return made


def is_rows(signature: Signature) -> bool:
    """Rows (image, left, top, right, bottom, class, score) of all images: YOLOv7."""
    return (
        len(signature.outputs) == 1
        and signature.outputs[0].rank == 2
        and (signature.outputs[0].shape[1] == 7)
    )


def rows(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode YOLOv7's rows; YOLO-NAS has the score before the class."""
    table = outputs[signature.outputs[0].name].astype(np.float32).reshape(-1, 7)
    if signature.named("flat_predictions"):
        table = table[:, [0, 1, 2, 3, 4, 6, 5]]
    last = int(table[:, 0].max()) if len(table) else 0
    return [
        Candidates(own[:, 1:5], own[:, 6], own[:, 5].astype(np.int64), unique=True)
        for number in range(last + 1)
        for own in [table[table[:, 0] == number]]
    ]


# --- separate boxes and scores ------------------------------------------------------------------


def is_pair(signature: Signature) -> bool:
    """Boxes [n, rows, 4] or [n, rows, 1, 4], and scores [n, rows, classes] or transposed."""
    return _pair(signature) is not None


def _pair(signature: Signature) -> tuple[Output, Output] | None:
    floats = [one for one in signature.outputs if not one.integer]
    if len(floats) != 2 or len(signature.outputs) != 2:
        return None
    for boxes, scores in (floats, floats[::-1]):
        fits = boxes.rank in (3, 4) and boxes.shape[-1] == 4 and scores.rank == 3
        if fits and (boxes.rank == 3 or boxes.shape[2] == 1):
            return boxes, scores
    return None


def pair(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners in pixels, or as fractions of the input size (YOLO-NAS, YOLOv4, PP-YOLOE)."""
    found = _pair(signature)
    assert found is not None
    boxes = outputs[found[0].name].astype(np.float32)
    boxes = boxes.reshape(len(boxes), -1, 4)
    scores = outputs[found[1].name].astype(np.float32)
    if scores.shape[1] != boxes.shape[1]:
        scores = scores.transpose(0, 2, 1)
    return [
        best_of(in_pixels(one, signature), score) for one, score in zip(boxes, scores, strict=True)
    ]


# --- one table ------------------------------------------------------------------------------------


def is_table(signature: Signature) -> bool:
    """A table [n, rows, columns] of boxes, or its transpose."""
    one = table_output(signature)
    if one is None or None in one.shape[1:] or len(signature.outputs) > 5:
        return False
    others = [each for each in signature.outputs if each is not one and each.rank == 3]
    few, many = sorted(int(side or 0) for side in one.shape[1:])
    if others or few < 5:
        return False
    if "stride" in signature.properties and "names" in signature.properties:
        return True
    grids = {cells(signature.size, strides) for strides in _GRIDS} - {0}
    sized = not signature.classes or few - extra_columns(signature) - signature.classes in (4, 5)
    return sized and (many in grids or many in {3 * one for one in grids} or few in _COLUMNS)


def is_yolox(signature: Signature) -> bool:
    """A table with one box per cell, and an objectness: YOLOX's, or YOLOv6's."""
    one = table_output(signature)
    if not is_table(signature) or one is None or signature.size is None:
        return False
    rows, columns = one.shape[1], one.shape[2]
    fits = rows in (cells(signature.size), cells(signature.size, (*STRIDES, 64)))
    return fits and columns is not None and rows is not None and columns < rows


def table(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode a table with or without objectness, in cells or pixels."""
    one = table_output(signature)
    assert one is not None
    values = outputs[one.name].astype(np.float32)
    if is_turned(values.shape, signature):
        values = values.transpose(0, 2, 1)
    extra, objectness = extra_columns(signature), has_objectness(values, signature, one)
    scores = values[:, :, 4 + objectness : values.shape[2] - extra]
    if objectness:  # networks with a single class may have no column for it
        scores = scores * values[:, :, 4:5] if scores.shape[2] else values[:, :, 4:5]
    boxes = _decoded(values[:, :, :4], signature) if objectness else values[:, :, :4]
    further = values[:, :, values.shape[2] - extra :] if extra else None
    if signature.properties.get("task") == "obb" and further is not None:
        whole = np.concatenate([boxes, further], 2)
        return [
            replace(best_of(around(one), score, one), turned=True)
            for one, score in zip(whole, scores, strict=True)
        ]
    return [
        best_of(
            in_pixels(corners_of(boxes[number]), signature),
            scores[number],
            None if further is None else further[number],
        )
        for number in range(len(values))
    ]


def is_turned(shape: Sequence[int], signature: Signature) -> bool:
    """Return whether the boxes are columns, as in YOLOv8."""
    rows, columns = shape[1], shape[2]
    classes, extra = signature.classes, extra_columns(signature)
    if classes:
        wanted = {4 + classes + extra, 5 + classes + extra}
        if (rows in wanted) != (columns in wanted):
            return rows in wanted
    return rows < columns


def has_objectness(values: Array, signature: Signature, one: Output) -> bool:
    """Return whether the fifth column is an objectness.

    If files name the classes, their number decides. Otherwise boxes in columns (YOLOv8) have none,
    and boxes in rows (YOLOv5, YOLOX) have one.
    """
    features = values.shape[2] - extra_columns(signature)
    if signature.classes:
        if features == 5 + signature.classes:
            return True
        if features == 4 + signature.classes:
            return False
    if "stride" in signature.properties and "task" in signature.properties:
        return False  # ultralytics since YOLOv8; its YOLOv5 writes no task
    return bool(one.shape[2] == values.shape[2])


def _decoded(boxes: Array, signature: Signature) -> Array:
    """Return centres and sizes in pixels, also if they are relative to cells (YOLOX).

    Decoded centres are close to their cells; raw ones are close to 0.
    """
    size = signature.size
    strides = next(
        (each for each in (STRIDES, (*STRIDES, 64)) if cells(size, each) == boxes.shape[1]), ()
    )
    if size is None or not strides:
        return boxes
    places, scales = cells_of(size, strides)
    own = (boxes[:, :, :2] + places) * scales
    middle = (places + 0.5) * scales
    if np.abs(boxes[:, :, :2] - middle).mean() <= np.abs(own - middle).mean():
        return boxes
    return np.concatenate([own, np.exp(np.minimum(boxes[:, :, 2:], 20)) * scales], 2)


def cells_of(size: tuple[int, int], strides: Sequence[int]) -> tuple[Array, Array]:
    """Return column and row of every cell, and its stride: [cells, 2], [cells, 1]."""
    places, scales = [], []
    for stride in strides:
        rows, columns = -(-size[0] // stride), -(-size[1] // stride)
        y, x = np.mgrid[:rows, :columns]
        places.append(np.stack([x.ravel(), y.ravel()], 1))
        scales.append(np.full((rows * columns, 1), stride))
    return np.concatenate(places).astype(np.float32), np.concatenate(scales).astype(np.float32)


def in_pixels(boxes: Array, signature: Signature) -> Array:
    """Return boxes in pixels of the input; some exporters write fractions of its size."""
    if signature.size is None or not boxes.size or float(np.abs(boxes).max()) > 2:
        return boxes
    height, width = signature.size
    return np.asarray(boxes * np.array([width, height, width, height], np.float32))
