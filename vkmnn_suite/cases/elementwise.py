"""Cases of `binary`, `select` and `cast`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from vkmnn.core.float_range import BINARY_KINDS
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import NARROW_FLOATS, Activation, DType, Op
from vkmnn.ir.ops import BIT_KINDS, BinaryAttrs, CastAttrs, OpAttrs
from vkmnn.shaders import kernels
from vkmnn.testing.case import Case, Variant, blocked_case, op_case, shader_cases
from vkmnn.testing.shapes import SHAPES, f32, floats, i32, integers, whole
from vkmnn.vulkan.broadcast import plan_plain

Shape = tuple[int, ...]

# Shapes of two operands: flat ones, and some that alternate over all six axes that kernels have.
PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    ((0,), (1,)),
    ((3, 211), (3, 211)),
    ((2, 1, 5, 1, 3, 4), (1, 3, 1, 2, 1, 4)),
    ((2, 1, 4, 1, 2, 1), (1, 3, 1, 5, 1, 8)),
    ((1, 3, 1, 5, 1, 8), (2, 1, 4, 1, 2, 1)),
    ((2, 1, 5, 1, 3, 1), (1, 3, 1, 2, 1, 5)),
    ((1, 3, 1, 2, 1, 5), (2, 1, 5, 1, 3, 1)),
)
# Fewer axes: the same code with other specialization constants. Tested for one kind.
MORE_PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((1,), (1,)),
    ((7,), (7,)),
    ((3, 0, 5), (5,)),
    ((13,), ()),
    ((1,), (3, 5, 7)),
    ((5, 12), (12,)),
    ((5, 1), (5, 12)),
    ((3, 1, 4), (1, 7, 4)),
    ((2, 1, 3, 1, 4), (1, 5, 1, 2, 4)),
    ((1, 5, 1, 4), (2, 1, 3, 4)),
    ((2, 3, 5), (5,)),
    ((3, 1, 5), (1, 7, 5)),
    ((11, 1), (7,)),
)
# Shapes in channel blocks, the larger one first: like ones, a value per channel, and per pixel.
BLOCKED_PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((2, 8, 3, 5), (2, 1, 3, 5)),
    ((2, 5, 3), (2, 5, 3)),
    ((2, 8, 3, 5), (1, 8, 1, 1)),
    ((1, 4, 2, 3), (1, 1, 1, 1)),
)
ACTIVATIONS = (
    Activation("RELU"),
    Activation("CLIP", -0.5, 0.75),
    Activation("LEAKY_RELU", 0.1),
    Activation("SIGMOID"),
    Activation("SILU"),
    Activation("GELU"),
    Activation("GELU_TANH"),
    Activation("HARD_SIGMOID", 0.2, 0.5),
    Activation("HARD_SWISH"),
    Activation("TANH"),
    Activation("ELU", 0.7),
    Activation("SOFTPLUS"),
    Activation("QUICK_GELU", 1.702),
)
# Relative error of float kinds that are not exact.
_RTOL = {"DIV": 4e-7, "POW": 4e-6}
_CHECKED = ("ADD", "SUB", "MUL", "POW")
_LOGIC = ("AND", "OR", "XOR")
_COMPARISONS = ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
_OVERFLOW = "does not fit the 32-bit integers"
_EXTREMES = np.array([-(2**31), 1 - 2**31, -46341, -46340, -2, -1, 0, 1, 2, 3, 46340, 46341,
                      2**30, 2**31 - 2, 2**31 - 1], np.int64)  # fmt: skip


def result_shape(*shapes: Shape) -> Shape:
    """Return the shape that these broadcast to."""
    return np.broadcast_shapes(*shapes)


def has_width(width: int, *shapes: Shape) -> bool:
    """Return whether elementwise kernels accept these shapes with vectors of this many words."""
    return plan_plain(shapes, result_shape(*shapes)).width == width


def operands_of(kind: str, dtype: str, a: Shape, b: Shape) -> tuple[AnyArray, AnyArray]:
    """Return operands on which the kind is defined and its branches differ."""
    if dtype == "i32":
        x, y = integers(*a), integers(*b, seed=1)
        if kind == "POW":
            x, y = integers(*a, low=-6, high=6), integers(*b, seed=1, low=0, high=9)
        return x, y
    x, y = floats(*a, scale=3), floats(*b, seed=1, scale=3)
    if kind in _COMPARISONS:
        return np.round(x), np.round(y)
    if kind == "POW":
        return np.asarray(np.abs(x) + np.float32(0.01)), y
    if kind in ("DIV", "MOD", "FMOD"):
        y = np.asarray(y + np.copysign(np.float32(0.1), y))
    return x, y


def _special(kind: str, dtype: str) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield pairs, each of which takes a different branch."""
    if dtype == "i32":
        if kind in ("DIV", "MOD", "FMOD"):
            values = np.array([-7, -6, -3, -2, -1, 0, 1, 2, 3, 6, 7], np.int32)
            yield values[:, None], values
            extremes = np.array([-(2**31), 1 - 2**31, 2**31 - 1], np.int32)
            yield extremes[:, None], np.append(values, extremes)
        elif kind == "POW":
            yield np.array([[-2], [-1], [1], [2], [3]], np.int32), np.arange(-3, 8, dtype=np.int32)
            yield i32([0, 46340, -46340, 2, 15, -8]), i32([0, 2, 2, 30, 7, 10])
        elif kind in BIT_KINDS:
            values = np.array([0, 1, -1, 0x55555555, 0x0F0F0F0F, 2**31 - 1, -(2**31)], np.int32)
            yield values[:, None], values
        elif kind in ("AND", "OR", "XOR"):
            yield np.array([[False], [True]]), np.array([False, True])
            yield i32([0, 0, 1, 2, 2, 4]), i32([0, 1, 0, 1, 2, 3])
        return
    if kind == "POW":
        yield (
            f32([[0.0], [-0.0], [1.0], [-1.0], [2.0], [-2.5], [0.3], [np.inf], [-np.inf]]),
            f32([0, 1, -1, 2, 3, -3, 7, 0.5, -0.5, 31, 32, -32, 33, 0.3, np.inf]),
        )
        yield f32([np.nan, 2, 1, np.nan, -1.001]), f32([2, np.nan, np.nan, 0.7, 901])
    if kind in ("MOD", "FMOD"):
        values = f32([-7.5, -6, -2, -0.3, 0.3, 2, 6, 7.5, 1e6 + 0.0625])
        yield np.concatenate([values, [np.float32(0), np.float32(-0.0)]])[:, None], values
        yield f32([16777215, 1e6, 3, -3, 0.7]), f32([0.7, 0.1, np.inf, -np.inf, 0.1])
        yield f32([[1e4], [-1e4], [12345.678]]), floats(63, seed=5) + np.float32(3.1)
        # Quotients too large for a float to resolve; the largest number is still one.
        far = f32([[1.0], [-np.finfo(np.float32).max], [1e20], [16777217.0]])
        yield far, f32([1e-30, -0.7, 3, -1e-8, 1.7e-37])
        # Divisors with the least exponent of normal numbers; the remainders are normal as well.
        yield f32([2.9e-38, 4.8e-38]), f32([1.6e-38, 1.8e-38])
    if kind in ("MIN", "MAX"):
        values = f32([np.nan, -np.inf, -1, 0, 2, np.inf])
        yield values[:, None], values
    if kind == "PRELU":
        yield f32([-2, -0.5, 0, 0.5, 2, -3]), f32([0.25, -1, 7, 9, 3, 2])


