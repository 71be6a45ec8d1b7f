"""Resizing of rows and columns of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.executions.interp import InterpExecution, kept
from vkmnn.vulkan.images.forms import image_form
from vkmnn.vulkan.images.place import MAX_RANK, place_of


def _takes(execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]) -> set[int] | None:
    """Accept tensors in images if one dispatch resizes rows, columns or both."""
    x = inputs[0]
    if x is None or x.layout is not Layout.IMAGE or not isinstance(execution, InterpExecution):
        return None
    if len(execution.steps) != 1 or any(taps.axis < 2 for taps in execution.steps[0]):
        return None
    if execution.attrs.ending is not None:
        return None
    return {0}


@image_form("Interp", _takes)
def record_interp(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record one dispatch."""
    assert isinstance(execution, InterpExecution)
    x, y = execution.operand(0), execution.output
    limit = encoder.info.limits.max_image_dimension
    before, after = place_of(x.shape, limit), place_of(y.shape, limit)
    assert before is not None, f"{x.name} is in no image"
    assert after is not None, f"{y.name} is in no image"
    resized = {taps.axis + MAX_RANK - len(x.shape): taps for taps in execution.steps[0]}
    rows = resized.get(2) or kept(2, before.rows)
    columns = resized.get(3) or kept(3, before.columns)
    name = execution.op.name
    params = kernels.ImageInterpParams(
        count=after.texels,
        rows=after.batch * after.rows,
        out_size=(after.rows, after.columns),
        in_size=(before.rows, before.columns),
        channels=y.shape[1],
        outside=execution.attrs.extrapolation_value,
    )
    spec = {
        "ROW_PAIRS": rows.pairs,
        "COLUMN_PAIRS": columns.pairs,
        "X_FOLDED": before.folded,
        "Y_FOLDED": after.folded,
    }
    tables = [
        encoder.literal(f"{name}:rows", rows.table(1)),
        encoder.literal(f"{name}:columns", columns.table(1)),
    ]
    shader = kernels.image_interp(element=encoder.element)
    encoder.dispatch_linear(shader, [x, *tables, y], params, after.texels, spec)
