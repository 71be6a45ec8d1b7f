"""Cases of the matrix product kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf, prod

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Activation
from vkmnn.ir.ops import (
    RESIDUAL_KINDS,
    CodeSum,
    MatMulAttrs,
    NormedMatMulAttrs,
    OpAttrs,
    QuantizedMatMulAttrs,
)
from vkmnn.testing.case import Case, Variant, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import floats, integers, whole
from vkmnn.vulkan.gemm.families.rotate import MatMulRotate
from vkmnn_suite.cases.coded import codes_from
from vkmnn_suite.cases.coded_rows import ROWS, coded_rows
from vkmnn_suite.cases.convolution import PLAIN_ENDS, Maker
from vkmnn_suite.cases.dynamic import dynamic_cases
from vkmnn_suite.cases.normed import coop_tile_of, normed_tiles, staged_norms
from vkmnn_suite.cases.packed import coded_tiles
from vkmnn_suite.cases.pooled import tile_of
from vkmnn_suite.cases.rows import taking

Shape = tuple[int, ...]

CLAMPS = (Activation(), Activation("CLIP", -9.0, 11.0), Activation("RELU"))
SMOOTH = (Activation("LEAKY_RELU", 0.125),)
# Bounds that few results of a long K reach: clamped results would hide errors.
WIDE = (Activation("CLIP", -150.0, 210.0), Activation(), Activation("RELU"))

# Shapes of a and b by whether rows of the result are whole vec4s: batches that alternate over three
# axes, vectors, several panels, more rows than a tile.
PRODUCTS: dict[int, tuple[tuple[Shape, Shape], ...]] = {
    4: (
        ((2, 1, 3, 5, 7), (1, 3, 1, 7, 4)),
        ((3, 1, 2, 2, 3), (3, 5, 1, 3, 4)),
        ((45, 12), (12, 36)),
        ((3, 11, 6), (3, 6, 300)),
        ((8,), (8, 8)),
        ((1, 5), (5, 4)),
        ((2, 1, 4), (2, 4, 4)),
        ((0, 3), (3, 4)),
    ),
    1: (
        ((2, 1, 3, 5, 7), (1, 3, 1, 7, 5)),
        ((3, 1, 2, 2, 3), (3, 5, 1, 3, 5)),
        ((44, 12), (12, 35)),
        ((3, 11, 6), (3, 6, 298)),
        ((8,), (8,)),
        ((2, 5, 3), (3,)),
        ((1, 1), (1, 1)),
        ((1, 4), (4, 7)),
        ((5, 3), (3, 0)),
    ),
}


_OPERANDS: tuple[tuple[Shape, Shape], ...] = (
    ((5, 7), (7, 3)), ((8, 16), (16, 32)), ((1, 64), (64, 10)), ((2, 3, 5, 7), (2, 3, 7, 11)),
    ((2, 1, 5, 8), (3, 8, 12)), ((2, 1, 3, 5, 4), (1, 2, 3, 4, 8)), ((7,), (7, 5)), ((5, 7), (7,)),
    ((7,), (7,)), ((33, 40), (40, 100)), ((17, 13), (13, 37)), ((3, 4, 37, 64), (3, 4, 64, 64)),
    ((0, 4), (4, 3)), ((3, 0), (0, 4)), ((1, 1), (1, 1)),
)  # fmt: skip


@op_cases
def matmul_shapes() -> Iterator[Case]:
    """Operands of all ranks, fed and constant; integers; an inner axis longer than a loop."""
    for (a, b), constant in product(_OPERANDS, ((), (0,), (1,))):
        inputs = [floats(*a), floats(*b, seed=1)]
        yield op_case("MatMul", MatMulAttrs(), inputs, constant=constant, rtol=1e-4)
    yield op_case("MatMul", MatMulAttrs(), [integers(5, 7), integers(7, 6)])
    long = [floats(3, 20_011), floats(20_011, 5)]
    yield op_case("MatMul", MatMulAttrs(), long, rtol=1e-4, atol=1e-3)


@op_cases
def matmul_epilogues() -> Iterator[Case]:
    """Transposed operands, factors, biases, residuals and activations."""
    for constant, m, n in product(((), (0,), (1,), (2,)), (1, 6), (8, 9)):
        attrs = MatMulAttrs(True, True, 0.5, Activation("LEAKY_RELU", 0.1))
        inputs = [floats(2, 5, m), floats(2, n, 5), floats(n), floats(2, m, n)]
        yield op_case("MatMul", attrs, inputs, constant=constant, rtol=1e-4)
        inputs = [floats(2, 5, m), floats(5, n)]
        kept = [index for index in constant if index < 2]
        yield op_case("MatMul", MatMulAttrs(True), inputs, constant=kept, rtol=1e-4)
        added = [floats(m, 5), floats(n, 5), None, floats(m, n)]
        yield op_case("MatMul", MatMulAttrs(False, True), added)


def _products(variant: Variant, dtype: str, columns: int) -> Iterator[Case]:
    """Yield products of small whole numbers, which are exact, with all that an epilogue can do."""
    if variant.narrow:
        pairs = [(a, b) for a, b in PRODUCTS[columns] if len(b) > 1]
        yield from _codes(pairs, narrow=True)
        yield from _ranged(PRODUCTS[columns])
        return
    yield from _with_epilogues(dtype, PRODUCTS[columns], CLAMPS)
    if dtype == "f32":
        yield from _with_epilogues(dtype, PRODUCTS[columns][:2], SMOOTH)
        yield from _codes(PRODUCTS[columns][1:3])
    yield from _other_types(dtype, columns)


def _codes(
    pairs: Sequence[tuple[Shape, Shape]], *, narrow: bool = False, taken: bool = False
) -> Iterator[Case]:
    """Yield quantised products: many of the sums are between two quantised values.

    With `narrow`, the right operand holds bytes, including both ends of the range, some plus a
    number. With `taken`, bounds of the left one are known.
    """
    for number, (a, b) in enumerate(pairs):
        left, right = whole(*a), whole(*b, seed=1)
        columns = b[-1]
        if narrow:
            right = right.astype(np.int8)
            right.reshape(-1)[::7], right.reshape(-1)[3::11] = 127, -128
            if number % 2:
                right = right + np.int16(9)
        attrs = QuantizedMatMulAttrs(False, False, -90.0, 121.0, None, 0.5 if number else 1.0)
        if taken:
            attrs = replace(attrs, taken=(-100.0, 100.0))
        factor = np.array([0.5, 0.25, 0.75, 1.5, 0.125], np.float32)
        each = np.resize(factor, columns) if number else factor[:1]
        inputs: list[AnyArray | None] = [left, right, whole(columns, seed=2), None, each]
        if number:
            inputs[3] = whole(*np.matmul(left, right).shape, seed=3)
            attrs = replace(attrs, add=CodeSum(0.5, 0.75, 1.25, -20.0, 31.0))
        yield op_case("QuantizedMatMul", attrs, inputs, constant=[1, 2, 4], rtol=0, atol=0)
        # Rounded a second time by column, then looked up.
        inputs += [_table(71, whole_numbers=number > 0), _again(columns)]
        changed = replace(attrs, first=-30)
        yield op_case("QuantizedMatMul", changed, inputs, constant=[1, 2, 4, 5, 6], rtol=0, atol=0)


def _ranged(pairs: Sequence[tuple[Shape, Shape]]) -> Iterator[Case]:
    """Yield matrix products whose left operands are quantised by a computed range."""
    yield from dynamic_cases([(a[:-1], *b) for a, b in pairs if len(b) == 2 and len(a) > 1][:3])


def _table(entries: int, *, whole_numbers: bool) -> AnyArray:
    """Return a table whose neighbours differ."""
    table = (np.arange(entries) * 7 % 23 - 11).astype(np.float32)
    return table if whole_numbers else table + np.float32(0.25)


def _again(columns: int) -> AnyArray:
    """Return how values are quantised again, by column: low, high, …, made_low, made_high."""
    number = np.arange(columns, dtype=np.float32)
    low, high, of_x = -60 - number % 3, 70 + number % 5, 0.5 + number % 2 / 4
    offset, unit = number % 7 - 3, number % 3 + 1
    rows: list[AnyArray] = [low, high, of_x, offset, unit, -30 + number % 4, 40 - number % 4]
    return np.stack(rows).astype(np.float32)


# Rows (a shape), depth and columns of products that normalise rows and gate columns: two results
# only, broken panels, several of them, more rows than a tile, depths that are not whole vec4s.
_ROWWISE: tuple[tuple[Shape, int, int], ...] = (
    ((1,), 64, 4),
    ((2, 3), 97, 44),
    ((1,), 388, 132),
    ((11,), 36, 300),
    ((1,), 1, 8),
    ((0,), 8, 8),
)
_NORMS = ("RMS", "STD", "NONE")


def rowwise(shapes: Sequence[tuple[Shape, int, int]], columns: int = 1) -> Iterator[Case]:
    """Yield products of normalised rows, far from zero, and of gates with the values they gate."""
    for number, (rows, depth, width) in enumerate(shapes):
        for norm, gated in ((_NORMS[number % 2], False), (_NORMS[number % 3], True)):
            n = width if gated or columns == 4 else width + 1
            w = whole(depth, n, seed=1) / 8
            transpose_b = number % 2 == 1
            bias = whole(n, seed=2) if number % 2 == 0 else None
            residual = None if gated or number % 2 else whole(*rows, n, seed=3)
            attrs = NormedMatMulAttrs(
                transpose_b,
                norm,
                0.25,
                Activation("SILU") if gated else Activation(),
                RESIDUAL_KINDS[number % len(RESIDUAL_KINDS)],
                gated,
            )
            x = whole(*rows, depth) / 8 + 3 * (number % 2)
            inputs = [x, w.T.copy() if transpose_b else w, bias, residual]
            yield op_case("NormedMatMul", attrs, inputs, constant=(1, 2), rtol=1e-4, atol=1e-3)


@op_cases
def normed_products() -> Iterator[Case]:
    """Few rows, many rows, and rows of one number."""
    yield from rowwise(_ROWWISE)
    yield from rowwise((((70,), 96, 132), ((3, 2), 1024, 512), ((), 40, 12)))


def _with_epilogues(
    dtype: str, pairs: Sequence[tuple[Shape, Shape]], turns: Sequence[Activation]
) -> Iterator[Case]:
    make = whole if dtype == "f32" else integers
    for number, (a, b) in enumerate(pairs):
        left, right = make(*a), make(*b, seed=1)
        inputs: list[AnyArray | None] = [left, right]
        shape = np.matmul(left, right).shape
        # Without bias and residual the kernel is another specialization, which takes time to
        # compile: only in the last ones, and only with a clamp.
        if number < 4 and len(b) > 1:
            inputs.append(make(b[-1], seed=2))
            inputs.append(make(*shape, seed=3))
        attrs = MatMulAttrs()
        if dtype == "f32":
            kind = RESIDUAL_KINDS[number % len(RESIDUAL_KINDS)]
            attrs = MatMulAttrs(alpha=0.5, activation=turns[number % len(turns)], residual=kind)
        constant = [1] if number == 1 else [0] if number == 2 else []
        yield op_case("MatMul", attrs, inputs, constant=constant, rtol=0, atol=0)


def _other_types(dtype: str, columns: int) -> Iterator[Case]:
    sizes = (5, 8, 8 if columns == 4 else 9)
    names = ("float16",) if dtype == "f32" else ("int64", "int8", "uint8")
    for name in names:
        a, b = (integers(*shape, low=0).astype(name) for shape in (sizes[:2], sizes[1:]))
        yield op_case("MatMul", MatMulAttrs(), [a, b], rtol=0, atol=0)


@shader_cases("matmul_tile")
def matmul_tile(variant: Variant) -> Iterator[Case]:
    """Batches, panels, broken tiles, bias, residual, scale and activation; norms and gates."""
    yield from _products(variant, variant.dtype, int(variant.axes["aligned"]))
    if variant.dtype == "f32" and not variant.narrow:
        yield from rowwise(_ROWWISE, int(variant.axes["aligned"]))


@shader_cases("matmul_rotate")
def matmul_rotate(variant: Variant) -> Iterator[Case]:
    """Batches, panels, partial tiles, bias, residual, scale and activation; quantised rows."""
    if variant.element == "c8":
        yield from coded_rows()
        # Rounded twice and looked up; quantised values that are floats in memory.
        yield from _codes([((r, w), (w, w)) for r, w in ROWS], narrow=True, taken=True)
        yield from dynamic_cases([((9,), 60, 36), ((3, 30), 260, 132), ((45,), 12, 300)])
        return
    yield from _products(variant, "f32", int(variant.axes["aligned"]))


def _staged(sizes: tuple[tuple[Shape, Shape], ...], variant: Variant) -> Iterator[Case]:
    """Yield products, nearly all with one specialization: each takes time to compile."""
    if variant.narrow:
        yield from _codes(sizes, narrow=True)
        yield from _ranged(sizes)
        return
    for number, (a, b) in enumerate(sizes):
        left, right = whole(*a), whole(*b, seed=1)
        shape = np.matmul(left, right).shape
        inputs: list[AnyArray | None] = [left, right]
        last = number == len(sizes) - 1
        if not last:
            inputs += [whole(b[-1], seed=2), whole(*shape, seed=3)]
        activation = SMOOTH[0] if last else WIDE[number % len(WIDE)]
        attrs = MatMulAttrs(alpha=0.5, activation=activation)
        constant = [[1], [0], []][number % 3]
        yield op_case("MatMul", attrs, inputs, constant=constant, rtol=0, atol=0)
    yield from _codes(sizes[1:3])


@shader_cases("matmul_shared")
def matmul_shared(variant: Variant) -> Iterator[Case]:
    """Several tiles and steps, none of them whole; single rows, columns and products."""
    tile = tile_of(variant)
    rows, columns, depth = tile.rows, tile.columns, tile.depth
    n = columns + (4 if variant.axes["aligned"] == 4 else 3)
    small = 4 if variant.axes["aligned"] == 4 else 1
    # The last step ends within its last quarter, its second half, its second quarter, and at once.
    long, later, early = (
        5 * depth - 3,
        4 * depth + depth * 5 // 8 + 4,
        2 * depth + depth * 3 // 8 + 4,
    )
    yield from _staged(
        (
            ((2, 1, 2, rows + 5, long), (1, 3, 1, long, n)),
            ((rows - 1, 2 * depth), (2 * depth, n - 4)),
            ((2 * rows + 1, 1), (1, small)),
            ((1, later), (later, small)),
            ((2, later - 4 * depth), (later - 4 * depth, small)),
            ((1, 1), (1, small)),
            ((0, 3), (3, small)),
            ((3, rows + 1, early), (3, early, 2 * columns)),
        ),
        variant,
    )
    if variant.floats != "f32":
        shape = (2, rows + 5, depth + 3), (depth + 3, n)
        a, b = (whole(*size, seed=i, low=-2, high=2) for i, size in enumerate(shape))
        yield in_float32(op_case("MatMul", MatMulAttrs(), [a, b], rtol=0, atol=0))
    if variant.element != "w8":
        # Past K, the last line is repeated; it must not meet anything that counts as zero.
        a, b = np.abs(whole(3, depth + 4)) + 1, whole(depth + 4, 4, seed=1)
        b[-1, 1] = np.inf
        yield op_case("MatMul", MatMulAttrs(), [a, b], rtol=0, atol=0)
    if variant.axes["split"] == 0 and variant.element != "w8":
        yield from staged_norms(tile, n - 4 * (small == 4), floats=variant.floats)


@shader_cases("matmul_dot")
def matmul_dot(variant: Variant) -> Iterator[Case]:
    """Codes of every sign; several tiles and steps, none whole; constants, computed matrices."""
    rows, columns, groups = (*map(int, str(variant.axes["tile"]).split("x")), 1)[:3]
    small = 4 if variant.axes["aligned"] == 4 else 1
    n, depth = columns + (4 if small == 4 else 3), 32 * groups
    long = 3 * depth - 3
    # Rows that end in each quarter of a tile: an invocation loads a row of each.
    quarter = rows // 4
    yield _dots((2, 1, 2, rows + 5, long), (1, 3, 1, long, n), -57)
    yield _dots((rows + quarter + 3, 1), (1, small), -255)
    yield _dots((1, long), (long, small), 0, weights=13)
    yield _dots((2 * rows, 2 * depth), (2 * depth, n - 4), -128, residual=True)
    yield _dots((0, 3), (3, small), 0)
    yield _dots((rows + quarter + 3, long), (long, n), -40, point=40)
    # Computed, read in place and packed; bytes of both minus a number, and unchanged.
    more = 2 * quarter + 3
    yield _dots((3, rows + more, 2 * depth + 4), (3, 2 * depth + 4, n), -9, computed=-31)
    yield _dots((2, 5, depth + 3), (1, depth + 3, n), -128, computed=-128)
    yield from dynamic_cases([((rows + 5,), long, n), ((3, 5), depth, small)])
    yield from _codes([((3, long), (long, n)), ((rows + 1, 9), (9, n))], narrow=True, taken=True)


@shader_cases("matmul_codes_coop")
def matmul_codes_coop(variant: Variant) -> Iterator[Case]:
    """Codes of every sign by constants; several tiles and steps, none whole."""
    rows, columns = map(int, str(variant.axes["tile"]).split("w")[0].split("x"))
    small = 4 if variant.axes["aligned"] == 4 else 1
    n, step = columns + (4 if small == 4 else 3), int(variant.axes["step"])
    long = 3 * step - 3
    yield _dots((2, 1, 2, rows + 5, long), (1, 3, 1, long, n), -57)
    yield _dots((2 * rows, 2 * step), (2 * step, n - 4), -128, residual=True)
    yield _dots((rows + 3, long), (long, n), -40, point=40)
    yield from dynamic_cases([((rows + 5,), long, n)], start=1)
    if rows > 32:
        return
    yield _dots((rows + 7, 1), (1, small), -255)
    yield _dots((1, long), (long, small), 0)
    yield _dots((0, 3), (3, small), 0)
    yield _dots((5, step + 5), (step + 5, n), -9)
    yield from _codes([((3, long), (long, n)), ((rows + 1, 9), (9, n))], narrow=True, taken=True)


def _dots(
    a: Shape,
    b: Shape,
    low: int,
    *,
    weights: int = 0,
    computed: int | None = None,
    point: int | None = None,
    residual: bool = False,
) -> Case:
    """Return a quantised product whose result is the sums themselves, so that all of them show.

    Quantised values start at `low`. The right operand is constant bytes plus `weights`, or
    quantised values from `computed` on. With `point`, only that number is known of the left one.
    With `residual`, a part of the sums.
    """
    taken = (float(low), low + 255.0)
    attrs = QuantizedMatMulAttrs(False, False, -inf, inf, taken=taken)
    if computed is None:
        right = (codes_from(-128, *b, seed=1) + weights).astype(np.int16)
    else:
        right = codes_from(computed, *b, seed=1)
        attrs = replace(attrs, taken_b=(float(computed), computed + 255.0))
    bias = whole(b[-1], seed=2)
    left = codes_from(low, *a)
    more = whole(*np.matmul(left, right).shape, seed=3) if residual else None
    inputs: list[AnyArray | None] = [left, right, bias, more, np.ones(1, np.float32)]
    if point is not None:
        attrs = replace(attrs, taken=(-inf, inf))
        inputs += [None, None, np.array([point], np.float32)]
    constant = [1, 2, 4] if computed is None else [2, 4]
    return op_case("QuantizedMatMul", attrs, inputs, constant=constant, rtol=0, atol=0)


@shader_cases("matmul_coop")
def matmul_coop(variant: Variant) -> Iterator[Case]:
    """Partial tiles and steps in every direction; operands that are read in place, and packed."""
    if variant.axes["bits"]:
        yield from coded_tiles(variant)
        return
    rows, columns = map(int, str(variant.axes["tile"]).split("w")[0].split("x"))
    step, small = int(variant.axes["step"]), int(variant.axes["aligned"])
    n = columns + (4 if small == 4 else 3)
    split = bool(variant.axes["split"])
    # Odd and even numbers of steps, the last one nearly whole: either buffer is the last.
    long = (6 if split else 3) * step - 8
    longer = long + step - 3
    # Bounds that few results reach: clamped results would hide errors.
    clamp = Activation("CLIP", -50.0, 70.0)
    # Matrix by matrix, or read in place.
    fragments = not variant.by_limbs and coop_tile_of(variant).fragments
    right = [1] if fragments else []
    turned = MatMulAttrs(False, True, 0.5, clamp)
    yield _coop((2, 1, rows + 5, long), (1, 3, n, long), turned, constant=right)
    if not fragments:
        yield _coop((rows + 1, long), (n, long), turned, constant=[1])
    across = MatMulAttrs(True, False, 0.5, clamp)
    yield _coop((longer, rows - 3), (longer, n), across, constant=right)
    yield _coop((0, 8), (8, small), MatMulAttrs())
    if variant.by_limbs:
        yield from _scaled_rows(rows, long, n)
    if split:
        return
    yield _coop((3, 5, long - 5), (3, long - 5, n), MatMulAttrs(activation=clamp), constant=[1])
    if not fragments:
        yield _coop((1, long), (long, small), MatMulAttrs(activation=clamp), constant=[0])
    yield _coop((1, 1), (1, small), MatMulAttrs(activation=clamp), constant=right)
    if variant.by_limbs:
        return
    yield from normed_tiles(coop_tile_of(variant), n)
    if rows == 16:
        # Whole steps, another activation, no bias.
        smooth = MatMulAttrs(activation=SMOOTH[0])
        yield _coop((rows, 2 * step), (2 * step, n), smooth, extra=False)
        # Results that the host reads.
        yield in_float32(_coop((2, rows + 5, long), (long, n), MatMulAttrs(activation=clamp)))


def _scaled_rows(rows: int, k: int, n: int) -> Iterator[Case]:
    """Yield products whose rows and columns have all magnitudes of float32, exactly."""
    a, b = whole(2 * rows + 5, k, low=-2, high=2), whole(k, n, seed=1, low=-2, high=2)
    for powers in (40, 100):
        of_rows = 2.0 ** np.resize(np.array([0, powers, -powers, 7, 0, -12]), len(a))
        of_columns = 2.0 ** np.resize(np.array([-20, 0, 20]), n)
        scaled = (a * of_rows[:, None]).astype(np.float32), (b * of_columns).astype(np.float32)
        yield op_case("MatMul", MatMulAttrs(), list(scaled), constant=[1], rtol=0, atol=0)


def in_float32(case: Case) -> Case:
    """Return the case, with results that kernels of float16 store as the host reads them."""
    return replace(case, takes={**case.takes, **PLAIN_ENDS})


def _coop(
    a: Shape, b: Shape, attrs: MatMulAttrs, *, constant: Sequence[int] = (), extra: bool = True
) -> Case:
    """Return a product of small whole numbers, which are exact, with bias and residual or without.

    Few specializations: each takes time to compile.
    """
    inputs: list[AnyArray | None] = [whole(*a, low=-2, high=2), whole(*b, seed=1, low=-2, high=2)]
    if extra:
        plain = replace(attrs, activation=Activation())
        shape = op_case("MatMul", plain, inputs).graph.outputs[0].dims
        inputs += [whole(shape[-1], seed=2), whole(*shape, seed=3)]
    return op_case("MatMul", attrs, inputs, constant=constant, rtol=0, atol=0)


@shader_cases("matmul_gemv")
def matmul_gemv(variant: Variant) -> Iterator[Case]:
    """Row counts up to the variant's; columns and K on both sides of a workgroup's share."""
    rows = int(variant.axes["rows"])
    n = 36 if variant.axes["aligned"] == 4 else 35
    small = 4 if variant.axes["aligned"] == 4 else 1
    yield from _staged(
        (
            ((2, 1, 2, rows, 299), (1, 3, 1, 299, n)),
            ((max(rows - 2, 1), 1031), (1031, n)),
            ((rows, 1), (1, small)),
            ((rows, 13), (13, 3036 + n)),
            ((1, 1), (1, small)),
            ((0, 3), (3, small)),
            ((rows, 64), (64, 64 + small)),
        ),
        variant,
    )
    for k in (1031, 2 * 1024):
        a, b = whole(rows, k, low=-2, high=2), whole(k, n, seed=1, low=-2, high=2)
        case = op_case("MatMul", MatMulAttrs(), [a, b], rtol=0, atol=0)
        yield replace(case, takes={"gemv steps": 2})
    if variant.narrow:
        return
    yield from rowwise(
        [(at, k, n) for at, k, n in _ROWWISE if prod(at) <= rows], 4 if small == 4 else 1
    )
    long = rowwise([((1,), 388, 132)], 4 if small == 4 else 1)
    yield from (taking(case, {"gemv steps": 2}) for case in long)
    if variant.floats != "f32":
        a, b = whole(rows, 29, low=-2, high=2), whole(29, n, seed=1, low=-2, high=2)
        yield in_float32(op_case("MatMul", MatMulAttrs(), [a, b], rtol=0, atol=0))
        yield from map(in_float32, rowwise([((rows,), 36, 32)], 4 if small == 4 else 1))
    for kind in RESIDUAL_KINDS:
        a, b = whole(rows, 13), whole(13, n, seed=1)
        attrs = MatMulAttrs(alpha=0.5, activation=WIDE[2], residual=kind)
        inputs = [a, b, whole(n, seed=2), whole(rows, n, seed=3)]
        yield op_case("MatMul", attrs, inputs, rtol=0, atol=0)
    if rows == 1 and variant.axes["aligned"] == 4:
        # Convolutions of one pixel, whose windows are vectors.
        make = Maker()
        yield make((1, 29, 3, 5), (36, 29, 3, 5), residual=True)
        yield make((1, 96, 1), (4, 96, 1), bias=False, residual=True)


_WHOLE: tuple[tuple[Shape, Shape], ...] = (
    ((2, 5, 12), (12, 8)),
    ((9, 28), (28, 3)),
    ((2, 3, 4), (2, 4, 4)),
    ((67, 52), (52, 4)),
)
# Shapes, and which are transposed.
_PACKED: tuple[tuple[Shape, Shape, bool, bool], ...] = (
    ((3, 5, 7), (3, 7, 6), False, False),
    ((3, 7, 5), (3, 6, 7), True, True),
    ((2, 1, 8, 3), (2, 2, 8, 5), True, False),
    ((22, 26), (37, 26), False, True),
    ((1, 1), (1, 1), True, True),
    ((13, 3), (5, 13), True, True),
    ((29, 70), (70, 29), True, True),
    ((32, 3), (5, 32), True, True),
    ((5, 21), (21, 5), False, False),
    ((5, 17), (17, 6), False, False),
    ((12, 5), (9, 12), True, True),
    ((32, 3), (32, 5), True, False),
)


def _tiles() -> Iterator[Case]:
    """Yield products whose tiles have one or two vectors of words, of bytes and of floats."""
    for kernel in (MatMulRotate(32, 8), MatMulRotate(40, 8)):
        for case in (
            *coded_rows(),
            *_codes([((r, w), (w, w)) for r, w in ROWS], narrow=True, taken=True),
        ):
            yield taking(case, {"matmul": kernel})


@shader_cases("matmul_pack")
def matmul_pack(variant: Variant) -> Iterator[Case]:
    """Operands that the kernels cannot read in place: transposed, of partial vec4s, by blocks."""
    operand = variant.axes["operand"]
    if operand == "tile":
        yield from _tiles()
        return
    if operand == "a4":
        # Read in place by some kernels, by blocks of k by others.
        for a, b in _WHOLE:
            yield op_case("MatMul", MatMulAttrs(), [whole(*a), whole(*b, seed=1)], rtol=0, atol=0)
        return
    for a, b, transpose_a, transpose_b in _PACKED:
        attrs = MatMulAttrs(transpose_a, transpose_b)
        yield op_case("MatMul", attrs, [whole(*a), whole(*b, seed=1)], rtol=0, atol=0)
    attrs = MatMulAttrs(transpose_a=True, transpose_b=True)
    yield op_case("MatMul", attrs, [integers(7, 5), integers(6, 7, seed=1)])


@shader_cases("det")
def det(variant: Variant) -> Iterator[Case]:
    """Matrices whose largest elements are below the diagonal, singular ones, batches."""
    shapes: tuple[Shape, ...] = (
        (1, 1), (2, 2), (3, 3), (5, 5), (7, 13, 13), (2, 0, 3, 3), (67, 4, 4), (2, 3, 2, 2),
        (1, 54, 54),
    )  # fmt: skip
    for shape in shapes:
        size = shape[-1]
        x = floats(*shape, scale=size**-0.5)
        yield op_case("Det", OpAttrs(), [x], rtol=1e-3, atol=1e-5)
        turned = np.roll(np.eye(size, dtype=np.float32), 1, 0) * 2 + np.zeros(shape, np.float32)
        if size < 14:
            yield op_case("Det", OpAttrs(), [turned], rtol=1e-6, atol=0)
        if size > 1:
            x[..., -1, :] = x[..., 0, :]
            yield op_case("Det", OpAttrs(), [x], atol=1e-4)
            yield op_case("Det", OpAttrs(), [np.zeros_like(x)])
