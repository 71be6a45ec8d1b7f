"""What callers pass, checked against what the network declares: arrays, names and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, Dim, TensorInfo


def check_feeds(infos: Mapping[str, TensorInfo], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return the feeds as contiguous arrays, in the order of the inputs.

    Args:
        infos: the inputs of the network by name.
        feeds: one array per input.

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
                f"the network has no input '{name}'", hint=f"inputs: {', '.join(infos)}"
            )
    arrays: dict[str, Array] = {}
    for name, info in infos.items():
        if name not in feeds:
            raise InvalidInputError(
                f"input '{name}' is missing", hint=f"inputs: {', '.join(infos)}"
            )
        array = feeds[name]
        check_array(info, array)
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    check_symbols(infos.values(), {name: array.shape for name, array in arrays.items()})
    return arrays


def check_array(info: TensorInfo, array: Any) -> None:
    """Refuse an array that is not what the input declares.

    Raises:
        InvalidInputError: not a numpy array, another dtype, rank or fixed dimension.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidInputError(
            f"input '{info.name}' must be a numpy array, got {type(array).__name__}",
            hint="wrap it with numpy.asarray",
        )
    if array.dtype != info.dtype.numpy:
        raise InvalidInputError(
            f"input '{info.name}' is {info.dtype.value}, got an array of {array.dtype}",
            hint=f"convert it with .astype('{info.dtype.value}')",
        )
    check_shape(info, array.shape)


def check_shape(info: TensorInfo, shape: tuple[int, ...]) -> None:
    """Refuse a shape that contradicts the model's declaration.

    Raises:
        InvalidInputError: another rank or another fixed dimension.
    """
    if not _fits(info.shape, shape):
        declared = ", ".join("?" if dim is None else str(dim) for dim in info.shape or ())
        raise InvalidInputError(
            f"input '{info.name}' has shape [{declared}], got {list(shape)}",
            hint=_order_hint(info, shape)
            or "only symbolic dimensions may change; export with dynamic axes for others",
        )


def _fits(declared: tuple[Dim, ...] | None, shape: tuple[int, ...]) -> bool:
    return declared is None or (
        len(shape) == len(declared)
        and all(dim >= 0 for dim in shape)
        and all(
            not isinstance(want, int) or want == have
            for want, have in zip(declared, shape, strict=True)
        )
    )


def _order_hint(info: TensorInfo, shape: tuple[int, ...]) -> str | None:
    """Say how to transpose an array whose channels stand last where they should stand second."""
    rank = len(shape)
    if rank < 3:
        return None
    orders = {
        "NHWC": (0, rank - 1, *range(1, rank - 1)),
        "NCHW": (0, *range(2, rank), 1),
    }
    for name, order in orders.items():
        if _fits(info.shape, tuple(shape[axis] for axis in order)):
            what = f"this looks like {name}" if rank == 4 else "the axes are in another order"
            return f"{what}: {info.name}.transpose({', '.join(map(str, order))})"
    return None


def check_symbols(infos: Iterable[TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse shapes that give one symbolic dimension two sizes.

    Raises:
        InvalidInputError: names the dimension and both inputs.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for info in infos:
        for want, have in zip(info.shape or (), shapes[info.name], strict=False):
            if not isinstance(want, str):
                continue
            first, other = sizes.setdefault(want, (have, info.name))
            if first != have:
                raise InvalidInputError(
                    f"dimension '{want}' is {first} in input '{other}' "
                    f"but {have} in input '{info.name}'",
                    hint="inputs that share a symbolic dimension must agree on it",
                )
