"""Heads of detection transformers: DETR, RT-DETR and similar ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads.candidates import Candidates, best_of, corners_of, sigmoid, softmax
from vkmnn.pipelines.heads.signature import Output, Signature

_BY_SOFTMAX = (92, 126)
"""COCO's classes with "no object" as the last: DETR's and YOLOS'."""


def _pair(signature: Signature) -> tuple[Output, Output] | None:
    logits, boxes = signature.named("logits", "scores"), signature.named("pred_boxes", "boxes")
    if is_rf(signature):
        logits, boxes = signature.named("labels"), signature.named("dets")
    if logits is None or boxes is None or logits.rank != 3 or boxes.rank != 3:
        return None
    named = "logits" in logits.name.lower() or "pred" in boxes.name.lower() or is_rf(signature)
    return (logits, boxes) if named and boxes.shape[2] in (4, None) else None


def is_rf(signature: Signature) -> bool:
    """Outputs `dets` [n, queries, 4] and `labels` [n, queries, classes] of floats: RF-DETR."""
    names = {one.name for one in signature.outputs}
    return names == {"dets", "labels"} and all(
        one.rank == 3 and not one.integer for one in signature.outputs
    )


def is_logits(signature: Signature) -> bool:
    """Outputs `logits` [n, queries, classes] and `pred_boxes` [n, queries, 4]."""
    return _pair(signature) is not None


def logits(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode centres and sizes as fractions of the input; classes by softmax or sigmoid.

    DETR has an additional class, "no object", and softmax over all classes. Others score each class
    independently.
    """
    found = _pair(signature)
    assert found is not None
    values = outputs[found[0].name].astype(np.float32)
    boxes = corners_of(outputs[found[1].name].astype(np.float32))
    count = values.shape[2]
    apart = signature.classes != count - 1 if signature.classes else count not in _BY_SOFTMAX
    scores = sigmoid(values) if apart else softmax(values)[:, :, :-1]
    height, width = signature.size or (1, 1)
    whole = np.array([width, height, width, height], np.float32)
    made = []
    for one, score in zip(boxes, scores, strict=True):
        best = best_of(one * whole, score)
        made.append(replace(best, unique=True))
    return made


def is_decoded(signature: Signature) -> bool:
    """Outputs `labels` [n, queries] of integers, `boxes` [n, queries, 4], `scores` [n, queries]."""
    labels, boxes, scores = (signature.named(one) for one in ("labels", "boxes", "scores"))
    if labels is None or boxes is None or scores is None:
        return False
    return labels.rank == 2 and labels.integer and boxes.rank == 3 and scores.rank == 2


def decoded(outputs: Mapping[str, Array], signature: Signature) -> list[Candidates]:
    """Decode corners in pixels of the image, whose size is an input (RT-DETR, D-FINE)."""
    names = [signature.named(one) for one in ("labels", "boxes", "scores")]
    labels, boxes, scores = (outputs[one.name] for one in names if one is not None)
    return [
        Candidates(box.astype(np.float32), score.astype(np.float32), label.astype(np.int64),
                   unique=True, in_picture=True)
        for label, box, score in zip(labels, boxes, scores, strict=True)
    ]  # fmt: skip
