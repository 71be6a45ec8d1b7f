"""Element types of tensors."""

from __future__ import annotations

import enum
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass


class DType(enum.Enum):
    """An element type; the value is numpy's name for it."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT4E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"
    OBJECT = "object"
    """Host-only values: strings, sequences, optionals, unsupported element types."""

    # Members are singletons that every run looks up; `Enum` hashes their names in Python.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Return the numpy dtype; ml_dtypes provides those that numpy lacks."""
        found = _NUMPY.get(self)
        if found is None:
            found = _NUMPY[self] = _numpy_dtype(self)
        return found

    @property
    def onnx(self) -> str:
        """Return ONNX's name of a tensor type with these elements: "tensor(float)"."""
        return f"tensor({_ONNX_NAMES.get(self.value, self.value)})"

    @property
    def is_float(self) -> bool:
        """True for the floating-point types."""
        return "float" in self.value

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return "int" in self.value

    @property
    def is_narrow(self) -> bool:
        """True for types that numpy lacks: they can be stored and cast; few ops accept them."""
        return self in NARROW_FLOATS or self in NARROW_INTEGERS or self is DType.FLOAT8E8M0

    @property
    def limits(self) -> tuple[int, int]:
        """Return the minimum and maximum of an integer type."""
        if self in NARROW_INTEGERS:
            bits, signed = NARROW_INTEGERS[self]
            return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        found = np.iinfo(self.value)
        return int(found.min), int(found.max)

    @classmethod
    def from_numpy(cls, dtype: npt.DTypeLike) -> DType:
        """Return the element type of a numpy dtype.

        Raises:
            ValueError: numpy's type has no counterpart (strings, complex numbers).
        """
        found = _FROM_NUMPY.get(dtype) if isinstance(dtype, np.dtype) else None
        if found is None:
            kind = np.dtype(dtype)
            found = _FROM_NUMPY[kind] = cls(kind.name)
        return found


_NUMPY: dict[DType, np.dtype[np.generic]] = {}
_FROM_NUMPY: dict[np.dtype[np.generic], DType] = {}


def _numpy_dtype(dtype: DType) -> np.dtype[np.generic]:
    if dtype.is_narrow:
        import ml_dtypes

        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, dtype.value))
        return found
    return np.dtype(dtype.value)


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A float format narrower than float16, as a subset of float32.

    Attributes:
        mantissa: bits of the fraction.
        smallest: exponent of the smallest normal number.
        largest: the largest number.
        overflow: result of larger numbers if casts do not saturate.
        saturates: larger numbers always become the largest, whatever a cast specifies.
        signed_zero: whether zero has a sign.
    """

    mantissa: int
    smallest: int
    largest: float
    overflow: float = np.nan
    saturates: bool = False
    signed_zero: bool = True


NARROW_FLOATS = {
    DType.BFLOAT16: FloatFormat(7, -126, float.fromhex("0x1.fep127"), np.inf),
    DType.FLOAT8E4M3FN: FloatFormat(3, -6, 448.0),
    DType.FLOAT8E4M3FNUZ: FloatFormat(3, -7, 240.0, signed_zero=False),
    DType.FLOAT8E5M2: FloatFormat(2, -14, 57344.0, np.inf),
    DType.FLOAT8E5M2FNUZ: FloatFormat(2, -15, 57344.0, signed_zero=False),
    DType.FLOAT4E2M1: FloatFormat(1, 0, 6.0, saturates=True),
}
NARROW_INTEGERS = {
    DType.INT4: (4, True),
    DType.UINT4: (4, False),
    DType.INT2: (2, True),
    DType.UINT2: (2, False),
}
"""Integers narrower than a byte: bits, and whether they are signed."""


def has_narrow_types() -> bool:
    """True if ml_dtypes is installed, as it is with onnx 1.19 and later."""
    return find_spec("ml_dtypes") is not None


_ONNX_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}