def _overflows(kind: str, dtype: str) -> Iterator[Case]:
    """Yield int64 operands whose result just fits, and some whose result just does not."""
    if dtype != "i32" or kind not in _CHECKED:
        return
    a, b = (side.reshape(-1) for side in np.meshgrid(_EXTREMES, _EXTREMES))
    if kind == "POW":
        keep = (b >= 0) & (b < 40) & (np.abs(a) < 50_000)
        a, b = a[keep], b[keep]
    exact = {"ADD": a + b, "SUB": a - b, "MUL": a * b, "POW": a ** np.maximum(b, 0)}[kind]
    fits = (exact >= -(2**31)) & (exact < 2**31)
    attrs = BinaryAttrs(kind)
    yield op_case("BinaryOp", attrs, [a[fits], b[fits]])
    neutral = np.full(1, kind in ("MUL", "POW"), np.int64)
    yield op_case("BinaryOp", attrs, [a[fits][:, None], neutral])
    beyond = np.flatnonzero(~fits & (np.abs(exact) < 2**33))
    for place, index in enumerate(beyond[:: max(1, len(beyond) // 6)]):
        x, y = np.ones(9, np.int64), np.ones(9, np.int64)
        x[place % 9], y[place % 9] = a[index], b[index]
        yield op_case("BinaryOp", attrs, [x, y], raises=_OVERFLOW)
    x, y = np.full((3, 3), 1, np.int64), np.full((3, 1), 1, np.int64)
    x[2, 2], y[2, 0] = a[beyond[0]], b[beyond[0]]
    yield op_case("BinaryOp", attrs, [x, y], raises=_OVERFLOW)


def _stored(kind: str, dtype: str) -> Iterator[AnyArray]:
    """Yield a left operand of every element type that the kernel's words can represent."""
    if dtype == "f32":
        yield whole(3, 8, low=1).astype(np.float16)
        return
    for name in ("int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"):
        yield integers(3, 8, low=1).astype(name)
    if kind in ("AND", "OR", "XOR", "EQUAL"):
        yield integers(3, 8) > 0


@shader_cases("binary")
def binary(variant: Variant) -> Iterator[Case]:
    """Every way to broadcast; the branches of each kind; overflows; fused activations."""
    logic = _LOGIC if variant.dtype == "i32" else ()
    if variant.axes["form"] == "test":
        kinds: Iterable[str] = (*_COMPARISONS, *logic)
    else:
        others = {*_COMPARISONS, *_LOGIC, *(BIT_KINDS if variant.dtype == "f32" else ())}
        kinds = kernels.Binary.__members__.keys() - others
    for kind in sorted(kinds):
        if variant.floats == "f32" or kind in BINARY_KINDS:
            yield from (_image_cases if variant.images else _cases)(kind, variant)


_IMAGE_PAIRS: tuple[tuple[Shape, Shape, bool], ...] = (
    ((2, 8, 3, 5), (2, 8, 3, 5), False),
    ((2, 8, 3, 5), (2, 8, 1, 1), False),
    ((3, 12, 2, 5), (1, 12, 2, 1), False),
    ((2, 8, 3, 5), (2, 1, 3, 5), False),
    ((2, 8, 3, 5), (), True),
    ((2, 8, 3, 5), (8, 1, 1), True),
    ((2, 8, 3, 5), (2, 8, 3, 5), True),
    ((1, 9, 1, 6000), (1, 9, 1, 1), False),
    ((1, 9, 1, 6000), (1, 9, 1, 6000), True),
    ((2, 7, 11), (2, 7, 1), False),
)
"""Operands in images, the second constant or not; the last lanes of some are empty."""


def _image_cases(kind: str, variant: Variant) -> Iterator[Case]:
    pairs = _IMAGE_PAIRS if kind in ("ADD", "MUL") else _IMAGE_PAIRS[:5:2]
    for a, b, fixed in pairs:
        x, y = operands_of(kind, "f32", a, b)
        constant = [1] if fixed or (kind == "DIV" and variant.floats != "f32") else []
        rtol = _RTOL.get(kind, 0.0)
        attrs = BinaryAttrs(kind)
        yield blocked_case("BinaryOp", attrs, [x, y], constant=constant, rtol=rtol, atol=0)
    if kind == "ADD":
        for activation in ACTIVATIONS[:4]:
            inputs = [floats(2, 8, 3, 5), floats(2, 8, 3, 5, seed=1)]
            attrs = BinaryAttrs(kind, activation)
            yield blocked_case("BinaryOp", attrs, inputs, rtol=2e-6, atol=1e-6)


def _cases(kind: str, variant: Variant) -> Iterator[Case]:
    dtype, width = variant.dtype, int(variant.axes["width"])
    attrs = BinaryAttrs(kind)
    rtol = _RTOL.get(kind, 0.0)
    logical = kind in _LOGIC
    # In fp16, only quotients by constants are fp16.
    constant = [1] if kind == "DIV" and variant.floats != "f32" else []

    def case(a: AnyArray, b: AnyArray) -> Case:
        return op_case("BinaryOp", attrs, [a, b], constant=constant, rtol=rtol, atol=0)

    with np.errstate(all="ignore"):
        for a, b in PAIRS + MORE_PAIRS * (kind == "ADD"):
            if has_width(width, a, b):
                x, y = operands_of(kind, dtype, a, b)
                yield case(x > 0, y > 0) if logical else case(x, y)
        for x, y in _special(kind, dtype):
            if width == 4:  # flat, which always processes four at a time
                yield case(*(side.reshape(-1) for side in np.broadcast_arrays(x, y)))
            else:  # with a broadcast axis of odd size at the end
                yield case(x[..., None], np.repeat(y[..., None], 5, -1))
        for x in _stored(kind, dtype):
            y = np.asarray(x[:, :1] if width == 4 else x[:1, :7])
            if kind == "SUB" and x.dtype in (np.uint32, np.uint64):
                x = x + x.max()  # below zero, the device raises instead
            yield case(x if width == 4 else np.asarray(x[:, :7]), y)
        yield from _overflows(kind, dtype)
        if width == 4:
            # Pooling does not accept bools.
            blocked = () if kind in _COMPARISONS or logical else BLOCKED_PAIRS
            for a, b in blocked if kind == "ADD" else blocked[:1]:
                x, y = operands_of(kind, dtype, a, b)
                fixed = [1] if dtype == "i32" else constant
                yield blocked_case("BinaryOp", attrs, [x, y], constant=fixed, rtol=rtol, atol=0)
        if kind == "ADD" and dtype == "f32":
            x = np.linspace(-9, 9, 77, dtype=np.float32).reshape(7, 11)
            x = np.concatenate([x, np.float32(0.01) * x], 1)
            y = f32([0.0078125]) if width == 4 else np.zeros(22, np.float32)
            for activation in ACTIVATIONS:
                fused = BinaryAttrs(kind, activation)
                yield op_case("BinaryOp", fused, [x, y], rtol=2e-6, atol=1e-6)


SELECT_SHAPES: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((), (), ()),
    ((0,), (1,), ()),
    ((7,), (7,), (7,)),
    ((3, 211), (3, 211), ()),
    ((), (13,), (13,)),
    ((5, 1), (5, 12), (12,)),
    ((5, 12), (5, 1), (1, 12)),
    ((12,), (5, 12), (5, 1)),
    ((2, 1, 5, 1, 3, 1), (1, 3, 5, 1, 1, 8), (2, 3, 1, 1, 3, 8)),
    ((1, 3, 5, 2, 1, 8), (2, 1, 5, 1, 3, 8), (2, 3, 5, 2, 3, 1)),
    ((2, 1, 3, 1, 8), (1, 5, 1, 2, 8), (2, 1, 1, 2, 1)),
    ((2, 1, 3, 8), (1, 5, 1, 8), (2, 5, 1, 1)),
    ((2, 1, 8), (1, 5, 8), (2, 5, 1)),
    ((3, 5), (5,), (3, 1)),
    ((2, 3, 1), (1, 3, 5), (2, 1, 5)),
    ((2, 1, 5, 1, 3, 1), (1, 3, 5, 1, 1, 5), (2, 3, 1, 1, 3, 5)),
    ((2, 3, 1, 2, 3, 8), (2, 1, 5, 1, 3, 1), (1, 3, 5, 2, 1, 8)),
    ((1, 3, 5, 2, 1, 5), (2, 1, 5, 1, 3, 5), (2, 3, 5, 2, 3, 1)),
    ((2, 1, 3, 1, 5), (1, 5, 1, 2, 5), (2, 1, 1, 2, 1)),
    ((2, 1, 3, 5), (1, 5, 1, 5), (2, 5, 1, 1)),
)


@shader_cases("select")
def select(variant: Variant) -> Iterator[Case]:
    """Every way to broadcast three operands, and every element type."""
    width = int(variant.axes["width"])
    for c, a, b in SELECT_SHAPES:
        if has_width(width, c, a, b):
            condition = integers(*c) > 0
            yield op_case("Select", OpAttrs(), [condition, floats(*a, seed=1), floats(*b, seed=2)])
    for name in ("float16", "int8", "uint8", "uint16", "int32", "int64", "uint64", "bool"):
        x = integers(4, 7 if width == 1 else 8, low=0).astype(name)
        y = x[:1, ::-1].copy()
        yield op_case("Select", OpAttrs(), [integers(4, 1) > 0, x, y], rtol=0, atol=0)
    if width == 4:
        condition = integers(2, 8, 3, low=0, high=1)
        operands = [condition, floats(2, 8, 3), floats(1, 8, 1, seed=1)]
        yield blocked_case("Select", OpAttrs(), operands, rtol=0, atol=0)


# By kernel type: element types from which, and to which, a cast can convert.
_SOURCES = {
    "f32": ("float32", "float16"),
    "i32": ("int32", "int8", "uint8", "int16", "uint16", "int64", "uint32", "uint64", "bool"),
}
_DESTS = {
    "f32": ("float32",),
    "f16": ("float16",),
    "bool": ("bool",),
    "i32": ("int32", "int8", "uint8", "int16", "uint16", "int64", "uint32"),
    "narrow": (*(dtype.value for dtype in NARROW_FLOATS), DType.FLOAT8E8M0.value),
}


def _values(source: str, dest: str) -> Iterator[AnyArray]:
    """Yield numbers that every step of a conversion treats differently."""
    if source == "float32":
        yield f32([-2.9, -2.5, -1.5, -0.5, -0.0, 0.0, 0.4, 0.5, 0.99, 1.0, 1.5, 2.5, 300.7])
        if dest == "float16":
            # float16 numbers on both sides of ties, subnormal, the largest, and beyond.
            bits = np.arange(0x3F7FE800, 0x3F804000, 0x800, dtype=np.uint32)
            near = np.concatenate([bits - 1, bits, bits + 1]).view(np.float32)
            yield near
            yield -near
            yield near * np.float32(2**-14)
            yield near * np.float32(2**-20)
            yield near * np.float32(2**-24)
            yield f32([65503, 65504, 65519, 65520, 65521, 1e6, -65519.9, -65520, 2**-25,
                              1.5 * 2**-25, 2**-26, np.inf, -np.inf, np.nan,
                              3.4028235e38])  # fmt: skip
        elif dest == "bool":
            yield f32([np.nan, np.inf, 1e-30, -1e-30, 0.0, -0.0, 1e-40, -1e-45])
        elif dest in ("int32", "int64"):
            yield f32([2147483520.0, -2147483648.0, -2147483520.0])
        elif dest in ("uint8", "int8", "uint16", "int16"):
            yield f32([127, 128, 255, 256, 511, 32767, 32768, 65535, 65536, 70001, -200.0])
    elif source in ("int32", "int64"):
        edges = [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1]
        numbers = np.array([*edges, -(2**31)], source)
        yield np.abs(edges).astype(source) if dest in ("uint32", "uint64") else numbers
        if dest in ("float16", "float32"):
            yield np.array([2047, 2049, 2051, 4095, 4097, 4098, 16777217, 16777219], source)


_WIDE = {"f32": "float32", "f16": "float32", "narrow": "float32", "i32": "int64"}


def _widened(case: Case, dtype: str) -> Case:
    """Cast the result of a case again, to a type that shows the value on the device.

    The host would round or wrap a value that it reads as a narrow type.
    """
    graph = case.graph
    (out,) = graph.outputs
    wide = DType(dtype)
    if out.dtype in (wide, DType.BOOL, DType.UINT32):
        return case
    widen = Op("Cast", "widen", [out.name], ["wide"], CastAttrs(wide))
    result = replace(out, name="wide", dtype=wide)
    return replace(case, graph=replace(graph, ops=[*graph.ops, widen], outputs=[result]))


def _around(dtype: DType) -> AnyArray:
    """Return floats equal to, next to and halfway between a format's numbers, and special ones."""
    bits = 16 if dtype is DType.BFLOAT16 else 8
    codes = np.arange(0, 1 << bits, 1 if bits == 8 else 97)
    if dtype is DType.FLOAT4E2M1:
        codes = np.arange(16)
    numbers = codes.astype(f"u{bits // 8}").view(dtype.numpy).astype(np.float32)
    numbers = np.sort(np.abs(numbers[np.isfinite(numbers)]))
    middles = numbers[1:] / np.float32(2) + numbers[:-1] / np.float32(2)
    exact = np.concatenate([numbers, middles])
    beside = np.concatenate([np.nextafter(exact, np.float32(9e9)), np.nextafter(exact, f32([0]))])
    # A device may flush values between zero and the smallest normal number to zero.
    found = np.concatenate([exact, beside])
    found = found[(found == 0) | (found >= np.float32(2**-126))]
    found = np.concatenate([found, found[-1:] * np.float32(1.001), f32([1e9, 3e38, np.inf])])
    return np.concatenate([found, -found, f32([] if dtype is DType.FLOAT4E2M1 else [np.nan])])


def _narrow(source: str) -> Iterator[Case]:
    """Floats of at most one byte: every number, ties, values that are too large or too small."""
    for name in _DESTS["narrow"]:
        dtype = DType(name)
        modes = ("up", "down", "nearest") if dtype is DType.FLOAT8E8M0 else ("up",)
        for saturate, mode in product((True, False), modes):
            attrs = CastAttrs(dtype, saturate, mode)
            x = integers(3, 211, low=-70_000, high=70_000)
            if source == "f32":
                x = _around(dtype)
                if dtype is DType.FLOAT8E8M0:
                    # Zero becomes the smallest power, which is subnormal in 32 bits.
                    x = np.concatenate([np.abs(floats(257, scale=9)), np.abs(x), f32([0])])
            for kind in _SOURCES[source][:1]:
                case = op_case("Cast", attrs, [x.astype(kind)], rtol=0, atol=0)
                yield _widened(case, "float32")
        for shape in SHAPES:
            attrs = CastAttrs(dtype)
            x = np.abs(floats(*shape, scale=9) if source == "f32" else integers(*shape))
            yield op_case("Cast", attrs, [x], rtol=0, atol=0)


def _small_integers() -> Iterator[Case]:
    """Integers of less than a byte: higher bits fall away."""
    for name in ("int4", "uint4", "int2", "uint2"):
        x = np.arange(-20, 37, dtype=np.int32)
        case = op_case("Cast", CastAttrs(DType(name)), [x], rtol=0, atol=0)
        yield _widened(case, "int32")
        few = x.astype(DType(name).numpy)
        for dest in (DType.INT8, DType.FLOAT32):
            yield op_case("Cast", CastAttrs(dest), [few], rtol=0, atol=0)


@shader_cases("cast")
def cast(variant: Variant) -> Iterator[Case]:
    """All pairs of element types that the kernel serves."""
    source, dest = str(variant.axes["source"]), str(variant.axes["dest"])
    if dest == "narrow":
        yield from _narrow(source)
        return
    if source == "i32" and dest == "i32":
        yield from _small_integers()
    with np.errstate(all="ignore"):
        for index, (first, second) in enumerate(product(_SOURCES[source], _DESTS[dest])):
            if first == second:
                continue
            attrs = CastAttrs(DType(second))
            arrays = [*_values(first, second), integers(*SHAPES[index % len(SHAPES)], low=0)]
            for x in arrays:
                case = op_case("Cast", attrs, [x.astype(first)], rtol=0, atol=0)
                yield _widened(case, _WIDE.get(dest, second))
        first, second = _SOURCES[source][0], _DESTS[dest][-1]
        low = 0 if second == "uint32" else -9
        for shape in SHAPES:
            plain = floats(*shape, scale=9) if source == "f32" else integers(*shape, low=low)
            x = plain.astype(first)
            if first != second:
                yield op_case("Cast", CastAttrs(DType(second)), [x], rtol=0, atol=0)
        blocked = np.abs(whole(2, 5, 3)).astype(first)  # pooling does not accept bools
        if first != second and second != "bool":
            yield blocked_case("Cast", CastAttrs(DType(second)), [blocked], rtol=0, atol=0)
    if source == "f32" and dest == "i32":
        for place, value in enumerate([2147483648.0, -2147483904.0, np.inf, 1e20]):
            x = np.ones(7, np.float32)
            x[6 - place] = value
            yield op_case("Cast", CastAttrs(DType.INT64), [x], raises=_OVERFLOW)
    if source == dest == "i32":
        for signed, wide in product(("int8", "int32", "int64"), (DType.UINT32, DType.UINT64)):
            x = np.array([3, 2, 1, 0, -1], signed)
            yield op_case("Cast", CastAttrs(wide), [x[:4]], rtol=0, atol=0)
            yield op_case("Cast", CastAttrs(wide), [x], raises=_OVERFLOW)
