"""Cases of `reduce_rows`, `reduce_columns`, `reduce_exact` and `dynamic_range`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import REDUCTION_KINDS, LayerNormAttrs, OpAttrs, ReductionAttrs
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats, integers, whole
from vkmnn_suite.cases.rows import LINES, halves, in_groups, in_row_groups, taking

# Kinds of Reduction that an op of the kernels serves.
_KINDS = {
    "SUM": ("SUM", "MEAN", "LOG_SUM"),
    "L1": ("L1",),
    "SUM_SQUARE": ("SUM_SQUARE", "L2"),
    "SUM_EXP": ("LOG_SUM_EXP",),
    "MAX": ("MAX",),
    "MIN": ("MIN",),
    "PROD": ("PROD",),
}
_INTEGER_KINDS = {"SUM": ("SUM",), "SUM_SQUARE": ("SUM_SQUARE",)}
_EXACT = frozenset({"SUM", "L1", "SUM_SQUARE", "MAX", "MIN", "PROD"})
_DTYPES = {"MAX": (np.int64, np.uint8, np.int16), "MIN": (np.int64, np.int8, np.uint16)}
# Rows for which loops run several rounds; the last two are split into pieces.
_ROWS: tuple[tuple[tuple[int, ...], int], ...] = (
    *LINES,
    ((5, 1021), 1),
    ((3, 2, 1100), -1),
    ((3, 16_387), 1),
    ((2, 16_392), 1),
)
# Columns, the last two of each width in pieces.
_COLUMNS: dict[int, tuple[tuple[tuple[int, ...], int], ...]] = {
    1: (*LINES, ((6, 5), 0), ((2, 7, 3), 1), ((5, 9, 33), 1), ((2, 131, 3), 1), ((197,), 0)),
    4: (((1, 4), 0), ((3, 0, 4), 1), ((2, 5, 4), 1), ((3, 7, 8), 1), ((3, 9, 64), 1),
        ((133, 4), 0), ((2, 131, 8), 1)),
}  # fmt: skip


def _numbers(kind: str, dtype: str, *shape: int) -> AnyArray:
    """Return numbers whose reduction is defined, and exact in any order if possible."""
    if dtype == "i32":
        x = integers(*shape, low=-999, high=999)
        return np.where(x % 3, np.sign(x) | 1, 2 - x % 2) if kind == "PROD" else x
    if kind == "PROD":
        return halves(*shape)
    if kind in ("MAX", "MIN", "LOG_SUM_EXP"):
        return floats(*shape, scale=3)
    if kind == "LOG_SUM":
        return whole(*shape, low=1, high=9)
    return whole(*shape, low=-7, high=9)


def _case(kind: str, x: AnyArray, *axes: int, keepdims: bool = False) -> Case:
    exact = kind in _EXACT
    return op_case(
        "Reduction",
        ReductionAttrs(kind, keepdims),
        [x, np.array(axes, np.int64)],
        constant={1},
        rtol=0 if exact else 1e-6,
        atol=0 if exact else 4e-7,
    )


def _kinds(op: str, dtype: str) -> tuple[str, ...]:
    return _KINDS[op] if dtype == "f32" else _INTEGER_KINDS.get(op, (op,))


def _ops(variant: Variant) -> list[str]:
    return [op for op in _KINDS if variant.dtype == "f32" or op != "SUM_EXP"]


# Shapes and axes: next to each other and not, as many as there can be.
AXES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((7,), (0,)), ((1,), (0,)), ((3, 5), (1,)), ((3, 5), (0,)), ((13, 197), (-1,)),
    ((5, 64), (1,)), ((2, 3, 7), (1,)), ((2, 3, 8), (1,)), ((2, 31, 12), (0, 1)),
    ((2, 3, 5, 7), (2, 3)), ((2, 3, 5, 7), (1, 3)), ((2, 3, 4, 2), (0, 3)),
    ((1, 2, 1, 3, 1, 2, 1, 3), (3, 4, 5)),
)  # fmt: skip
_NO_LOGARITHM = tuple(kind for kind in REDUCTION_KINDS if kind != "LOG_SUM_EXP")


def _positive(kind: str, x: AnyArray) -> AnyArray:
    """Return numbers whose logarithm, or that of their sum, is defined."""
    return np.asarray(np.abs(x) + 1) if kind == "LOG_SUM" else x


@op_cases
def reductions_of_floats() -> Iterator[Case]:
    """Axes of all sorts, none and all; empty tensors; both ranks of the result."""
    for kind, (shape, axes), keep in product(REDUCTION_KINDS, AXES, (False, True)):
        yield _case(kind, _numbers(kind, "f32", *shape), *axes, keepdims=keep)
    for kind in REDUCTION_KINDS:
        x = _numbers(kind, "f32", 3, 5)
        yield op_case("Reduction", ReductionAttrs(kind), [x])
        yield op_case("Reduction", ReductionAttrs(kind, False), [_numbers(kind, "f32")])
        noop = ReductionAttrs(kind, noop_with_empty_axes=True)
        yield op_case("Reduction", noop, [x, np.zeros(0, np.int64)], constant={1})
        for shape, axis in (((3, 0), 1), ((0,), 0), ((0, 3), 1), ((2, 0, 5), 1)):
            yield _case(kind, np.zeros(shape, np.float32), axis, keepdims=True)


@op_cases
def reductions_of_integers() -> Iterator[Case]:
    """The same axes; narrow integers and bools; sums wider than a word; long lines."""
    for kind, (shape, axes) in product(_NO_LOGARITHM, AXES):
        yield _case(kind, _positive(kind, _numbers(kind, "i32", *shape)), *axes)
    for kind, dtype in product(("MAX", "MIN"), (np.int64, np.uint8, np.int8, np.bool_)):
        yield _case(kind, (integers(3, 20) > 5).astype(dtype), 1, keepdims=True)
    for kind in _NO_LOGARITHM:
        if kind not in ("MEAN", "LOG_SUM"):
            yield _case(kind, np.zeros((3, 0), np.int32), 1, keepdims=True)
    x = np.full((3, 50_001), 2**31 - 1, np.int64)
    x[1] *= -1
    x[2, ::2] = -(2**31)
    yield _case("MEAN", x, 1, keepdims=True)
    for kind in ("MEAN", "L2"):
        wide = integers(7, 30_001, low=-40, high=59).astype(np.int64) * 999
        yield _case(kind, wide, 1, keepdims=True)
    x = np.array([[4999 * 5001, 1, 3], [46340, 0, 0], [-2, 1, 2]], np.int32)
    yield _case("L2", x[1:], 1, keepdims=True)
    yield _case("LOG_SUM", np.abs(x), 1, keepdims=True)
    for kind in ("SUM", "MAX", "PROD", "L1"):
        yield _case(kind, _numbers(kind, "i32", 300_007), 0, keepdims=True)


@op_cases
def reductions_of_special_floats() -> Iterator[Case]:
    """Infinities and NaN, alone and together, along both axes."""
    for kind, axis in product(REDUCTION_KINDS, (0, 1)):
        x = _positive(kind, floats(7, 19))
        x[1, 3], x[2, 18], x[3, 0], x[4] = np.nan, np.inf, -np.inf, -np.inf
        x[5, 5], x[5, 6] = np.inf, np.nan
        x[6, 0], x[6, 1] = np.inf, -np.inf
        x = x if axis == 1 else np.ascontiguousarray(x.T)
        inputs = [x, np.array([axis])]
        yield op_case("Reduction", ReductionAttrs(kind), inputs, constant={1}, rtol=4e-6, atol=4e-6)


@op_cases
def reductions_of_pixels() -> Iterator[Case]:
    """All pixels of channel-blocked images, and their channels."""
    for kind, keep in product(REDUCTION_KINDS, (False, True)):
        attrs = ReductionAttrs(kind, keep)
        for shape in ((1, 7, 5, 3), (3, 5, 2, 2), (2, 8, 9), (1, 3, 97, 101), (2, 5, 3, 3)):
            axes = np.arange(2, len(shape)) if shape != (2, 5, 3, 3) else np.array([1])
            x = _numbers(kind, "f32", *shape)
            yield blocked_case("Reduction", attrs, [x, axes], constant={1}, rtol=4e-6, atol=5e-5)


@op_cases
def reductions_in_workgroups() -> Iterator[Case]:
    """Rows below and above the capacity of workgroups."""
    yield from in_row_groups(
        _case(kind, _numbers(kind, "f32", 3, size), 1, keepdims=True)
        for size, kind in product((16, 197, 1100, 5003), ("SUM", "MAX", "LOG_SUM_EXP"))
    )


@shader_cases("reduce_rows")
def reduce_rows(variant: Variant) -> Iterator[Case]:
    """Rows that start anywhere in a vec4, in one piece or two."""
    for op in _ops(variant):
        for case in in_groups(variant, _row_cases(op, variant.dtype)):
            yield taking(case, {"reduction": "rows"})


def _row_cases(op: str, dtype: str) -> Iterator[Case]:
    kinds = _kinds(op, dtype)
    for shape, axis in _ROWS:
        for kind in kinds:
            yield _case(kind, _numbers(kind, dtype, *shape), axis)
    for kind in kinds:
        yield _case(kind, _numbers(kind, dtype, 3, 5, 7), 1, 2, keepdims=True)
        yield _case(kind, _numbers(kind, dtype), *())
        if dtype == "i32":
            for narrow in _DTYPES.get(kind, (np.int64,)):
                yield _case(kind, _numbers(kind, dtype, 5, 37).astype(narrow), 1)
        else:
            fp16 = _case(kind, _numbers(kind, dtype, 5, 36).astype(np.float16), 1)
            yield _loose(fp16)
    if op == "SUM" and dtype == "f32":  # sums of pieces
        for shape in ((3, 16_387), (2, 16_392)):
            yield _case("LOG_SUM_EXP", floats(*shape), 1)
            yield _case("LOG_SUM_EXP", floats(*shape), 1)
    yield from _special_cases(op, dtype, 1)


def _loose(case: Case) -> Case:
    """Return a case of float16, which the device computes in float32."""
    return Case(case.graph, case.feeds, 2e-3, 2e-3)


def _special_cases(op: str, dtype: str, axis: int) -> Iterator[Case]:
    """Yield infinities and NaN, and the statistics of a normalisation."""
    if dtype != "f32":
        return
    x = whole(5, 40)
    x[0, 3], x[1, 39], x[2, 0], x[3] = np.nan, np.inf, -np.inf, -np.inf
    if axis == 0:
        x = np.ascontiguousarray(x.T)
    for kind in set(_kinds(op, dtype)) & {"MAX", "MIN", "LOG_SUM_EXP"}:
        yield _case(kind, x, axis)
    if op == "SUM_EXP":
        yield _case("LOG_SUM_EXP", np.float32(40) * floats(5, 131), 1)
    if op == "SUM_SQUARE":
        case = op_case("LayerNorm", LayerNormAttrs(-1, 0.25), [floats(5, 131)], outputs=3)
        yield taking(case, {"row norm": "stages"})
        case = op_case("LayerNorm", LayerNormAttrs(-1, 0.25, True), [floats(5, 132)], outputs=3)
        yield taking(case, {"row norm": "stages"})


@shader_cases("reduce_columns")
def reduce_columns(variant: Variant) -> Iterator[Case]:
    """Columns next to each other, in one piece or several; also all pixels of blocked images."""
    for op in _ops(variant):
        yield from _column_cases(op, variant.dtype, int(variant.axes["width"]))


def _column_cases(op: str, dtype: str, width: int) -> Iterator[Case]:
    for kind in _kinds(op, dtype):
        cases = [_case(kind, _numbers(kind, dtype, *s), axis) for s, axis in _COLUMNS[width]]
        if dtype == "i32":
            narrow = _DTYPES.get(kind, (np.int64,))
            cases += [_case(kind, _numbers(kind, dtype, 3, 5, 12).astype(d), 1) for d in narrow]
        else:
            fp16 = _numbers(kind, dtype, 5, 3, 4).astype(np.float16)
            cases.append(_loose(_case(kind, fp16, 0, 1)))
        if width == 4 and kind in _EXACT and dtype == "f32":
            cases += [_pixels(kind, *shape) for shape in ((1, 7, 5, 3), (3, 5, 2, 2), (1, 3, 97))]
        yield from (taking(case, {"reduction": "columns"}) for case in cases)
    if op == "SUM" and dtype == "f32":  # sums of pieces
        for shape, axis in _COLUMNS[width][-3:]:
            case = _case("LOG_SUM_EXP", floats(*shape), axis)
            yield taking(case, {"reduction": "columns"})
        # Columns far apart: with the centre of another one, exponentials overflow or vanish.
        (outer, size, inner), axis = (3, 7, 3 if width == 1 else 8), 1
        far = 200 * np.arange(outer * inner, dtype=np.float32).reshape(outer, 1, inner)
        case = _case("LOG_SUM_EXP", floats(outer, size, inner) + far, axis)
        yield taking(case, {"reduction": "columns"})
    if width == 1:
        cases = list(_special_cases(op, dtype, 0))
        yield from (taking(case, {"reduction": "columns"}) for case in cases)


def _pixels(kind: str, *shape: int) -> Case:
    axes = np.arange(2, len(shape), dtype=np.int64)
    inputs = [_numbers(kind, "f32", *shape), axes]
    return blocked_case("Reduction", ReductionAttrs(kind), inputs, constant={1}, rtol=0, atol=0)


@shader_cases("dynamic_range")
def dynamic_range(variant: Variant) -> Iterator[Case]:
    """Both signs and one, zeros, nothing; more than a workgroup reads; channel-blocked texels."""
    large = ((3, 5_471), (65_543,), (1, 7, 67, 71))
    shapes: tuple[tuple[int, ...], ...] = ((), (1,), (3, 0, 2), (7,), (3, 5, 11), (13, 257))
    several = variant.axes["result"] == "pieces"
    for shape in large if several else (*shapes, large[0]):
        x = floats(*shape, scale=3)
        for numbers in (x, np.abs(x) + 1, -np.abs(x) - 1, np.zeros_like(x)):
            yield _range_case(np.asarray(numbers, np.float32))
        for places in ([0, 1], [-1, -2], [-2, -1]):
            if x.size > 1:
                yield _range_case(_with_ends(x, places))
    for shape in ((2, 7, 67, 71),) if several else ((1, 3, 5, 7), (2, 6, 3), (3, 5, 2, 3, 2)):
        for numbers in (floats(*shape, scale=3), np.abs(floats(*shape)) + 1):
            yield blocked_case("DynamicRange", OpAttrs(), [numbers], rtol=0, atol=0)


def _with_ends(x: AnyArray, places: list[int]) -> AnyArray:
    """Return numbers whose smallest and largest are at two given positions."""
    made: AnyArray = x.copy()
    made.reshape(-1)[places] = (-70.0, 90.0)
    return made


def _range_case(x: AnyArray) -> Case:
    return op_case("DynamicRange", OpAttrs(), [x], outputs=2, rtol=0, atol=0)


@shader_cases("reduce_exact")
def reduce_exact(variant: Variant) -> Iterator[Case]:
    """Means, norms and logarithms of integers; sums that need more than a word."""
    for shape, axis in (*LINES, ((2, 7, 5), 1), ((131, 3), 0), ((3, 7, 31), 1), ((4, 3), 1)):
        x = integers(*shape, low=-10_000, high=10_000)
        for kind in ("MEAN", "L2", "LOG_SUM"):
            if x.size or 0 in _without(shape, axis):
                yield _case(kind, np.abs(x) + 1 if kind == "LOG_SUM" else x, axis)
    high, low = 2**31 - 1, -(2**31)
    for column in (
        [high] * 5, [-high] * 5, [low, low, 0, 0, 0], [low, high, 3, -9, 2],
        [low, low, high, high, high], [high, low, low, low, low], [1, 2, 3, -5, 4],
    ):  # fmt: skip
        yield _case("MEAN", np.array(column, np.int64), 0)
    for column in (
        [high], [high - 1], [46341], [46340, 1], [3, 4], [0, 0], [-65536], [65535, 362],
        [2**30] * 2, [2**30] * 3, [1, 1, 1], [12345, 54321, 99999], [high // 2, 46340], [-7, -24],
    ):  # fmt: skip
        yield _case("L2", np.array(column, np.int32), 0)
    for column in ([high] * 7, [1], [2], [7], [8], [20], [21], [2**30, 2**30, 2**30, 2**30, 2**30]):
        yield _case("LOG_SUM", np.array(column, np.int64), 0)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis:][1:])
