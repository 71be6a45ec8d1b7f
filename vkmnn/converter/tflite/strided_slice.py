"""STRIDED_SLICE: TensorFlow's slices with masks."""

from __future__ import annotations

from vkmnn.converter.nodes.strided_slice import MASKS, strided
from vkmnn.converter.tflite.nodes import LiteOp, reads


@reads("STRIDED_SLICE")
def strided_slice(op: LiteOp) -> None:
    """Slice, then Squeeze of single indices, then Unsqueeze of new axes."""
    op.need(4)
    masks = {name: op.integer(f"{name}_mask") for name in MASKS}
    op.pass_on(strided(op, masks, op.flag("offset")))
