"""Detectors: SSD's prior boxes and detections, and pooling of regions."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from vkmnn.converter.caffe.nodes import CaffeLayer, reads
from vkmnn.converter.nodes import INT64

_CORNER, _CENTER_SIZE = 1, 2
_MOST_BOXES = 1 << 24
_LOWEST = float(np.finfo(np.float32).min)


@reads("PriorBox")
def prior_box(op: CaffeLayer) -> None:
    """Prior boxes and their variances: [1, 2, boxes · 4]."""
    op.need(2)
    by = op.proto.prior_box_param
    rows, columns = op.picture(op.inputs[0])
    height, width = by.img_h or by.img_size, by.img_w or by.img_size
    if not (height and width):
        height, width = op.picture(op.inputs[1])
    steps = (
        by.step_h or by.step or height / max(rows, 1),
        by.step_w or by.step or width / max(columns, 1),
    )
    sizes = np.array(_prior_sizes(op))
    if not 0 < rows * columns * len(sizes) <= _MOST_BOXES or min(*steps) <= 0:
        raise op.damaged(f"{len(sizes)} boxes at {rows} x {columns} places, {steps} apart")
    y = (np.arange(rows) + by.offset) * steps[0]
    x = (np.arange(columns) + by.offset) * steps[1]
    centres = np.stack(np.meshgrid(x, y), -1).reshape(-1, 1, 2)
    corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], -1) / np.array(
        [width, height, width, height]
    )
    boxes = corners.reshape(-1, 4)
    if by.clip:
        boxes = boxes.clip(0, 1)
    variances = list(by.variance) or [0.1]
    if len(variances) not in (1, 4):
        raise op.damaged(f"{len(variances)} variances")
    spread = np.broadcast_to(np.array(variances * (4 // len(variances))), boxes.shape)
    both = np.stack([boxes.reshape(-1), spread.reshape(-1)])[None].astype(np.float32)
    op.scope.emit("Identity", [op.scope.constant(both, op.name)], op.outputs[:1], op.name)


def _prior_sizes(op: CaffeLayer) -> list[tuple[float, float]]:
    """Return the widths and heights of the boxes at one position, in pixels."""
    by = op.proto.prior_box_param
    ratios = [1.0]
    for ratio in by.aspect_ratio:
        if not ratio > 0:
            raise op.damaged(f"an aspect ratio of {ratio:g}")
        if all(abs(ratio - one) >= 1e-6 for one in ratios):
            ratios += [ratio, 1 / ratio] if by.flip else [ratio]
    if not by.min_size or (by.max_size and len(by.max_size) != len(by.min_size)):
        raise op.damaged(f"{len(by.min_size)} smallest and {len(by.max_size)} largest sizes")
    found: list[tuple[float, float]] = []
    for number, least in enumerate(by.min_size):
        most = by.max_size[number] if by.max_size else least
        if not 0 < least <= most:
            raise op.damaged(f"boxes of {least:g} to {most:g} pixels")
        found.append((least, least))
        if by.max_size:
            found.append((sqrt(least * most),) * 2)
        found += [(least * sqrt(ratio), least / sqrt(ratio)) for ratio in ratios[1:]]
    return found


@reads("DetectionOutput")
def detection_output(op: CaffeLayer) -> None:
    """Detections as rows [1, 1, count, 7]: image, label, score, and the corners of the box.

    They are in the order of images, labels and scores. Without any, there is a row for each image,
    of its number and -1.
    """
    op.need(3)
    by = op.proto.detection_output_param
    if by.nms_param.eta != 1:
        raise op.unreadable("an overlap threshold that changes")
    shape, priors = op.sizes(op.inputs[0], 1), op.sizes(op.inputs[2], 1)
    images, numbers = shape[0], priors[-1]
    if images is None or numbers is None:
        raise op.unreadable("unknown numbers of images or boxes; open it with input_shapes")
    boxes, classes = numbers // 4, by.num_classes
    labels = [label for label in range(classes) if label != by.background_label_id]
    if boxes < 1 or not labels or images < 1 or images * len(labels) > 1 << 20:
        raise op.damaged(f"{boxes} boxes of {classes} classes in {images} images")
    scores = op.make("Reshape", op.inputs[1], op.constant([images, boxes, classes]))
    scores = op.make("Transpose", scores, perm=[0, 2, 1])
    places = _decoded(op, images, boxes)
    if len(labels) < classes:
        chosen = op.constant(labels)
        scores = op.make("Gather", scores, chosen, axis=1)
        places = places if by.share_location else op.make("Gather", places, chosen, axis=1)
    scores = _best(op, scores, boxes)
    rows = [
        _detections(op, number, *_of_image(op, number, places, scores), labels, boxes)
        for number in range(images)
    ]
    found = op.make("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]
    none = np.full((images, 7), -1, np.float32)
    none[:, 0] = range(images)
    count = op.make("Shape", found, end=1, dtype=INT64)
    nothing = op.make("Equal", count, op.constant([0]), dtype=9)
    end = op.make("Where", nothing, op.constant([images]), count, dtype=INT64)
    whole = op.make("Concat", found, op.scope.constant(none, op.name), axis=0)
    kept = op.make("Slice", whole, op.constant([0]), end, op.constant([0]))
    op.finish("Unsqueeze", kept, op.constant([0, 1]))


def _decoded(op: CaffeLayer, images: int, boxes: int) -> str:
    """Return the corners of boxes: [images, 1 or classes, boxes, 4]."""
    by = op.proto.detection_output_param
    locations = 1 if by.share_location else by.num_classes
    moves = op.make("Reshape", op.inputs[0], op.constant([images, boxes, locations, 4]))
    moves = op.make("Transpose", moves, perm=[0, 2, 1, 3])
    both = op.make("Reshape", op.inputs[2], op.constant([2, boxes, 4]))
    prior, variance = op.make_several("Split", 2, both, axis=0, num_outputs=2)
    if not by.variance_encoded_in_target:
        moves = op.make("Mul", moves, variance)
    low, high = op.make_several("Split", 2, prior, axis=-1, num_outputs=2)
    if by.code_type == _CORNER:
        return op.make("Add", moves, prior)
    size = op.make("Sub", high, low)
    first, second = op.make_several("Split", 2, moves, axis=-1, num_outputs=2)
    if by.code_type == _CENTER_SIZE:
        middle = op.scaled(op.make("Add", low, high), 0.5)
        centre = op.make("Add", op.make("Mul", first, size), middle)
        half = op.scaled(op.make("Mul", op.make("Exp", second), size), 0.5)
        corners = op.make("Sub", centre, half), op.make("Add", centre, half)
    else:
        moved = [op.make("Mul", one, size) for one in (first, second)]
        corners = op.make("Add", low, moved[0]), op.make("Add", high, moved[1])
    return op.make("Concat", *corners, axis=-1)


def _best(op: CaffeLayer, scores: str, boxes: int) -> str:
    """Return scores with all but the best of each class set to -inf."""
    limit = op.proto.detection_output_param.nms_param.top_k
    if not 0 < limit < boxes:
        return scores
    names = op.make_several("TopK", 2, scores, op.constant([limit]), axis=2)
    op.scope.types[names[1]] = INT64
    empty = op.make("Expand", op.number(-np.inf), op.make("Shape", scores, dtype=INT64))
    return op.make("ScatterElements", empty, names[1], names[0], axis=2)


def _of_image(op: CaffeLayer, number: int, places: str, scores: str) -> tuple[str, str]:
    """Return the boxes and scores of one image: [1 or classes, boxes, 4] and [classes, boxes]."""
    return tuple(
        op.make("Gather", one, op.scope.constant(np.array(number), op.name), axis=0)
        for one in (places, scores)
    )  # type: ignore[return-value]


def _detections(
    op: CaffeLayer, image: int, places: str, scores: str, labels: Sequence[int], boxes: int
) -> str:
    """Return the rows of one image."""
    by = op.proto.detection_output_param
    apart = places
    if by.code_type != _CENTER_SIZE:  # a box whose corners are in the wrong order has no area
        low, high = op.make_several("Split", 2, places, axis=-1, num_outputs=2)
        apart = op.make("Concat", low, op.make("Max", low, high), axis=-1)
    shared = by.share_location
    by_class = op.make("Unsqueeze", scores, op.constant([0 if shared else 1]))
    threshold = by.confidence_threshold if by.HasField("confidence_threshold") else _LOWEST
    limits = op.constant([boxes]), op.number(by.nms_param.nms_threshold), op.number(threshold)
    chosen = op.make("NonMaxSuppression", apart, by_class, *limits, dtype=INT64)
    kind = op.constant([1 if shared else 0])
    which = op.make("Gather", chosen, op.constant([2]), axis=1, dtype=INT64)
    label = op.make("Gather", chosen, kind, axis=1, dtype=INT64)
    where = op.make("Concat", label, which, axis=1, dtype=INT64)
    score = op.make("GatherND", scores, where)
    if by.keep_top_k >= 0:
        kept = _largest(op, score, by.keep_top_k)
        label, which, where = (
            op.make("Gather", one, kept, axis=0) for one in (label, which, where)
        )
        score = op.make("Gather", score, kept, axis=0)
    named = op.make("Gather", op.constant(labels, np.float32), label, axis=0)
    if shared:
        flat = op.make("Squeeze", places, op.constant([0]))
        corners = op.make("GatherND", flat, which)
    else:
        corners = op.make("GatherND", places, where)
    numbers = op.scaled(named, 0.0, float(image))
    column = op.make("Unsqueeze", score, op.constant([1]))
    return op.make("Concat", numbers, named, column, corners, axis=1)


def _largest(op: CaffeLayer, scores: str, count: int) -> str:
    """Return the indices of the largest scores, ascending."""
    there = op.make("Shape", scores, dtype=INT64)
    count_now = op.make("Min", there, op.constant([count]), dtype=INT64)
    places = op.scope.fresh(op.name)
    op.scope.emit("TopK", [scores, count_now], [op.scope.fresh(op.name), places], op.name, axis=0)
    op.scope.types[places] = INT64
    ordered = op.scope.fresh(op.name)
    outputs = [ordered, op.scope.fresh(op.name)]
    op.scope.emit("TopK", [places, count_now], outputs, op.name, INT64, axis=0, largest=0)
    return ordered


@reads("ROIPooling")
def roi_pooling(op: CaffeLayer) -> None:
    """MaxRoiPool."""
    op.need(2)
    by = op.proto.roi_pooling_param
    regions = op.make("Reshape", op.inputs[1], op.constant([-1, 5]))
    sizes = [by.pooled_h, by.pooled_w]
    if min(sizes) < 1:
        raise op.damaged(f"regions of {sizes} elements")
    op.finish(
        "MaxRoiPool", op.inputs[0], regions, pooled_shape=sizes, spatial_scale=by.spatial_scale
    )
