"""Heads with built-in suppression: boxes, scores and classes are separate outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates
from vkmnn.pipelines.heads.signature import Output, Signature

_YXYX = [1, 0, 3, 2]


def _whole(signature: Signature) -> Array:
    height, width = signature.size or (1, 1)
    return np.array([width, height, width, height], np.float32)


def _final(boxes: Array, scores: Array, classes: Array, in_picture: bool = False) -> Candidates:
    return Candidates(
        boxes.astype(np.float32).reshape(-1, 4),
        scores.astype(np.float32).reshape(-1),
        np.rint(classes).astype(np.int64).reshape(-1),
        unique=True,
        in_picture=in_picture,
    )


# --- TensorFlow's object detection ----------------------------------------------------------------

_TENSORFLOW = ("detection_boxes", "detection_scores", "detection_classes")


def is_tensorflow(signature: Signature) -> bool:
    """Outputs `detection_boxes`, `detection_scores` and `detection_classes`."""
    return all(signature.named(one) for one in _TENSORFLOW)


def tensorflow(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode top, left, bottom, right as fractions of the input; classes count from 1."""
    found = [signature.named(one) for one in _TENSORFLOW]
    boxes, scores, classes = (outputs[one.name] for one in found if one is not None)
    counts = _counts(outputs, signature, len(boxes), boxes.shape[1])
    whole = _whole(signature)
    return [
        _final(box[:n, _YXYX] * whole, score[:n], own[:n])
        for box, score, own, n in zip(boxes, scores, classes, counts, strict=True)
    ]


def _counts(
    outputs: Mapping[str, Array], signature: Signature, pictures: int, most: int
) -> list[int]:
    """Return the number of valid rows, if an output gives it."""
    one = signature.named("num")
    if one is None:
        return [most] * pictures
    return [int(count) for count in outputs[one.name].reshape(-1)[:pictures]]


def is_tflite(signature: Signature) -> bool:
    """Four outputs: boxes [n, rows, 4], classes and scores [n, rows], and counts [n]."""
    ranks = [one.rank for one in signature.outputs]
    return (
        len(ranks) == 4
        and sorted(ranks) == [1, 2, 2, 3]
        and (not any(one.integer for one in signature.outputs))
        and signature.find(None, None, 4) is not None
    )


