"""Running sums and products along lines."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Op
from vkmnn.ir.ops import CumSumAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.rows.reduction import (
    Line,
    Reduction,
    column_local,
    encode_pieces,
    is_busy,
    word_type,
)
from vkmnn.vulkan.storage import kernel_dtype

# Lines up to this length are summed by one invocation.
MAX_LINE = 1_024


def encode_running(
    op: Op, attrs: CumSumAttrs, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder
) -> None:
    """Record running sums along lines; products if `op` is a CumProd."""
    piece = line.size
    if line.size > MAX_LINE and not (
        is_busy(line.columns, encoder.info) and line.size <= MAX_LOOP_ROUNDS
    ):
        piece = isqrt(line.size - 1) + 1
    pieces = ceil_div(line.size, piece)
    count = line.columns * pieces
    offset = x
    if pieces > 1:
        sums = encoder.scratch(count, word_type(x))
        offset = encoder.scratch(count, word_type(x))
        whole = Reduction("PROD" if op.type == "CumProd" else "SUM")
        encode_pieces(whole, x, sums, line, piece, encoder)
        encode_running(
            op, replace(attrs, exclusive=True), sums, offset, replace(line, size=pieces), encoder
        )
    shader = kernels.cum_sum(
        element=kernel_dtype(x.dtype),  # type: ignore[arg-type]
        load=encoder.load,
    )
    # Without OFFSET the binding still needs a buffer; any will do.
    tensors, check = [x, offset, y], 0
    if kernel_dtype(x.dtype) == "i32":
        # Sums of pieces, which are int32, may wrap; only the running sums after them must not.
        status, check = encoder.check_overflow(op, y)
        tensors.append(status)
    params = kernels.CumSumParams(
        count=count, size=line.size, inner=line.inner, chunk=piece, chunks=pieces, check=check
    )
    spec = {
        "EXCLUSIVE": attrs.exclusive,
        "REVERSE": attrs.reverse,
        "OFFSET": pieces > 1,
        "PRODUCT": op.type == "CumProd",
        **column_local(count, encoder),
    }
    encoder.dispatch_linear(shader, tensors, params, count, spec)
