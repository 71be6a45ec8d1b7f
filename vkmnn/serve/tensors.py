"""Tensors of the Open Inference Protocol: from JSON and bytes to arrays, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.serve.limits import HttpError, field

TYPES: Mapping[str, str] = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_NUMPY = {**{theirs: ours for ours, theirs in TYPES.items()}, "BYTES": "object"}

_MAX_EXACT = 1 << 53
"""Integers below this are exact in float64."""

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")

_SHARED = "shared_memory_region"


class Output(NamedTuple):
    """A requested output.

    Attributes:
        name: its name.
        binary: whether its values are requested as bytes.
        classes: how many of the largest values are requested instead of all; 0 for all.
    """

    name: str
    binary: bool = False
    classes: int = 0


def datatype_of(array: Array) -> str:
    """Return the protocol's name of an array's elements."""
    return TYPES.get(str(array.dtype), "BYTES")


def described(info: NodeArg) -> dict[str, Any]:
    """Return the metadata of an input or output."""
    shape = [size if isinstance(size, int) else -1 for size in info.shape or [-1]]
    return {"name": info.name, "datatype": TYPES.get(info.dtype, "BYTES"), "shape": shape}


# --- requests -------------------------------------------------------------------------------------


def dtype_of(name: str, datatype: object) -> np.dtype[Any]:
    """Return numpy's type for a datatype.

    Raises:
        HttpError: it is unknown.
    """
    kind = _NUMPY.get(datatype) if isinstance(datatype, str) else None
    if kind is None:
        raise _refused(f"the datatype of '{name[:100]}' is not supported: {str(datatype)[:40]!r}")
    return np.dtype(kind)


def feeds_of(body: Any, binary: memoryview) -> dict[str, Array]:
    """Return the input tensors, whose values are in the JSON or in the bytes after it.

    Raises:
        HttpError: an input is malformed, or does not fit its datatype and shape.
    """
    feeds: dict[str, Array] = {}
    place = 0
    for one in field(body, "inputs", (list,), []):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise _refused("an input needs a name, a datatype and a shape")
        name, dtype = one["name"], dtype_of(one["name"], one.get("datatype"))
        shape = field(one, "shape", (list,), [])
        parameters = field(one, "parameters", (dict,), {})
        refuse_shared(name, parameters)
        size = field(parameters, "binary_data_size", (int,))
        if size is not None and not 0 <= size <= len(binary) - place:
            raise _refused(
                f"the binary_data_size of '{name[:100]}' is {size}, but {len(binary) - place} "
                "bytes are left of the body"
            )
        if size is None:
            made = tensor(name, shape, partial(_listed, one, dtype))
        else:
            made = tensor(name, shape, partial(from_bytes, binary[place : place + size], dtype))
            place += size
        put(feeds, name, made)
    if place != len(binary):
        raise _refused(f"{len(binary) - place} bytes after the JSON belong to no input")
    return feeds


def put(feeds: dict[str, Array], name: str, array: Array) -> None:
    """Add an input.

    Raises:
        HttpError: it is there twice.
    """
    if name in feeds:
        raise _refused(f"the input '{name[:100]}' is given twice")
    feeds[name] = array


def tensor(name: str, shape: Sequence[Any], values: Callable[[], Array]) -> Array:
    """Return the values of an input in a shape.

    Raises:
        HttpError: the shape is none, or the values do not fit.
    """
    if not all(type(size) is int and size >= 0 for size in shape):
        raise _refused(f"the shape of '{name[:100]}' holds something other than sizes")
    try:
        return values().reshape(shape)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        text = f"the data of '{name[:100]}' does not fit its datatype and shape: {error}"
        raise _refused(text[:300]) from error


def refuse_shared(name: str, parameters: Any) -> None:
    """Raise HttpError if a tensor is said to be in shared memory."""
    if _SHARED in parameters:
        raise HttpError(
            400,
            "unsupported_field",
            f"'{name[:100]}' is in shared memory, which this server does not read; send the bytes",
        )


def from_bytes(raw: memoryview | bytes, dtype: np.dtype[Any]) -> Array:
    """Return values from little-endian bytes; strings each after its length in 4 bytes."""
    if dtype.kind == "O":
        return _strings(bytes(raw))
    if dtype.kind == "b":  # any byte but 0 is true
        return np.asarray(np.frombuffer(raw, np.uint8) != 0)
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype, copy=False)


def _strings(raw: bytes) -> Array:
    made: list[str] = []
    place = 0
    while place < len(raw):
        end = place + 4 + int.from_bytes(raw[place : place + 4], "little")
        if end > len(raw) or place + 4 > len(raw):
            raise ValueError("a string is longer than the data")
        made.append(raw[place + 4 : end].decode())
        place = end
    return np.array(made, object)


def _listed(one: Mapping[str, Any], dtype: np.dtype[Any]) -> Array:
    return array_of(one["data"], dtype)


def array_of(data: Any, dtype: np.dtype[Any]) -> Array:
    """Return values of JSON as an array; raise if the type cannot represent one of them."""
    if dtype.kind == "O":
        texts = np.array(data, object).reshape(-1)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("it contains something other than strings")
        return texts
    given = np.array(data)
    if given.dtype.kind == "U":
        words = {one for one in np.array(data, object).reshape(-1) if isinstance(one, str)}
        if dtype.kind != "f":
            raise TypeError("it contains strings")
        if not words <= set(_NOT_FINITE):
            raise TypeError(f"strings in it stand for {', '.join(_NOT_FINITE)}")
    if given.dtype.kind == "O" and None in given.reshape(-1).tolist():  # numpy turns it into NaN
        raise TypeError("it contains a null")
    if given.dtype.kind == "f" and dtype.kind in "iu" and (np.abs(given) >= _MAX_EXACT).any():
        raise ValueError("integers mixed with fractions must be below 2^53")
    with np.errstate(over="raise", invalid="raise"):
        made: Array = given.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(made, given):
        raise ValueError(f"a value cannot be represented as {dtype}")
    return made


def outputs_of(body: Any, known: Sequence[NodeArg]) -> list[Output]:
    """Return the requested outputs; all known ones if none is named.

    Raises:
        HttpError: one is malformed.
    """
    every = field(body, "parameters", (dict,), {}).get("binary_data_output", False)
    asked = field(body, "outputs", (list,), [])
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in asked):
        raise HttpError(400, "invalid_output", "an output needs a name")
    names = [one["name"] for one in asked]
    if len(set(names)) < len(names):  # copies would multiply the response
        raise HttpError(400, "invalid_output", "an output is requested twice")
    made = []
    for one in asked:
        name, parameters = one["name"], field(one, "parameters", (dict,), {})
        refuse_shared(name, parameters)
        binary = bool(parameters.get("binary_data", every))
        made.append(Output(name, binary, checked_classes(name, parameters.get("classification"))))
    return made or [Output(info.name, bool(every)) for info in known]


def checked_classes(name: str, count: Any) -> int:
    """Return the number of classes of an output; 0 if none is given.

    Raises:
        HttpError: it is no positive number.
    """
    if count is None:
        return 0
    if type(count) is not int or count < 1:
        text = f"the classification of '{name[:100]}' is a number from 1, not {str(count)[:40]}"
        raise HttpError(400, "invalid_output", text)
    return count


# --- responses ------------------------------------------------------------------------------------


def largest(name: str, array: Array, count: int, labels: Sequence[str] = ()) -> Array:
    """Return the largest values of each row as texts, `value:index` or `value:index:label`.

    Raises:
        HttpError: the values are not numbers.
    """
    if array.dtype.kind not in "fiu" or not array.size:
        raise HttpError(400, "invalid_output", f"the output '{name}' has no numbers to sort")
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 else array.reshape(1, -1)
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = [
        [f"{row[i]:f}:{i}" + (f":{labels[i]}" if i < len(labels) else "") for i in places]
        for row, places in zip(rows, order, strict=True)
    ]
    made = np.array(texts, object)
    return made if array.ndim > 1 else made.reshape(-1)


def to_bytes(array: Array) -> bytes:
    """Return little-endian values: strings, each after its length in 4 bytes."""
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _numbers(array: Array) -> list[Any]:
    """Return values for JSON: NaN and infinities as strings, as in protobuf's JSON."""
    values: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for place in np.flatnonzero(~np.isfinite(array)).tolist():
            value = values[place]
            values[place] = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return values


def encoded(about: Mapping[str, Any], results: Sequence[tuple[Output, Array]]) -> tuple[bytes, int]:
    """Return the body of a response, and the length of its JSON; 0 if there is nothing else.

    Args:
        about: further fields of the JSON.
        results: the outputs, with their values.
    """
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for output, array in results:
        one: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        if output.binary:
            parts.append(to_bytes(array))
            one["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            one["data"] = _numbers(array.reshape(-1))
        outputs.append(one)
    head = json.dumps({**about, "outputs": outputs}, allow_nan=False).encode()
    binary = any(output.binary for output, _ in results)
    return b"".join([head, *parts]), len(head) if binary else 0


def _refused(text: str) -> HttpError:
    return HttpError(400, "invalid_input", text)
