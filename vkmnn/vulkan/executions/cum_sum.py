"""CumSum and CumProd: running sums and products along one axis."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Op
from vkmnn.ir.ops import CumSumAttrs
from vkmnn.shaders import kernels
from vkmnn.shape.common import int_scalar, normalize_axis
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.rows.reduction import (
    Line,
    Reduction,
    column_local,
    encode_pieces,
    is_busy,
    line_of,
    word_type,
)
from vkmnn.vulkan.storage import kernel_dtype

# Lines up to this length are walked by one invocation.
MAX_LINE = 1_024


@vulkan_execution("CumSum", "CumProd")
class CumSumExecution(VulkanExecution[CumSumAttrs]):
    """One invocation per line; of long lines first the sums of pieces, then their running sums."""

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        x, axis = self.operand(0), self.operand(1)
        along = normalize_axis(int_scalar([None, axis.value], 1, "axis"), len(x.shape))
        if 0 not in x.shape:
            _encode(self.op, self.attrs, x, self.output, line_of(x.shape, along, along), encoder)


def _encode(
    op: Op, attrs: CumSumAttrs, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder
) -> None:
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
        _encode(
            op, replace(attrs, exclusive=True), sums, offset, replace(line, size=pieces), encoder
        )
    shader = kernels.cum_sum(
        element=kernel_dtype(x.dtype),  # type: ignore[arg-type]
        load=encoder.load,
    )
    # Without OFFSET the binding still needs a buffer; any will do.
    tensors, check = [x, offset, y], 0
    if kernel_dtype(x.dtype) == "i32":
        # Sums of pieces, which are int32, may wrap: only the running sums that follow must not.
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
