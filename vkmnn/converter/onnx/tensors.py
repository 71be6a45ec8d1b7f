"""TensorProto to numpy, with every size checked before it is used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vkmnn.converter.onnx.types import DTYPES, MAX_DIM, check_rank, type_name
from vkmnn.converter.onnx.wire import Bytes
from vkmnn.errors import ConversionError, ModelError
from vkmnn.ir import NARROW_INTEGERS, Array, DType
from vkmnn.shape import is_too_large

if TYPE_CHECKING:
    import onnx

_LOG = logging.getLogger(__name__)

_EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL

# TensorProto's typed field of each element type, used when raw_data is not.
_FIELDS: dict[DType, str] = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
}
_DEFAULT_FIELD = "int32_data"
_PACKED_BITS = {dtype: bits for dtype, (bits, _) in NARROW_INTEGERS.items()} | {DType.FLOAT4E2M1: 4}
"""Types with several elements in a byte."""


def array_from_tensor(
    tensor: onnx.TensorProto, folder: Path | None, raw: Bytes | None = None
) -> Array:
    """Return the values of a tensor; external data is read from inside `folder` only.

    Args:
        tensor: the tensor.
        folder: folder of the model; None if it has none.
        raw: its raw_data if that was read separately; the values share its memory.

    Raises:
        ModelError: dimensions, element type and data do not fit together, or the external data is
            missing, outside the folder or too short.
        ConversionError: the element type has no counterpart (bfloat16, strings, …).
    """
    name = tensor.name or "(unnamed)"
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        raise ConversionError(
            f"tensor '{name}' has element type {type_name(tensor.data_type)}",
            hint="export the model in float32 or float16",
        )
    if tensor.HasField("segment"):
        raise ConversionError(f"tensor '{name}' is stored in segments")
    shape = tuple(tensor.dims)
    check_rank(name, len(shape))
    if any(not 0 <= dim <= MAX_DIM for dim in shape) or is_too_large(shape):
        raise _damaged(name, f"invalid dimensions {list(shape)}")
    count = prod(shape)
    if tensor.data_location == _EXTERNAL:
        flat = _read_external(tensor, name, dtype, count, folder)
    elif tensor.HasField("raw_data"):
        flat = _from_raw(tensor.raw_data if raw is None else raw, name, dtype, count)
    else:
        flat = _from_field(tensor, name, dtype, count)
    array = flat.reshape(shape)
    array.flags.writeable = False
    return array


def with_data(
    tensor: onnx.TensorProto, name: str, folder: Path | None, raw: Bytes | None = None
) -> onnx.TensorProto:
    """Return a copy of a tensor under another name, with its data in it; of any element type.

    Raises:
        ModelError: as `array_from_tensor`.
    """
    import onnx

    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    if any(not 0 <= dim <= MAX_DIM for dim in tensor.dims) or is_too_large(tensor.dims):
        raise _damaged(name, f"invalid dimensions {list(tensor.dims)}")
    if tensor.data_location == _EXTERNAL:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = _external_path(entries.get("location", ""), name, folder)
        offset = _size(entries.get("offset", "0"), name, "offset")
        available = path.stat().st_size - offset
        length = _size(entries.get("length", str(max(available, 0))), name, "length")
        if length > available:
            raise _damaged(name, f"external data beyond the end of '{path.name}'")
        with _reading(name, path.name), path.open("rb") as file:
            file.seek(offset)
            copy.raw_data = file.read(length)
        del copy.external_data[:]
        copy.ClearField("data_location")
    elif raw is not None:
        copy.raw_data = bytes(raw)
    return copy


def dense_from_sparse(tensor: onnx.SparseTensorProto, folder: Path | None) -> Array:
    """Return the dense form of a sparse initializer.

    Raises:
        ModelError: indices, values and dimensions do not fit together.
        ConversionError: the element type has no counterpart.
    """
    name = tensor.values.name
    values = array_from_tensor(tensor.values, folder).reshape(-1)
    indices = array_from_tensor(tensor.indices, folder).astype(np.int64)
    shape = tuple(tensor.dims)
    check_rank(name, len(shape))
    if any(not 0 <= dim <= MAX_DIM for dim in shape) or prod(shape) > MAX_DIM:
        raise _damaged(name, f"invalid dimensions {list(shape)}")
    if indices.ndim == 2 and indices.shape == (values.size, len(shape)):
        limits, places = np.array(shape), indices @ _strides(shape)
    elif indices.ndim == 1 and indices.size == values.size:
        limits, places = np.array(prod(shape)), indices
    else:
        raise _damaged(name, f"{values.size} values, but indices of shape {list(indices.shape)}")
    if ((indices < 0) | (indices >= limits)).any():
        raise _damaged(name, f"an index outside of {list(shape)}")
    flat = np.zeros(prod(shape), values.dtype)
    flat[places] = values
    dense = flat.reshape(shape)
    dense.flags.writeable = False
    return dense


def _strides(shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array([prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)


def _damaged(name: str, what: str) -> ModelError:
    return ModelError(
        f"tensor '{name}' is damaged: {what}",
        hint="the file is truncated or was written wrongly; export or download it again",
    )


def _little_endian(dtype: DType) -> np.dtype[np.generic]:
    little: np.dtype[np.generic] = dtype.numpy.newbyteorder("<")
    return little


def stored_bytes(dtype: DType, count: int) -> int:
    """Return the bytes of `count` elements in a file; small ones are packed."""
    return (
        -(-count * _PACKED_BITS[dtype] // 8)
        if dtype in _PACKED_BITS
        else (count * dtype.numpy.itemsize)
    )


def _unpacked(data: npt.NDArray[np.uint8], dtype: DType, count: int) -> Array:
    """Unpack elements of a type that numpy lacks, lowest bits first."""
    if dtype not in _PACKED_BITS:
        words = data.view(np.dtype("<u2")).astype(np.uint16) if dtype is DType.BFLOAT16 else data
        return words.view(dtype.numpy)
    bits = _PACKED_BITS[dtype]
    places = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[:, None] >> places & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype.is_float:
        return codes.view(dtype.numpy)
    low, high = dtype.limits
    numbers = codes.astype(np.int8)
    return np.where(numbers > high, numbers + 2 * low, numbers).astype(dtype.numpy)


def _from_raw(data: bytes | Bytes, name: str, dtype: DType, count: int) -> Array:
    expected = stored_bytes(dtype, count)
    if len(data) != expected:
        raise _damaged(name, f"{len(data)} bytes of data, its shape asks for {expected}")
    if dtype.is_narrow:
        return _unpacked(np.frombuffer(data, np.uint8), dtype, count)
    flat = np.frombuffer(data, _little_endian(dtype)).astype(dtype.numpy, copy=False)
    return _checked_bool(flat, dtype)


def _checked_bool(flat: Array, dtype: DType) -> Array:
    # Any byte except 0 and 1 in a numpy bool array makes later results undefined.
    return flat.view(np.uint8) != 0 if dtype is DType.BOOL else flat


def _from_field(tensor: onnx.TensorProto, name: str, dtype: DType, count: int) -> Array:
    values = getattr(tensor, _FIELDS.get(dtype, _DEFAULT_FIELD))
    expected = stored_bytes(dtype, count) if dtype in _PACKED_BITS else count
    if len(values) != expected:
        raise _damaged(name, f"{len(values)} values, its shape asks for {expected}")
    if dtype.is_narrow:
        word = "<u2" if dtype is DType.BFLOAT16 else "u1"
        bytes_ = np.array(values, np.int64).astype(word).view(np.uint8)
        return _unpacked(bytes_, dtype, count)
    if dtype is DType.FLOAT16:  # stored as the bits of the float16 numbers
        return np.array(values, np.int64).astype(np.uint16).view(np.float16)
    if dtype.is_float:
        return np.array(values, dtype.numpy)
    wide = np.array(values, np.uint64 if dtype is DType.UINT64 else np.int64)
    # To bool, every value but 0 is true, as numpy converts.
    return wide.astype(dtype.numpy)


def _read_external(
    tensor: onnx.TensorProto, name: str, dtype: DType, count: int, folder: Path | None
) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _external_path(entries.get("location", ""), name, folder)
    expected = stored_bytes(dtype, count)
    offset = _size(entries.get("offset", "0"), name, "offset")
    length = _size(entries.get("length", str(expected)), name, "length")
    if length != expected:
        raise _damaged(name, f"{length} bytes of external data, its shape asks for {expected}")
    available = path.stat().st_size
    if offset + length > available:
        raise _damaged(
            name, f"external data at {offset}+{length}, but '{path.name}' has {available} bytes"
        )
    with _reading(name, path.name):
        if dtype.is_narrow:
            return _unpacked(np.fromfile(path, np.uint8, expected, offset=offset), dtype, count)
        flat = np.fromfile(path, _little_endian(dtype), count, offset=offset)
    return _checked_bool(flat.astype(dtype.numpy, copy=False), dtype)


def _size(text: str, name: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _damaged(name, f"external data {what} {text!r}")
    return int(text)


@contextmanager
def _reading(name: str, location: str) -> Iterator[None]:
    """Convert the system's error about a file into a ModelError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"tensor '{name}' keeps its data in '{location}', which cannot be read: {error}",
            hint="keep the external data files next to the model",
        ) from error


