"""A stable radix sort of words, four bits at a time."""

from __future__ import annotations

from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import CumSumAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.rows.reduction import Line, column_local
from vkmnn.vulkan.rows.running import encode_running

PIECE = 128
"""Keys that an invocation counts and moves, in order; its counts have eight bits."""
DIGIT_BITS = 4


def encode_sort(
    keys: Tensor,
    count: int,
    op: Op,
    encoder: VulkanEncoder,
    *,
    bits: int,
    flipped: int = 0,
    indices: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Record a sort of `count` keys in ascending order, as unsigned words.

    Args:
        keys: the keys.
        count: number of keys.
        op: the op, for error messages.
        encoder: records the dispatches.
        bits: number of low bits in which keys may differ.
        flipped: bits inverted for comparison: 0x7fffffff puts the highest signed key first.
        indices: values that move with the keys; by default, the positions of the keys.

    Returns:
        The sorted keys and their indices; the indices are None if `bits` is 0 and they are absent.
    """
    pieces = ceil_div(count, PIECE)
    table = Line(1, pieces << DIGIT_BITS, 1)
    local = column_local(pieces, encoder)
    for shift in range(0, bits, DIGIT_BITS):
        counts = encoder.scratch(table.size, DType.INT32)
        begins = encoder.scratch(table.size, DType.INT32)
        params = kernels.RadixCountParams(
            pieces=pieces, count=count, piece=PIECE, shift=shift, flipped=flipped
        )
        shader = kernels.radix_count(load=encoder.load)
        encoder.dispatch_linear(shader, [keys, counts], params, pieces, local)
        encode_running(op, CumSumAttrs(exclusive=True), counts, begins, table, encoder)
        moved = encoder.scratch(count, DType.INT32), encoder.scratch(count, DType.INT32)
        tensors = [keys, indices or keys, begins, *moved]
        shader = kernels.radix_move(load=encoder.load)
        spec = {"INDEXED": indices is not None, **local}
        encoder.dispatch_linear(shader, tensors, params, pieces, spec)
        keys, indices = moved
    return keys, indices
