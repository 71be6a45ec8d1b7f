"""Cases of `arg_reduce`, the kernels of TopK, and `cum_sum`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.base.elements import FLOATS
from vkmnn.cpu_fallback import run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Op
from vkmnn.ir.ops import ArgReduceAttrs, CumSumAttrs, SampleTokenAttrs, TopKAttrs
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats, integers, whole
from vkmnn.vulkan.sorting.selection import Selection
from vkmnn_suite.cases.rows import LINES, in_all_groups, in_row_groups, taking

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_OVERFLOW = "does not fit the 32-bit integers"
_ARG_LINES = (
    *(line for line in LINES if line[0][line[1]]),  # there is no best of none
    ((5, 7, 3), 0),
    ((5, 7, 3), 1),
    ((2, 131, 3), 1),
    ((3, 517), 1),
    ((2, 5, 9, 2), 2),
)
# Lines of more than one piece, with the best of each line where the winners of pieces meet.
_ARG_PIECES: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...] = (
    ((3, 16_400), 1, (16_390, 3, 16_399)),
    ((32_800,), 0, (32_790,)),
    ((16_390, 3), 0, (16_389, 16_384, 16_383)),
)


def _ties(dtype: str, *shape: int) -> AnyArray:
    """Return numbers among which many are equal."""
    return whole(*shape) if dtype == "f32" else integers(*shape, low=-4, high=4)


def _special_floats() -> AnyArray:
    inf, nan, tiny = np.inf, np.nan, np.float32(1e-45)
    return np.array(
        [
            [0, -0.0, inf, -inf, nan, -nan, tiny, -tiny, 3e38],
            [-inf, -inf, -1, -2, -inf, -inf, -3, -4, -inf],
            [inf, 1, inf, 2, 3, inf, 0, -1, inf],
            [-0.0, 0, -0.0, 0, 0, -0.0, 0, 0, -0.0],
            [1, nan, 2, nan, inf, -inf, nan, 3, 4],
        ],
        np.float32,
    )


def _special_integers(dtype: type = np.int32) -> AnyArray:
    low, high = _LOWEST, _HIGHEST
    rows = [[0, high, low, -1, low, high, 1, 0, low + 1], [low] * 9, [high] * 8 + [1]]
    return np.array(rows, dtype)


_BOTH = (False, True)


def _some_nan(*shape: int) -> AnyArray:
    """Return floats, many of them equal, with a few NaNs."""
    x = whole(*shape)
    if x.size > 40:
        x.flat[:: x.size // 3] = np.nan
    return x


@op_cases
def arg_reductions() -> Iterator[Case]:
    """Ties, ties at both ends, every axis; empty tensors; lines longer than a loop may be."""
    kinds = ("ArgMax", "ArgMin")
    for kind, last, axis, keep in product(kinds, _BOTH, (0, 1, -1), _BOTH):
        attrs = ArgReduceAttrs(axis, keep, last)
        yield op_case(kind, attrs, [_some_nan(3, 5, 7)])
        yield op_case(kind, attrs, [_ties("i32", 3, 5, 7).astype(np.int64)])
    for shape in ((1,), (13,), (0, 3)):
        yield op_case("ArgMax", ArgReduceAttrs(-1), [_some_nan(*shape)])
    x = floats(2, 130_003)
    x[0, 129_999] = x[1, 65_536] = 9
    yield op_case("ArgMax", ArgReduceAttrs(1), [x])
    lines: tuple[tuple[int, ...], ...] = ((1_000_003,), (3, 20_000), (2, 101, 3))
    for kind, last, line in product(kinds, _BOTH, lines):
        x, axis = whole(*line, low=-9, high=9), 1 if len(line) > 1 else 0
        yield op_case(kind, ArgReduceAttrs(axis, False, last), [x.astype(np.int32)])
        yield op_case(kind, ArgReduceAttrs(axis, True, last), [x.copy()])
        x[..., 2] = x[..., -1] = np.nan
        yield op_case(kind, ArgReduceAttrs(axis, True, last), [x])
    for kind, last in product(kinds, _BOTH):
        for special in (_special_integers()[:, :3], _special_floats()[1:4, :3]):
            yield op_case(kind, ArgReduceAttrs(1, True, last), [special])
    yield from in_row_groups(
        op_case("ArgMax", ArgReduceAttrs(1, True, last), [_some_nan(3, 1_003)]) for last in _BOTH
    )


@op_cases
def cumulative_sums() -> Iterator[Case]:
    """Both ways, with and without the last element; a line longer than a loop may be."""
    for exclusive, reverse in product(_BOTH, _BOTH):
        attrs = CumSumAttrs(exclusive, reverse)
        for shape, axis in (((3, 5, 7), 0), ((3, 5, 7), -1), ((1,), 0), ((0, 3), 1)):
            where = np.array(axis, np.int64)
            yield op_case("CumSum", attrs, [floats(*shape), where], constant={1})
            x = integers(*shape).astype(np.int64)
            yield op_case("CumSum", attrs, [x, where], constant={1})
        yield _cum_sum(attrs, integers(130_003, low=-3, high=3), 0)


@op_cases
def largest_and_smallest() -> Iterator[Case]:
    """Every axis, none and all of a line, ties, NaN; lines of more than one block."""
    for (shape, axis, k), largest in product(
        (((3, 5, 7), 0, 2), ((3, 5, 7), 1, 5), ((3, 5, 7), -1, 1), ((13,), 0, 13), ((4, 3), 1, 0)),
        _BOTH,
    ):
        yield _top_k(_some_nan(*shape), k, axis, largest=largest)
        yield _top_k(integers(*shape).astype(np.int64), k, axis, largest=largest)
    for length, k in ((5_003, 5), (20_011, 3), (5_003, 1_500)):
        yield _top_k(whole(2, length, low=0, high=999), k)
    for k, attrs in product(
        (1, 64, 65, 300, 70_001), (TopKAttrs(-1), TopKAttrs(-1, largest=False, sorted=False))
    ):
        x = whole(70_001, low=-30_000, high=29_999)
        x[[5, 40_000, 70_000]] = np.nan
        x[[7, 50_000]] = np.inf, -np.inf
        inputs = [x, np.array([k], np.int64)]
        yield op_case("TopK", attrs, inputs, constant={1}, outputs=2, rtol=0, atol=0)
    for largest in _BOTH:
        yield _top_k(_some_nan(3, 1_201, 5), 700, 1, largest=largest)
        yield _top_k(_special_integers(np.int64)[0], 9, 0, largest=largest)


@shader_cases("arg_reduce")
def arg_reduce(variant: Variant) -> Iterator[Case]:
    """Ties, both ends of ties, both kinds; an invocation or a workgroup for each line."""
    alone = variant.axes["lanes"] == 1
    cases = list(_arg_cases(str(variant.axes["source"])))
    for case in cases if alone else in_all_groups(variant, cases):
        yield taking(case, {"arg_reduce alone": alone})


def _arg_cases(source: str) -> Iterator[Case]:
    real = source in FLOATS
    stored = FLOATS[source].dtype if source in FLOATS else np.dtype(np.float32)

    def as_stored(x: AnyArray) -> AnyArray:
        """Round floats as the variant stores them: that may make them equal."""
        with np.errstate(over="ignore"):
            return x.astype(stored).astype(np.float32) if real else x

    for kind in ("ArgMax", "ArgMin"):
        for shape, axis, peaks in _ARG_PIECES:
            for last in (False, True):
                x = _ties("f32" if real or (source == "pair" and last) else "i32", *shape)
                yield op_case(kind, ArgReduceAttrs(axis, False, last), [x])
            x = x.copy()
            sign = 1 if kind == "ArgMax" else -1
            for line, peak in enumerate(peaks):
                row = np.atleast_2d(np.moveaxis(x, axis, -1))[line]
                # Every line follows the ones before it: anything read from those would win.
                row -= sign * 20 * line
                row[peak] = sign * (9 - 20 * line)
            yield op_case(kind, ArgReduceAttrs(axis, True), [x])
    if source == "pair":
        return
    for kind in ("ArgMax", "ArgMin"):
        for last in (False, True):
            special = as_stored(_special_floats()) if real else _special_integers()
            # Neighbours: the last bit decides.
            near = np.nextafter(np.ones((2, 5), stored), stored.type(3 * (kind == "ArgMax")))
            near[:, :2] = 1
            near = near.astype(np.float32) if real else near.view(np.int32)
            ties = "f32" if real else source
            for x in (special, near, _ties(ties, 3, 131), _ties(ties, 131, 3)):
                yield op_case(kind, ArgReduceAttrs(1, True, last), [x])
            x = _ties(ties, 5, 9).astype(np.float16 if real else np.int64)
            yield op_case(kind, ArgReduceAttrs(1, True, last), [x])
        for number, (shape, axis) in enumerate(_ARG_LINES):
            x = _ties("f32" if real else source, *shape) if number % 3 else floats(*shape)
            x = as_stored(x) if real else (x * 3).astype(np.int32)
            yield op_case(kind, ArgReduceAttrs(axis, number % 2 == 0), [x])
        if source == "i32":
            for dtype in (np.uint8, np.int8):
                x = integers(7, 13, low=0, high=99).astype(dtype)
                yield op_case(kind, ArgReduceAttrs(0, False), [x])


@shader_cases("sample_token")
def sample_token(variant: Variant) -> Iterator[Case]:
    """Each rank of few tokens and of many, equal ones among them, within each limit and several."""
    rng = np.random.default_rng(5)
    stored = FLOATS[variant.floats].dtype
    limits = [(np.inf, np.inf, 0.0), (7, np.inf, 0.0), (np.inf, 0.6, 0.0), (np.inf, np.inf, 0.2)]
    limits += [(40, 0.77, 0.05), (1, 0.5, 0.0), (np.inf, 1e-9, 0.0), (1e9, 0.999, 1.0)]
    for tokens, spread, step in (
        *((1, 1.0, 0.0), (5, 2.0, 0.0), (300, 3.0, 0.0), (300, 3.0, 0.5), (999, 0.0, 0.0)),
        *(
            (5_003, 4.0, 0.0),
            (5_003, 4.0, 0.25),
            (999, 200.0, 0.0),
            (9_001, 1e-3, 0.0),
            (9_001, 0.0, 0.0),
        ),
    ):
        logits = (rng.standard_normal((len(limits), tokens)) * spread).astype(np.float32)
        logits = np.round(logits / step) * np.float32(step) if step else logits
        logits = logits.astype(stored).astype(np.float32)
        if tokens > 4:
            logits[0, 1], logits[1, 3] = -np.inf, np.nan
        settings = np.array([(0.5 + n / 4, *one) for n, one in enumerate(limits)], np.float32)
        for place in (0.0, 0.3, 0.95):
            yield _drawn(logits, settings, place)
    logits[:, 7] = np.inf
    yield _drawn(logits, settings, 0.5)


@op_cases
def sampled_tokens() -> Iterator[Case]:
    """Rows with settings of their own."""
    logits = floats(3, 50)
    settings = np.array([(1, np.inf, np.inf, 0), (2, 9, 0.7, 0), (0.5, 20, np.inf, 0.1)], "f4")
    for place in (0.1, 0.6):
        yield _drawn(logits, settings, place)
    # As many as the largest vocabularies have: a larger workgroup reads them.
    yield _drawn(5 * floats(1, 262_144), np.array([(1, np.inf, 0.9, 0)], np.float32), 0.4)


def _drawn(logits: AnyArray, settings: AnyArray, place: float) -> Case:
    """Return a case whose random numbers are in the middle of a token's share.

    Args:
        logits: one row for each of the settings.
        settings: of SampleToken.
        place: about which number to draw, from 0 to 1.
    """
    numbers = [_middle(*row, place) for row in zip(logits, settings, strict=True)]
    drawn = np.array(numbers, np.float32).reshape(-1, 1)
    return op_case("SampleToken", SampleTokenAttrs(), [logits, settings, drawn], rtol=0, atol=0)


def _middle(logits: AnyArray, settings: AnyArray, place: float) -> float:
    """Return a number near `place` that rounding does not move to another token."""
    op = Op("SampleToken", "", ["x", "how", "number"], ["y"], SampleTokenAttrs())

    def chosen(number: float) -> int:
        drawn = np.array([[number]], np.float32)
        return int(run_op(op, [logits[None], settings[None], drawn])[0][0, 0])

    while True:
        token, width = chosen(place), 2.0**-3
        while chosen(place + width) != token:
            width /= 2
        if width >= 2.0**-16:
            return place + width / 2
        place += 2 * width  # near the end of its share


def _top_k(x: AnyArray, k: int, axis: int = -1, *, largest: bool = True) -> Case:
    inputs = [x, np.array([k], np.int64)]
    attrs = TopKAttrs(axis, largest)
    return op_case("TopK", attrs, inputs, constant={1}, outputs=2, rtol=0, atol=0)


@shader_cases("top_k_keys")
def top_k_keys(variant: Variant) -> Iterator[Case]:
    """Numbers at the ends of their range, and lines anywhere."""
    dtype = variant.dtype
    lines = (*LINES, ((5, 7, 3), 0), ((5, 7, 3), 1), ((2, 37, 5), 1))
    for largest in (False, True):
        for shape, axis in lines:
            size = shape[axis]
            yield _top_k(_ties(dtype, *shape), (size + 1) // 2, axis, largest=largest)
        if dtype == "f32":
            yield _top_k(_special_floats(), 9, largest=largest)
            yield _top_k(floats(5, 30).astype(np.float16), 7, largest=largest)
        else:
            for wide in (np.int32, np.int64):
                yield _top_k(_special_integers(wide), 9, largest=largest)
            for narrow in (np.uint8, np.int8, np.int16):
                x = integers(7, 13, low=0, high=99).astype(narrow)
                yield _top_k(x, 5, 0, largest=largest)
    yield _top_k(_ties(dtype, 4, 3), 0, 1)


# Lines whose competing blocks are whole or not, with the number of elements selected from them.
_SELECTIONS: Mapping[int, Sequence[tuple[tuple[int, ...], int, int]]] = {
    4: (
        ((16,), 0, 2), ((3, 20), 1, 3), ((2, 44), 1, 5), ((64,), 0, 16), ((1, 1_028), 1, 7),
        ((4,), 0, 1), ((5, 3, 36), 2, 9), ((3, 20), 1, 2), ((2, 44), 1, 4),
    ),
    1: (
        ((13,), 0, 2), ((5, 7, 3), 1, 1), ((3, 37), 1, 5), ((2, 131, 5), 1, 9), ((2, 1_031), 1, 60),
        ((5,), 0, 1), ((8, 12), 0, 2), ((17, 4, 2), 0, 4),
    ),
}  # fmt: skip


def _selections(variant: Variant) -> Iterator[Case]:
    dtype = variant.dtype
    for largest, (shape, axis, k) in product(_BOTH, _SELECTIONS[int(variant.axes["width"])]):
        yield _selected(_ties(dtype, *shape), k, axis, largest=largest)
        x = floats(*shape) * 99
        yield _selected(x if dtype == "f32" else x.astype(np.int64), k, axis, largest=largest)
    for largest in _BOTH:
        # Neighbours that differ in the last bit, and NaN.
        x = np.nextafter(np.ones((3, 44), np.float32), np.float32(3))
        x[:, ::3] = 1
        yield _selected(x if dtype == "f32" else x.view(np.int32), 5, largest=largest)
        if dtype == "f32":
            x[:, [7, 21, 22]] = np.nan, np.inf, -np.nan
            yield _selected(x, 2, largest=largest)
        worst = np.float32(-np.inf if largest else np.nan) if dtype == "f32" else _LOWEST
        x = np.full((2, 20), worst if dtype == "f32" or largest else _HIGHEST)
        x = x.astype(np.float32 if dtype == "f32" else np.int32)
        x[:, 19] = 0
        yield _selected(x, 2, largest=largest)
    if variant.axes["width"] == 4:
        return
    # The last block is short, and values past the line's end are no better than its last keys.
    for largest, k in product(_BOTH, (1, 2, 3, 4)):
        if dtype == "f32":
            x = _special_floats()
            yield _selected(x, k, largest=largest)
            worst = np.float32(-np.inf if largest else np.nan)
        else:
            x = _special_integers()[0]
            yield _selected(x, k, largest=largest)
            worst = np.int32(_LOWEST if largest else _HIGHEST)
        x = np.full((2, 9), worst)
        x[0, 8] = 0
        yield _selected(x, k, largest=largest)


def _selected(x: AnyArray, k: int, axis: int = -1, *, largest: bool = True) -> Case:
    """Return a case in which blocks of eight compete, or of fewer if there are not enough."""
    block = next((block for block in (8, 4) if block * k <= x.shape[axis]), 2)
    return taking(_top_k(x, k, axis, largest=largest), {"top_k": Selection(block)})


@shader_cases("top_k_blocks")
def top_k_blocks(variant: Variant) -> Iterator[Case]:
    """Whole blocks and short ones, lines anywhere, the worst keys."""
    yield from _selections(variant)


@shader_cases("top_k_expand")
def top_k_expand(variant: Variant) -> Iterator[Case]:
    """The same."""
    yield from _selections(variant)


@shader_cases("top_k_select")
def top_k_select(variant: Variant) -> Iterator[Case]:
    """One of a row and all, ties at every digit; more keys than an 8-bit count can hold."""
    lines: tuple[tuple[tuple[int, ...], int, int], ...] = (
        ((1,), 0, 1), ((3,), 0, 1), ((5,), 0, 5), ((3, 33), 1, 4), ((2, 37, 3), 1, 11),
        ((3, 64), 1, 64), ((2, 2_051), 1, 40), ((1, 33_001), 1, 600), ((0, 5), 1, 2),
    )  # fmt: skip
    for shape, axis, k in lines:
        for x in (_ties("f32", *shape), floats(*shape), np.zeros(shape, np.float32)):
            yield taking(_top_k(x, k, axis), {"top_k": Selection(1)})
    for shift in range(0, 32, 4):
        # Keys that differ in one digit alone; among equal ones some stay and some do not.
        x = (integers(3, 261, seed=shift, low=0, high=15) << shift).astype(np.int32)
        for k in (30, 130, 230):
            yield taking(_top_k(x, k), {"top_k": Selection(1)})
    # More than a narrow workgroup can count in its loops.
    x = whole(1, 140_003, low=-999, high=999)
    yield taking(_top_k(x, 3), {"top_k": Selection(1)})


@shader_cases("top_k_rank")
def top_k_rank(variant: Variant) -> Iterator[Case]:
    """Lines of one block, and of several that are sorted in blocks again."""
    if variant.axes["target"] == "result":
        for shape, axis, k in (
            ((1,), 0, 1), ((5,), 0, 2), ((13,), 0, 13), ((3, 5, 7), 0, 2), ((3, 5, 7), 1, 5),
            ((2, 254), 1, 200), ((3, 256), 1, 256), ((2, 255, 3), 1, 7), ((0, 5), 1, 2),
        ):  # fmt: skip
            yield _top_k(_ties("i32", *shape), k, axis)
            yield _top_k(floats(*shape), k, axis, largest=False)
        # Blocks of blocks carry their indices along.
        for shape, k in (((2, 700), 3), ((3, 1030), 64), ((1, 257), 5)):
            yield _top_k(_ties("f32", *shape), k)
        yield _top_k(_ties("f32", 2, 601, 3), 9, 1)
        return
    for shape, k in (
        ((257,), 1), ((2, 700), 3), ((3, 1030), 64), ((2, 513), 40), ((2, 600), 300), ((1, 514), 2)
    ):  # fmt: skip
        yield _top_k(_ties("i32", *shape), k)
        yield _top_k(floats(*shape), k, largest=False)
    yield _top_k(_ties("f32", 2, 601, 3), 9, 1)
    # Blocks of blocks that are still more than one.
    yield _top_k(_ties("f32", 2, 2_600), 64)


@shader_cases("top_k_merge")
def top_k_merge(variant: Variant) -> Iterator[Case]:
    """Runs of more than a quarter of a block; the last may be shorter, or alone."""
    result = variant.axes["target"] == "result"
    for length, k in (
        ((513, 65), (600, 300), (700, 256), (1000, 513), (520, 100), (770, 700), (1024, 70))
        if result
        else ((600, 70), (1030, 65), (1281, 200), (1025, 256), (900, 513), (770, 300), (1100, 900))
    ):
        yield _top_k(_ties("i32", 2, length), k)
        yield _top_k(floats(2, length), k, largest=False)
    yield _top_k(_ties("f32", 3, 601, 5), 80, 1)
    yield _top_k(np.zeros((1, 700), np.float32), 90)


@shader_cases("radix_count")
def radix_count(variant: Variant) -> Iterator[Case]:
    """Keys of all bits, one piece and many; ties, whose order must not change."""
    for length in (1, 127, 129, 2_003):
        for largest, x in product(_BOTH, (floats(length), _ties("i32", length))):
            for k in {1, (length + 1) // 2, length}:
                yield taking(_top_k(x, k, largest=largest), {"top_k digits": True})
    for largest in _BOTH:
        for x in (_special_integers()[0], _special_floats()[0]):
            yield taking(_top_k(x, x.size, largest=largest), {"top_k digits": True})


@shader_cases("radix_move")
def radix_move(variant: Variant) -> Iterator[Case]:
    """The same."""
    yield from radix_count(variant)


@shader_cases("cum_sum")
def cum_sum(variant: Variant) -> Iterator[Case]:
    """Lines in one piece and in many, both ways, with and without the last element."""
    dtype = variant.dtype
    lines = (*LINES, ((5, 7, 3), 0), ((5, 7, 3), 1), ((2, 3, 66), 1), ((1030,), 0), ((1025, 3), 0),
             ((2, 1100, 2), 1))  # fmt: skip
    for exclusive in (False, True):
        for reverse in (False, True):
            attrs = CumSumAttrs(exclusive, reverse)
            for shape, axis in lines:
                yield _cum_sum(attrs, _ties(dtype, *shape), axis)
            if dtype == "f32":
                yield _cum_sum(attrs, whole(5, 9).astype(np.float16), 1)
            else:
                yield _cum_sum(attrs, integers(5, 9).astype(np.int64), 0)
                yield from _overflows(attrs)
            yield from _products(attrs, dtype)


def _cum_sum(attrs: CumSumAttrs, x: AnyArray, axis: int) -> Case:
    inputs = [x, np.array(axis, np.int64)]
    return op_case("CumSum", attrs, inputs, constant={1}, rtol=0, atol=0)


def _products(attrs: CumSumAttrs, dtype: str) -> Iterator[Case]:
    """Yield running products that are exact; of integers, some that go beyond 32 bits."""
    for shape, axis in (*LINES[:6], ((5, 7, 3), 1), ((1030,), 0), ((2, 1100, 2), 1)):
        signs = integers(*shape, low=0, high=1) * 2 - 1
        if dtype == "f32":
            x = signs * np.float32(2) ** integers(*shape, seed=1, low=-1, high=1)
        else:
            x = np.where(
                integers(*shape, seed=2, low=0, high=99) < 300 // (signs.size + 9), 3, signs
            )
        inputs = [x.astype(np.float32 if dtype == "f32" else np.int64), np.array(axis, np.int64)]
        yield op_case("CumProd", attrs, inputs, constant={1}, rtol=0, atol=0)
    if dtype == "i32":
        for factor in (2**15, 2**16):
            x = np.array([[1, 2, 3], [2**15, 1, factor]], np.int64)
            case = op_case("CumProd", attrs, [x, np.array(1)], constant={1}, rtol=0, atol=0)
            # An exclusive product leaves out one of the two.
            wrong = factor > 2**15 and not attrs.exclusive
            yield replace(case, raises=_OVERFLOW if wrong else "")


def _overflows(attrs: CumSumAttrs) -> Iterator[Case]:
    """Yield running sums that end at the last integer of 32 bits, or go beyond."""
    for sign in (1, -1):
        # Sums of the first two, of the last two, and of all three: 2^31 - 1, then one more.
        for last in (_HIGHEST - 2**30, 2**30):
            for line in ([2**30, last, 0], [0, 2**30, last], [2**30, 0, last], [last, 2**30, 0]):
                x = sign * np.array([[1, 2, 3], line], np.int64)
                if sign < 0 and last == 2**30:
                    x[1, list(line).index(2**30)] -= 1
                exact = np.cumsum(x[:, ::-1] if attrs.reverse else x, 1)
                sums = exact[:, :-1] if attrs.exclusive else exact
                case = _cum_sum(attrs, x, 1)
                wrong = sums.max() > _HIGHEST or sums.min() < _LOWEST
                yield replace(case, raises=_OVERFLOW if wrong else "")
