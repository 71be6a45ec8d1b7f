"""Operators on boxes, and operators that sample images at given points."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, optional, required, widen
from vkmnn.errors import BudgetError, InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import DeformColumnsAttrs, NonMaxSuppressionAttrs, RoiAlignAttrs, RoiPoolAttrs
from vkmnn.shape.boxes import boxes_per_class

_MAX_SAMPLES = 1 << 24
"""Maximum samples in a bin of RoiAlign; each takes hundreds of bytes."""


def _edges(boxes: AnyArray, *, center: bool) -> AnyArray:
    """Return [N, 4]: the lower and the upper edges along both axes."""
    if center:
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlaps(one: AnyArray, others: AnyArray, limit: AnyArray) -> AnyArray:
    """Return which of the others a box suppresses."""
    sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
    common = sides[:, 0] * sides[:, 1]
    extent = others[:, 2:] - others[:, :2]
    area = (one[2] - one[0]) * (one[3] - one[1])
    areas = extent[:, 0] * extent[:, 1]
    union = area + areas - common
    real = (sides > 0).all(1) & (common > 0) & (area > 0) & (areas > 0) & (union > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(real & (common / union > limit))


def _chosen(edges: AnyArray, scores: AnyArray, most: int, limit: AnyArray) -> list[int]:
    """Return the boxes that are chosen of one class, in order; NaN is above all scores."""
    nothing = np.isnan(scores)
    left = np.lexsort((-np.where(nothing, 0, scores), ~nothing))  # stable: ties in order
    found: list[int] = []
    while left.size and len(found) < most:
        found.append(int(left[0]))
        suppressed = _overlaps(edges[left[0]], edges[left[1:]], limit)
        left = left[1:][~suppressed]
    return found


@cpu_execution("NonMaxSuppression")
def _non_max_suppression(op: Op[NonMaxSuppressionAttrs], inputs: Inputs) -> list[AnyArray]:
    boxes, scores = required(inputs, 0), required(inputs, 1)
    most = boxes_per_class(inputs, boxes.shape[1])
    given, least = optional(inputs, 3), optional(inputs, 4)
    limit = np.float32(0) if given is None else given.reshape(())
    rows: list[tuple[int, int, int]] = []
    for image, per_class in enumerate(scores if most else ()):
        edges = _edges(boxes[image], center=op.attrs.center)
        for number, row in enumerate(per_class):
            places = (
                np.arange(row.size) if least is None else np.flatnonzero(row > least.reshape(()))
            )
            kept = _chosen(edges[places], row[places], most, limit)
            rows += [(image, number, int(places[place])) for place in kept]
    result = np.zeros((scores.shape[0] * scores.shape[1] * most, 3), np.int64)
    if rows:
        result[: len(rows)] = rows
    return [result, np.array([len(rows)], np.int64)]


def _image_of(images: AnyArray, number: float) -> AnyArray:
    if not 0 <= number < len(images):
        raise InvalidInputError(
            f"a region refers to image {number:g} of {len(images)}",
            hint="images are counted from 0, within the batch",
        )
    return np.asarray(images[int(number)])


def _line(start: float, extent: float, bins: int, ratio: int, size: int) -> list[list[AnyArray]]:
    """Return, for each bin along an axis, elements and weights of its samples, and which count."""
    width = extent / np.float32(bins)
    count = ratio or int(np.ceil(width))
    lines = []
    for number in range(bins):
        steps = np.arange(max(count, 0), dtype=np.float32) + np.float32(0.5)
        at = start + np.float32(number) * width + steps * width / np.float32(count or 1)
        inside = (at >= -1) & (at <= size)
        low = np.minimum(np.maximum(at, 0).astype(np.int64), size - 1)
        part = np.where(low >= size - 1, np.float32(0), np.maximum(at, 0) - low)
        lines.append([low, np.minimum(low + 1, size - 1), part.astype(np.float32), inside])
    return lines


def _bin(image: AnyArray, down: list[AnyArray], across: list[AnyArray], largest: bool) -> AnyArray:
    """Return one bin's value for each channel of an image."""
    inside = down[3][:, None] & across[3][None, :]
    if not inside.size:
        return np.zeros(len(image), np.float32)
    parts = []
    for y, y_weight in ((down[0], 1 - down[2]), (down[1], down[2])):
        for x, x_weight in ((across[0], 1 - across[2]), (across[1], across[2])):
            weight = np.where(inside, y_weight[:, None] * x_weight[None, :], 0)
            parts.append(weight * image[:, y][:, :, x])
    stacked = np.asarray(parts)
    if largest:
        return np.asarray(stacked.max((0, 2, 3)))
    return np.asarray(stacked.sum((0, 2, 3)) / inside.size)


