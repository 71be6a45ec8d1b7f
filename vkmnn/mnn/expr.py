"""MNN.expr, as far as it carries data in and out of modules: Var, const, placeholder, convert."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array
from vkmnn.mnn.tensor import (
    Tensor_DimensionType_Caffe,
    Tensor_DimensionType_Tensorflow,
    converted,
    reordered,
)


class data_format(IntEnum):  # noqa: N801 - MNN's name
    """The order of a Var's axes; NC4HW4 has the shape of NCHW."""

    NCHW = 0
    NHWC = 1
    NC4HW4 = 2


class dtype(IntEnum):  # noqa: N801 - MNN's name
    """The type of a Var's elements."""

    float = 0
    double = 1
    int = 2
    uint8 = 3
    int64 = 4
    int8 = 5


class Backend(IntEnum):
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


class PrecisionMode(IntEnum):
    """MNN's precisions by number."""

    Normal = 0
    High = 1
    Low = 2
    Low_BF16 = 3


class MemoryMode(IntEnum):
    """MNN's levels of memory by number."""

    Normal = 0
    High = 1
    Low = 2


class PowerMode(IntEnum):
    """MNN's levels of power by number."""

    Normal = 0
    High = 1
    Low = 2


NCHW, NHWC, NC4HW4 = data_format.NCHW, data_format.NHWC, data_format.NC4HW4

_NUMPY = {
    dtype.float: "float32",
    dtype.double: "float64",
    dtype.int: "int32",
    dtype.uint8: "uint8",
    dtype.int64: "int64",
    dtype.int8: "int8",
}
_NAMES = {name: number for number, name in _NUMPY.items()}


def dtype_of(name: str) -> dtype:
    """Return MNN's type for elements with this numpy name; int for types that MNN lacks."""
    return _NAMES.get(name, dtype.int)


class Var:
    """An array with an order of axes."""

    def __init__(
        self, array: Array, format: data_format = data_format.NCHW, name: str = ""
    ) -> None:
        self._array = array
        self._format = format
        self.name = name

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes."""
        return list(self._array.shape)

    @property
    def data_format(self) -> data_format:
        """The order of the axes."""
        return self._format

    @property
    def dtype(self) -> dtype:
        """The type of the elements; int for types that MNN lacks."""
        return dtype_of(self._array.dtype.name)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._array.ndim

    @property
    def valid(self) -> bool:
        """True: there are no Vars without data."""
        return True

    @property
    def _order(self) -> int:
        last = self._format is data_format.NHWC
        return Tensor_DimensionType_Tensorflow if last else Tensor_DimensionType_Caffe

    def read(self) -> Array:
        """Return the data as an array."""
        return self._array

    def read_as_tuple(self) -> tuple[Any, ...]:
        """Return the elements in one flat tuple."""
        return tuple(self._array.reshape(-1).tolist())

    def write(self, data: Any) -> bool:
        """Set the data: as many elements as the Var has.

        Raises:
            InvalidInputError: another number, or of another kind.
        """
        array = np.asarray(data)
        if array.size != self._array.size:
            raise InvalidInputError(
                f"a Var of shape {tuple(self.shape)} does not take {array.size} elements"
            )
        self._array = converted(array, self._array.dtype, "a Var").reshape(self._array.shape)
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the data, as numpy asks for it."""
        array: Array = np.array(self._array, dtype, copy=copy) if copy else self._array
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        """Return the first size."""
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        """Return a part as a Var, or an element as a number."""
        part = self._array[key]
        return Var(part, self._format) if isinstance(part, np.ndarray) else part.item()

    def __repr__(self) -> str:
        """Return the data as numpy shows it."""
        return repr(self._array)


def const(
    value_list: Any,
    shape: Sequence[int] = (),
    data_format: data_format = NCHW,
    dtype: dtype = dtype.float,
) -> Var:
    """Return a Var of values: a list, a tuple, an array, a number or bytes.

    Raises:
        InvalidInputError: the values do not fill the shape.
    """
    numpy_type = np.dtype(_NUMPY[dtype])
    if isinstance(value_list, bytes):
        array = np.frombuffer(value_list, numpy_type)
    else:
        array = converted(np.asarray(value_list), numpy_type, "a Var")
    if shape:
        try:
            array = array.reshape(tuple(shape))
        except ValueError as error:
            raise InvalidInputError(
                f"{array.size} values do not fill a Var of shape {tuple(shape)}"
            ) from error
    return Var(np.array(array), data_format)


def placeholder(
    shape: Sequence[int] = (), data_format: data_format = NCHW, dtype: dtype = dtype.float
) -> Var:
    """Return a Var of zeros to write to."""
    return Var(np.zeros(tuple(shape), _NUMPY[dtype]), data_format)


def convert(x: Var, format: data_format) -> Var:
    """Return the Var with its axes in another order."""
    target = Var(x.read(), format)._order
    return Var(np.ascontiguousarray(reordered(x.read(), x._order, target)), format, x.name)


def __getattr__(name: str) -> Any:
    """Return members of enumerations by name: `expr.float`, `expr.VULKAN`, `expr.High`, ….

    Names of types would hide Python's own in this module.
    """
    for members in (dtype, Backend, PrecisionMode):
        if name in members.__members__:
            return members[name]
    raise AttributeError(
        f"module 'vkmnn.mnn.expr' has no attribute '{name}': it carries data in and out of "
        "modules, and computes nothing; use numpy"
    )
