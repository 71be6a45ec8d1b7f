"""Regions in addresses of channel-blocked tensors move the same elements as plain ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

import numpy as np
import pytest

from vkmnn.cpu_fallback.raster import strided
from vkmnn.geometry.regions import row_major, simplify
from vkmnn.ir import Region, View, storage_elements
from vkmnn.ir.layout import Layout
from vkmnn.vulkan.copies.block_regions import keeps_its_place, whole_blocks
from vkmnn.vulkan.storage import pack_nc4hw4

Shape = tuple[int, ...]
Problem = tuple[Region, Shape, Shape]

SOURCES = ((1, 8, 3, 5), (2, 4, 4, 4), (3, 6, 2, 3), (1, 1, 5, 7), (4, 1, 2, 2), (2, 12, 1, 1))


def box(begin: Shape, end: Shape, steps: Shape, source: Shape) -> Problem:
    """Return the regions of a slice; steps may be negative."""
    strides = row_major(source)
    size = tuple(len(range(b, e, s)) for b, e, s in zip(begin, end, steps, strict=True))
    offset = sum(b * s for b, s in zip(begin, strides, strict=True))
    src = View(offset, tuple(k * s for k, s in zip(steps, strides, strict=True)))
    return Region(src, View(0, row_major(size)), size), source, size


def placed(at: Shape, source: Shape, output: Shape) -> Problem:
    """Return the regions that write the whole source somewhere into the output."""
    strides = row_major(output)
    offset = sum(a * s for a, s in zip(at, strides, strict=True))
    region = Region(View(0, row_major(source)), View(offset, strides), source)
    return region, source, output


def turned(order: Shape, source: Shape) -> Problem:
    strides, output = row_major(source), tuple(source[axis] for axis in order)
    src = View(0, tuple(strides[axis] for axis in order))
    return Region(src, View(0, row_major(output)), output), source, output


def space_to_depth(source: Shape, size: int) -> Problem:
    n, c, h, w = source
    fine = (n, c, h // size, size, w // size, size)
    order = (0, 3, 5, 1, 2, 4)
    region, _, _ = turned(order, fine)
    return region, source, (n, c * size * size, h // size, w // size)


def problems() -> Iterator[Problem]:
    for source in SOURCES:
        n, c, h, w = source
        for order in permutations(range(4)):
            yield turned(order, source)
        for first in range(0, c, 2):
            for last in range(first + 1, c + 1):
                yield box((0, first, 0, 0), (n, last, h, w), (1, 1, 1, 1), source)
                output = (n, c + first + last % 3, h, w)
                yield placed((0, first, 0, 0), source, output)
        yield box((0, 0, h - 1, w - 1), (n, c, -1, -1), (1, 1, -1, -2), source)
        yield box((n - 1, 0, 0, 0), (-1, c, h, w), (-1, 1, 1, 1), source)
        yield box((0, c - 1, 0, 0), (n, -1, h, w), (1, -1, 1, 1), source)
        yield placed((0, 0, 1, 2), source, (n, c, h + 3, w + 2))
        yield placed((1, 4, 0, 1), source, (n + 2, c + 4, h, w + 1))
        yield Region(View(0, (1,)), View(0, (1,)), (prod(source),)), source, (n, c, h * w)
        yield Region(View(0, (1,)), View(0, (1,)), (prod(source),)), source, (n, c * h, w)
        wide = Region(View(0, (h * w, 0, 1)), View(0, (2 * h * w, h * w, 1)), (n * c, 2, h * w))
        yield wide, source, (n, c, 2 * h, w)
        yield wide, source, (n, 2 * c, h, w)
    for source in ((1, 4, 6, 4), (2, 8, 4, 6), (1, 6, 4, 4), (1, 16, 2, 2)):
        yield space_to_depth(source, 2)
        region, _, made = space_to_depth(source, 2)
        yield Region(region.dst, region.src, region.size), made, source
    rng = np.random.default_rng(0)
    for _ in range(400):
        sizes = tuple(int(n) for n in rng.integers(1, 6, 4))
        source = tuple(int(n) for n in rng.integers(1, 10, 4))
        # Strides at random, which carry from pixels to channels and on.
        strides = tuple(int(n) for n in rng.integers(0, 40, 4))
        if sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) < prod(source):
            yield Region(View(0, strides), View(0, row_major(sizes)), sizes), source, sizes


def moved(region: Region, source: np.ndarray, output: np.ndarray) -> np.ndarray:
    flat = output.reshape(-1)
    strided(flat, region.dst, region.size, "to")[...] = strided(
        source.reshape(-1), region.src, region.size, "from"
    )
    return output


def test_blocks_hold_what_plain_copies_move() -> None:
    taken = 0
    for region, source, output in problems():
        blocks = whole_blocks(simplify(region), source, output)
        if blocks is None:
            continue
        taken += 1
        x = np.arange(1, prod(source) + 1, dtype=np.float32).reshape(source)
        want = pack_nc4hw4(moved(region, x, np.zeros(output, np.float32)))
        got = moved(blocks, pack_nc4hw4(x), np.zeros_like(want))
        np.testing.assert_array_equal(got, want, f"{region} of {source} into {output}")
        assert blocks.size[-1] % 4 == 0
        assert blocks.src.strides[-1] == blocks.dst.strides[-1] == 1
        assert not any(n % 4 for n in (*blocks.src.strides[:-1], *blocks.dst.strides[:-1]))
    assert taken > 100


@pytest.mark.parametrize(
    "problem",
    [
        turned((0, 1, 3, 2), (2, 6, 3, 5)),
        box((0, 4, 0, 0), (2, 12, 3, 5), (1, 1, 1, 1), (2, 16, 3, 5)),
        box((0, 4, 0, 0), (2, 6, 3, 5), (1, 1, 1, 1), (2, 6, 3, 5)),
        box((1, 0, 2, 4), (0, 8, -1, -1), (-1, 1, -1, -2), (2, 8, 3, 5)),
        placed((1, 4, 1, 2), (1, 8, 3, 5), (3, 16, 4, 8)),
        placed((0, 8, 0, 0), (1, 3, 3, 5), (1, 11, 3, 5)),
        space_to_depth((2, 8, 4, 6), 2),
    ],
)
def test_whole_blocks_are_found(problem: Problem) -> None:
    region, source, output = problem
    assert whole_blocks(simplify(region), source, output) is not None


@pytest.mark.parametrize(
    "problem",
    [
        turned((0, 2, 3, 1), (1, 8, 4, 4)),
        turned((1, 0, 2, 3), (1, 4, 3, 5)),
        box((0, 1, 0, 0), (1, 5, 3, 5), (1, 1, 1, 1), (1, 8, 3, 5)),
        box((0, 0, 0, 0), (1, 6, 3, 5), (1, 1, 1, 1), (1, 8, 3, 5)),
        box((0, 7, 0, 0), (1, -1, 3, 5), (1, -1, 1, 1), (1, 8, 3, 5)),
        box((0, 0, 0, 0), (1, 8, 3, 5), (1, 2, 1, 1), (1, 8, 3, 5)),
        placed((0, 6, 0, 0), (1, 4, 3, 5), (1, 12, 3, 5)),
        placed((0, 0, 0, 0), (1, 6, 3, 5), (1, 12, 3, 5)),
        space_to_depth((1, 6, 4, 4), 2),
        box((0, 0, 0, 0), (1, 0, 3, 5), (1, 1, 1, 1), (1, 8, 3, 5)),
    ],
)
def test_parts_of_blocks_are_refused(problem: Problem) -> None:
    region, source, output = problem
    assert whole_blocks(simplify(region), source, output) is None


@pytest.mark.parametrize(
    ("first", "channels", "pixels", "alignment", "keeps"),
    [
        (0, 8, 64, 64, True),
        (8, 8, 64, 64, True),
        (8, 8, 49, 64, True),  # not even floats are, at byte 1,568
        (16, 16, 49, 64, False),  # floats are written in place, at byte 3,136
        (0, 16, 49, 16, True),  # 784 bytes
        (4, 8, 49, 256, True),  # not even floats
        (0, 4, 49, 16, False),  # 196 bytes do not fill a vector, and more follows
        (20, 4, 49, 16, False),
        (24, 8, 49, 16, False),
        (16, 16, 49, 16, True),  # the end
        (8, 8, 49, None, True),
    ],
)
def test_parts_are_where_bytes_can_be_bound(
    first: int, channels: int, pixels: int, alignment: int | None, keeps: bool
) -> None:
    source, output = (1, channels, pixels, 1), (1, 32, pixels, 1)
    region, _, _ = placed((0, first, 0, 0), source, output)
    blocks = whole_blocks(simplify(region), source, output)
    assert blocks is not None
    sizes = [storage_elements(shape, Layout.NC4HW4) for shape in (source, output)]
    assert keeps_its_place(blocks, *sizes, alignment) is keeps
    back = Region(blocks.dst, blocks.src, blocks.size)
    assert keeps_its_place(back, *reversed(sizes), alignment) is keeps