def _check_samples(extent: AnyArray, attrs: RoiAlignAttrs) -> None:
    """Refuse a region whose bins have endlessly many samples: one for each of their pixels.

    Raises:
        BudgetError: it has.
    """
    with np.errstate(all="ignore"):
        pixels = np.maximum(extent[::-1].astype(np.float64) / attrs.size, 1)
    samples = float(np.prod(np.ceil(pixels))) if attrs.ratio == 0 else 0.0
    if samples > _MAX_SAMPLES:
        raise BudgetError(
            f"the bins of a region have {samples:.1e} samples each, of at most {_MAX_SAMPLES:.1e}",
            hint="check the regions, or set sampling_ratio",
        )


@cpu_execution("RoiAlign")
def _roi_align(op: Op[RoiAlignAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x, regions, images = (required(inputs, place) for place in range(3))
    result = np.zeros((len(regions), x.shape[1], *attrs.size), x.dtype)
    shift = np.float32(0.5 if attrs.half_pixel else 0)
    for number, region in enumerate(regions.astype(np.float32) * np.float32(attrs.scale) - shift):
        image = widen(_image_of(x, images[number]))
        extent = region[2:] - region[:2]
        if not attrs.half_pixel:
            extent = np.maximum(extent, np.float32(1))
        _check_samples(extent, attrs)
        lines = [
            _line(region[1 - axis], extent[1 - axis], bins, attrs.ratio, x.shape[2 + axis])
            for axis, bins in enumerate(attrs.size)
        ]
        for row, down in enumerate(lines[0] if image.size else ()):
            for column, across in enumerate(lines[1]):
                result[number, :, row, column] = _bin(image, down, across, attrs.largest)
    return [result]


@cpu_execution("RoiPool")
def _roi_pool(op: Op[RoiPoolAttrs], inputs: Inputs) -> list[AnyArray]:
    x, regions = required(inputs, 0), required(inputs, 1)
    result = np.zeros((len(regions), x.shape[1], *op.attrs.size), x.dtype)
    for number, region in enumerate(regions):
        image = _image_of(x, region[0])
        corners = region[1:].astype(np.float32) * np.float32(op.attrs.scale)
        first, last = np.trunc(corners + np.copysign(np.float32(0.5), corners)).reshape(2, 2)
        spans = []
        for axis, bins in enumerate(op.attrs.size):
            low, high, size = first[1 - axis], last[1 - axis], x.shape[2 + axis]
            width = np.maximum(high - low + 1, np.float32(1)) / np.float32(bins)
            steps = np.arange(bins + 1, dtype=np.float32) * width
            begins = np.clip(np.floor(steps[:-1]) + low, 0, size).astype(int)
            spans.append((begins, np.clip(np.ceil(steps[1:]) + low, 0, size).astype(int)))
        for row, (top, bottom) in enumerate(zip(*spans[0], strict=True)):
            for column, (left, right) in enumerate(zip(*spans[1], strict=True)):
                if top < bottom and left < right:
                    found = image[:, top:bottom, left:right].max((1, 2))
                    result[number, :, row, column] = found
    return [result]


@cpu_execution("DeformColumns")
def _deform_columns(op: Op[DeformColumnsAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    x, offsets, factors = required(inputs, 0), required(inputs, 1), optional(inputs, 2)
    count, channels, height, width = x.shape
    places, taps = offsets.shape[2:], attrs.kernel[0] * attrs.kernel[1]
    moved = widen(offsets).reshape(count, attrs.groups, taps, 2, *places)
    at = []
    for axis in range(2):
        tap = np.arange(taps) // attrs.kernel[1] if axis == 0 else np.arange(taps) % attrs.kernel[1]
        where: AnyArray = np.arange(places[axis]) * attrs.strides[axis] - attrs.pads[axis]
        where = where.reshape(-1, 1) if axis == 0 else where
        fixed = tap.reshape(-1, 1, 1) * attrs.dilations[axis] + where
        at.append(moved[:, :, :, axis] + fixed.astype(np.float32))
    pixels = widen(x).reshape(count, attrs.groups, channels // attrs.groups, height * width)
    total = np.zeros((*pixels.shape[:3], *at[0].shape[2:]), np.float32)
    low = [np.floor(one) for one in at]
    for right in range(2):
        for below in range(2):
            y, column = low[0] + below, low[1] + right
            weight = (1 - np.abs(at[0] - y)) * (1 - np.abs(at[1] - column))
            inside = (y >= 0) & (y < height) & (column >= 0) & (column < width)
            place = np.where(inside, y * width + column, 0).astype(np.int64)
            read = place.reshape(count, attrs.groups, 1, taps * places[0] * places[1])
            if pixels.size:
                got = np.take_along_axis(pixels, read, 3).reshape(total.shape)
                total += np.where(inside, weight, 0)[:, :, None] * got
    if factors is not None:
        total *= widen(factors).reshape(count, attrs.groups, 1, taps, *places)
    return [total.reshape(count, channels * taps, places[0] * places[1]).astype(x.dtype)]
