from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkmnn.errors import ModelError
from vkmnn.geometry.regions import (
    MAX_AXES,
    MAX_REGIONS,
    bounds,
    compose,
    copy_region,
    covers,
    is_identity,
    limit_axes,
    merge,
    region_elements,
    row_major,
    simplify,
    validate,
)
from vkmnn.ir import Array, Region, View

Apply = Callable[[Region, Array, Array], None]

UNWRITTEN = -1


@st.composite
def readers(draw: st.DrawFn, size: tuple[int, ...]) -> tuple[View, int]:
    """Any affine view of `size`, offset so that it starts in bounds; and the source's elements."""
    strides = tuple(draw(st.integers(-12, 12)) for _ in size)
    if draw(st.booleans()):
        strides = tuple(
            draw(st.permutations(row_major(size))) if size else ()
        )  # the common case: a permutation of a contiguous tensor
    low, high = bounds(View(0, strides), size) if prod(size) else (0, 0)
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return View(before - low, strides), before + high - low + 1 + after


@st.composite
def writers(draw: st.DrawFn) -> tuple[View, tuple[int, ...], int]:
    """A box (with steps) of a row-major tensor of up to three axes: view, size, tensor elements."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    weights = row_major(shape)
    size, strides, offset = [], [], 0
    for dim, weight in zip(shape, weights, strict=True):
        begin = draw(st.integers(0, dim - 1))
        step = draw(st.integers(1, 3))
        count = draw(st.integers(1, (dim - 1 - begin) // step + 1))
        size.append(count)
        if draw(st.booleans()):
            strides.append(step * weight)
            offset += begin * weight
        else:
            strides.append(-step * weight)
            offset += (begin + (count - 1) * step) * weight
    order = draw(st.permutations(range(len(shape))))
    return (
        View(offset, tuple(strides[axis] for axis in order)),
        tuple(size[axis] for axis in order),
        prod(shape),
    )


@st.composite
def regions(draw: st.DrawFn) -> tuple[Region, int, int]:
    """A region whose copies do not overlap; the elements of its source and destination."""
    dst, size, dst_elements = draw(writers())
    src, src_elements = draw(readers(size))
    return Region(src, dst, size, draw(st.integers(0, 3))), src_elements, dst_elements


def copies(region: Region, src_elements: int, dst_elements: int, apply: Apply) -> Array:
    result = np.full(dst_elements, UNWRITTEN)
    apply(region, np.arange(src_elements), result)
    return result


@given(regions())
def test_simplify_keeps_the_copies_and_is_canonical(
    region_interpreter: Apply, case: tuple[Region, int, int]
) -> None:
    region, src, dst = case
    plain = simplify(region)
    np.testing.assert_array_equal(
        copies(plain, src, dst, region_interpreter), copies(region, src, dst, region_interpreter)
    )
    assert plain.origin == region.origin
    assert simplify(plain) == plain
    assert 1 not in plain.size
    assert list(plain.dst.strides) == sorted(plain.dst.strides, reverse=True)


def test_simplify_merges_a_reshape_into_one_axis() -> None:
    strides = row_major((2, 3, 5, 7))
    region = Region(View(4, strides), View(9, strides), (2, 3, 5, 7), 1)
    assert simplify(region) == Region(View(4, (1,)), View(9, (1,)), (210,), 1)


def test_simplify_of_an_empty_region() -> None:
    region = Region(View(3, (5, 1)), View(8, (2, 1)), (0, 4), 2)
    assert simplify(region) == Region(View(0, (1,)), View(0, (1,)), (0,), 2)


@given(st.lists(st.integers(2, 3), min_size=7, max_size=9), st.randoms())
def test_limit_axes(region_interpreter: Apply, shape: list[int], random: object) -> None:
    strides = list(row_major(shape))
    random.shuffle(strides)  # type: ignore[attr-defined]
    region = Region(View(0, tuple(strides)), View(0, row_major(shape)), tuple(shape))
    high = bounds(region.src, region.size)[1]
    elements = prod(shape)
    parts = limit_axes(region)
    assert all(len(part.size) <= MAX_AXES for part in parts)
    result = np.full(elements, UNWRITTEN)
    for part in parts:
        region_interpreter(part, np.arange(high + 1), result)
    np.testing.assert_array_equal(result, copies(region, high + 1, elements, region_interpreter))


@given(regions())
def test_identity_agrees_with_the_copies(
    region_interpreter: Apply, case: tuple[Region, int, int]
) -> None:
    region, src, dst = case
    written = copies(region, src, dst, region_interpreter)
    assert is_identity(region, dst) == np.array_equal(written, np.arange(dst))


@pytest.mark.parametrize(
    ("region", "elements", "expected"),
    [
        (copy_region(0), 0, True),
        (copy_region(1), 1, True),
        (copy_region(7), 7, True),
        (copy_region(7), 8, False),
        (Region(View(0, ()), View(0, ()), ()), 1, True),
        (Region(View(1, ()), View(0, ()), ()), 1, False),
        (Region(View(0, (2,)), View(0, (1,)), (5,)), 5, False),
        (Region(View(0, (3, 1)), View(0, (3, 1)), (2, 3)), 6, True),
    ],
)
def test_identity(region: Region, elements: int, expected: bool) -> None:
    assert is_identity(region, elements) is expected


def test_covers() -> None:
    halves = [copy_region(3), Region(View(0, (1,)), View(3, (1,)), (4,))]
    assert covers(halves, 7)
    assert not covers(halves[:1], 7)
    assert covers([], 0)


@given(regions())
def test_validate_accepts_regions_in_bounds_and_rejects_others(
    case: tuple[Region, int, int],
) -> None:
    region, src, dst = case
    validate(region, src, dst)
    _, high = bounds(region.dst, region.size)
    with pytest.raises(ModelError, match="destination"):
        validate(region, src, high)
    _, high = bounds(region.src, region.size)
    with pytest.raises(ModelError, match="source"):
        validate(region, high, dst)


@pytest.mark.parametrize(
    "region",
    [
        Region(View(0, (1,)), View(0, ()), (2,)),
        Region(View(0, (1,) * 7), View(0, (1,) * 7), (1,) * 7),
        Region(View(0, (1, 1)), View(0, (1, 1)), (-2, -2)),
        Region(View(0, (1,)), View(0, (0,)), (2,)),
        Region(View(-1, (1,)), View(0, (1,)), (2,)),
        Region(View(1, (-1,)), View(0, (1,)), (3,)),
    ],
)
def test_validate_rejects(region: Region) -> None:
    with pytest.raises(ModelError):
        validate(region, 4, 4)


def test_validate_ignores_the_offsets_of_an_empty_region() -> None:
    validate(Region(View(99, (1,)), View(99, (1,)), (0,)), 0, 0)


@st.composite
def compositions(draw: st.DrawFn) -> tuple[Region, Region, int, int, int]:
    """Inner writes a middle tensor from a source; outer reads the middle one anyhow."""
    inner, source, middle = draw(regions())
    if draw(st.booleans()):
        # Reads that do not follow inner's axes: a few arbitrary strides anywhere in the middle
        # tensor.
        size = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
        view, needed = draw(readers(size))
        middle = max(middle, needed)
    else:
        # Reads like those of geometry: a strided box of the middle tensor, maybe repeated.
        view, size, _ = draw(writers())
        middle = max(middle, bounds(view, size)[1] + 1)
        if draw(st.booleans()):
            view, size = View(view.offset, (*view.strides, 0)), (*size, draw(st.integers(1, 3)))
    order = draw(st.permutations(range(len(size))))
    dst = [0] * len(size)
    for axis, stride in zip(order, row_major([size[axis] for axis in order]), strict=True):
        dst[axis] = stride
    outer = Region(view, View(0, tuple(dst)), size, 9)
    return outer, inner, source, middle, prod(size)


@settings(max_examples=600, deadline=None)
@given(compositions())
def test_compose_reads_exactly_what_inner_wrote(
    region_interpreter: Apply, case: tuple[Region, Region, int, int, int]
) -> None:
    outer, inner, source, middle, elements = case
    between = copies(inner, source, middle, region_interpreter)
    expected = np.full(elements, UNWRITTEN)
    region_interpreter(outer, between, expected)

    found = compose(outer, inner, limit=1000)
    assert found is not None
    result = np.full(elements, UNWRITTEN)
    for region in found:
        validate(region, source, elements)
        assert region.origin == inner.origin
        region_interpreter(region, np.arange(source), result)
    np.testing.assert_array_equal(result, expected)
    assert sum(map(region_elements, found)) == np.count_nonzero(expected != UNWRITTEN)


@given(compositions(), st.integers(1, 3))
def test_compose_respects_the_limit(case: tuple[Region, Region, int, int, int], limit: int) -> None:
    outer, inner, *_ = case
    found = compose(outer, inner, limit=limit)
    assert found is None or len(found) <= limit


def strided(shape: tuple[int, ...], perm: tuple[int, ...]) -> Region:
    """The region of a transposition."""
    size = tuple(shape[axis] for axis in perm)
    source = row_major(shape)
    return Region(View(0, tuple(source[a] for a in perm)), View(0, row_major(size)), size)


def test_compose_of_a_transposition_and_its_inverse_is_one_identity() -> None:
    forth, back = strided((5, 7, 11), (2, 0, 1)), strided((11, 5, 7), (1, 2, 0))
    found = compose(back, forth)
    assert found is not None
    assert len(found) == 1
    assert is_identity(found[0], 385)


def test_compose_folds_a_merged_axis_to_the_rows_of_inner() -> None:
    found = compose(copy_region(35), strided((5, 7), (1, 0)))
    assert found == [simplify(strided((5, 7), (1, 0)))]


def test_compose_reads_a_diagonal() -> None:
    diagonal = Region(View(0, (6,)), View(0, (1,)), (5,))
    assert compose(diagonal, strided((5, 5), (1, 0))) == [diagonal]
    anti = Region(View(4, (4,)), View(0, (1,)), (5,))
    assert compose(anti, strided((5, 5), (1, 0))) == [Region(View(20, (-4,)), View(0, (1,)), (5,))]


def test_compose_clips_to_a_padded_border() -> None:
    # 3 values in the middle of 7; a slice reads 4 of the 7
    inner = Region(View(0, (1,)), View(2, (1,)), (3,))
    outer = Region(View(1, (1,)), View(0, (1,)), (4,))
    assert compose(outer, inner) == [Region(View(0, (1,)), View(1, (1,)), (3,))]


def test_compose_of_disjoint_regions_is_empty() -> None:
    inner = Region(View(0, (1,)), View(10, (1,)), (5,))
    assert compose(copy_region(10), inner) == []


def test_compose_gives_up_on_destinations_that_do_not_nest() -> None:
    inner = Region(View(0, (4, 1)), View(0, (3, 2)), (2, 4))
    assert compose(copy_region(4), inner) is None


def test_compose_of_huge_axes_is_quick() -> None:
    side = 1 << 20
    triangle = Region(View(0, (1, 1)), View(0, (side, 1)), (side, side))
    assert compose(triangle, copy_region(side)) is None
    interleaved = Region(View(0, (1,)), View(0, (3,)), (side,))
    found = compose(triangle, interleaved)
    assert found is None or len(found) <= MAX_REGIONS


@given(st.data())
def test_merge_keeps_the_copies(region_interpreter: Apply, data: st.DataObject) -> None:
    region, src, dst = data.draw(regions())
    parts = [region]
    for _ in range(data.draw(st.integers(0, 5))):
        chosen = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        wide = [axis for axis, size in enumerate(chosen.size) if size > 1]
        if not wide:
            parts.append(chosen)
            continue
        axis = data.draw(st.sampled_from(wide))
        at = data.draw(st.integers(1, chosen.size[axis] - 1))
        for begin, end in ((0, at), (at, chosen.size[axis])):
            parts.append(
                Region(
                    View(chosen.src.offset + begin * chosen.src.strides[axis], chosen.src.strides),
                    View(chosen.dst.offset + begin * chosen.dst.strides[axis], chosen.dst.strides),
                    (*chosen.size[:axis], end - begin, *chosen.size[axis + 1 :]),
                    chosen.origin,
                )
            )
    merged = merge(data.draw(st.permutations(parts)))
    assert len(merged) <= len(parts)
    result = np.full(dst, UNWRITTEN)
    for part in merged:
        region_interpreter(part, np.arange(src), result)
    np.testing.assert_array_equal(result, copies(region, src, dst, region_interpreter))


def test_merge_finds_identities_and_strided_rows() -> None:
    thirds = [
        Region(View(at, (1,)), View(at, (1,)), (size,)) for at, size in ((0, 2), (5, 3), (2, 3))
    ]
    assert merge(thirds) == [copy_region(8)]
    columns = [Region(View(at, (7,)), View(5 * at, (1,)), (5,)) for at in range(7)]
    assert merge(columns) == [strided((5, 7), (1, 0))]


def test_merge_keeps_origins_apart() -> None:
    halves = [copy_region(3, 0), Region(View(3, (1,)), View(3, (1,)), (3,), 1)]
    assert merge(halves) == halves
