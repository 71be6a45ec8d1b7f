"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.core.tensor import Tensor
from vkmnn.ir.ops import SoftmaxAttrs
from vkmnn.shaders import kernels
from vkmnn.shape.common import normalize_axis
from vkmnn.shape.reduction import flatten_axis
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.fp16 import Fp16Rule
from vkmnn.vulkan.rows.reduction import (
    MAX_HOLD,
    MIN_ROW,
    Line,
    Reduction,
    column_local,
    encode_reduction,
    line_of,
    row_grid,
    row_group,
)
from vkmnn.vulkan.storage import stored_word

# Longer rows are reduced in pieces first.
MAX_ROW = 65_536
# A column is walked three times.
MAX_COLUMN = MAX_LOOP_ROUNDS // 3


@vulkan_execution("Softmax")
class SoftmaxExecution(VulkanExecution[SoftmaxAttrs]):
    """One dispatch: a workgroup per row, or an invocation per column; long lines take several."""

    fp16_rule = Fp16Rule.FOLLOWS
    repeatable = True

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        attrs, x, y = self.attrs, self.operand(0), self.output
        if 0 in x.shape:
            return
        rank = len(x.shape)
        if attrs.flatten:
            line = line_of(x.shape, flatten_axis(attrs.axis, rank), rank - 1)
        else:
            axis = normalize_axis(attrs.axis, rank)
            line = line_of(x.shape, axis, axis)
        way = encoder.choose("softmax", line, _ways(line))
        _WAYS[way](attrs.log, x, y, line, encoder)


def _ways(line: Line) -> list[str]:
    """Return what computes the softmax of such lines, the fastest first."""
    rows = ["rows"] if line.inner == 1 and line.size <= MAX_ROW else []
    columns = ["columns"] if line.size <= MAX_COLUMN else []
    first, second = (rows, columns) if line.size >= MIN_ROW else (columns, rows)
    return [*first, *second, "stages"]


def _encode_rows(log: bool, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder) -> None:
    group = row_group(line.outer, line.size, encoder)
    aligned = 4 if line.size % 4 == 0 else 1
    vectors = line.size // 4 if aligned == 4 else (line.size + 2) // 4 + 1
    hold = ceil_div(vectors, group.local)
    shader = kernels.softmax_rows(
        lanes=group.lanes,
        aligned=aligned,  # type: ignore[arg-type]
        element=stored_word(x),
    )
    params = kernels.SoftmaxRowsParams(rows=line.outer, size=line.size)
    spec: dict[str, int | float | bool] = {
        "local_size_x": group.local,
        "HOLD": hold if hold <= MAX_HOLD[group.lanes] else 0,
        "LOG": log,
    }
    tensors = [x, y] if aligned == 4 else [x, y, y]
    encoder.dispatch(shader, tensors, params, row_grid(line.outer, encoder), spec)


def _encode_columns(log: bool, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder) -> None:
    count = line.columns // line.width
    shader = kernels.softmax_columns(width=line.width, element=encoder.element, load=encoder.load)
    params = kernels.SoftmaxColumnsParams(
        columns=count, size=line.size, inner=line.inner // line.width
    )
    spec = {"LOG": log, **column_local(count, encoder)}
    encoder.dispatch_linear(shader, [x, y], params, count, spec)


def _encode_stages(log: bool, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder) -> None:
    """Record maximum, sum of exponentials and quotient as passes of their own."""
    peak, total = (encoder.scratch(line.columns, full=True) for _ in range(2))
    encode_reduction(Reduction("MAX"), x, peak, line, encoder)
    powers = Reduction("SUM_EXP", center=peak, subtract=True)
    encode_reduction(powers, x, total, line, encoder)
    count = line.columns * line.size
    params = kernels.SoftmaxApplyParams(count=count, size=line.size, inner=line.inner)
    shader = kernels.softmax_apply(element=encoder.element, load=encoder.load)
    encoder.dispatch_linear(shader, [x, peak, total, y], params, count, {"LOG": log})


_WAYS: dict[str, Callable[[bool, Tensor, Tensor, Line, VulkanEncoder], None]] = {
    "rows": _encode_rows,
    "columns": _encode_columns,
    "stages": _encode_stages,
}
