"""MNN's Tensor: an array with a Halide type and an order of its axes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, DType
from vkmnn.mnn.codes import NoDataError


@dataclass(frozen=True, slots=True)
class HalideType:
    """The type of a Tensor's elements."""

    name: str
    dtype: str

    def __repr__(self) -> str:
        """Return MNN's name."""
        return f"MNN.Halide_Type_{self.name}"


Halide_Type_Double = HalideType("Double", "float64")
Halide_Type_Float = HalideType("Float", "float32")
Halide_Type_Int = HalideType("Int", "int32")
Halide_Type_Int64 = HalideType("Int64", "int64")
Halide_Type_String = HalideType("String", "str")
Halide_Type_Uint8 = HalideType("Uint8", "uint8")

Tensor_DimensionType_Tensorflow = 0
Tensor_DimensionType_Caffe = 1
Tensor_DimensionType_Caffe_C4 = 2

_DIMENSION_TYPES = ("Tensorflow", "Caffe", "Caffe_C4")

_HALIDE = {
    "float64": Halide_Type_Double,
    "int64": Halide_Type_Int64,
    "uint64": Halide_Type_Int64,
    "uint8": Halide_Type_Uint8,
    "int8": Halide_Type_Uint8,
    "bool": Halide_Type_Uint8,
    "float32": Halide_Type_Float,
    "float16": Halide_Type_Float,
}


