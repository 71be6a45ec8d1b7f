"""BinaryOp, Select, Cast, Scale and Elementwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required, widen
from vkmnn.cpu_fallback.unary import activate, unary
from vkmnn.errors import InvalidInputError
from vkmnn.ir import NARROW_FLOATS, NARROW_INTEGERS, DType, Op
from vkmnn.ir.ops import (
    COMPARISON_KINDS,
    BinaryAttrs,
    BitCastAttrs,
    CastAttrs,
    ElementwiseAttrs,
    ScaleAttrs,
    StridedBinaryAttrs,
)


def truncated_division(a: AnyArray, b: AnyArray) -> AnyArray:
    """Integer division toward zero, as C and ONNX divide; x / 0 is 0."""
    quotient = a // b
    inexact = (quotient * b != a) & (b != 0)
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype))


def _divide(a: AnyArray, b: AnyArray) -> AnyArray:
    return np.asarray(a / b) if a.dtype.kind == "f" else truncated_division(a, b)


def _power(a: AnyArray, b: AnyArray) -> AnyArray:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b, dtype=np.result_type(a.dtype, b.dtype)))
    if b.dtype.kind == "f" or (b < 0).any():
        return np.asarray(np.power(a.astype(np.float64), b))
    # A large exponent must not wrap into a small type; the result may, as in C.
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return np.asarray(np.power(a.astype(wide), b.astype(wide)))


def _prelu(a: AnyArray, b: AnyArray) -> AnyArray:
    return np.where(a >= 0, a, a * b)


_FUNCTIONS: dict[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": _divide,
    "POW": _power,
    "MOD": np.mod,
    "FMOD": np.fmod,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRELU": _prelu,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "XOR": np.logical_xor,
    "BIT_AND": np.bitwise_and,
    "BIT_OR": np.bitwise_or,
    "BIT_XOR": np.bitwise_xor,
}


@cpu_execution("BinaryOp")
def _binary_op(op: Op[BinaryAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    function = _FUNCTIONS.get(attrs.kind)
    if function is None:
        raise InvalidInputError(f"binary kind '{attrs.kind}' is unknown")
    a, b = required(inputs, 0), required(inputs, 1)
    if isinstance(attrs, StridedBinaryAttrs):
        a, b = (_viewed(array, attrs, number) for number, array in enumerate((a, b)))
    result = np.asarray(function(widen(a), widen(b)))
    if attrs.kind in COMPARISON_KINDS:
        return [result]
    return [activate(result, attrs.activation).astype(a.dtype, copy=False)]


def _viewed(array: AnyArray, attrs: StridedBinaryAttrs, number: int) -> AnyArray:
    array = np.ascontiguousarray(array)
    steps = [step * array.itemsize for step in attrs.strides[number]]
    return np.lib.stride_tricks.as_strided(array, attrs.shape, steps, writeable=False)


@cpu_execution("Select")
def _select(op: Op, inputs: Inputs) -> list[AnyArray]:
    condition, a, b = (required(inputs, index) for index in range(3))
    return [np.where(condition.astype(np.bool_, copy=False), a, b)]


_STEPS: dict[str, Callable[..., AnyArray]] = {
    "MUL_ADD": lambda a, b, c: a * b + c,
    "CLIP": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "SELECT": lambda condition, a, b: np.asarray(np.where(condition != 0, a, b)),
}


def _step(kind: str, values: list[AnyArray]) -> AnyArray:
    if kind in _STEPS:
        return _STEPS[kind](*values)
    if len(values) == 1:
        return unary(kind, values[0])
    return np.asarray(_FUNCTIONS[kind](*values))


@cpu_execution("Elementwise")
def _elementwise(op: Op[ElementwiseAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    values = [widen(required(inputs, index)) for index in range(len(inputs))]
    dtype = values[0].dtype
    shape = np.broadcast_shapes(*(value.shape for value in values))
    numbers = [dtype.type(number) for number in attrs.numbers]
    for step in attrs.steps:
        taken = [np.asarray(values[v] if v >= 0 else numbers[-1 - v]) for v in step.values]
        values.append(_step(step.kind, taken).astype(dtype, copy=False))
    result = np.broadcast_to(values[-1], shape)
    return [result.astype(required(inputs, 0).dtype, copy=False)]


def cast(x: AnyArray, to: DType, saturate: bool = True, round_mode: str = "up") -> AnyArray:
    """Convert as ONNX Cast does; integers that do not fit wrap around."""
    dtype = to.numpy
    if x.dtype == dtype:
        return x
    source = DType.from_numpy(x.dtype)
    if source.is_narrow:
        x = x.astype(np.float32 if source.is_float else np.int32)
    if to is DType.FLOAT8E8M0:
        return _power_of_two(x, saturate, round_mode)
    if to in NARROW_FLOATS:
        return _narrow_float(x, to, saturate)
    if to in NARROW_INTEGERS:
        return (x.astype(np.int64) if x.dtype.kind == "f" else x).astype(dtype)
    if x.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 8:
        # Straight from float to a small type is undefined in C; through int64 it wraps everywhere.
        return x.astype(np.int64).astype(dtype)
    return x.astype(dtype, copy=False)


def _narrow_float(x: AnyArray, to: DType, saturate: bool) -> AnyArray:
    """Round to the nearest number of a format, ties to even."""
    if saturate and to is not DType.BFLOAT16:
        largest = NARROW_FLOATS[to].largest
        x = np.clip(x, -largest, largest)
    return x.astype(to.numpy)


def _power_of_two(x: AnyArray, saturate: bool, mode: str) -> AnyArray:
    """Return the exponents of floats as FLOAT8E8M0, whatever their signs; infinity gives NaN."""
    bits = x.astype(np.float32).view(np.uint32)
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if mode == "nearest":
        half = np.uint32(0x400000)
        up = (fraction > half) | ((fraction == half) & (exponent > 0))
    else:
        up = (fraction > 0) & (mode == "up")
    highest = 0xFE if saturate else 0xFF
    rounded = np.minimum(exponent + up, highest)
    codes = np.where(exponent == 0xFF, 0xFF, rounded).astype(np.uint8)
    return codes.view(DType.FLOAT8E8M0.numpy)


@cpu_execution("Cast")
def _cast(op: Op[CastAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    return [cast(required(inputs, 0), attrs.to, attrs.saturate, attrs.round_mode)]


@cpu_execution("BitCast")
def _bit_cast(op: Op[BitCastAttrs], inputs: Inputs) -> list[AnyArray]:
    return [np.ascontiguousarray(x := required(inputs, 0)).view(op.attrs.to.numpy).reshape(x.shape)]


@cpu_execution("Scale")
def _scale(op: Op[ScaleAttrs], inputs: Inputs) -> list[AnyArray]:
    x, scale, bias = (widen(required(inputs, index)) for index in range(3))
    channel = (-1,) + (1,) * (x.ndim - 2)
    result = x * scale.reshape(channel) + bias.reshape(channel)
    result = activate(result, op.attrs.activation)
    return [result.astype(required(inputs, 0).dtype, copy=False)]
