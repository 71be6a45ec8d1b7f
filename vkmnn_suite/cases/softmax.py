"""Cases of `softmax_rows`, `softmax_columns` and `softmax_apply`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import CodeMean, SoftmaxAttrs
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats, whole
from vkmnn_suite.cases.rows import LINES, in_groups, in_row_groups, taking

# Row sizes: as many as invocations hold in registers, up to the maximum, and larger ones. Few of
# them, since each number of registers is a pipeline of its own.
_SIZES = {4: (4, 36, 1024, 1100), 1: (1, 5, 19, 1021, 1101)}
_COLUMNS: dict[int, tuple[tuple[tuple[int, ...], int], ...]] = {
    1: (*LINES, ((31, 1), 0), ((4, 3, 5), 1), ((2, 7, 3, 11), 1), ((3, 6, 13, 5), 1)),
    4: (((1, 4), 0), ((0, 4), 0), ((31, 2, 2), 0), ((2, 21, 3, 8), 1), ((5, 3, 64), 1)),
}


def _case(x: AnyArray, axis: int, log: bool, *, flatten: bool = False) -> Case:
    attrs = SoftmaxAttrs(axis, log, flatten)
    if x.dtype == np.float16:
        return op_case("Softmax", attrs, [x], rtol=2e-3, atol=1e-3)
    return op_case("Softmax", attrs, [x], rtol=3e-6, atol=1e-6 if log else 1e-30)


def _special(*shape: int, axis: int) -> AnyArray:
    """Return rows with infinities, NaN and numbers whose exponentials vanish, along an axis."""
    x = floats(*shape, scale=30)
    x[0, 1:3] = -np.inf
    x[1] = -np.inf
    x[2, shape[1] // 2] = np.inf
    x[3, -1] = np.nan
    x[4, :2] = 3e38, -3e38
    x[5, :3] = 0, -86.9, -87.1
    x[5, 3:] = -np.arange(shape[1] - 3)
    return x if axis == 1 else np.ascontiguousarray(x.T)


_SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0), ((5,), 0), ((17,), 0), ((1, 1), -1), ((3, 2), 1), ((12, 7, 16), -1),
    ((37, 128), -1), ((13, 197), -1), ((5, 19), -1), ((7, 49), 1), ((2, 1000), 1), ((3, 1027), 1),
    ((2, 5001), 1), ((4, 3, 5), 1), ((2, 21, 3, 8), 1), ((1, 16, 4, 84), 1), ((31, 1), 0),
    ((31, 2, 2), 0), ((2, 3, 1), -1), ((1, 2, 1, 3, 1, 2, 1, 18), -1), ((70_001, 3), -1),
)  # fmt: skip


@op_cases
def softmax_shapes() -> Iterator[Case]:
    """Lines of all sorts, none among them; all axes from one on; numbers that would overflow."""
    for (shape, axis), log in product(_SHAPES, (False, True)):
        yield _case(floats(*shape, scale=3), axis, log)
    for axis in (0, 1, 2, 3, -1):
        yield _case(floats(3, 4, 7, scale=3), axis, False, flatten=True)
    for log in (False, True):
        yield _case(floats(8, 100, scale=1e4), -1, log)
    for shape in ((0,), (3, 0), (0, 5), (2, 0, 3)):
        yield _case(np.zeros(shape, np.float32), -1, False)
    yield _case(floats(3, 33, scale=3).astype(np.float16), -1, False)


@op_cases
def softmax_special() -> Iterator[Case]:
    """Infinities, NaN and numbers at the end of the range, along both axes."""
    for size, axis, log in product((5, 19, 64, 1100), (0, 1), (False, True)):
        yield _case(_special(7, size, axis=axis), axis, log)


@op_cases
def softmax_in_workgroups() -> Iterator[Case]:
    """Rows below and above the capacity of workgroups."""
    rows = (_case(floats(3, size, scale=3), -1, False) for size in (16, 197, 1100, 5003))
    yield from in_row_groups(rows)


@shader_cases("softmax_rows")
def softmax_rows(variant: Variant) -> Iterator[Case]:
    """Rows held in registers or not, that start anywhere in a vec4."""
    for case in in_groups(variant, _row_cases(variant)):
        yield taking(case, {"softmax": "rows"})


def _row_cases(variant: Variant) -> Iterator[Case]:
    aligned = int(variant.axes["aligned"])
    for size in _SIZES[aligned]:
        # Two cases at a time: the first in a workgroup of one subgroup, the second of several.
        yield _case(floats(5, size, scale=2), -1, size % 8 > 0)
        yield _case(_special(7, size, axis=1) if size > 8 else floats(5, size), -1, size % 8 > 0)
    long = _SIZES[aligned][-2:]
    yield from (_case(floats(5, size, scale=2), -1, size % 8 == 0) for size in long)
    yield from (_case(_special(7, size, axis=1), -1, size % 8 == 0) for size in long)
    for shape, axis in LINES:
        yield _case(floats(*shape), axis, False)
    yield _case(floats(3, 4, 5 if aligned == 1 else 4), 1, False, flatten=True)
    yield _case(floats(5, 20 + aligned).astype(np.float16), 1, False)
    if variant.floats != "f32":
        yield taking(_case(floats(5, 24 - aligned), 1, False), {"plain end": True})
    # Quantised input and output: rows of two numbers, whose sum does not depend on its order.
    x = np.where(whole(7, 64 if aligned == 4 else 63) > 0, np.float32(0), np.float32(-250))
    x[:, 5] = 0
    x[3], x[5, :2] = -np.inf, np.nan
    for ending in (CodeMean(1.0, 2.0**-7, -3.0, 90.0), CodeMean(1.0, 2.0**-9, -7.0, 31.0, 0.5)):
        attrs = SoftmaxAttrs(1, of_input=0.5, ending=ending)
        yield op_case("Softmax", attrs, [x], rtol=0, atol=ending.scale)


@shader_cases("softmax_columns")
def softmax_columns(variant: Variant) -> Iterator[Case]:
    """Columns alone and in groups."""
    width = int(variant.axes["width"])
    for log in (False, True):
        cases = [_case(floats(*s, scale=4), axis, log) for s, axis in _COLUMNS[width]]
        special = _special(7 + width // 4, 9, axis=0)
        cases.append(_case(special, 0, log))
        cases.append(_case(floats(9, 8).astype(np.float16), 0, log))
        # Exponentials of these would overflow but for the maximum of the column.
        cases.append(_case(floats(7, 9 - width // 4, scale=400), 0, log))
        # The maximum at every position of a column.
        cases.append(_case(300 * np.eye(8, 9 - width // 4, dtype=np.float32), 0, log))
        yield from (taking(case, {"softmax": "columns"}) for case in cases)


@shader_cases("softmax_apply")
def softmax_apply(variant: Variant) -> Iterator[Case]:
    """The last of the stages that long lines need."""
    shapes = [*LINES, ((31, 2, 2), 0), ((4, 3, 5), 1), ((2, 21, 3, 8), 1), ((3, 131), 1)]
    for log in (False, True):
        cases = [_case(floats(*shape, scale=4), axis, log) for shape, axis in shapes]
        cases.append(_case(_special(7, 13, axis=1), 1, log))
        cases.append(_case(floats(5, 9).astype(np.float16), 1, log))
        yield from (taking(case, {"softmax": "stages"}) for case in cases)
