"""MNN.expr's enumerations, and numpy's types for its own."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array


class _Named(IntEnum):
    """Numbers that show themselves by name, as MNN's do: dtype.float."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __repr__ = __str__


class data_format(_Named):  # noqa: N801 - MNN's name
    """The order of a Var's axes; NC4HW4 has the shape of NCHW."""

    NCHW = 0
    NHWC = 1
    NC4HW4 = 2


class dtype(_Named):  # noqa: N801 - MNN's name
    """The type of a Var's elements."""

    float = 0
    double = 1
    int = 2
    uint8 = 3
    int64 = 4
    int8 = 5


class Backend(_Named):
    """MNN's backends by number."""

    CPU = 0
    METAL = 1
    CUDA = 2
    OPENCL = 3
    AUTO = 4
    NN = 5
    OPENGL = 6
    VULKAN = 7
    HIAI = 8
    TRT = 9


class PrecisionMode(_Named):
    """MNN's precisions by number."""

    Normal = 0
    High = 1
    Low = 2
    Low_BF16 = 3


class MemoryMode(_Named):
    """MNN's levels of memory by number."""

    Normal = 0
    High = 1
    Low = 2


class PowerMode(_Named):
    """MNN's levels of power by number."""

    Normal = 0
    High = 1
    Low = 2


class Padding_Mode(_Named):  # noqa: N801 - MNN's name
    """How a convolution or a pooling pads: by its argument, not at all, or to keep the size."""

    CAFFE = 0
    VALID = 1
    SAME = 2


class PadValue_Mode(_Named):  # noqa: N801 - MNN's name
    """What `pad` fills in."""

    CONSTANT = 0
    REFLECT = 1
    SYMMETRIC = 2


class Pooling_Mode(_Named):  # noqa: N801 - MNN's name
    """What a pooling takes of its window."""

    MAXPOOL = 0
    AVEPOOL = 1


class Interp_Method(_Named):  # noqa: N801 - MNN's name
    """How `crop_and_resize` interpolates."""

    BILINEAR = 0
    NEAREST = 1


NCHW, NHWC, NC4HW4 = data_format.NCHW, data_format.NHWC, data_format.NC4HW4

NUMPY = {
    dtype.float: "float32",
    dtype.double: "float64",
    dtype.int: "int32",
    dtype.uint8: "uint8",
    dtype.int64: "int64",
    dtype.int8: "int8",
}
_NAMES = {name: number for number, name in NUMPY.items()}

MEMBERS: dict[str, IntEnum] = {
    name: member
    for kind in (
        *(Pooling_Mode, Padding_Mode, PadValue_Mode, Interp_Method),
        *(dtype, Backend, PrecisionMode),
    )
    for name, member in kind.__members__.items()
}
"""Members by name, which are also attributes of MNN.expr."""


def dtype_of(name: str) -> dtype:
    """Return MNN's type for elements with this numpy name; int for types that MNN lacks."""
    return _NAMES.get(name, dtype.int)


def numpy_type(kind: Any) -> np.dtype[Any]:
    """Return numpy's type for a type of MNN's, or for anything that numpy accepts as one."""
    return np.dtype(NUMPY[kind]) if isinstance(kind, dtype) else np.dtype(kind)


def narrowed(array: Array, like: tuple[Array, ...] = ()) -> Array:
    """Return an array in one of MNN's types.

    64-bit results become 32-bit ones, unless an array in `like` has 64 bits itself.
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" and size != 4:
        wide = size == 8 and any(one.dtype == np.float64 for one in like)
        return array if wide else array.astype(np.float32)
    if kind == "b" or (kind in "iu" and array.dtype.name not in _NAMES):
        return array.astype(np.int32)
    if array.dtype == np.int64 and not any(one.dtype == np.int64 for one in like):
        return array.astype(np.int32)
    return array
