"""Cases of operators on boxes, and of those that sample images at given places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Array
from vkmnn.ir.ops import DeformColumnsAttrs, NonMaxSuppressionAttrs, RoiAlignAttrs, RoiPoolAttrs
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import f32, floats, whole
from vkmnn.vulkan.sorting.tournament import SHORT_LOOPS, TOPS, Tournament
from vkmnn_suite.cases.rows import taking


def _corners(images: int, count: int, *, span: int = 40, flip: bool = False) -> AnyArray:
    """Return boxes with integer corners, a few of them empty; with `flip`, some upside down."""
    rng = np.random.default_rng(count)
    low = rng.integers(0, span, (images, count, 2))
    high = low + rng.integers(0, 12, (images, count, 2))
    boxes = np.concatenate([low, high], 2).astype(np.float32)
    if flip:
        turned = rng.random((images, count, 1)) < 0.5
        boxes = np.where(turned, boxes[:, :, [2, 1, 0, 3]], boxes)
    return boxes


def _apart(count: int) -> AnyArray:
    """Return boxes that suppress nothing, as [1, count, 4]."""
    return (np.arange(count, dtype=np.float32)[:, None] * 4 + f32([0, 0, 3, 3]))[None]


def _centers(images: int, count: int) -> AnyArray:
    rng = np.random.default_rng(count)
    places = rng.integers(0, 40, (images, count, 2))
    sizes = rng.integers(0, 12, (images, count, 2))
    return np.concatenate([places, sizes], 2).astype(np.float32)


def _scores(*shape: int, levels: int = 7) -> AnyArray:
    """Return scores, many of them equal, or few scores with many levels; both signs."""
    made = np.random.default_rng(levels).integers(-levels, levels + 1, shape)
    return f32(made / np.float32(levels))


def _case(
    boxes: Array,
    scores: Array,
    most: int,
    limit: float | None = None,
    least: float | None = None,
    *,
    center: bool = False,
) -> Case:
    numbers: list[Array | None] = [
        None if value is None else np.array([value], np.float32) for value in (limit, least)
    ]
    inputs = [boxes, scores, np.array([most], np.int64), *numbers]
    attrs = NonMaxSuppressionAttrs(center)
    return op_case("NonMaxSuppression", attrs, inputs, constant={2}, outputs=2, rtol=0, atol=0)


def suppressions(multiple: int = 1) -> Iterator[Case]:
    """Every input, both forms of boxes; ties, NaN, infinities, nothing; more boxes than lanes.

    Args:
        multiple: the number of boxes is rounded up to a multiple of this.
    """
    for images, classes, min_count in (
        (1, 1, 1),
        (2, 3, 7),
        (1, 5, 131),
        (3, 2, 257),
        (2, 1, 1_009),
        (2, 2, 300),
    ):
        count = -(-min_count // multiple) * multiple
        boxes, scores = _corners(images, count, flip=True), _scores(images, classes, count)
        yield _case(boxes, scores, 5, 0.4)
        yield _case(boxes, scores, 2**62, 0.25, 0.0)
        yield _case(boxes, _scores(images, classes, count, levels=9_999), 11, None, -0.5)
        yield _case(_centers(images, count), scores, 13, 0.3, 0.2, center=True)
    boxes, scores = _corners(2, 19), _scores(2, 3, 19)
    for most, least in ((0, None), (-3, None), (1, None), (4, 2.0), (18, -9.0)):
        yield _case(boxes, scores, most, 0.5, least)
    for images, classes, count in ((0, 2, 3), (2, 0, 3), (2, 3, 0)):
        yield _case(_corners(images, count), _scores(images, classes, count), 3, 0.5)
    odd = _scores(1, 2, 19)
    odd[0, 0, [2, 7]], odd[0, 1, [0, 5]], odd[0, :, 11] = np.nan, -0.0, np.inf
    odd[0, 1, 3] = -np.inf
    yield _case(_corners(1, 19), odd, 19, 0.9)
    yield _case(_corners(1, 19), odd, 19, 0.9, -np.inf)
    # Rows of whole vec4s.
    even = np.concatenate([odd, odd[..., 4:5]], 2)
    yield _case(_corners(1, 20), even, 20, 0.9)
    # They overlap by exactly a third: such boxes are kept, as that is the limit itself.
    row = f32([[[0, 0, 2, 2], [0, 1, 2, 3], [0, 2, 2, 4], [0, 0, 2, 2]]])
    for limit in (1 / 3, 0.33, 0.34, 0.0, 1.0):
        yield _case(row, f32([[[0.9, 0.8, 0.7, 0.9]]]), 4, limit)


@op_cases
def non_max_suppressions() -> Iterator[Case]:
    """The kernels' cases, and boxes none of which is suppressed: several dispatches choose them."""
    yield from suppressions()
    count = 3_001
    yield _case(_apart(count), _scores(1, 2, count, levels=9_999), count, 0.5)


