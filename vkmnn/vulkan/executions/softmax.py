"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir.ops import SoftmaxAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.shape.common import normalize_axis
from vkmnn.shape.reduction import flatten_axis
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.quantized.byte_codes import reads_or_makes_codes, rounding_spec
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

# Longer rows are reduced in pieces first.
MAX_ROW = 65_536
# A column is read three times.
MAX_COLUMN = MAX_LOOP_ROUNDS // 3


@vulkan_execution("Softmax")
class SoftmaxExecution(VulkanExecution[SoftmaxAttrs]):
    """A workgroup per row, or an invocation per column; several dispatches for long lines."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject quantised values in columns or long rows."""
        if reads_or_makes_codes(self.attrs) and not _are_rows(self._line()):
            raise Rejection("codes, of lines that are not rows")

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the input; quantised values are float32."""
        return self.by_rule(
            FloatRule.FULL if reads_or_makes_codes(self.attrs) else self.float_rule, element
        )

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        attrs, x, y = self.attrs, self.operand(0), self.output
        if 0 in x.shape:
            return
        line = self._line()
        ways = ["rows"] if _ends_wide(x, y) else _ways(attrs, line)
        way = encoder.choose("softmax", line, ways)
        _WAYS[way](attrs, x, y, line, encoder)

    def plain_end_us(self, end: int, encoder: VulkanEncoder) -> float | None:
        """float16 rows may be stored as float32."""
        rows = _are_rows(self._line()) and not reads_or_makes_codes(self.attrs)
        return 0.0 if end == 1 and rows and self.operand(0).element != "f32" else None

    def _line(self) -> Line:
        attrs, shape = self.attrs, self.operand(0).shape
        rank = len(shape)
        if attrs.flatten:
            return line_of(shape, flatten_axis(attrs.axis, rank), rank - 1)
        axis = normalize_axis(attrs.axis, rank)
        return line_of(shape, axis, axis)


def _ends_wide(x: Tensor, y: Tensor) -> bool:
    return x.element != "f32" and y.element == "f32"


def _are_rows(line: Line) -> bool:
    return line.inner == 1 and line.size <= MAX_ROW


def _ways(attrs: SoftmaxAttrs, line: Line) -> list[str]:
    """Return the ways to compute such a softmax, the fastest first."""
    rows = ["rows"] if _are_rows(line) else []
    if reads_or_makes_codes(attrs):
        return rows
    columns = ["columns"] if line.size <= MAX_COLUMN else []
    first, second = (rows, columns) if line.size >= MIN_ROW else (columns, rows)
    return [*first, *second, "stages"]


def _encode_rows(
    attrs: SoftmaxAttrs, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder
) -> None:
    group = row_group(line.outer, line.size, encoder)
    aligned = 4 if line.size % 4 == 0 else 1
    vectors = line.size // 4 if aligned == 4 else (line.size + 2) // 4 + 1
    hold = ceil_div(vectors, group.local)
    shader = kernels.softmax_rows(
        lanes=group.lanes,
        aligned=aligned,  # type: ignore[arg-type]
        element=x.element,
    )
    params = kernels.SoftmaxRowsParams(rows=line.outer, size=line.size)
    spec: dict[str, int | float | bool] = {
        "local_size_x": group.local,
        "HOLD": hold if hold <= MAX_HOLD[group.lanes] else 0,
        "LOG": attrs.log,
        "OF_INPUT": attrs.of_input,
        **rounding_spec(attrs.ending),
    }
    if _ends_wide(x, y):
        spec["PLAIN_Y"] = True
    tensors = [x, y] if aligned == 4 else [x, y, y]
    encoder.dispatch(shader, tensors, params, row_grid(line.outer, encoder), spec)


def _encode_columns(
    attrs: SoftmaxAttrs, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder
) -> None:
    count = line.columns // line.width
    shader = kernels.softmax_columns(width=line.width, element=encoder.element, load=encoder.load)
    params = kernels.SoftmaxColumnsParams(
        columns=count, size=line.size, inner=line.inner // line.width
    )
    spec = {"LOG": attrs.log, **column_local(count, encoder)}
    encoder.dispatch_linear(shader, [x, y], params, count, spec)


def _encode_stages(
    attrs: SoftmaxAttrs, x: Tensor, y: Tensor, line: Line, encoder: VulkanEncoder
) -> None:
    """Record maximum, sum of exponentials and quotient as separate passes."""
    peak, total = (encoder.scratch(line.columns, full=True) for _ in range(2))
    encode_reduction(Reduction("MAX"), x, peak, line, encoder)
    powers = Reduction("SUM_EXP", center=peak, subtract=True)
    encode_reduction(powers, x, total, line, encoder)
    count = line.columns * line.size
    params = kernels.SoftmaxApplyParams(count=count, size=line.size, inner=line.inner)
    shader = kernels.softmax_apply(element=encoder.element, load=encoder.load)
    encoder.dispatch_linear(shader, [x, peak, total, y], params, count, {"LOG": attrs.log})


_WAYS: dict[str, Callable[[SoftmaxAttrs, Tensor, Tensor, Line, VulkanEncoder], None]] = {
    "rows": _encode_rows,
    "columns": _encode_columns,
    "stages": _encode_stages,
}
