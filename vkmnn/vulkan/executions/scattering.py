"""ScatterND and ScatterElements."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Region, View
from vkmnn.ir.ops import ScatterElementsAttrs, ScatterNDAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.indexing import MAX_AXES, padded, row_strides
from vkmnn.vulkan.storage import kernel_dtype, vec4_count


@vulkan_execution("ScatterND")
class ScatterNDExecution(VulkanExecution[ScatterNDAttrs]):
    """Copies the data, then writes the updates over it."""

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse index tuples that the kernel has no room for."""
        depth = self.operand(1).shape[-1]
        if depth > MAX_AXES:
            raise Rejection(f"index tuples of {depth}, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the copy and the writes; reductions run through the tuples in bounded chunks."""
        data, index, updates = self.operands
        output, reduction = self.output, self.attrs.reduction
        _copy(data, output, encoder)
        depth = index.shape[-1]
        tuples = prod(index.shape[:-1])
        inner = prod(data.shape[depth:])
        status, check = encoder.check_indices(self.op, index)
        shader = kernels.scatter_nd(
            element=kernel_dtype(data.dtype),  # type: ignore[arg-type]
            load=encoder.load,
        )
        spec = {"REDUCTION": kernels.Scatter[reduction.upper()].value}
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
            encoder.dispatch_linear(shader, [index, updates, output, status], params, count, spec)


@vulkan_execution("ScatterElements")
class ScatterElementsExecution(VulkanExecution[ScatterElementsAttrs]):
    """Copies the data, then writes the updates over it, a line along the axis per invocation."""

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse shapes with too many alternating axes."""
        data, index, _ = self.operands
        self._lines = _lines(data.shape, index.shape, self.attrs.axis)
        axes = len(self._lines.size)
        if axes > MAX_AXES:
            raise Rejection(f"{axes} alternating axes, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the copy and the writes, in bounded chunks."""
        attrs, output, lines = self.attrs, self.output, self._lines
        data, index, updates = self.operands
        _copy(data, output, encoder)
        axis = attrs.axis % len(data.shape)
        length = index.shape[axis]
        size = data.shape[axis]
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        count = prod(lines.size) if length else 0
        shader = kernels.scatter_elements(
            element=kernel_dtype(data.dtype),  # type: ignore[arg-type]
            load=encoder.load,
        )
        spec = {"REDUCTION": kernels.Scatter[attrs.reduction.upper()].value}
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
            encoder.dispatch_linear(shader, [index, updates, output, status], params, count, spec)


def _lines(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> Region:
    """Return the beginnings of all lines along the axis, in the index (dst) and the data (src)."""
    sizes = list(index)
    sizes[axis] = 1
    views = View(0, row_strides(data)), View(0, row_strides(index))
    return simplify(Region(*views, tuple(sizes)))


def _copy(data: Tensor, output: Tensor, encoder: VulkanEncoder) -> None:
    count = vec4_count(output)
    shader = kernels.copy(load=encoder.load)
    encoder.dispatch_linear(shader, [data, output], kernels.CopyParams(n4=count), count)
