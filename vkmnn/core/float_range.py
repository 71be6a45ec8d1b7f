"""Range analysis of stored floats: numbers, constants, and results of elementwise ops."""

from __future__ import annotations

import numpy as np

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.ir import Array, DType

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


def to_element(array: Array, element: FloatElement) -> Array:
    """Return floats as they are stored; finite ones beyond the range become its largest."""
    stored = FLOATS[element]
    if array.dtype == stored.dtype:
        return array
    if not stored.overflows:
        return array.astype(stored.dtype)
    inside = np.clip(array, -stored.largest, stored.largest)
    return np.where(np.isfinite(array), inside, array).astype(stored.dtype)


def fits(array: Array, element: FloatElement, *, clamped: bool = False) -> bool:
    """Return whether an element holds an element-wise operand: no overflow, no scalar near zero.

    Args:
        array: the operand.
        element: how it would be stored.
        clamped: values that are too large may become the largest number.
    """
    stored = FLOATS[element]
    if array.dtype.name in _WIDE_RANGE:
        return not stored.overflows
    if array.dtype.kind != "f" or array.size == 0:
        return True
    size = np.abs(array[np.isfinite(array)])
    if stored.overflows and size.size and size.max() > stored.largest and not clamped:
        return False
    return array.size > 1 or not size.size or size[0] == 0 or bool(size[0] >= stored.least_normal)


def exceeds(array: Array | None, element: FloatElement) -> bool:
    """Return whether a constant has finite numbers beyond the range of an element."""
    if array is None or array.dtype.kind != "f" or not FLOATS[element].overflows:
        return False
    return bool((np.isfinite(array) & (np.abs(array) > FLOATS[element].largest)).any())


def divides(divisor: Array | None, element: FloatElement) -> bool:
    """Return whether quotients by an operand, None where it is computed, stay in the range."""
    if divisor is None:
        return False
    size = np.abs(divisor)
    return bool(((size == 0) | (size >= FLOATS[element].least_normal)).all())