def _external_path(location: str, name: str, folder: Path | None) -> Path:
    """Return the file that holds external data, symbolic links resolved, inside `folder`."""
    if folder is None:
        raise ModelError(
            f"tensor '{name}' keeps its data in the file '{location}'",
            hint="give the path of the model instead of its bytes, or load the external data first",
        )
    windows = PureWindowsPath(location)  # also splits at '/', and knows drive letters
    if not location or windows.drive or windows.root or PurePosixPath(location).is_absolute():
        raise _outside(name, location)
    if "\0" in location or ".." in windows.parts:
        raise _outside(name, location)
    with _reading(name, location):
        path = (folder / location).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve()) or path.parent == _blobs_of(folder)
        regular = path.is_file()
        links = path.stat().st_nlink
    if not inside:
        raise _outside(name, location)
    if not regular:
        raise ModelError(
            f"tensor '{name}' keeps its data in '{location}', which is not a regular file",
            hint="keep the external data files next to the model",
        )
    if links > 1:  # a link makes other files appear here; onnx refuses them too
        raise ModelError(
            f"tensor '{name}' keeps its data in '{location}', which has several hard links",
            hint="it may expose a file of another folder; if the model is trusted, copy the file",
        )
    return path


def _blobs_of(folder: Path) -> Path | None:
    """Return where huggingface_hub's cache keeps what the files of a folder in it link to."""
    for commit in (folder.absolute(), *folder.absolute().parents):
        repository = commit.parent.parent
        if commit.parent.name == "snapshots" and repository.name.startswith("models--"):
            return (repository / "blobs").resolve()
    return None


def _outside(name: str, location: str) -> ModelError:
    return ModelError(
        f"tensor '{name}' refers to external data in '{location}', outside the model's folder",
        hint="external data must be in the model's folder or below; the file may be malicious",
    )
