"""Element types of tensors."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt


class DType(enum.Enum):
    """An element type; the value is numpy's name of it."""

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
    OBJECT = "object"
    """What only the host holds: strings, sequences, optionals, elements of other types."""

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Return the numpy dtype."""
        return np.dtype(self.value)

    @property
    def onnx(self) -> str:
        """Return the type of a tensor of such elements as ONNX writes it: "tensor(float)"."""
        return f"tensor({_ONNX_NAMES.get(self.value, self.value)})"

    @property
    def is_float(self) -> bool:
        """True for the floating-point types."""
        return self.value.startswith("float")

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return "int" in self.value

    @classmethod
    def from_numpy(cls, dtype: npt.DTypeLike) -> DType:
        """Return the element type of a numpy dtype.

        Raises:
            ValueError: numpy's type has no counterpart (strings, complex numbers).
        """
        return cls(np.dtype(dtype).name)


_ONNX_NAMES = {"float32": "float", "float64": "double"}
