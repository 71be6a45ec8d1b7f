"""Helpers for executions that address elements by index."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.core.tensor import Tensor

MAX_AXES = 6


def operands(inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the inputs of an op that has no absent ones."""
    return [tensor for tensor in inputs if tensor is not None]


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the element strides of a row-major tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def padded(values: Sequence[int], fill: int) -> tuple[int, ...]:
    """Return MAX_AXES values, padded in front."""
    return (*[fill] * (MAX_AXES - len(values)), *values)
