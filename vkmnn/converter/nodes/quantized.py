"""Quantised tensors as DequantizeLinear and QuantizeLinear pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

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
from vkmnn.converter.quantization import Quantization

QUANTISED = (INT8, UINT8, INT16, UINT16)
"""Element types that QuantizeLinear gives."""

_DECODED = (*QUANTISED, INT32)


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
