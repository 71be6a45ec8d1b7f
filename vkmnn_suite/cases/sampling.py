"""Cases of `interp` and `grid_sample`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Op
from vkmnn.ir.ops import CodeMean, GridSampleAttrs, InterpAttrs
from vkmnn.shape.resizing import COORDINATE_MODES, GRID_PADDING_MODES, MODES, NEAREST_MODES
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, op_cases, shader_cases
from vkmnn.testing.shapes import f32, floats, integers
from vkmnn_suite.cases.coded import as_bytes, chain_case, codes_from, maximum

Ints = tuple[int, ...]


def _resized(
    attrs: InterpAttrs, x: AnyArray, sizes: Sequence[int], roi: Sequence[float] = ()
) -> Case:
    region = np.array(roi, np.float32) if roi else None
    inputs = [x, region, None, np.array(sizes, np.int64)]
    exact = attrs.mode == "nearest" or x.dtype.kind != "f"
    # The extrapolation value is as large as it is so that it would show in a sum.
    rtol, atol = (0.0, 0.0) if exact else (2e-6, 2e-6)
    return op_case("Interp", attrs, inputs, constant=[1, 3], rtol=rtol, atol=atol)


@shader_cases("interp")
def interp(variant: Variant) -> Iterator[Case]:
    """All modes over one to four axes; extrapolation; integers, rounded and clamped."""
    if variant.element == "c8":
        yield from _resized_codes()
        return
    inner = int(variant.axes["width"])  # elements after the resized axes
    outside = 3.25 if variant.floats != "f32" else 1e30
    for mode in MODES:
        two = InterpAttrs(mode, axes=(1, 3))
        yield _resized(two, floats(3, 5, 3, 7, inner), (11, 4))
        yield _resized(two, floats(2, 5, 1, 7, 2 * inner), (3, 13))
        yield _resized(InterpAttrs(mode, axes=(0,)), floats(5, inner), (67,))
        yield _resized(InterpAttrs(mode, axes=(0, 1)), floats(0, 1, inner), (0, 3))
        crop = InterpAttrs(mode, "tf_crop_and_resize", extrapolation_value=outside, axes=(1, 2))
        yield _resized(crop, floats(2, 13, 17, inner), (3, 7), (0.4, -0.2, 0.6, 1.3))
    yield _resized(InterpAttrs("linear"), floats(3, 2, 4, 3 * inner), (2, 3, 5, 4 * inner))
    for exclude in (False, True):
        smooth = InterpAttrs("cubic", antialias=True, exclude_outside=exclude, axes=(1, 2))
        yield _resized(smooth, floats(2, 11, 17, inner), (4, 5))
    for dtype, mode in (("uint8", "linear"), ("int8", "cubic"), ("int64", "nearest"),
                        ("bool", "nearest"), ("int16", "linear"), ("uint16", "cubic")):  # fmt: skip
        limits = np.iinfo("int32" if dtype in ("int64", "bool") else dtype)
        x = np.random.default_rng(0).choice([limits.min, limits.max, 3], (1, 9, 15, inner))
        crop = InterpAttrs(mode, "tf_crop_and_resize", extrapolation_value=1.0, axes=(1, 2))
        yield _resized(crop, x.astype(dtype), (4, 3), (0.4, -0.2, 0.6, 1.3))
        if dtype in ("int8", "int16"):
            smooth = InterpAttrs(mode, antialias=True, axes=(1, 2))
            yield _resized(smooth, x.astype(dtype), (2, 5))
    if variant.floats == "f32":
        for ending in (CodeMean(0.5, 1.0, -20.0, 90.0), CodeMean(2.0, 0.75, 3.0, 127.0, 1.5)):
            codes = InterpAttrs(ending=ending, axes=(0, 1, 2))
            x = codes_from(-130, 3, 5, 7, inner)
            for sizes in ((3, 10, 14), (7, 5, 3), (3, 5, 7), (2, 3, 11)):
                yield _resized(codes, x, sizes)
        for ending, mode in product(_SUMS, ("linear", "cubic")):
            sums = InterpAttrs(mode, ending=ending, axes=(0, 1, 2))
            x = codes_from(-130, 3, 5, 7, inner)
            for sizes in ((3, 10, 14), (7, 5, 3), (3, 5, 7), (2, 3, 11)):
                yield replace(_resized(sums, x, sizes), rtol=0.0, atol=0.0)
    if inner == 4:
        for low in (-20.0, 2.0):
            yield blocked_case(
                "Interp",
                InterpAttrs(ending=CodeMean(0.5, 0.75, low, 90.0), axes=(2, 3)),
                [codes_from(-60, 2, 5, 3, 4), None, None, np.array([5, 7])],
                constant=[3],
            )
        yield blocked_case(
            "Interp",
            InterpAttrs("linear", axes=(2, 3)),
            [floats(2, 5, 3, 4), None, None, np.array([5, 7])],
            constant=[3],
            rtol=2e-6,
            atol=2e-6,
        )


def _resized_codes() -> Iterator[Case]:
    """Codes in bytes or floats become bytes or floats, in another scale or as they are."""
    endings = (None, CodeMean(0.5, 0.75, -20.0, 90.0), CodeMean(2.0, 0.75, -128.0, 127.0, 1.5))
    sizes = ((6, 14), (3, 5), (7, 7))
    for low, ending, size in product((-57, -255), endings, sizes):
        shape = (2, 5, 3, 7)
        first, constants = as_bytes("x", "codes", shape, low)
        attrs = InterpAttrs(ending=ending, axes=(2, 3))
        resized = Op("Interp", "resized", ["codes", "", "", "sizes"], ["made"], attrs)
        constants["sizes"] = np.array(size)
        ops, feeds = [first, resized], {"x": codes_from(low, *shape)}
        yield chain_case(ops, feeds, constants)
        last, more = as_bytes("made", "last", shape, -128)
        yield chain_case([*ops, last], feeds, constants | more)
        if ending is not None:
            yield chain_case([maximum("x", "codes", 2), resized, last], feeds, constants | more)
    space = (2, 5, 3, 4, 7)
    first, constants = as_bytes("x", "codes", space, -99)
    constants["sizes"] = np.array([5, 3])
    spaced = Op("Interp", "resized", ["codes", "", "", "sizes"], ["made"], InterpAttrs(axes=(2, 4)))
    yield chain_case([first, spaced], {"x": codes_from(-99, *space)}, constants)
    yield from _sums_of_codes()


# Numbers whose quotients are hardly ever halfway between quantised values.
_SUMS = (CodeMean(0.437, 0.631, -60.0, 90.0), CodeMean(2.0, 3.717, -128.0, 127.0, 1.5))


def _sums_of_codes() -> Iterator[Case]:
    """Codes in bytes or floats are added up along one or two axes; sums become bytes or floats."""
    sizes = ((6, 14), (3, 13), (5, 7), (1, 1), (3, 7))
    for low, ending, size in product((-57, -255), _SUMS, sizes):
        shape = (2, 5, 3, 7)
        first, constants = as_bytes("x", "codes", shape, low)
        constants["sizes"] = np.array(size)
        attrs = InterpAttrs("linear", ending=ending, axes=(2, 3))
        resized = Op("Interp", "resized", ["codes", "", "", "sizes"], ["made"], attrs)
        feeds = {"x": codes_from(low, *shape)}
        yield chain_case([first, resized], feeds, constants)
        last, more = as_bytes("made", "last", shape, -128)
        if ending.scale == 1.0:
            yield chain_case([first, resized, last], feeds, constants | more)
            yield chain_case([maximum("x", "codes", 2), resized, last], feeds, constants | more)
    space = (1, 6, 5, 4, 3)
    first, constants = as_bytes("x", "codes", space, -99)
    constants["sizes"] = np.array([3, 7])
    for mode, axes in product(("linear", "cubic"), ((2, 4), (3, 4))):
        attrs = InterpAttrs(mode, ending=_SUMS[0], antialias=mode == "linear", axes=axes)
        spaced = Op("Interp", "resized", ["codes", "", "", "sizes"], ["made"], attrs)
        yield chain_case([first, spaced], {"x": codes_from(-99, *space)}, constants)


def _plain(dtype: str, *shape: int) -> AnyArray:
    """Return numbers of a type, integers from its whole range."""
    if np.dtype(dtype).kind == "f":
        return floats(*shape).astype(dtype)
    # The device stores 64-bit integers in 32 bits.
    limits = np.iinfo("int32" if dtype == "int64" else dtype) if dtype != "bool" else None
    low, high = (limits.min, limits.max) if limits else (0, 2)
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype)


def _resize(
    attrs: InterpAttrs,
    x: AnyArray,
    sizes: Sequence[int] = (),
    *,
    scales: Sequence[float] = (),
    roi: Sequence[float] = (),
    tolerance: float = 1e-5,
) -> Case:
    inputs = [
        x,
        np.array(roi, np.float32) if roi else None,
        np.array(scales, np.float32) if scales else None,
        np.array(sizes, np.int64) if sizes else None,
    ]
    return op_case("Interp", attrs, inputs, constant=[1, 2, 3], rtol=tolerance, atol=tolerance)


@op_cases
def interp_sizes() -> Iterator[Case]:
    """Every mode and convention, to larger, smaller and single elements, by sizes and scales."""
    sizes = ((2, 3, 11, 5), (2, 3, 3, 13), (2, 3, 1, 1), (2, 3, 7, 9), (2, 3, 5, 16))
    plain = [mode for mode in COORDINATE_MODES if not mode.startswith("tf")]
    for mode, coordinates, size in product(MODES, plain, sizes):
        yield _resize(InterpAttrs(mode, coordinates), floats(2, 3, 5, 7), size)
    for mode, scales in product(MODES, ((1, 1, 0.6, 0.7), (1, 1, 2.3, 1.5), (1, 1, 2, 3))):
        yield _resize(InterpAttrs(mode), floats(1, 3, 4, 7), scales=scales)
    for policy in ("not_larger", "not_smaller"):
        attrs = InterpAttrs("linear", axes=(2, 3), keep_aspect_ratio_policy=policy)
        yield _resize(attrs, floats(1, 2, 3, 5), (7, 8))


@op_cases
def interp_nearest() -> Iterator[Case]:
    """Every way to round, on every kind of element."""
    conventions = ("half_pixel", "asymmetric", "align_corners")
    types = ("float32", "int64", "uint8", "bool")
    for nearest, coordinates, dtype in product(NEAREST_MODES, conventions, types):
        attrs = InterpAttrs("nearest", coordinates, nearest)
        yield _resize(attrs, _plain(dtype, 1, 3, 5, 7), (1, 3, 11, 4))


@op_cases
def interp_axes() -> Iterator[Case]:
    """Any axes in any order, any rank, empty tensors, and sizes that stay."""
    axes: tuple[Ints, ...] = (
        (0,), (1,), (3,), (0, 3), (1, 2), (3, 1), (0, 1, 2), (-1, -4, 1),
    )  # fmt: skip
    for mode, chosen in product(MODES, axes):
        yield _resize(InterpAttrs(mode, axes=chosen), floats(2, 3, 5, 8), (7, 4, 5)[: len(chosen)])
    shapes: tuple[Ints, ...] = (
        (5,), (3, 5), (2, 3, 5), (1, 2, 3, 2, 3), (2, 1, 2, 2, 1, 2, 3),
    )  # fmt: skip
    for mode, shape in product(MODES, shapes):
        sizes = [size + index % 3 for index, size in enumerate(shape)]
        yield _resize(InterpAttrs(mode), floats(*shape), sizes)
    for shape, sizes in (((0, 3), [0, 5]), ((2, 3), [0, 3]), ((2, 0), [3, 0])):
        yield _resize(InterpAttrs("linear"), floats(*shape), sizes)
    yield _resize(InterpAttrs("cubic"), floats(1, 2, 5, 7), (1, 2, 5, 7))


@op_cases
def interp_smooth() -> Iterator[Case]:
    """Options of the cubic filter; antialiasing, with long sums; float16."""
    for exclude, a in product((False, True), (-0.5, -0.75)):
        attrs = InterpAttrs("cubic", cubic_coeff_a=a, exclude_outside=exclude)
        yield _resize(attrs, floats(1, 3, 5, 7), (1, 3, 11, 4))
    shrinking = ((1, 1, 0.6, 0.3), (1, 1, 0.5, 2.5), (0.5, 0.4, 0.3, 0.2))
    for mode, scales, exclude in product(("linear", "cubic"), shrinking, (False, True)):
        attrs = InterpAttrs(mode, antialias=True, exclude_outside=exclude)
        yield _resize(attrs, floats(3, 5, 11, 17), scales=scales)
    yield _resize(InterpAttrs("linear", antialias=True), floats(2, 50_021), (2, 1))
    for mode in MODES:
        halves = floats(1, 2, 5, 7).astype(np.float16)
        yield _resize(InterpAttrs(mode), halves, (1, 2, 8, 3), tolerance=2e-3)


@op_cases
def interp_crop() -> Iterator[Case]:
    """Crops that reach beyond the image; an extrapolated element in a sum would show."""
    roi = (0, -0.2, 0.4, -0.2, 1, 1, 0.6, 1.3)
    sizes = ((1, 3, 3, 3), (1, 3, 7, 2), (1, 2, 3, 3))
    for mode, size, antialias in product(MODES, sizes, (False, True)):
        smooth = antialias and mode != "nearest"
        attrs = InterpAttrs(mode, "tf_crop_and_resize", extrapolation_value=1e30, antialias=smooth)
        yield _resize(attrs, floats(1, 3, 13, 17), size, roi=roi)
    roi = (0, 0, 0.4, -0.2, 1, 1, 0.6, 1.3)
    for dtype, mode, antialias in (
        ("uint8", "nearest", False), ("uint8", "linear", False), ("uint8", "linear", True),
        ("int32", "nearest", False),
    ):  # fmt: skip
        attrs = InterpAttrs(
            mode, "tf_crop_and_resize", extrapolation_value=9.5, antialias=antialias
        )
        yield _resize(attrs, _plain(dtype, 1, 1, 13, 17), (1, 1, 4, 3), roi=roi)


# Shapes and grids of one and of three axes, and of axes of one and two elements.
_OTHER_AXES: tuple[tuple[Ints, Ints], ...] = (
    ((2, 5, 7), (2, 11, 1)),
    ((1, 3, 3, 1, 4), (1, 2, 3, 5, 3)),
    ((1, 3, 1, 2), (1, 5, 7, 2)),
)


@shader_cases("grid_sample")
def grid_sample(variant: Variant) -> Iterator[Case]:
    """All modes and paddings; points at elements, between them, at the border and far outside."""
    half_steps = np.arange(-9, 16) / 2
    for mode, padding, align in product(MODES, GRID_PADDING_MODES, (False, True)):
        attrs = GridSampleAttrs(mode, padding, align)
        rtol, atol = (0.0, 0.0) if mode == "nearest" else (1e-5, 3e-6)
        rows, columns = (
            half_steps / (size - 1) * 2 - 1 if align else (2 * half_steps + 1) / size - 1
            for size in (3, 4)
        )
        # Exact halves, which both sides round alike, and arbitrary points.
        exact = np.stack(np.meshgrid(columns[::2], rows[::2]), -1)
        points = np.random.default_rng(1).uniform(-2.3, 2.3, (2, 13, 13, 2))
        points[0] = exact if mode != "nearest" else points[0]
        yield op_case(
            "GridSample",
            attrs,
            [floats(2, 6, 3, 4), points.astype(np.float32)],
            rtol=rtol,
            atol=atol,
        )
    for padding, align in product(GRID_PADDING_MODES, (False, True)):
        for mode, (shape, size) in product(("linear", "nearest"), _OTHER_AXES):
            attrs = GridSampleAttrs(mode, padding, align)
            rtol, atol = (0.0, 0.0) if mode == "nearest" else (1e-5, 3e-6)
            where = np.random.default_rng(1).uniform(-2.3, 2.3, size).astype(np.float32)
            yield op_case("GridSample", attrs, [floats(*shape), where], rtol=rtol, atol=atol)
    wild = f32([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.1])
    grid = np.stack(np.meshgrid(wild, wild), -1)[None]
    nearest = GridSampleAttrs("nearest")
    yield op_case("GridSample", nearest, [floats(1, 3, 5, 5), grid], rtol=0, atol=0)
    where = np.random.default_rng(2).uniform(-1.2, 1.2, (1, 3, 5, 2)).astype(np.float32)
    for dtype in ("int32", "int64", "uint8", "bool", "float16"):
        image = integers(1, 5, 4, 3, low=0).astype(dtype)
        yield op_case("GridSample", nearest, [image, where], rtol=0, atol=0)
    yield op_case("GridSample", nearest, [floats(0, 3, 4, 3), where[:0]])


def _grid(*shape: int) -> AnyArray:
    return np.random.default_rng(1).uniform(-1.7, 1.7, shape).astype(np.float32)


def _sampled(attrs: GridSampleAttrs, x: AnyArray, grid: AnyArray, tolerance: float = 1e-4) -> Case:
    return op_case("GridSample", attrs, [x, grid], rtol=tolerance, atol=tolerance)


_GRID_KINDS = tuple(product(MODES, GRID_PADDING_MODES, (False, True)))


@op_cases
def grid_sample_modes() -> Iterator[Case]:
    """Every mode and padding over one to three axes; at elements, between them, far outside."""
    shapes: tuple[tuple[Ints, Ints], ...] = (
        ((2, 3, 5, 7), (2, 4, 3, 2)),
        ((1, 6, 1, 5), (1, 13, 1, 2)),
        ((1, 1, 1, 1), (1, 3, 3, 2)),
        ((2, 5, 7), (2, 11, 1)),
        ((2, 5, 3, 4, 5), (2, 3, 2, 4, 3)),
    )
    size = 8
    along = np.arange(-3 * size, 5 * size + 1) / 2
    for mode, padding, align in _GRID_KINDS:
        attrs = GridSampleAttrs(mode, padding, align)
        for shape, points in shapes:
            yield _sampled(attrs, floats(*shape), _grid(*points))
        where = along / (size - 1) * 2 - 1 if align else (2 * along + 1) / size - 1
        exact = np.stack(np.meshgrid(where, where), -1)[None].astype(np.float32)
        yield _sampled(attrs, floats(1, 2, size, size), exact)


@op_cases
def grid_sample_operands() -> Iterator[Case]:
    """Integers, float16, constants, nothing."""
    for dtype in ("int32", "int64", "uint8", "bool"):
        x = integers(1, 5, 5, 7, low=0, high=99).astype(dtype)
        yield _sampled(GridSampleAttrs("nearest"), x, _grid(1, 3, 4, 2))
    for mode in MODES:
        x = floats(1, 5, 5, 7).astype(np.float16)
        yield _sampled(GridSampleAttrs(mode), x, _grid(1, 3, 4, 2).astype(np.float16), 3e-3)
    for known in (0, 1):
        inputs = [floats(1, 5, 5, 7), _grid(1, 3, 4, 2)]
        yield op_case("GridSample", GridSampleAttrs(), inputs, constant=[known])
    empty: tuple[tuple[Ints, Ints], ...] = (
        ((0, 3, 5, 5), (0, 2, 2, 2)),
        ((1, 3, 5, 5), (1, 0, 2, 2)),
        ((1, 0, 5, 5), (1, 2, 2, 2)),
    )
    for shape, points in empty:
        yield _sampled(GridSampleAttrs(), floats(*shape), _grid(*points))
