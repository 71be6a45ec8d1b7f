"""Layers between pairs of QuantizeLinear and DequantizeLinear, as quantisation tools write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn_suite.fuzz.recipes.quantized import BYTES, SCALES, ZEROS
from vkmnn_suite.fuzz.recipes.table import pattern
from vkmnn_suite.fuzz.recipes.windows import geometry, groups, image
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, Spread


class Codes:
    """How a tensor is quantised: a scale, a zero point, an element type.

    `fixed`: scale and zero point are constants, as passes require to keep values quantised.
    """

    def __init__(self, s: Sketch, *, fixed: bool = False) -> None:
        self._s = s
        self.dtype = s.choose("uint8", "int8")
        self.scale = s.weight("float32", [], SCALES)
        self.zero = s.weight(self.dtype, [], ZEROS[self.dtype])
        if fixed:
            self.scale = s.parameter(self.scale.array, "float32", 1.0)
            self.zero = s.parameter(self.zero.array, self.dtype, 1.0)

    def __call__(self, x: Value) -> Value:
        """Quantize and dequantize."""
        codes = self._s.one("QuantizeLinear", x, self.scale, self.zero)
        return self._s.one("DequantizeLinear", codes, self.scale, self.zero)


def _convolved(s: Sketch, x: Value, codes: Codes) -> Value:
    """Convolve with quantised constants, by tensor or by channel, and clamp."""
    dtype = s.choose("int8", "int8", "uint8")
    kernel, attributes = geometry(s, x.shape[2:])
    group = groups(s, x.shape[1])
    filters = group * s.size(5)
    by_channel = s.chance(0.5)
    shape = [filters] if by_channel else []
    w = s.parameter(s.weight(dtype, [filters, x.shape[1] // group, *kernel], BYTES[dtype]).array,
                    dtype, constant=1.0)  # fmt: skip
    scale = s.parameter(s.weight("float32", shape, SCALES).array, "float32", constant=1.0)
    zero = s.parameter(np.zeros(shape) if dtype == "int8" else np.full(shape, 130), dtype, 1.0)
    axis: dict[str, Any] = {"axis": 0} if by_channel else {}
    operands = [x, s.one("DequantizeLinear", w, scale, zero, **axis)]
    if s.chance(0.6):
        bias = s.parameter(s.weight("int32", [filters], Spread(-900, 900)).array, "int32", 1.0)
        unit = s.parameter(np.multiply(codes.scale.array, scale.array), "float32", 1.0)
        operands.append(s.one("DequantizeLinear", bias, unit, **axis))
    y = s.one("Conv", *operands, group=group, **attributes)
    return s.one("Relu", y) if s.chance(0.4) else y


def _padded(s: Sketch, x: Value) -> Value:
    sizes = s.parameter([0, 0, *(s.choose(0, 1, 2) for _ in range(2)), 0, 0, 0, s.choose(0, 1)])
    fill = s.parameter(s.choose(0.0, 0.0, 0.25), "float32") if s.chance(0.5) else None
    return s.one("Pad", x, sizes, fill)


def _resized(s: Sketch, x: Value) -> Value:
    factors = s.parameter([1, 1, s.choose(1, 2), 2], "float32")
    ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return s.one("Resize", x, None, factors, **ways)


def _gathered(s: Sketch, x: Value) -> Value:
    places = s.parameter([s.rng.randrange(x.shape[1]) for _ in range(s.choose(1, 3, 8))])
    return s.one("Gather", x, places, axis=1)


def _parted(s: Sketch, x: Value) -> Value:
    first = s.rng.randint(0, x.shape[1])
    sizes = s.parameter([first, x.shape[1] - first])
    parts = s.node("Split", [x, sizes], 2, axis=1)
    return parts[1] if first < x.shape[1] else parts[0]


_MOVES: dict[str, Callable[[Sketch, Value], Value]] = {
    "transpose": lambda s, x: s.one("Transpose", x, perm=[0, 1, 3, 2]),
    "pad": _padded,
    "resize": _resized,
    "gather": _gathered,
    "part": _parted,
}


def _joined(s: Sketch, x: Value, codes: Codes) -> Value:
    """Join two tensors along the channels: of one scale, or of two."""
    again = codes if s.chance(0.3) else Codes(s)
    parts = [x, again(s.one("Neg", x))]
    return s.one("Concat", *(parts if s.chance(0.5) else parts[::-1]), axis=1)


@pattern
def quantized_layers(s: Sketch) -> None:
    """Convolutions, moves and sums of quantised values, one after the other."""
    if not s.since(13):
        raise Skip
    codes = Codes(s)
    x = codes(image(s, "float32", 2, FINITE))
    for _ in range(s.choose(1, 2, 3)):
        step = s.choose("convolve", "convolve", "move", "move", "pool", "add", "join")
        if step == "move":
            x = codes(_MOVES[s.rng.choice(sorted(_MOVES))](s, x))
        elif step == "join":
            y = _joined(s, x, codes)
            codes = codes if s.chance(0.2) else Codes(s)
            x = codes(y)
        elif step == "pool":
            kernel, attributes = geometry(s, x.shape[2:])
            attributes.pop("dilations", None)
            x = codes(s.one("MaxPool", x, kernel_shape=kernel, **attributes))
        elif step == "add":
            other, codes = codes(s.one("Neg", x)), Codes(s)
            y = s.one("Add", x, other)
            x = codes(s.one("Relu", y) if s.chance(0.5) else y)
        else:
            y, codes = _convolved(s, x, codes), Codes(s)
            x = codes(y)


def _mask(s: Sketch, queries: int, keys: int) -> Value:
    """Return a mask: of keys after the query, of some keys, or of any."""
    hidden = s.choose(-2.0, -30.0, -1e4)
    rows, columns = np.indices((queries, keys))
    last, cut = s.rng.randrange(keys), s.rng.randrange(1, 4)
    shown = {"later": columns <= rows, "last": columns <= last, "any": (rows + columns) % cut == 0}
    return s.parameter(np.where(shown[s.choose("later", "later", "last", "any")], 0.0, hidden),
                       "float32")  # fmt: skip


@pattern
def quantized_attention(s: Sketch) -> None:
    """Quantised products around a quantised Softmax, with or without a mask."""
    if not s.since(13):
        raise Skip
    heads, queries, keys = s.choose(1, 2, 3), s.size(9), s.size(40)
    depth, width = s.size(9), s.size(9)

    def codes(x: Value) -> Value:
        return Codes(s, fixed=s.chance(0.95))(x)

    q, k, v = (
        codes(s.fresh("float32", [heads, *sizes], FINITE))
        for sizes in ((queries, depth), (keys, depth), (keys, width))
    )
    scores = codes(s.one("MatMul", q, s.one("Transpose", k, perm=[0, 2, 1])))
    if s.chance(0.4):
        factor = s.parameter(s.choose(0.125, 0.75), "float32", 1.0)
        scores = codes(s.one("Mul", scores, factor))
    if s.chance(0.7):
        scores = codes(s.one("Add", scores, _mask(s, queries, keys)))
    weights = codes(s.one("Softmax", scores, axis=-1))
    codes(s.one("MatMul", weights, v))


@pattern
def dynamic_products(s: Sketch) -> None:
    """Products of dynamically quantised operands, with scales, bias, residual, activation."""
    rows, depth = [*s.choose([], [s.size(3)]), s.size(40)], s.size(40)
    x = s.fresh("float32", [*rows, depth], FINITE)
    codes, scale, zero = s.node("DynamicQuantizeLinear", [x], 3)
    for _ in range(s.choose(1, 1, 3)):
        dtype, columns = s.choose("int8", "uint8"), s.size(40)
        w = s.parameter(s.weight(dtype, [depth, columns], BYTES[dtype]).array, dtype, 1.0)
        point = s.parameter(s.weight(dtype, [], ZEROS[dtype]).array, dtype, 1.0)
        each = s.choose([], [1], [columns])
        factor = s.parameter(s.weight("float32", each, SCALES).array, "float32", 0.9)
        sums = s.one("Cast", s.one("MatMulInteger", codes, w, zero, point), to=1)
        both = s.one("Mul", *s.choose((scale, factor), (factor, scale)))
        y = s.one("Mul", *s.choose((sums, both), (both, sums)))
        if s.chance(0.6):
            y = s.one("Add", y, s.weight("float32", [columns], FINITE))
        if s.chance(0.4):
            y = s.one("Relu", y)
        if s.chance(0.4):
            s.one("Add", y, s.fresh("float32", [*rows, columns], FINITE))


@pattern
def dynamic_convolutions(s: Sketch) -> None:
    """Convolutions of operands quantised by their own range, with all possible epilogues."""
    x = image(s, "float32", s.choose(1, 2, 2), FINITE)
    for _ in range(s.choose(1, 2)):
        codes, scale, zero = s.node("DynamicQuantizeLinear", [x], 3)
        kernel, attributes = geometry(s, x.shape[2:])
        group = groups(s, x.shape[1])
        filters, dtype = group * s.size(9), s.choose("int8", "uint8")
        shape = [filters, x.shape[1] // group, *kernel]
        w = s.parameter(s.weight(dtype, shape, BYTES[dtype]).array, dtype, 1.0)
        point = s.parameter(s.weight(dtype, [], ZEROS[dtype]).array, dtype, 1.0)
        sums = s.one("ConvInteger", codes, w, zero, point, group=group, **attributes)
        each = s.choose([], [1], [filters, *[1] * len(kernel)])
        factor = s.parameter(s.weight("float32", each, SCALES).array, "float32", 0.9)
        x = s.one("Mul", s.one("Cast", sums, to=1), s.one("Mul", scale, factor))
        if s.chance(0.6):
            x = s.one("Add", x, s.weight("float32", [1, filters, *[1] * len(kernel)], FINITE))
        if s.chance(0.3):
            x = s.one("Add", x, s.one("Neg", x))
        if s.chance(0.4):
            x = s.one("Relu", x)
