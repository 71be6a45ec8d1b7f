"""Scales and zero points of quantised tensors, the same for all formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.ir import Array


@dataclass(frozen=True, eq=False, slots=True)
class Quantization:
    """Quantisation of a tensor: real = scale · (value - zero).

    Attributes:
        scale: one scale, one for each index of an axis, or one for each block along an axis; with
            blocks it has all axes of the tensor.
        zero: as many zero points, in the same shape.
        axis: the axis, where there are several.
        block: how many elements along the axis share a scale; 0 without blocks.
    """

    scale: npt.NDArray[Any]
    zero: npt.NDArray[Any]
    axis: int = 0
    block: int = 0

    @classmethod
    def of(cls, scale: Array, zero: Array | None, axis: int = 0, block: int = 0) -> Quantization:
        """Return it where zero points may be absent, which means 0."""
        return cls(scale, np.zeros(scale.shape, np.int8) if zero is None else zero, axis, block)

    @property
    def key(self) -> tuple[bytes, bytes, int, int]:
        """Identity for comparisons."""
        return self.scale.tobytes(), self.zero.tobytes(), self.axis, self.block

    @property
    def per_axis(self) -> bool:
        """Whether there are several scales, or blocks."""
        return self.scale.size > 1 or self.block > 0

    def moved(self, order: Sequence[int]) -> Quantization:
        """Return it for the tensor whose axes are in another order."""
        axis = list(order).index(self.axis) if self.per_axis else 0
        if self.block:
            scale, zero = self.scale.transpose(order), self.zero.transpose(order)
            return Quantization(scale.copy(), zero.copy(), axis, self.block)
        return Quantization(self.scale, self.zero, axis)

    def same_as(self, other: Quantization | None) -> bool:
        """Return whether both quantisations are equal."""
        return other is not None and (*self.key[:2], self.block) == (*other.key[:2], other.block)

    def decoded(self, array: Array) -> npt.NDArray[np.float32]:
        """Return the dequantised array."""
        if self.block:
            scale = np.repeat(self.scale, self.block, self.axis)
            zero = np.repeat(self.zero, self.block, self.axis)
        else:
            shape = [1] * array.ndim
            if self.per_axis:
                shape[self.axis] = self.scale.size
            scale, zero = self.scale.reshape(shape), self.zero.reshape(shape)
        result: npt.NDArray[np.float32] = ((array.astype(np.int64) - zero) * scale).astype("f4")
        return result


@dataclass(frozen=True, slots=True)
class QuantizedConstant:
    """A constant as quantised values."""

    values: Array
    by: Quantization