class Tensor:
    """A tensor in host memory, or an input or output of a session.

    `Tensor(shape, type, data, order)` copies `data`: an array, a list, a tuple or bytes.
    `Tensor(shape, type, order)` holds zeros, `Tensor(tensor, order)` and `Tensor(var)` a copy.

    Axes are in the order N, C, H, W if `order` is `Tensor_DimensionType_Caffe`, and N, H, W, C if
    it is `Tensor_DimensionType_Tensorflow`; copies between the two transpose.
    `Tensor_DimensionType_Caffe_C4` is like Caffe: the device's channel packing is never visible.
    """

    def __init__(self, *arguments: Any) -> None:
        self._session: Any = None  # the Session whose input or output it is
        self._name = ""
        self._dtype: DType | None = None
        self._order = Tensor_DimensionType_Caffe
        self._shape: tuple[int, ...] = ()
        self._array: Array | None = None
        if len(arguments) in (1, 2) and not isinstance(arguments[0], tuple | list):
            self._take_copy(*arguments)
        elif len(arguments) in (3, 4):
            shape, kind, *data, order = arguments
            self._make(tuple(shape), kind, data[0] if data else None, order)
        elif arguments:
            raise InvalidInputError(
                f"a Tensor cannot be created from {len(arguments)} arguments",
                hint="write Tensor(shape, type, data, order)",
            )

    @classmethod
    def _of_session(cls, session: Any, name: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        """Return an input or output of a session."""
        tensor = cls()
        tensor._session, tensor._name, tensor._dtype = session, name, dtype
        tensor._shape = shape
        return tensor

    def _take_copy(self, source: Any, order: int | None = None) -> None:
        if isinstance(source, Tensor):
            self._order = source._order
            array = source._data()
        else:
            array = np.asarray(source.read() if hasattr(source, "read") else source)
            self._order = getattr(source, "_order", Tensor_DimensionType_Caffe)
        if order is not None and _order(order) != self._order:
            array = reordered(array, self._order, _order(order))
            self._order = order
        self._array = np.array(array, order="C")
        self._shape = self._array.shape

    def _make(self, shape: tuple[Any, ...], kind: Any, data: Any, order: int) -> None:
        if not isinstance(kind, HalideType) or kind is Halide_Type_String:
            raise InvalidInputError(
                f"a Tensor has no elements of type {kind!r}",
                hint="use MNN.Halide_Type_Float, _Double, _Int, _Int64 or _Uint8",
            )
        if not all(isinstance(size, int | np.integer) and size >= 0 for size in shape):
            raise InvalidInputError(f"{shape} is not the shape of a Tensor")
        self._order = _order(order)
        self._shape = tuple(int(size) for size in shape)
        array = np.zeros(shape, kind.dtype)
        if data is not None:
            flat = np.frombuffer(data, kind.dtype) if isinstance(data, bytes) else np.asarray(data)
            if flat.size != array.size:
                raise InvalidInputError(
                    f"{flat.size} elements do not fill a Tensor of shape {self._shape}",
                    hint=f"it takes {prod(self._shape)}",
                )
            array[...] = converted(flat, array.dtype, "a Tensor").reshape(shape)
        self._array = array

    def _data(self) -> Array:
        if self._array is None:
            raise NoDataError(
                f"tensor '{self._name}' holds no data yet",
                hint="inputs are filled by copyFrom, outputs by runSession",
            )
        return self._array

    # --- MNN's methods ---------------------------------------------------------------------------

    def getShape(self) -> tuple[int, ...]:
        """Return the shape; -1 for sizes that `resizeTensor` has to give."""
        return self._shape

    def getDataType(self) -> HalideType:
        """Return the type of the elements; that of 16-bit floats is Float."""
        name = self._dtype.value if self._dtype else self._data().dtype.name
        return _HALIDE.get(name, Halide_Type_Int)

    def getDimensionType(self) -> int:
        """Return the order of the axes."""
        return self._order

    def getDimensionFormat(self) -> int:
        """Return the order of the axes as expr's data_format numbers it."""
        return {0: 1, 1: 0, 2: 2}[self._order]

    def getNumpyData(self) -> Array:
        """Return a copy of the data."""
        copy: Array = self._data().copy()
        return copy

    def getData(self) -> tuple[Any, ...]:
        """Return the elements in one flat tuple."""
        return tuple(self._data().reshape(-1).tolist())

    def getHost(self) -> Any:
        """Return the address of the data as a PyCapsule; the Tensor has to outlive it."""
        make: Any = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(self._data().ctypes.data, None, None)

    def copyFrom(self, source: Tensor) -> bool:
        """Copy another tensor's data into this one, with its axes in this one's order.

        Returns:
            True.

        Raises:
            InvalidInputError: the shapes differ, or the elements are of another kind.
        """
        array = reordered(source._data(), source._order, self._order)
        dtype = self._dtype.numpy if self._dtype else self._data().dtype
        if array.shape != self._shape:
            if array.size != prod(self._shape) or source._order == 0 != self._order:
                raise InvalidInputError(
                    f"tensor '{self._name}' has shape {self._shape}, not {array.shape}",
                    hint="call resizeTensor and resizeSession first"
                    if self._session
                    else "make a Tensor of that shape",
                )
            array = array.reshape(self._shape)
        what = f"tensor '{self._name}'"
        self._array = np.array(converted(array, dtype, what), order="C")
        return True

    def copyFromHostTensor(self, source: Tensor) -> bool:
        """Copy another tensor's data into this one; see `copyFrom`."""
        return self.copyFrom(source)

    def fromNumpy(self, array: Any) -> None:
        """Copy an array of the tensor's shape into it.

        Raises:
            InvalidInputError: another number of elements, or of another kind.
        """
        values = np.asarray(array)
        if values.size != prod(self._shape):
            raise InvalidInputError(
                f"tensor '{self._name}' has shape {self._shape}, not {values.shape}",
                hint="call resizeTensor and resizeSession first"
                if self._session
                else "make a Tensor of that shape",
            )
        dtype = self._dtype.numpy if self._dtype else self._data().dtype
        values = converted(values, dtype, f"tensor '{self._name}'")
        self._array = np.array(values, order="C").reshape(self._shape)

    def printTensorData(self) -> None:
        """Print shape, type and elements."""
        data = self._data()
        sizes = ", ".join(map(str, self._shape))
        sys.stdout.write(f"Dimension: {sizes}; {data.dtype}\n{np.array2string(data)}\n")

    def copyToHostTensor(self, target: Tensor) -> bool:
        """Copy this tensor's data into another; see `copyFrom`."""
        return target.copyFrom(self)


def _order(order: Any) -> int:
    if order not in range(len(_DIMENSION_TYPES)):
        names = ", ".join(f"MNN.Tensor_DimensionType_{name}" for name in _DIMENSION_TYPES)
        raise InvalidInputError(f"{order!r} is not an order of axes", hint=f"use one of {names}")
    return int(order)


def reordered(array: Array, source: int, target: int) -> Array:
    """Return the array with its channels in the target's order."""
    last, second = Tensor_DimensionType_Tensorflow, Tensor_DimensionType_Caffe
    if array.ndim < 3 or (source == last) == (target == last):
        return array
    if source == last:
        return np.moveaxis(array, -1, second)
    return np.moveaxis(array, second, -1)


def converted(array: Array, dtype: np.dtype[Any], what: str) -> Array:
    """Return the array in another type of the same kind, or floats of integers.

    Raises:
        InvalidInputError: of another kind, or values that the type does not hold.
    """
    if array.dtype == dtype:
        return array
    kinds = {"b": 0, "u": 1, "i": 1, "f": 2}
    have, want = kinds.get(array.dtype.kind), kinds.get(dtype.kind)
    if have is None or want is None or have > want + (want == 0):
        raise InvalidInputError(
            f"{what} is {dtype}, got {array.dtype}", hint=f"convert it with .astype('{dtype}')"
        )
    if want == 1 and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InvalidInputError(f"{what} is {dtype}, which cannot represent all the values")
    result: Array = array.astype(dtype)
    return result


def shape_of(sizes: Sequence[int | str | None] | None) -> tuple[int, ...]:
    """Return a shape in MNN's form: an open first size is 1, other open sizes are -1."""
    return tuple(
        size if isinstance(size, int) else 1 if axis == 0 else -1
        for axis, size in enumerate(sizes or ())
    )
