"""Outputs with one value per pixel."""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array


def single_map(outputs: Mapping[str, Array], what: str) -> Array:
    """Return the first output with one value per pixel: [n, rows, columns].

    Raises:
        InvalidInputError: there is none.
    """
    for array in outputs.values():
        if array.ndim == 4 and 1 in (array.shape[1], array.shape[3]):
            return array.reshape(len(array), *(array.shape[2:] if array.shape[1] == 1
                                               else array.shape[1:3]))  # fmt: skip
        if array.ndim == 3:
            return array
    shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in outputs.items())
    raise InvalidInputError(
        f"no output has {what} per pixel: {shapes}", hint="choose another task: --task"
    )
