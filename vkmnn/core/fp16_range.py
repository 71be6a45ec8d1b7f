"""Range analysis for float16: numbers, constants, and results of elementwise ops."""

from __future__ import annotations

import numpy as np

from vkmnn.ir import Array, DType

FP16_MAX = 65504.0
FP16_MIN_NORMAL = 2.0**-14  # smaller numbers have fewer digits

BINARY_KINDS = frozenset({"ADD", "SUB", "MUL", "DIV", "MIN", "MAX", "PRELU"})
"""Kinds of BinaryOp that may be stored as float16."""

FULL_UNARY_KINDS = frozenset(
    {
        "RECIPROCAL", "RSQRT", "SQUARE", "EXP", "LOG", "TAN", "ASIN", "ACOS", "ATAN", "SINH",
        "COSH", "ASINH", "ACOSH", "ATANH", "ISNAN", "ISINF",
    }
)  # fmt: skip
"""Kinds of UnaryOp whose results exceed the range for ordinary operands, and rare ones."""

STEP_KINDS = frozenset(
    {
        "ADD", "SUB", "MUL", "MIN", "MAX", "PRELU", "GREATER", "GREATER_EQUAL", "LESS",
        "LESS_EQUAL", "EQUAL", "ABS", "FLOOR", "CEIL", "ROUND", "SIGN", "SIGMOID", "TANH",
        "MUL_ADD", "CLIP", "SELECT",
    }
)  # fmt: skip
"""Kinds of Elementwise steps whose results stay in the range about as well as their values do."""

_WIDE_RANGE = (DType.BFLOAT16.value, DType.FLOAT8E8M0.value)  # that of float32


def to_fp16(array: Array) -> Array:
    """Return floats as float16; finite ones beyond its range become its largest."""
    if array.dtype == np.float16:
        return array
    finite = np.isfinite(array)
    return np.where(finite, np.clip(array, -FP16_MAX, FP16_MAX), array).astype(np.float16)


def fits_fp16(array: Array, *, clamped: bool = False) -> bool:
    """Return whether float16 holds an element-wise operand: no overflow, no scalar near zero.

    Args:
        array: the operand.
        clamped: what is too large may become the largest fp16 number.
    """
    if array.dtype.name in _WIDE_RANGE:
        return False
    if array.dtype.kind != "f" or array.size == 0:
        return True
    size = np.abs(array[np.isfinite(array)])
    if size.size and size.max() > FP16_MAX and not clamped:
        return False
    return array.size > 1 or not size.size or size[0] == 0 or bool(size[0] >= FP16_MIN_NORMAL)


def exceeds_fp16(array: Array | None) -> bool:
    """Return whether a constant has finite numbers beyond the range of float16."""
    if array is None or array.dtype.kind != "f":
        return False
    return bool((np.isfinite(array) & (np.abs(array) > FP16_MAX)).any())


def divides_fp16(divisor: Array | None) -> bool:
    """Return whether quotients by an operand, None where it is computed, stay in the range."""
    if divisor is None:
        return False
    size = np.abs(divisor)
    return bool(((size == 0) | (size >= FP16_MIN_NORMAL)).all())
