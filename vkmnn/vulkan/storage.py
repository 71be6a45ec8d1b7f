"""Storage of tensors on a Vulkan device: element types and sizes, plain or channel-blocked.

Plain Vulkan 1.1 has no 8-, 16- or 64-bit storage, so every element takes four bytes: floats are
float32, integers and bool are int32. Wider integers pass a range check on upload. If a device has
16-bit storage, floats may take two bytes (`Tensor.element`). Quantised values that ops exchange may
take one, four to a word (`Tensor.codes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.errors import IntegerRangeError
from vkmnn.ir import (
    NARROW_FLOATS,
    NARROW_INTEGERS,
    Array,
    DType,
    Layout,
    storage_elements,
)

ELEMENT_BYTES = 4
CODE_BYTES = 1
FLOAT_BYTES = {name: stored.bytes for name, stored in FLOATS.items()}
"""Bytes of a float by how it is stored."""
# Buffers are read as vec4 and bound at this alignment or a coarser one that the device asks for.
VECTOR_BYTES = 16

_KERNEL_DTYPES = {
    DType.FLOAT32: "f32",
    DType.FLOAT16: "f32",
    DType.INT8: "i32",
    DType.UINT8: "i32",
    DType.INT16: "i32",
    DType.UINT16: "i32",
    DType.INT32: "i32",
    DType.UINT32: "i32",
    DType.INT64: "i32",
    DType.UINT64: "i32",
    DType.BOOL: "i32",
    DType.FLOAT8E8M0: "f32",
    **dict.fromkeys(NARROW_FLOATS, "f32"),
    **dict.fromkeys(NARROW_INTEGERS, "i32"),
}
_STORAGE = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}
_INT32 = np.iinfo(np.int32)

WeightElement = FloatElement | Literal["w8"]
"""The same if weights may be bytes, and all else is 32-bit floats: `w8`."""
CodeElement = WeightElement | Literal["c8"]
"""The same where activations may be bytes as well: `c8`."""
Element = FloatElement | Literal["i32"]
"""Stored elements: the axis `element` of kernels."""


def stored_element(tensor: Tensor) -> Element:
    """Return the stored type of a tensor's elements."""
    return "i32" if kernel_dtype(tensor.dtype) == "i32" else tensor.element


def kernel_dtype(dtype: DType) -> str | None:
    """Return the element type in kernels, "f32" or "i32", or None for types without storage."""
    return _KERNEL_DTYPES.get(dtype)


def storage_dtype(dtype: DType) -> np.dtype[np.generic]:
    """Return numpy's name of the stored element type; `dtype` must have one."""
    return _STORAGE[_KERNEL_DTYPES[dtype]]


def stored_dtype(tensor: Tensor) -> np.dtype[np.generic]:
    """Return numpy's name of the tensor's elements on the device; its type must have storage."""
    if tensor.element != "f32":
        return FLOATS[tensor.element].dtype
    return storage_dtype(tensor.dtype)


def element_bytes(tensor: Tensor) -> int:
    """Return the bytes of one of the tensor's elements on the device."""
    return FLOAT_BYTES[tensor.element] if tensor.codes is None else CODE_BYTES


def storage_bytes(tensor: Tensor) -> int:
    """Return the bytes of the tensor on the device: whole vec4s, at least one."""
    # Planning asks several times per op, so it calls nothing except for other layouts.
    shape = tensor.shape
    plain = tensor.layout is Layout.NCHW
    elements = prod(shape) if plain else storage_elements(shape, tensor.layout)
    size = elements * (FLOAT_BYTES[tensor.element] if tensor.codes is None else CODE_BYTES)
    return -(-size // VECTOR_BYTES) * VECTOR_BYTES or VECTOR_BYTES


def vec4_count(tensor: Tensor) -> int:
    """Return the number of vec4s of the tensor; 0 if it is empty.

    A kernel that processes these treats every element alike, whatever its position.
    """
    return storage_bytes(tensor) // (4 * element_bytes(tensor)) if 0 not in tensor.shape else 0


def reject_integers(tensors: Iterable[Tensor | None]) -> None:
    """Raise Rejection for integer tensors of a kernel that computes floats."""
    for tensor in tensors:
        if tensor is not None and kernel_dtype(tensor.dtype) != "f32":
            raise Rejection(
                f"the kernel computes with floats, '{tensor.name}' is {tensor.dtype.value}"
            )


def beyond_range(array: Array) -> int | None:
    """Return an integer of the array that int32 cannot represent; None if there is none."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4 or array.size == 0:
        return None
    if array.dtype == np.int32:
        return None
    low, high = int(array.min()), int(array.max())
    if low < _INT32.min:
        return low
    return high if high > _INT32.max else None


def check_range(array: Array, name: str) -> None:
    """Refuse integers that int32 cannot represent.

    Raises:
        IntegerRangeError: a value is outside int32.
    """
    value = beyond_range(array)
    if value is not None:
        raise IntegerRangeError(
            f"tensor '{name}' holds {value}, outside the 32-bit integers that the device "
            "computes with",
            hint='run this network with device="cpu", which keeps 64-bit integers',
        )


def to_storage(array: Array, name: str) -> Array:
    """Return the array in its stored element type.

    Raises:
        IntegerRangeError: an integer does not fit int32.
    """
    check_range(array, name)
    return array.astype(storage_dtype(DType.from_numpy(array.dtype)), copy=False)


def pack_nc4hw4(array: Array) -> Array:
    """Return [N, C, *S] as [ceil(C/4), N, prod(S), 4] with zero tail lanes."""
    batch, channels = array.shape[:2]
    blocks = -(-channels // 4)
    padded = np.zeros((batch, blocks * 4, int(np.prod(array.shape[2:]))), array.dtype)
    padded[:, :channels] = array.reshape(batch, channels, -1)
    return np.ascontiguousarray(padded.reshape(batch, blocks, 4, -1).transpose(1, 0, 3, 2))


def write_view(view: npt.NDArray[np.generic], array: Array, name: str) -> None:
    """Copy a host array into a mapped tensor of the stored type, checking the range of integers."""
    check_range(array, name)
    np.copyto(view, array, casting="unsafe")


def read_view(view: npt.NDArray[np.generic], dtype: DType) -> Array:
    """Return a new host array of the tensor's own dtype from its stored form."""
    if dtype is DType.BOOL:
        result: Array = np.not_equal(view, 0, out=np.empty(view.shape, np.bool_))
        return result
    return view.astype(dtype.numpy, copy=True)