@shader_cases("nms_sort")
def nms_sort(variant: Variant) -> Iterator[Case]:
    """Candidates of a row, in order."""
    yield from suppressions()


@shader_cases("nms_choose")
def nms_choose(variant: Variant) -> Iterator[Case]:
    """Boxes that suppress others, both in their own group and in later ones."""
    yield from suppressions()


@shader_cases("nms_tournament")
def nms_tournament(variant: Variant) -> Iterator[Case]:
    """The same, in one dispatch and in many; every box twice, so that it matters where one ends."""
    width, lanes = int(variant.axes["width"]), variant.axes["lanes"]
    whole_loops = Tournament(lanes)  # type: ignore[arg-type]
    for way in (whole_loops, replace(whole_loops, rounds=SHORT_LOOPS)):
        takes = {"suppression": way}
        for case in suppressions(width):
            yield taking(case, takes)
        for count in (131, 257):
            count = -(-count // width) * width
            boxes = np.repeat(_corners(2, count, span=400), 2, 1)[:, :count]
            for levels in (2, 9_999):
                scores = _scores(2, 3, count, levels=levels)
                scores[1, :, ::2] = scores[1, :, 1:2]
                yield taking(_case(boxes, scores, count, 0.4), takes)
                yield taking(_case(boxes, scores, 40, 0.4, -0.9), takes)
    for case in _long_rows(whole_loops, width):
        yield taking(case, {"suppression": whole_loops})


def _long_rows(way: Tournament, width: int) -> Iterator[Case]:
    """Every block of every lane; loops that are as long as they may be, twice; a long first one."""
    count = TOPS * way.lanes * way.lanes * width
    boxes = _apart(count)
    rng = np.random.default_rng(count)
    for levels in (3, 999):
        scores = _scores(1, 1, count, levels=levels) * (rng.random(count) < 400 / count)
        yield _case(boxes, f32(scores), 400, 0.5, 0.0)
    count = max(size for size in range(width, 3_000, width) if way.parts(size, size) == 2)
    yield _case(_apart(count), _scores(1, 1, count, levels=9_999), count, 0.5)
    # All but the worst one are the same box.
    count = 32_768 + width
    boxes = np.tile(f32([0, 0, 3, 3]), (1, count, 1))
    scores = _scores(1, 1, count, levels=9_999)
    boxes[0, scores.argmin()] = 4, 4, 7, 7
    yield _case(boxes, scores, 2, 0.5)


@shader_cases("nms_gather")
def nms_gather(variant: Variant) -> Iterator[Case]:
    """Rows of different lengths, one after the other; zeros after them."""
    yield from suppressions()


_IMAGES = ((1, 1, 1, 1), (2, 3, 7, 11), (3, 5, 16, 13))
_OUTSIDE = "names an image that does not exist"


def _regions(count: int, images: int, height: int, width: int) -> tuple[AnyArray, AnyArray]:
    """Return regions inside, across and outside the edges of the images, a few of them empty."""
    rng = np.random.default_rng([count, height])
    corners = rng.uniform(-0.4, 1.2, (count, 2)) * (width, height)
    sizes = rng.uniform(-0.2, 1.1, (count, 2)) * (width, height)
    # Quarters of a pixel: whole numbers of samples are met exactly.
    regions = np.round(np.concatenate([corners, corners + sizes], 1) * 4) / 4
    return f32(regions), rng.integers(0, max(images, 1), count)


@shader_cases("roi_align")
def roi_align(variant: Variant) -> Iterator[Case]:
    """Both ways to place regions and to combine the samples of a bin; one sample per pixel."""
    for shape, half, largest in product(_IMAGES, (False, True), (False, True)):
        x = floats(*shape)
        for size, ratio, scale in (((1, 1), 0, 1.0), ((2, 3), 2, 0.5), ((7, 5), 0, 2.0)):
            regions, images = _regions(13, shape[0], *shape[2:])
            attrs = RoiAlignAttrs(size, ratio, scale, half, largest)
            yield op_case("RoiAlign", attrs, [x, regions, images], rtol=1e-4, atol=1e-4)
        yield op_case("RoiAlign", attrs, [x, regions[:0], images[:0]])
    # A bin with more samples than a loop can count; another region has none.
    x, attrs = whole(1, 1, 251, 256), RoiAlignAttrs((1, 1), 0, 1.0, True, False)
    regions = f32([[0, 0, 256, 251], [-900, -900, 900, 900], [-90, -90, -20, -20]])
    for largest in (False, True):
        inputs = [x, regions, np.zeros(3, np.int64)]
        attrs = replace(attrs, largest=largest)
        yield op_case("RoiAlign", attrs, inputs, rtol=1e-3, atol=1e-3)
    inputs = [floats(2, 3, 7, 11), f32([[0, 0, 3, 3]]), np.array([1], np.int64)]
    case = op_case("RoiAlign", attrs, inputs)
    for image in (2, -1):
        feeds = {**case.feeds, "in2": np.array([image], np.int64)}
        yield replace(case, feeds=feeds, raises=_OUTSIDE)


@shader_cases("roi_pool")
def roi_pool(variant: Variant) -> Iterator[Case]:
    """Regions whose bins overlap, have no pixels, or lie outside."""
    for shape, (size, scale) in product(_IMAGES, (((1, 1), 1.0), ((2, 3), 0.5), ((7, 5), 2.0))):
        regions, images = _regions(17, shape[0], *shape[2:])
        regions = np.concatenate([f32(images)[:, None], regions], 1)
        x = floats(*shape)
        yield op_case("RoiPool", RoiPoolAttrs(size, scale), [x, regions], rtol=0, atol=0)
    yield op_case("RoiPool", RoiPoolAttrs((2, 2)), [x, regions[:0]])
    case = op_case("RoiPool", RoiPoolAttrs((2, 2)), [floats(2, 3, 7, 11), f32([[1, 0, 0, 3, 3]])])
    for image in (2, -1):
        yield replace(
            case, feeds={**case.feeds, "in1": f32([[image, 0, 0, 3, 3]])}, raises=_OUTSIDE
        )


@shader_cases("deform_columns")
def deform_columns(variant: Variant) -> Iterator[Case]:
    """Offsets to whole pixels and between them, inside and outside; groups, factors, gaps."""
    uses: tuple[tuple[tuple[int, ...], DeformColumnsAttrs], ...] = (
        ((1, 1, 1, 1), DeformColumnsAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))),
        ((2, 6, 7, 11), DeformColumnsAttrs((3, 2), (1, 2), (1, 1), (1, 0, 1, 2), 2)),
        ((1, 3, 13, 5), DeformColumnsAttrs((2, 3), (2, 1), (3, 2), (2, 1, 0, 1), 3)),
    )
    for (shape, attrs), has_factors, spread in product(uses, (False, True), (0.5, 2.0)):
        taps = attrs.groups * attrs.kernel[0] * attrs.kernel[1]
        places = [
            (shape[2 + n] + attrs.pads[n] + attrs.pads[n + 2] - d * (attrs.kernel[n] - 1) - 1) // s
            + 1
            for n, (d, s) in enumerate(zip(attrs.dilations, attrs.strides, strict=True))
        ]
        offsets = floats(shape[0], taps * 2, *places, scale=spread)
        offsets = np.where(whole(*offsets.shape) > 0, np.round(offsets), offsets)
        factors = floats(shape[0], taps, *places, seed=1) if has_factors else None
        yield op_case("DeformColumns", attrs, [floats(*shape), offsets, factors])
