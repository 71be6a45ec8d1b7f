"""ScatterND and ScatterElements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Op, Region, View
from vkmnn.ir.ops import ScatterElementsAttrs, ScatterNDAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.indexing import MAX_AXES, operands, padded, row_strides
from vkmnn.vulkan.storage import kernel_dtype, vec4_count


@vulkan_execution("ScatterND")
class ScatterNDExecution(VulkanExecution):
    """Copies the data, then writes the updates over it."""

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse index tuples that the kernel has no room for."""
        _, index, _ = operands(inputs)
        depth = index.shape[-1]
        return f"index tuples of {depth}, at most {MAX_AXES} fit" if depth > MAX_AXES else None

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the copy and the writes; reductions run through the tuples in bounded chunks."""
        assert isinstance(self.op.attrs, ScatterNDAttrs)
        data, index, updates = operands(inputs)
        output = outputs[0]
        _copy(data, output, encoder)
        reduction = self.op.attrs.reduction
        depth = index.shape[-1]
        tuples = prod(index.shape[:-1])
        inner = prod(data.shape[depth:])
        status, check = encoder.check_indices(self.op, index)
        shader = kernels.scatter_nd(
            reduction=reduction,  # type: ignore[arg-type]
            dtype=kernel_dtype(data.dtype),  # type: ignore[arg-type]
            storage=encoder.full_storage,
        )
        chunk = MAX_LOOP_ROUNDS // (depth + 1)
        starts = [0] if reduction == "none" else range(0, tuples, chunk)
        for first in starts:
            count = tuples * inner if reduction == "none" else inner
            params = kernels.ScatterNdParams(
                count=count,
                inner=inner,
                first=first,
                last=min(first + chunk, tuples),
                depth=depth,
                size=(*data.shape[:depth], *[1] * (MAX_AXES - depth)),
                stride=(*row_strides(data.shape)[:depth], *[0] * (MAX_AXES - depth)),
                check=check,
            )
            encoder.dispatch_linear(shader, [index, updates, output, status], params, count)


@vulkan_execution("ScatterElements")
class ScatterElementsExecution(VulkanExecution):
    """Copies the data, then writes the updates over it, a line along the axis per invocation."""

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse shapes with too many alternating axes."""
        axes = len(_lines(op, inputs).size)
        return f"{axes} alternating axes, at most {MAX_AXES} fit" if axes > MAX_AXES else None

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the copy and the writes, in bounded chunks."""
        attrs = self.op.attrs
        assert isinstance(attrs, ScatterElementsAttrs)
        data, index, updates = operands(inputs)
        output = outputs[0]
        _copy(data, output, encoder)
        axis = attrs.axis % len(data.shape)
        length = index.shape[axis]
        size = data.shape[axis]
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        lines = _lines(self.op, inputs)
        count = prod(lines.size) if length else 0
        shader = kernels.scatter_elements(
            reduction=attrs.reduction,  # type: ignore[arg-type]
            dtype=kernel_dtype(data.dtype),  # type: ignore[arg-type]
            storage=encoder.full_storage,
        )
        for first in range(0, length, MAX_LOOP_ROUNDS):
            params = kernels.ScatterElementsParams(
                count=count,
                first=first,
                last=min(first + MAX_LOOP_ROUNDS, length),
                axis=size,
                axis_stride=row_strides(data.shape)[axis],
                line_stride=row_strides(index.shape)[axis],
                size=padded(lines.size, 1)[1:],
                index_stride=padded(lines.dst.strides, 0),
                stride=padded(lines.src.strides, 0),
                check=check,
            )
            encoder.dispatch_linear(shader, [index, updates, output, status], params, count)


def _lines(op: Op, inputs: Sequence[Tensor | None]) -> Region:
    """Return the beginnings of all lines along the axis, in the index (dst) and the data (src)."""
    assert isinstance(op.attrs, ScatterElementsAttrs)
    data, index, _ = operands(inputs)
    sizes = list(index.shape)
    sizes[op.attrs.axis] = 1
    views = View(0, row_strides(data.shape)), View(0, row_strides(index.shape))
    return simplify(Region(*views, tuple(sizes)))


def _copy(data: Tensor, output: Tensor, encoder: VulkanEncoder) -> None:
    count = vec4_count(output)
    shader = kernels.copy(storage=encoder.full_storage)
    encoder.dispatch_linear(shader, [data, output], kernels.CopyParams(n4=count), count)