def tflite(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode top, left, bottom, right as fractions of the input; classes are integers."""
    boxes = next(outputs[one.name] for one in signature.outputs if one.rank == 3)
    pair = [outputs[one.name] for one in signature.outputs if one.rank == 2]
    counts = next(outputs[one.name] for one in signature.outputs if one.rank == 1)
    scores, classes = sorted(pair, key=lambda one: bool(np.any(one > 1)) or _is_whole(one))
    whole = _whole(signature)
    return [
        _final(box[:n, _YXYX] * whole, score[:n], own[:n])
        for box, score, own, n in zip(boxes, scores, classes, counts.astype(int), strict=True)
    ]


def _is_whole(values: Array) -> bool:
    return bool(np.all(values == np.rint(values)))


# --- EfficientNMS: counts, boxes, scores, classes ------------------------------------------------


def is_counted(signature: Signature) -> bool:
    """Outputs num_dets [n, 1], boxes [n, rows, 4], scores [n, rows], classes [n, rows] integers."""
    count, boxes = signature.named("num_det"), signature.named("boxes")
    return count is not None and count.integer and boxes is not None and boxes.rank == 3


def counted(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners in pixels of the input."""
    found = [signature.named(one) for one in ("boxes", "scores", "classes", "labels")]
    boxes, scores, classes = (outputs[one.name] for one in found if one is not None)
    counts = _counts(outputs, signature, len(boxes), boxes.shape[1])
    return [
        _final(box[:n], score[:n], own[:n])
        for box, score, own, n in zip(boxes, scores, classes, counts, strict=True)
    ]


# --- YOLOv3 with ONNX's NonMaxSuppression ---------------------------------------------------------


def is_yolov3(signature: Signature) -> bool:
    """Boxes [n, rows, 4], scores [n, classes, rows], and rows of indices [.., 3]."""
    return _selected(signature) is not None


def _selected(signature: Signature) -> tuple[Output, Output, Output] | None:
    indices = [
        one for one in signature.outputs if one.integer and one.shape[-1:] in ((3,), (None,))
    ]
    floats = [one for one in signature.outputs if not one.integer and one.rank == 3]
    if len(signature.outputs) != 3 or len(indices) != 1 or len(floats) != 2:
        return None
    if indices[0].rank not in (2, 3):
        return None
    first, second = floats
    if second.shape[2] == 4 and first.shape[2] != 4:
        first, second = second, first
    return first, second, indices[0]


def yolov3(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode top, left, bottom, right in pixels of the image, whose size is an input."""
    found = _selected(signature)
    assert found is not None
    boxes, scores, rows = (outputs[one.name] for one in found)
    rows = rows.reshape(-1, 3)
    made = []
    for number in range(len(boxes)):
        own = rows[(rows[:, 0] == number) & (rows[:, 2] >= 0)]
        kept = scores[number][own[:, 1], own[:, 2]]
        made.append(_final(boxes[number][own[:, 2]][:, _YXYX], kept, own[:, 1], True))
    return made


# --- the ONNX model zoo's SSD, torchvision --------------------------------------------------------


def is_ssd(signature: Signature) -> bool:
    """Boxes [n, rows, 4], integer classes [n, rows], scores [n, rows]."""
    boxes, scores = signature.find(None, None, 4, integer=False), signature.find(None, None)
    classes = signature.find(None, None, integer=True)
    return (
        len(signature.outputs) == 3
        and None not in (boxes, scores, classes)
        and (signature.named("pred_boxes", "logits") is None)
        and not _has_original(signature)
    )


def _has_original(signature: Signature) -> bool:
    return {one.name for one in signature.outputs} == {"labels", "boxes", "scores"}


def ssd(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners as fractions of the input."""
    boxes = next(outputs[one.name] for one in signature.outputs if one.rank == 3)
    pair = [one for one in signature.outputs if one.rank == 2]
    classes = next(outputs[one.name] for one in pair if one.integer)
    scores = next(outputs[one.name] for one in pair if not one.integer)
    whole = _whole(signature)
    return [
        _final(box * (whole if np.abs(box).max(initial=0) <= 2 else 1), score, own)
        for box, score, own in zip(boxes, scores, classes, strict=True)
    ]


def is_torchvision(signature: Signature) -> bool:
    """Boxes [rows, 4], integer classes [rows], scores [rows], of one image."""
    boxes, classes = signature.find(None, 4, integer=False), signature.find(None, integer=True)
    return len(signature.outputs) >= 3 and boxes is not None and classes is not None


def mask_per_box(signature: Signature) -> Output | None:
    """Return the output of Mask R-CNN's masks [rows, 1, height, width], of one image."""
    found = signature.find(None, None, None, None, integer=False)
    return found if found and found.shape[1] in (1, None) and is_torchvision(signature) else None


def points_per_box(signature: Signature) -> Output | None:
    """Return the output of points: Keypoint R-CNN's [rows, k, 3], or RTMO's [n, rows, k, 3]."""
    if is_rtmo(signature):
        return signature.find(None, None, None, 3)
    return signature.find(None, None, 3, integer=False) if is_torchvision(signature) else None


def is_rtmo(signature: Signature) -> bool:
    """Boxes with scores [n, rows, 5], and points with scores [n, rows, k, 3]."""
    found = [signature.find(None, None, 5), signature.find(None, None, None, 3)]
    return len(signature.outputs) == 2 and None not in found


def rtmo(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners and points in pixels of the input; all boxes are people."""
    boxes, points = signature.find(None, None, 5), signature.find(None, None, None, 3)
    assert boxes is not None
    assert points is not None
    return [
        replace(_final(box[:, :4], box[:, 4], np.zeros(len(box))), extra=own.reshape(len(box), -1))
        for box, own in zip(outputs[boxes.name], outputs[points.name], strict=True)
    ]


def torchvision(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners in pixels of the input.

    `extra` holds the points of each box, or its row if boxes have masks.
    """
    boxes, classes = signature.find(None, 4, integer=False), signature.find(None, integer=True)
    scores = signature.find(None, integer=False)
    assert boxes is not None
    assert classes is not None
    assert scores is not None
    found = _final(outputs[boxes.name], outputs[scores.name], outputs[classes.name])
    if mask_per_box(signature) is not None:
        found = replace(found, extra=np.arange(len(found.boxes))[:, None])
    elif (points := points_per_box(signature)) is not None:
        columns = 3 * outputs[points.name].shape[1]
        found = replace(found, extra=outputs[points.name].reshape(-1, columns))
    return [found]


# --- PaddleDetection ------------------------------------------------------------------------------


def is_paddle(signature: Signature) -> bool:
    """Rows (class, score, left, top, right, bottom) [rows, 6] and the count per image [n]."""
    table = signature.find(None, 6, integer=False)
    return table is not None and len(signature.outputs) in (1, 2)


def paddle(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners in pixels of the image."""
    one, count = signature.find(None, 6, integer=False), signature.find(None, integer=True)
    assert one is not None
    table = outputs[one.name]
    ends = np.cumsum(outputs[count.name]) if count else np.array([len(table)])
    parts = np.split(table, ends[:-1].astype(int))
    return [
        _final(part[:, 2:], part[:, 1], part[:, 0], True)
        for part in (each[each[:, 0] >= 0] for each in parts)
    ]
