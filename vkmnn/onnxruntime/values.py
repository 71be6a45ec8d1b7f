"""OrtValue, OrtDevice and the names of element types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.ir import Array, DType

ONNX_TYPES: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
"""numpy's names of onnx.TensorProto's element types."""

_DEVICE_TYPES = {
    "cpu": 0,
    "cuda": 1,
    "gpu": 1,
    "fpga": 2,
    "npu": 3,
    "cann": 3,
    "dml": 4,
    "webgpu": 5,
    "vulkan": 0,
}
_HOST = ("cpu", "vulkan")


def type_name(array: Array | DeviceTensor) -> str:
    """Return the type of an array as onnxruntime writes it: "tensor(float)"."""
    if array.dtype.kind in "USO":
        return "tensor(string)"
    try:
        return DType.from_numpy(array.dtype.newbyteorder("=")).onnx
    except ValueError:
        return f"tensor({array.dtype.name})"


def as_dtype(element_type: Any) -> np.dtype[np.generic]:
    """Return the numpy dtype of an element type, which may be a number of onnx.TensorProto's.

    Raises:
        ValueError: vkmnn has no such type.
    """
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        if element_type not in ONNX_TYPES:
            raise ValueError(f"element type {element_type} is not supported")
        element_type = ONNX_TYPES[element_type]
    dtype: np.dtype[np.generic] = np.dtype(element_type)
    return dtype


def check_device(device_type: str) -> None:
    """Refuse devices whose memory is not the host's.

    Raises:
        Exception: the kind of device is unknown.
        RuntimeError: it is not one of vkmnn's.
    """
    name = device_type.lower()
    if name not in _DEVICE_TYPES:
        raise Exception(f"Unsupported device type: {device_type}")  # as onnxruntime does
    if name not in _HOST:
        raise RuntimeError(
            "Can't allocate memory on the device using this package of OnnxRuntime: vkmnn has "
            "values in host memory only (device 'cpu')"
        )


def _is_vulkan(device_type: str) -> bool:
    return device_type.lower() == "vulkan"


class OrtDevice:
    """A kind of device and a number."""

    def __init__(self, name: str, device_id: int = 0) -> None:
        if name.lower() not in _DEVICE_TYPES:
            raise Exception(f"Unsupported device type: {name}")  # as onnxruntime does
        self._name = name.lower()
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return a device by name: "cpu", "cuda", …."""
        return OrtDevice(ort_device_name, device_id)

    def device_id(self) -> int:
        """Return the number."""
        return self._id

    def device_type(self) -> int:
        """Return onnxruntime's number of the device type; Vulkan's values are in CPU memory."""
        return _DEVICE_TYPES[self._name]

    def device_vendor_id(self) -> int:
        """Return 0: unknown."""
        return 0

    def device_mem_type(self) -> int:
        """Return 0: plain memory."""
        return 0


class OrtValue:
    """A tensor that several runs may read and write.

    It shares the memory of an array, or is on a Vulkan device, like outputs that are bound to the
    device "vulkan", and values for that device once they have been fed.
    """

    def __init__(self, value: Array | DeviceTensor, on_device: bool = False) -> None:
        self._value = value
        self._on_device = on_device or isinstance(value, DeviceTensor)

    @property
    def _array(self) -> Array:
        """The elements on the host: the array itself, a view of the device's memory, or a copy."""
        return self._value.numpy() if isinstance(self._value, DeviceTensor) else self._value

    def _fed(self, upload: Callable[[Array], DeviceTensor]) -> Array | DeviceTensor:
        """Return the value to feed; a value for the device is uploaded once and stays there."""
        if self._on_device and not isinstance(self._value, DeviceTensor):
            self._value = upload(self._value)
        return self._value

    def _take(self, result: Array | DeviceTensor) -> None:
        """Store a result of the same shape and type; all but the first on a device are copied."""
        if isinstance(self._value, DeviceTensor):
            self._value.copy_from(result)
        elif isinstance(result, DeviceTensor):
            self._value = result
        else:
            self._value[...] = result

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type, as numpy's name."""
        return self._value.dtype

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a value over an array, which it shares if that is contiguous.

        For the device "vulkan", the elements go to the device of the session that is first fed.

        Raises:
            RuntimeError: the device is neither "cpu" nor "vulkan".
        """
        check_device(device_type)
        if not isinstance(numpy_obj, np.ndarray):
            raise TypeError(f"an OrtValue needs a numpy array, not {type(numpy_obj).__name__}")
        array = np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return cls(native, _is_vulkan(device_type))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Return a value of the element type from the array's bytes."""
        dtype = as_dtype(onnx_element_type)
        if data.dtype.itemsize != dtype.itemsize:
            raise ValueError(f"an array of {data.dtype} cannot be seen as {dtype}")
        return cls.ortvalue_from_numpy(np.ascontiguousarray(data).view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any = None,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Return a value with room for a tensor."""
        check_device(device_type)
        dtype = np.dtype(np.float32) if element_type is None else as_dtype(element_type)
        return cls(np.zeros(tuple(shape), dtype), _is_vulkan(device_type))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Return a value over a tensor of another library in host memory."""
        return cls.ortvalue_from_numpy(np.from_dlpack(data))

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        """Return "cpu", or "vulkan" for a value on the device."""
        return "vulkan" if self._on_device else "cpu"

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._value.shape)

    def data_type(self) -> str:
        """Return the type, as "tensor(float)"."""
        return type_name(self._array)

    def element_type(self) -> int:
        """Return the element type as onnx.TensorProto numbers it."""
        numbers = {name: number for number, name in ONNX_TYPES.items()}
        return numbers.get(self._array.dtype.name, 0)

    def tensor_size_in_bytes(self) -> int:
        """Return the number of bytes."""
        return self._array.nbytes

    def has_value(self) -> bool:
        """Return True: there are no empty values."""
        return True

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return False."""
        return False

    def numpy(self) -> Array:
        """Return the array; it shares its memory with the value, but not that of every device."""
        return self._array

    def update_inplace(self, data: Array | OrtValue) -> None:
        """Write new data of the same size.

        Raises:
            RuntimeError: the size differs.
        """
        array = data.numpy() if isinstance(data, OrtValue) else np.asarray(data)
        if array.size != self._array.size:
            raise RuntimeError(
                "The input size of numpy arrays does not match the size of the OrtValue."
            )
        if isinstance(self._value, DeviceTensor):
            self._value.copy_from(array.astype(self._value.dtype).reshape(self._value.shape))
        else:
            self._value[...] = array.reshape(self._value.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the array, as numpy requests it."""
        if dtype is not None and self._array.dtype != dtype:
            return self._array.astype(dtype)
        return self._array.copy() if copy else self._array

    def __dlpack__(self, **options: Any) -> Any:
        """Return the memory as a DLPack capsule."""
        array: Any = self._array
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the memory is: (1, 0), the host's."""
        kind, number = self._array.__dlpack_device__()
        return int(kind), int(number)
