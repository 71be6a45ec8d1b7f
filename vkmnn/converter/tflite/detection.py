"""Custom operators of detectors and of MediaPipe's networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.nodes import FLOAT, INT64
from vkmnn.converter.nodes.composed import filled_up
from vkmnn.converter.tflite.custom import reads_custom
from vkmnn.converter.tflite.nodes import LiteOp

_MOST = 1 << 16


@reads_custom("TFLite_Detection_PostProcess")
def detections(op: LiteOp) -> None:
    """Boxes from anchors, NonMaxSuppression, and the best of all classes."""
    op.need(3, 4)
    options = op.custom_options()
    boxes = _decoded(op, options)
    scores = op.real(1)
    columns = (op.shape(1) or (None,))[-1]
    classes = int(options.get("num_classes", 0))
    most = int(options.get("max_detections", 0))
    if columns is None or not 0 < classes <= columns or not 0 < most <= _MOST:
        raise op.damaged(f"it has {classes} classes in {columns} columns, and {most} detections")
    skipped = columns - classes  # columns of a background come first
    if skipped:
        scores = op.make(
            "Slice", scores, op.constant([skipped]), op.constant([columns]), op.constant([2])
        )
    by_class = bool(options.get("use_regular_nms", False))
    each = int(options.get("max_classes_per_detection", 1))
    if not 0 < each <= classes:
        raise op.damaged(f"it has {each} classes for a detection, of {classes}")
    if by_class:
        count, places, kinds, values = _regular(op, options, boxes, scores, most)
    else:
        count, places, kinds, values = _fast(op, options, boxes, scores, most, each)
    picked = op.make("Gather", boxes, places, axis=0)
    rows = most * each
    room = op.constant([rows])
    flat = op.make("Reshape", picked, op.constant([-1]))
    found = filled_up(op, flat, op.constant([4 * rows]))
    op.give(op.make("Reshape", found, op.constant([1, rows, 4])))
    for number, name in ((1, op.cast(kinds, FLOAT)), (2, values)):
        op.give(op.make("Unsqueeze", filled_up(op, name, room), op.constant([0])), number)
    op.give(op.cast(count, FLOAT), 3)


def _decoded(op: LiteOp, options: dict[str, Any]) -> str:
    """Return boxes as y and x of their corners, one row per box."""
    codes, anchors = op.real(0), op.real(2)
    one = [op.constant([n]) for n in range(5)]
    scales = {}
    for name in ("y_scale", "x_scale", "h_scale", "w_scale"):
        scales[name] = float(options.get(name, 0.0))
        if not scales[name] > 0:
            raise op.damaged(f"its {name} is {scales[name]}")
    flat = op.make("Squeeze", codes, op.constant([0]))

    def column(name: str, number: int) -> str:
        return op.make("Slice", name, one[number], one[number + 1], one[1])

    def scaled(number: int, scale: str) -> str:
        return op.make("Div", column(flat, number), op.constant(scales[scale], np.float32))

    edges: list[list[str]] = [[], []]
    half = op.constant(0.5, np.float32)
    for axis, (place, size) in enumerate((("y_scale", "h_scale"), ("x_scale", "w_scale"))):
        length = column(anchors, axis + 2)
        moved = op.make("Mul", scaled(axis, place), length)
        center = op.make("Add", moved, column(anchors, axis))
        extent = op.make("Mul", op.make("Exp", scaled(axis + 2, size)), length)
        away = op.make("Mul", extent, half)
        edges[0].append(op.make("Sub", center, away))
        edges[1].append(op.make("Add", center, away))
    return op.make("Concat", *edges[0], *edges[1], axis=1)


def _suppressed(op: LiteOp, options: dict[str, Any], boxes: str, scores: str, most: int) -> str:
    """Return rows of batch, class and box that stay, by scores of [classes, boxes]."""
    overlap = float(options.get("nms_iou_threshold", 0.0))
    least = float(options.get("nms_score_threshold", 0.0))
    limits = [op.constant(most), *(op.constant(one, np.float32) for one in (overlap, least))]
    whole = [op.make("Unsqueeze", name, op.constant([0])) for name in (boxes, scores)]
    return op.make("NonMaxSuppression", *whole, *limits, dtype=INT64)


def _fast(
    op: LiteOp, options: dict[str, Any], boxes: str, scores: str, most: int, each: int
) -> tuple[str, str, str, str]:
    """Suppress by the best class of each box; then every box has its best classes."""
    rows = op.make("Squeeze", scores, op.constant([0]))
    best = op.make("ReduceMax", rows, op.constant([1]), keepdims=0)
    line = op.make("Unsqueeze", best, op.constant([0]))
    found = _suppressed(op, options, boxes, line, most)
    places = op.make("Gather", found, op.constant(2), axis=1)
    count = op.make("Shape", places, dtype=INT64)
    kept = op.make("Gather", rows, places, axis=0)
    values, kinds = op.make_several("TopK", 2, kept, op.constant([each]), axis=-1)
    op.scope.types[kinds] = INT64
    flat = [op.make("Reshape", name, op.constant([-1])) for name in (kinds, values)]
    column = op.make("Unsqueeze", places, op.constant([1]))
    shape = op.make("Shape", kinds, dtype=INT64)
    repeated = op.make("Reshape", op.make("Expand", column, shape), op.constant([-1]))
    return count, repeated, flat[0], flat[1]


def _regular(
    op: LiteOp, options: dict[str, Any], boxes: str, scores: str, most: int
) -> tuple[str, str, str, str]:
    """Suppress in each class; the best of all of them stay."""
    rows = op.make("Squeeze", scores, op.constant([0]))
    turned = op.make("Transpose", rows, perm=[1, 0])
    limit = int(options.get("detections_per_class", 100))
    found = _suppressed(op, options, boxes, turned, min(max(limit, 1), _MOST))
    pairs = op.make("Slice", found, op.constant([1]), op.constant([3]), op.constant([1]))
    values = op.make("GatherND", turned, pairs)
    size = op.make("Shape", values, dtype=INT64)
    count = op.make("Min", size, op.constant([most]))
    best, order = op.make_several("TopK", 2, values, count, axis=0)
    op.scope.types[order] = INT64
    chosen = op.make("Gather", pairs, order, axis=0)
    kinds, places = (op.make("Gather", chosen, op.constant(n), axis=1) for n in range(2))
    return count, places, kinds, best


@reads_custom("Convolution2DTransposeBias")
def transposed_with_bias(op: LiteOp) -> None:
    """ConvTranspose whose sizes follow from its strides; options are padding and strides."""
    op.need(3)
    raw = op.table.vector("custom_options").tobytes()
    if len(raw) < 12:
        raise op.damaged(f"it has {len(raw)} bytes of options")
    padding, width, height = np.frombuffer(raw[:12], "<i4").tolist()
    shape = op.shape_of(op.source(1)[0])
    if padding not in (1, 2) or min(width, height) < 1 or shape is None or None in shape:
        raise op.unreadable(f"padding {padding} and strides of {height} and {width}")
    kernel = [size or 0 for size in shape[1:3]]
    pads: dict[str, Any] = {"auto_pad": "SAME_UPPER"} if padding == 1 else {"pads": [0] * 4}
    operands = [op.first(0, 4), op.weights(1, [3, 0, 1, 2]), op.real(2)]
    options = {"strides": [height, width], "kernel_shape": kernel, **pads}
    op.give_first(op.make("ConvTranspose", *operands, **options), 4, active=False)
