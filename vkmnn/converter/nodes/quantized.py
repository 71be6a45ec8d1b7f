"""Quantised tensors as DequantizeLinear and QuantizeLinear pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.converter.nodes.scope import (
    FLOAT,
    INT8,
    INT16,
    INT32,
    NUMPY_TYPES,
    UINT8,
    UINT16,
)
from vkmnn.converter.nodes.source_op import SourceOp
from vkmnn.ir import Array

QUANTISED = (INT8, UINT8, INT16, UINT16)
"""Element types that QuantizeLinear gives."""

_DECODED = (*QUANTISED, INT32)


@dataclass(frozen=True, eq=False)
class Quantization:
    """Quantisation of a tensor: real = scale · (value - zero).

    Attributes:
        scale: one scale, one for each index of an axis, or one for each block along an axis; with
            blocks it has all axes of the tensor.
        zero: as many zero points, in the same shape.
        axis: the axis, where there are several.
        block: how many elements along the axis share a scale; 0 without blocks.
    """

    scale: npt.NDArray[np.float32]
    zero: npt.NDArray[np.int64]
    axis: int = 0
    block: int = 0

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


def decode(op: SourceOp, name: str, by: Quantization) -> str:
    """Return the dequantised tensor."""
    kind = op.type_of(name)
    if kind not in _DECODED:
        array = op.scope.constants.get(name)
        if array is not None:
            return op.scope.constant(by.decoded(array), op.name)
        raise op.unreadable(f"a quantised tensor of element type {kind}")
    return op.scope.memoised(
        name,
        ("decoded", by.key),
        lambda: op.make("DequantizeLinear", name, *_pair(op, kind, by), dtype=FLOAT, **_axis(by)),
    )


def encode(op: SourceOp, name: str, by: Quantization, dtype: int, output: str | None = None) -> str:
    """Return a tensor of floats as quantised values of an element type.

    Args:
        op: the operator whose node it is.
        name: the tensor.
        by: scale and zero point.
        dtype: the element type.
        output: name of the result; a new one if None.
    """
    if dtype not in QUANTISED:
        raise op.unreadable(f"a result of quantised values of element type {dtype}")
    made = output or op.scope.fresh(op.name)
    inputs = [name, *_pair(op, dtype, by)]
    op.scope.emit("QuantizeLinear", inputs, [made], op.name, dtype, **_axis(by))
    return made


def _pair(op: SourceOp, dtype: int, by: Quantization) -> list[str]:
    """Return the names of scale and zero point, which are written once for each use."""

    def pair() -> str:
        scale = by.scale if by.per_axis else by.scale.reshape(())
        name = op.constant(scale, np.float32)
        if dtype == INT32:
            return name
        zero = by.zero if by.per_axis else by.zero.reshape(())
        return f"{name}\n{op.constant(zero, NUMPY_TYPES[dtype])}"

    return op.scope.memoised("", ("pair", by.key, dtype), pair).split("\n")


def _axis(by: Quantization) -> dict[str, Any]:
    blocks = {"block_size": by.block} if by.block else {}
    return {"axis": by.axis, **blocks} if by.per_axis else {}
