"""Weights of 8 bits in the form that onnxruntime multiplies exactly on every processor: unsigned.

See `vkmnn.host.exact_codes` for the reason; here values are available and need no nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from vkmnn.host.exact_codes import PLACES
from vkmnn.ir import Array

_ZERO_POINT = "zero point of unsigned weights"


def with_unsigned_weights(
    node: onnx.NodeProto, inputs: Sequence[Array | None]
) -> tuple[onnx.NodeProto, Sequence[Array | None]]:
    """Return a node with uint8 weights that gives the same, and its inputs.

    Nodes without int8 weights, and those that multiply them by int8, are returned unchanged.
    """
    if node.op_type not in PLACES:
        return node, inputs
    x, weights, zero_point = PLACES[node.op_type]
    multiplied, signed = inputs[x], inputs[weights]
    if signed is None or signed.dtype != np.int8 or multiplied is None:
        return node, inputs
    if multiplied.dtype == np.int8:
        return node, inputs
    same = onnx.NodeProto()
    same.CopyFrom(node)
    arrays = list(inputs)
    while len(same.input) <= zero_point:
        same.input.append("")
        arrays.append(None)
    zero = arrays[zero_point]
    same.input[zero_point] = same.input[zero_point] or _ZERO_POINT
    arrays[weights] = _raised(signed)
    arrays[zero_point] = _raised(np.zeros((), np.int8) if zero is None else zero)
    return same, arrays


def _raised(codes: Array) -> Array:
    return np.asarray(codes.astype(np.int16) + 128).astype(np.uint8)
