"""Operators on boxes, and those that sample images at given places."""

from __future__ import annotations

import numpy as np

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import Spread


@recipe("NonMaxSuppression")
def _non_max_suppression(s: Sketch, op: str) -> None:
    """Boxes with integer corners, whose overlaps have few values; scores with and without ties."""
    batch, count, classes = s.choose(1, 2), s.choose(1, 3, 7, 16, 70, 301), s.choose(1, 2, 3)
    corners = s.draws.integers(0, 24, (batch, count, 2)).astype(np.float32)
    sizes = s.draws.integers(0, 9, (batch, count, 2)).astype(np.float32)
    center = s.choose(None, 0, 1)
    pair = [corners, sizes] if center else [corners, corners + sizes]
    if not center and s.chance(0.3):
        pair.reverse()
    place = s.parameter(np.concatenate(pair, 2), "float32", constant=0.3)
    shape = (batch, classes, count)
    order = s.draws.permutation(batch * classes * count).reshape(shape)
    levels = s.choose(order.size, 5)
    scores = s.parameter(order % levels / levels, "float32", constant=0.2)
    most = s.parameter([s.choose(0, 1, 3, 100)]) if s.chance(0.9) else None
    overlap = s.parameter([s.choose(0.13, 0.45, 0.9)], "float32") if s.chance(0.9) else None
    least = s.parameter([s.choose(0.013, 0.313)], "float32") if s.chance(0.5) else None
    s.one(op, place, scores, most, overlap, least, center_point_box=center)


def _image(s: Sketch) -> Value:
    shape = [s.choose(1, 2), s.choose(1, 2, 4, 6), s.choose(1, 3, 7, 16), s.choose(1, 5, 11, 16)]
    return s.pick("float32", shape, spread=Spread(-3, 3, special=False))


def _corners(s: Sketch, x: Value, count: int) -> np.ndarray:
    """Return regions on quarters of a pixel: engines agree there about samples at the edges."""
    sizes = np.array(x.shape[:1:-1])
    low = s.draws.integers(-2, 4 * sizes, (count, 2)) / 4
    return np.concatenate([low, low + s.draws.integers(1, 4 * sizes + 2, (count, 2)) / 4], 1)


@recipe("RoiAlign")
def _roi_align(s: Sketch, op: str) -> None:
    x, count = _image(s), s.choose(1, 3, 11)
    regions = s.parameter(_corners(s, x, count).astype(np.float32), "float32", constant=0.3)
    images = s.parameter(s.draws.integers(0, x.shape[0], count), constant=0.5)
    where = s.choose(None, "half_pixel", "output_half_pixel") if s.since(16) else None
    s.one(
        op,
        x,
        regions,
        images,
        mode=s.choose(None, "avg", "max"),
        output_height=s.choose(None, 2, 7),
        output_width=s.choose(None, 3, 5),
        sampling_ratio=s.choose(None, 0, 1, 3),
        spatial_scale=s.choose(None, 0.5, 1.0),
        coordinate_transformation_mode=where,
    )


@recipe("MaxRoiPool")
def _max_roi_pool(s: Sketch, op: str) -> None:
    x, count = _image(s), s.choose(1, 3, 11)
    images = s.draws.integers(0, x.shape[0], (count, 1))
    regions = np.concatenate([images, _corners(s, x, count)], 1).astype(np.float32)
    where = s.parameter(regions, "float32", constant=0.3)
    size = [s.choose(1, 2, 5), s.choose(1, 3)]
    s.one(op, x, where, pooled_shape=size, spatial_scale=s.choose(None, 1.0, 2.0))


@recipe("DeformConv")
def _deform_conv(s: Sketch, op: str) -> None:
    x = _image(s)
    shared, group = (s.choose(*(n for n in (1, 2) if x.shape[1] % n == 0)) for _ in range(2))
    kernel = [s.choose(1, 2, 3), s.choose(1, 3)]
    strides, gaps = [s.choose(1, 2), 1], [1, s.choose(1, 2)]
    pads = [2, 3, 2, s.choose(3, 4)]
    places = [
        (x.shape[2 + n] + pads[n] + pads[n + 2] - gaps[n] * (kernel[n] - 1) - 1) // strides[n] + 1
        for n in range(2)
    ]
    filters, taps = group * s.choose(1, 3), shared * kernel[0] * kernel[1]
    near = Spread(-1.6, 1.6, special=False)
    w = s.weight("float32", [filters, x.shape[1] // group, *kernel], near)
    offsets = s.pick("float32", [x.shape[0], 2 * taps, *places], spread=near)
    bias = s.weight("float32", [filters], near) if s.chance(0.5) else None
    factors = None
    if s.chance(0.5):
        factors = s.pick("float32", [x.shape[0], taps, *places], spread=near)
    s.one(
        op, x, w, offsets, bias, factors, group=group, offset_group=shared, strides=strides,
        dilations=gaps, pads=pads, kernel_shape=s.choose(None, kernel),
    )  # fmt: skip
