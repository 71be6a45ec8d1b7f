"""Cases of pooling: `pool`, `pool_strip` and `pool_index`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.ir import Op
from vkmnn.ir.ops import CodeMean, PoolingAttrs
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import f32, floats, integers, whole
from vkmnn_suite.cases.coded import as_bytes, chain_case, codes_from, maximum

Shape = tuple[int, ...]

Ints = tuple[int, ...]

# Shape, kernel, strides, dilations, pads: batches, asymmetric pads, one to three axes.
WINDOWS: tuple[tuple[Ints, Ints, Ints, Ints, Ints], ...] = (
    ((2, 7, 9, 8), (3, 2), (3, 2), (2, 3), (1, 0, 2, 1)),
    ((1, 5, 5, 4, 7), (2, 3, 2), (2, 1, 3), (3, 1, 2), (1, 0, 1, 0, 2, 0)),
    ((3, 2, 29), (4,), (3,), (1,), (3, 2)),
    ((1, 1, 1, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((0, 3, 4, 4), (2, 2), (1, 1), (1, 1), (0, 0, 0, 0)),
)


def _pooled(window: tuple[Ints, Ints, Ints, Ints, Ints], kind: str, **more: object) -> PoolingAttrs:
    return PoolingAttrs(kind, *window[1:], **more)  # type: ignore[arg-type]


_KINDS = ("MAX", "AVERAGE", "LP")
# Kernel, strides, dilations, pads of two axes.
_SQUARE: tuple[tuple[Ints, Ints, Ints, Ints], ...] = (
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((2, 5), (1, 3), (2, 1), (0, 1, 1, 2)),
    ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    ((7, 7), (1, 1), (1, 1), (3, 3, 3, 3)),
)
_GLOBAL: tuple[Ints, ...] = (
    (2, 7, 13, 17), (1, 5, 40, 50), (1, 3, 1009), (3, 5), (1, 3, 5, 6, 7), (1, 3, 2, 3, 4, 5),
    (2, 3, 1, 1), (0, 3, 4, 4),
)  # fmt: skip


@op_cases
def pooling_windows() -> Iterator[Case]:
    """Every option of windows over two axes, and windows over four."""
    for kind, ceil, count, window in product(_KINDS, (False, True), (False, True), _SQUARE):
        attrs = PoolingAttrs(kind, *window, ceil_mode=ceil, count_include_pad=count, p=3)
        yield op_case("Pooling", attrs, [floats(2, 7, 13, 17)], rtol=1e-4)
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        attrs = PoolingAttrs("AVERAGE", kernel=(3, 2), strides=(2, 2), auto_pad=auto)
        yield op_case("Pooling", attrs, [floats(2, 7, 13, 17)])
    for kind in _KINDS:
        attrs = PoolingAttrs(kind, (2, 1, 2, 3), (1, 2, 1, 1), pads=(1, 0, 0, 0) * 2)
        yield op_case("Pooling", attrs, [floats(2, 3, 3, 4, 5, 6)], rtol=1e-4)
    fp16 = floats(1, 5, 9, 7).astype(np.float16)
    yield op_case("Pooling", PoolingAttrs("AVERAGE", (3, 3)), [fp16], rtol=1e-3, atol=1e-3)


@op_cases
def pooling_global() -> Iterator[Case]:
    """All pixels, of axes of all sorts; and more of them than a loop may count."""
    for kind, shape in product(_KINDS, (*_GLOBAL, (1, 2, 70_003), (1, 1, 300, 1, 270))):
        attrs = PoolingAttrs(kind, is_global=True)
        yield op_case("Pooling", attrs, [floats(*shape)], rtol=1e-4, atol=1e-4)


@op_cases
def pooling_large_windows() -> Iterator[Case]:
    """Windows that are processed axis by axis."""
    for kind, count in product(_KINDS, (False, True)):
        attrs = PoolingAttrs(kind, (100, 5), (3, 2), pads=(30, 1, 20, 0), count_include_pad=count)
        yield op_case("Pooling", attrs, [floats(1, 3, 211, 9)], rtol=1e-4, atol=1e-4)


@op_cases
def pooling_indices() -> Iterator[Case]:
    """Positions of maxima, the first of equal ones, in both orders."""
    for order, dtype in product((0, 1), ("float32", "int8")):
        attrs = PoolingAttrs("MAX", (3, 2), (2, 1), (1, 2), (1, 0, 1, 1), storage_order=order)
        x = integers(2, 7, 13, 17, low=-3, high=3).astype(dtype)
        yield op_case("Pooling", attrs, [x], outputs=2)


@op_cases
def pooling_integers() -> Iterator[Case]:
    """Maxima of integers of 32 and of 8 bits, signed and not."""
    for number, window in enumerate(WINDOWS):
        x = integers(*window[0], low=-(2**31), high=2**31 - 1)
        yield op_case("Pooling", _pooled(window, "MAX"), [x])
        x = integers(*window[0], low=0).astype(("int8", "uint8")[number % 2])
        yield op_case("Pooling", _pooled(window, "MAX"), [x])
    for dtype in ("int8", "uint8"):
        x = integers(2, 3, 8, 9, low=0, high=99).astype(dtype)
        yield op_case("Pooling", PoolingAttrs("MAX", kernel=(3, 2), pads=(1, 1, 1, 0)), [x])


@op_cases
def pooling_special() -> Iterator[Case]:
    """Infinities and NaN, alone and among numbers."""
    x = np.full((1, 5, 4, 4), -np.inf, np.float32)
    x[0, 1] = -3.0
    x[0, 2, 1, 1], x[0, 3, 2, 2] = np.nan, np.inf
    yield op_case("Pooling", PoolingAttrs("MAX", kernel=(2, 2), pads=(1, 1, 0, 0)), [x])


_PLANES: tuple[Shape, ...] = (
    (2, 7, 13, 17), (1, 5, 31), (3, 3, 1, 1), (1, 9, 3, 5, 7), (2, 4, 65, 33), (2, 11, 3, 5),
)  # fmt: skip


def _of_codes(shape: Shape, low: int, attrs: PoolingAttrs) -> Iterator[Case]:
    """Yield poolings of quantised bytes, from `low` on, that the host and another pooling read."""
    first, constants = as_bytes("in0", "codes", shape, low)
    pool = Op("Pooling", "op", ["codes"], ["made"], attrs)
    feeds, axes = {"in0": codes_from(low, *shape)}, len(shape) - 2
    yield chain_case([first, pool], feeds, constants, 3e-7)
    yield chain_case([first, pool, maximum("made", "out", axes)], feeds, constants, 3e-7)
    if attrs.kind == "AVERAGE":
        # Sums of whole numbers, powers of two as scales: ties are everywhere, and results exact.
        for ending in (CodeMean(0.5, 1.0, -20.0, 90.0), CodeMean(2.0, 0.25, -128.0, 127.0, 1.5)):
            rounds = Op("Pooling", "op", ["codes"], ["made"], replace(attrs, ending=ending))
            yield chain_case([first, rounds], feeds, constants)
            yield chain_case([first, rounds, maximum("made", "out", axes)], feeds, constants)


@shader_cases("pool_whole")
def pool_whole(variant: Variant) -> Iterator[Case]:
    """Planes of one to three axes, longer and shorter than the workgroups; special values."""
    if variant.element == "c8":
        for low, shape, kind in product((-57, 0), _PLANES[:2], ("MAX", "AVERAGE")):
            for case in _of_codes(shape, low, PoolingAttrs(kind, is_global=True)):
                yield replace(case, takes={"global pooling": True})
        return
    for shape in _PLANES:
        for kind in ("MAX", "AVERAGE"):
            x = whole(*shape) if kind == "AVERAGE" else floats(*shape)
            case = op_case("Pooling", PoolingAttrs(kind, is_global=True), [x], rtol=3e-7, atol=0)
            yield replace(case, takes={"global pooling": True})
    special = f32([[[1, np.nan, 2], [-np.inf] * 3, [-2, np.inf, 3], [-np.inf, -1, -np.inf]]])
    for kind in ("MAX", "AVERAGE"):
        case = op_case("Pooling", PoolingAttrs(kind, is_global=True), [special])
        yield replace(case, takes={"global pooling": True})
    for kind in ("MAX", "AVERAGE"):  # lanes past the last channel stay zero
        attrs = PoolingAttrs(kind, is_global=True)
        case = blocked_case("Pooling", attrs, [whole(3, 6, 9, 7)], rtol=3e-7, atol=0)
        yield replace(case, takes={"global pooling": True})
    # All of it, though the window is given.
    attrs = PoolingAttrs("AVERAGE", (6, 11), (2, 3))
    case = op_case("Pooling", attrs, [whole(1, 6, 6, 11)], rtol=3e-7, atol=0)
    yield replace(case, takes={"global pooling": True})


@shader_cases("pool")
def pool(variant: Variant) -> Iterator[Case]:
    """Maxima, averages and norms; windows at the border, long ones, global ones."""
    if variant.dtype == "i32":
        yield from pooling_integers()
        return
    if variant.element == "c8":
        for low, window, kind in product((-57, -255), WINDOWS[:3], ("MAX", "AVERAGE")):
            yield from _of_codes(window[0], low, _pooled(window, kind))
        for window in WINDOWS[:2]:
            attrs = _pooled(window, "AVERAGE", count_include_pad=True, ceil_mode=True)
            yield from _of_codes(window[0], -20, attrs)
        return
    yield from pooling_special()
    for window in WINDOWS:
        x = floats(*window[0])
        yield op_case("Pooling", _pooled(window, "MAX"), [x], rtol=0, atol=0)
        for pads in (False, True):
            # Integers: a wrong count or sum is far from the right one.
            attrs = _pooled(window, "AVERAGE", count_include_pad=pads, ceil_mode=True)
            yield op_case("Pooling", attrs, [whole(*window[0])], rtol=3e-7, atol=0)
        for p in (1, 2, 3):
            yield op_case("Pooling", _pooled(window, "LP", p=p), [x], rtol=3e-6, atol=1e-7)
    special = f32([[[1, np.nan, -np.inf, -2, np.inf, 3, -np.inf, -np.inf, np.nan]]])
    special = np.concatenate([special, -special, np.roll(special, 4), special[..., ::-1]], 1)
    attrs = PoolingAttrs("MAX", (2,), (1,), (1,), (0, 0))
    yield op_case("Pooling", attrs, [special], rtol=0, atol=0)
    zeros = np.zeros((1, 5, 4), np.float32)
    yield op_case("Pooling", PoolingAttrs("LP", (2,), (1,), (1,), (0, 1), p=3), [zeros])
    for kind in ("MAX", "AVERAGE", "LP"):
        attrs = PoolingAttrs(kind, is_global=True)
        yield op_case("Pooling", attrs, [floats(2, 3, 23, 29)], rtol=3e-6, atol=1e-7)
    yield from _beside((3, 5), (2, 1), (1, 1), (1, 2, 0, 2))
    # Pads differ at the ends of all axes, and are included in the count.
    attrs = PoolingAttrs("AVERAGE", (2, 3, 2), (1, 1, 1), (1, 1, 1), (0, 1, 0, 1, 0, 1),
                         count_include_pad=True)  # fmt: skip
    yield op_case("Pooling", attrs, [whole(1, 5, 4, 5, 3)], rtol=3e-7, atol=0)
    attrs = PoolingAttrs("MAX", (2, 2), (2, 2), (1, 1), (0, 0, 0, 0))
    yield op_case("Pooling", attrs, [floats(2, 6, 21, 40).astype(np.float16)], rtol=0, atol=0)


def _beside(kernel: Shape, strides: Shape, dilations: Shape, pads: Shape) -> Iterator[Case]:
    """Yield poolings whose lanes past the last channel another kernel reads."""
    for kind in ("MAX", "AVERAGE"):
        attrs = PoolingAttrs(kind, kernel, strides, dilations, pads)
        yield blocked_case("Pooling", attrs, [whole(2, 5, 9, 21)], rtol=3e-7, atol=0)


@shader_cases("pool_strip")
def pool_strip(variant: Variant) -> Iterator[Case]:
    """Maxima and averages of square windows: pads, ends of rows and of channels, NaN."""
    size, stride = int(variant.axes["size"]), int(variant.axes["stride"])
    square = ((size, size), (stride, stride), (1, 1))
    ends = [(0, 0, 0, 0), (1, 0, size - 1, 1), (size - 1, 1, 0, size - 1)]
    if variant.element == "c8":
        for low, kind, pads in product((-57, 0), ("MAX", "AVERAGE"), ends):
            yield from _of_codes((2, 7, 9, 21), low, PoolingAttrs(kind, *square, pads))
        return
    for number, (shape, pads) in enumerate(product([(2, 7, 9, 21), (2, 6, 6, 5)], ends)):
        x = floats(*shape)
        x.flat[:: 11 + number] = (np.nan, -np.inf)[number % 2]
        yield op_case("Pooling", PoolingAttrs("MAX", *square, pads), [x], rtol=0, atol=0)
        for count in (False, True):
            attrs = PoolingAttrs(
                "AVERAGE", *square, pads, count_include_pad=count, ceil_mode=number % 2 == 1
            )
            # Integers: a wrong count or sum is far from the right one.
            yield op_case("Pooling", attrs, [whole(*shape)], rtol=3e-7, atol=0)
    yield from _beside(*square, ends[1])
    # Windows that cover nothing but pads.
    attrs = PoolingAttrs("MAX", *square, (size, 0, size, size))
    yield op_case("Pooling", attrs, [floats(1, 3, 5, 6)], rtol=0, atol=0)
    attrs = PoolingAttrs("MAX", *square, (size - 1,) * 4)
    yield op_case("Pooling", attrs, [floats(3, 1, 1, 1)], rtol=0, atol=0)
    yield op_case("Pooling", attrs, [floats(0, 3, 4, 4)], rtol=0, atol=0)


@shader_cases("pool_index")
def pool_index(variant: Variant) -> Iterator[Case]:
    """Maxima and their positions: ties, NaN, both orders."""
    floating = variant.dtype == "f32"
    for window in WINDOWS:
        for order in (0, 1):
            # Few values: many ties.
            x = whole(*window[0]) if floating else integers(*window[0], low=-2, high=2)
            attrs = _pooled(window, "MAX", storage_order=order)
            yield op_case("Pooling", attrs, [x], outputs=2, rtol=0, atol=0)
    attrs = PoolingAttrs("MAX", (2, 3), (1, 2), (1, 1), (1, 1, 0, 1))
    # The value after a window is larger than those in it.
    kind = np.float32 if floating else np.int32
    growing = np.arange(240, dtype=kind).reshape(1, 2, 4, 5, 6)
    cube = PoolingAttrs("MAX", (2, 3, 2), (1, 2, 1), (1, 1, 1), (0, 0, 1, 0, 1, 0))
    yield op_case("Pooling", cube, [growing], outputs=2, rtol=0, atol=0)
    lowest = np.full((1, 2, 3, 5), -np.inf if floating else -(2**31))
    lowest = lowest.astype(kind)
    yield op_case("Pooling", attrs, [lowest], outputs=2, rtol=0, atol=0)
    if floating:
        special = floats(1, 3, 4, 7)
        special.flat[[0, 5, 9, 22, 23, 30, 60]] = np.nan
        special.flat[[1, 6, 50, 61]] = np.inf
        yield op_case("Pooling", attrs, [special], outputs=2, rtol=0, atol=0)
    else:
        yield op_case("Pooling", attrs, [integers(1, 3, 4, 7, low=0).astype(np.uint8)], outputs=2)
