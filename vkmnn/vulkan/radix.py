"""A stable sort of numbers that are not negative, four bits at a time."""

from __future__ import annotations

from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import CumSumAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.rows.reduction import Line, column_local
from vkmnn.vulkan.rows.running import encode_running

PIECE = 128
"""Keys that an invocation counts and moves, in order; eight bits hold how many have a value."""
DIGIT_BITS = 4


def encode_sort(
    keys: Tensor, count: int, limit: int, op: Op, encoder: VulkanEncoder
) -> tuple[Tensor, Tensor | None]:
    """Record a sort of `count` keys from 0 to `limit` - 1.

    Returns:
        The sorted keys and the places where they were; None where they were in order.
    """
    indices: Tensor | None = None
    pieces = ceil_div(count, PIECE)
    table = Line(1, pieces << DIGIT_BITS, 1)
    local = column_local(pieces, encoder)
    for shift in range(0, (limit - 1).bit_length(), DIGIT_BITS):
        counts = encoder.scratch(table.size, DType.INT32)
        begins = encoder.scratch(table.size, DType.INT32)
        params = kernels.RadixCountParams(pieces=pieces, count=count, piece=PIECE, shift=shift)
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
