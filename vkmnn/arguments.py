"""Checks of callers' arguments against the network's declaration: arrays, names and shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import prod
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vkmnn.base.whole_files import check_writable
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.errors import InvalidInputError, nearest, typed_memory_errors
from vkmnn.ir import Dim, DType, TensorInfo

T = TypeVar("T")

NO_TYPES: Mapping[str, str] = {}


def check_feeds(
    infos: Mapping[str, TensorInfo], feeds: Mapping[str, Any], types: Mapping[str, str] = NO_TYPES
) -> dict[str, Any]:
    """Return the feeds in the order of the inputs, arrays as contiguous ones.

    Args:
        infos: the inputs of the network by name.
        feeds: one array per input, or another value that `fed_array` accepts; lists for sequences,
            None for empty optionals.
        types: ONNX types of the inputs that are not tensors of a plain element type.

    Raises:
        InvalidInputError: not a dictionary; an unknown or missing name; a wrong dtype or shape.
    """
    if not isinstance(feeds, Mapping):
        first = next(iter(infos), "x")  # type: ignore[unreachable]
        raise InvalidInputError(
            f"feeds is a dictionary of arrays by name, not {type(feeds).__name__}",
            hint=f"write {{'{first}': array}}",
        )
    for name in feeds:
        if name not in infos:
            raise InvalidInputError(
                f"the network has no input '{name}'", hint=nearest(name, infos, "inputs")
            )
    arrays: dict[str, Any] = {}
    for name, info in infos.items():
        if name not in feeds:
            raise InvalidInputError(
                f"input '{name}' is missing", hint=f"inputs: {', '.join(infos)}"
            )
        if info.dtype is DType.OBJECT:
            arrays[name] = checked_object(name, types.get(name, ""), feeds[name])
            continue
        arrays[name] = fed_array(info, feeds[name])
    return arrays


def checked_number(value: Any, what: str, least: int = 0) -> int:
    """Return a whole number that a caller passed.

    Args:
        value: an int, or one of numpy's.
        what: its name in the message: "the capacity".
        least: the smallest that is allowed.

    Raises:
        InvalidInputError: it is something else; True and False are not numbers.
    """
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise InvalidInputError(
            f"{what} is {_shown(value)}", hint=f"give a whole number, {least} or more"
        )
    try:
        number = index(value)
    except TypeError:  # an array
        raise InvalidInputError(
            f"{what} is {_shown(value)}", hint=f"give a whole number, {least} or more"
        ) from None
    if number < least:
        raise InvalidInputError(f"{what} is {number}", hint=f"give {least} or more")
    return number


def checked_sizes(value: Any, what: str) -> tuple[int, ...]:
    """Return a shape that a caller passed.

    Args:
        value: whole numbers, 0 or more; a tuple, a list or an array of them.
        what: its name in the message: "the shape of 'x'".

    Raises:
        InvalidInputError: it is something else.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInputError(
            f"{what} is {_shown(value)}", hint="a shape is a tuple of sizes: (1, 3, 224, 224)"
        )
    return tuple(checked_number(size, f"a size in {what}") for size in value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def checked_object(name: str, kind: str, value: Any) -> Any:
    """Return the value of an input that is not a tensor of a plain element type.

    Args:
        name: the input's.
        kind: its type as ONNX writes it: "seq(tensor(float))".
        value: an array for a tensor, strings in one of objects or of numpy's strings; a list for a
            sequence, a dictionary for a map, None or a value for an optional.

    Raises:
        InvalidInputError: it is something else.
    """
    outer, _, rest = kind.partition("(")
    inner = rest.removesuffix(")")
    if outer == "optional":
        return None if value is None else checked_object(name, inner, value)
    if outer == "seq" and isinstance(value, list | tuple):
        return [checked_object(name, inner, item) for item in value]
    if outer == "map" and isinstance(value, Mapping):
        return dict(value)
    if outer == "tensor" and isinstance(value, np.ndarray | np.generic | list | str):
        array = np.asarray(value)
        if inner == "string" and array.dtype.kind in "UTO":
            return array.astype(object)
        if array.dtype.name.replace("_", "").startswith(_NUMPY_NAMES.get(inner, inner)):
            return array
    if outer not in ("seq", "map", "tensor"):
        return value
    what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise InvalidInputError(
        f"input '{name}' is {kind}, got {what}",
        hint="sequences are lists of arrays, strings arrays of objects, and element types that "
        "numpy lacks are those of the package ml_dtypes",
    )


_NUMPY_NAMES = {"float": "float32", "double": "float64"}


def fed_array(info: TensorInfo, value: Any) -> Any:
    """Return a fed value as a C-contiguous array, or the DeviceTensor itself.

    Args:
        info: the input.
        value: an array; a DeviceTensor; or an object with `__array__` or `__dlpack__`.

    Raises:
        InvalidInputError: something else; another dtype, rank or fixed dimension.
    """
    if isinstance(value, DeviceTensor):
        _check_dtype(info, value.dtype, value.shape)
        check_shape(info, value.shape)
        return value
    array = _exported(info, value)
    check_array(info, array)
    if type(array) is np.ndarray and array.flags.c_contiguous:
        return array
    with typed_memory_errors(f"input '{info.name}'"):
        return np.ascontiguousarray(array).reshape(array.shape)


def _exported(info: TensorInfo, value: Any) -> Any:
    """Return the array that corresponds to a value of another library."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
    except Exception as error:
        raise InvalidInputError(
            f"input '{info.name}': the {type(value).__name__} is not an array that the host can "
            f"read: {error}",
            hint="copy it to host memory and detach it from the autograd graph",
        ) from error
    return value


def check_array(info: TensorInfo, array: Any) -> None:
    """Reject an array that differs from the input's declaration.

    Raises:
        InvalidInputError: not a numpy array, another dtype, rank or fixed dimension.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidInputError(
            f"input '{info.name}' must be a numpy array, got {type(array).__name__}",
            hint=f"wrap it: numpy.asarray({info.name}, '{info.dtype.value}')",
        )
    _check_dtype(info, array.dtype, array.shape)
    check_shape(info, array.shape)


def _check_dtype(info: TensorInfo, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if dtype == info.dtype.numpy:
        return
    hint = f"convert it with .astype('{info.dtype.value}')"
    if dtype == np.uint8 and info.dtype.numpy.kind == "f" and len(shape) > 2:
        hint += ", then scale the image as the model was trained: / 255, for example"
        if not fits(info.shape, shape) and (order := order_hint(info, shape)):
            hint += f"; {order}"
    raise InvalidInputError(
        f"input '{info.name}' is {info.dtype.value}, got an array of {dtype}", hint=hint
    )


def check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Refuse a shape that contradicts the model's declaration.

    Raises:
        InvalidInputError: another rank or another fixed dimension.
    """
    if not fits(info.shape, shape):
        declared = ", ".join("?" if dim is None else str(dim) for dim in info.shape or ())
        raise InvalidInputError(
            f"input '{info.name}' has shape [{declared}], got {list(shape)}",
            hint=order_hint(info, shape)
            or "only symbolic dimensions may change; export with dynamic axes for others",
        )


def checked_input_shapes(shapes: Any) -> dict[str, tuple[Dim, ...]]:
    """Return shapes by input: sizes, names of sizes, and None for open ones.

    Raises:
        InvalidInputError: it is something else.
    """
    try:
        found = {name: tuple(shape) for name, shape in dict(shapes or {}).items()}
        sizes = [dim for shape in found.values() for dim in shape if not isinstance(dim, str)]
        whole = [index(dim) for dim in sizes if dim is not None]
    except (TypeError, ValueError):
        whole = [-1]
    if any(size < 0 for size in whole):
        raise InvalidInputError(
            f"input_shapes is not a shape for each input: {shapes!r}",
            hint="write {'x': (1, 3, None, None)}: sizes, names, and None for open ones",
        )
    return found


def fits(declared: tuple[Dim, ...] | None, shape: tuple[int, ...]) -> bool:
    """Whether sizes are possible, and consistent with the declared ones."""
    if declared is None:
        return True
    if len(shape) != len(declared):
        return False
    # Every run calls this: a loop takes half the time of two generators.
    for want, have in zip(declared, shape, strict=True):
        if have < 0 or (want != have and isinstance(want, int)):
            return False
    return True


def order_hint(info: TensorInfo, shape: tuple[int, ...]) -> str | None:
    """Return a hint for reaching the declared shape: reorder axes, add a batch, resize an image."""
    declared = info.shape
    if declared is None or (missing := len(declared) - len(shape)) < 0:
        return None
    near: str | None = None
    for kind, order in _orders(len(shape)):
        whole = (1,) * missing + tuple(shape[axis] for axis in order)
        turned = order != tuple(range(len(shape)))
        made = info.name + (f".transpose({', '.join(map(str, order))})" if turned else "")
        made += f"[{', '.join(['None'] * missing)}]" if missing else ""
        if fits(declared, whole):
            return f"{_looks(kind, len(shape), missing)}: {made}"
        near = near or _nearly(declared, whole, made, info.name, kind)
    if near is None and all(isinstance(dim, int) for dim in declared):
        sizes = info.dims
        if prod(sizes) == prod(shape):
            near = f"as many elements: {info.name}.reshape({', '.join(map(str, sizes))})"
    return near


def _nearly(
    declared: tuple[Dim, ...], whole: tuple[int, ...], made: str, name: str, kind: str
) -> str | None:
    """Return the one difference from the declared shape, apart from the order of axes.

    Args:
        declared: the shape.
        whole: the array's, with its axes in order and a batch.
        made: how it gets there.
        name: the input's.
        kind: the order that the array looks like.
    """
    wrong = [
        axis
        for axis, (want, have) in enumerate(zip(declared, whole, strict=True))
        if isinstance(want, int) and want != have
    ]
    picture = len(declared) == 4 and len(wrong) > 0 and made.count("None") < 3
    channel = next((axis for axis in (1, 3) if declared[axis] in (1, 3, 4)), None) if picture else 0
    then = f", then {made}" if made != name else ""
    if channel and picture and {1, 2, 3} - {channel} >= set(wrong):
        rows, columns = sorted({1, 2, 3} - {channel})
        height, width = (declared[axis] or whole[axis] for axis in (rows, columns))
        return f"resize the image to {height} x {width}{then}"
    if channel and wrong == [channel] and (declared[channel], whole[channel]) == (3, 4):
        return f"drop the alpha channel, {name}[..., :3]{then}" if kind == "NHWC" else None
    if channel and wrong == [channel] and (declared[channel], whole[channel]) == (3, 1):
        return f"repeat the channel of the grey image three times{then}"
    if wrong == [0] and isinstance(declared[0], int) and whole[0] % max(declared[0], 1) == 0:
        return (
            f"the model takes batches of {declared[0]}: run it for each, or export it with a "
            "dynamic batch axis"
        )
    return None


def _orders(rank: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return orders of axes to try: unchanged, channels last to first, and the reverse."""
    axes = tuple(range(rank))
    if rank < 3:
        return [("", axes)]
    lead = 1 if rank > 3 else 0
    moves = [
        ("", axes),
        ("NHWC", (*axes[:lead], rank - 1, *axes[lead:-1])),
        ("NCHW", (*axes[:lead], *axes[lead + 1 :], lead)),
    ]
    if rank == 3:  # with a batch, and a single axis of space
        moves.append(("", (0, 2, 1)))
    return moves


def _looks(kind: str, rank: int, missing: int) -> str:
    """Return the likely mistake for an array with another axis order, or without the batch."""
    if missing:
        axes = "the batch axis is missing" if missing == 1 else f"{missing} axes are missing"
        moved = {"NHWC": ", and channels stand last", "NCHW": ", and channels stand first"}
        return f"{axes}{moved.get(kind, '')}"
    return f"this looks like {kind}" if rank == 4 else "the axes are in another order"


def target_path(path: object, suffix: str) -> Path:
    """Return the path of a file to write.

    Args:
        path: as the caller gives it.
        suffix: how its name has to end, with the dot.

    Raises:
        InvalidInputError: it is not a path, its name ends otherwise, or it cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidInputError(
            f"the path to write must be a string or a pathlib.Path, not {type(path).__name__}",
            hint=f"write 'model{suffix}'",
        )
    target = Path(path)
    if target.suffix.lower() != suffix:
        raise InvalidInputError(
            f"'{target}' does not end with {suffix}", hint=f"name it {target.stem}{suffix}"
        )
    try:
        check_writable(target)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"'{target}' cannot be written: {reason}", hint="name a file in a folder of your own"
        ) from error
    return target


def named_tensor(tensors: Mapping[str, T], name: str | None, what: str) -> T:
    """Return the tensor of a name; the first where it is None.

    Args:
        tensors: tensors by name.
        name: which.
        what: their kind, for messages: "input" or "output".

    Raises:
        InvalidInputError: there is no tensor of that name.
    """
    if name is None:
        return next(iter(tensors.values()))
    if name not in tensors:
        raise InvalidInputError(
            f"the network has no {what} '{name}'", hint=f"its {what}s: {', '.join(tensors)}"
        )
    return tensors[name]
