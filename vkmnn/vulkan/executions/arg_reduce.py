"""ArgMax and ArgMin along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType
from vkmnn.ir.ops import ArgReduceAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.shape.common import normalize_axis
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.rows.reduction import (
    ROW_PIECE,
    Line,
    column_local,
    is_busy,
    line_of,
    row_grid,
    row_group,
)
from vkmnn.vulkan.storage import element_bytes, stored_element

# Shorter lines are not worth a workgroup each.
MIN_GROUP = 64


@vulkan_execution("ArgMax", "ArgMin")
class ArgReduceExecution(VulkanExecution[ArgReduceAttrs]):
    """An invocation or a workgroup per line; long lines are split, and their winners compared."""

    float_rule = FloatRule.READS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject empty lines."""
        if 0 in self.operand(0).shape and 0 not in self.output.shape:
            raise Rejection("the extremum of an empty axis")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        x, y = self.operand(0), self.output
        axis = normalize_axis(self.attrs.axis, len(x.shape))
        line = line_of(x.shape, axis, axis)
        if 0 in x.shape:
            return
        source: kernels.ArgReduceSource = stored_element(x)
        tensors = [x]
        while True:
            pieces = _pieces(line, sum(map(element_bytes, tensors)), encoder)
            words = line.columns * pieces
            index = y if pieces == 1 else encoder.scratch(words, DType.INT32)
            key = y if pieces == 1 else encoder.scratch(words, DType.INT32)
            self._dispatch(source, [*tensors, index, key], line, pieces, encoder)
            if pieces == 1:
                return
            source, tensors, line = "pair", [key, index], replace(line, size=pieces)

    def _dispatch(
        self,
        source: kernels.ArgReduceSource,
        tensors: Sequence[Tensor],
        line: Line,
        pieces: int,
        encoder: VulkanEncoder,
    ) -> None:
        count = line.columns * pieces
        params = kernels.ArgReduceParams(
            count=count,
            size=line.size,
            inner=line.inner,
            chunk=min(line.size, ROW_PIECE) if pieces > 1 else line.size,
            chunks=pieces,
        )
        spec: dict[str, int | float | bool] = {
            "INVERTED": self.op.type == "ArgMin",
            "LAST": self.attrs.select_last_index,
            "PARTIAL": pieces > 1,
        }
        alone = line.size < MIN_GROUP or is_busy(count, encoder.info)
        if encoder.choose("arg_reduce alone", (line, pieces), (alone, not alone)):
            shader = kernels.arg_reduce(source=source, lanes=1, load=encoder.load)
            spec |= column_local(count, encoder)
            encoder.dispatch_linear(shader, tensors, params, count, spec)
            return
        # The kernel reads words, not vec4s: a workgroup for four times the row.
        group = row_group(count, 4 * params.chunk, encoder)
        shader = kernels.arg_reduce(source=source, lanes=group.lanes, load=group.load)
        spec["local_size_x"] = group.local
        encoder.dispatch(shader, tensors, params, row_grid(count, encoder), spec)


def _pieces(line: Line, key_bytes: int, encoder: VulkanEncoder) -> int:
    """Return into how many pieces lines are split.

    On GPUs, a workgroup takes a whole line if that is predicted to be faster than two dispatches.
    """
    info = encoder.info
    pieces = ceil_div(line.size, ROW_PIECE)
    if pieces == 1 or not is_gpu(info) or is_busy(line.columns, info):
        return pieces
    nbytes = line.columns * line.size * key_bytes
    whole = pass_cost(nbytes, info, line.columns).total
    winners = class_of(info).gap_us + pass_cost(0, info, line.columns).total
    split = pass_cost(nbytes, info, line.columns * pieces).total + winners
    return 1 if whole <= split else pieces
