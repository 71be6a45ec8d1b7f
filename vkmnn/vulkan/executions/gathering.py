"""Gather, GatherElements and GatherND."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Op, Region, View
from vkmnn.ir.ops import AxisAttrs, GatherNDAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.half import HalfRule
from vkmnn.vulkan.indexing import MAX_AXES, operands, padded, row_strides


@vulkan_execution("Gather")
class GatherExecution(VulkanExecution):
    """One dispatch; four words at a time when rows allow."""

    half_rule = HalfRule.FOLLOWS

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        assert isinstance(self.op.attrs, AxisAttrs)
        data, index = operands(inputs)
        axis = self.op.attrs.axis % len(data.shape)
        size = data.shape[axis]
        inner = prod(data.shape[axis + 1 :])
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        width = 4 if inner % 4 == 0 else 1
        count = prod(outputs[0].shape) // width
        shader = kernels.gather(width=4 if width == 4 else 1, storage=encoder.load_storage)
        params = kernels.GatherParams(
            count=count,
            inner=inner // width,
            indices=prod(index.shape),
            axis=size,
            check=check,
        )
        encoder.dispatch_linear(shader, [data, index, outputs[0], status], params, count)


@vulkan_execution("GatherElements")
class GatherElementsExecution(VulkanExecution):
    """One dispatch over the indices."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse shapes with too many alternating axes."""
        axes = len(_elements_walk(op, inputs).size)
        return f"{axes} alternating axes, at most {MAX_AXES} fit" if axes > MAX_AXES else None

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        assert isinstance(self.op.attrs, AxisAttrs)
        data, index = operands(inputs)
        axis = self.op.attrs.axis % len(data.shape)
        size = data.shape[axis]
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        walk = _elements_walk(self.op, inputs)
        count = prod(index.shape)
        params = kernels.GatherElementsParams(
            count=count,
            size=padded(walk.size, 1)[1:],
            stride=padded(walk.src.strides, 0),
            axis=size,
            axis_stride=prod(data.shape[axis + 1 :]),
            check=check,
        )
        shader = kernels.gather_elements(storage=encoder.load_storage)
        encoder.dispatch_linear(shader, [data, index, outputs[0], status], params, count)


def _elements_walk(op: Op, inputs: Sequence[Tensor | None]) -> Region:
    """Return the way from index elements (dst) to where their line in the data begins (src)."""
    assert isinstance(op.attrs, AxisAttrs)
    data, index = operands(inputs)
    strides = list(row_strides(data.shape))
    strides[op.attrs.axis] = 0
    source = View(0, tuple(strides))
    return simplify(Region(source, View(0, row_strides(index.shape)), index.shape))


@vulkan_execution("GatherND")
class GatherNDExecution(VulkanExecution):
    """One dispatch over the gathered slices."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse index tuples that the kernel has no room for."""
        _, index = operands(inputs)
        depth = index.shape[-1]
        return f"index tuples of {depth}, at most {MAX_AXES} fit" if depth > MAX_AXES else None

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        assert isinstance(self.op.attrs, GatherNDAttrs)
        data, index = operands(inputs)
        first = self.op.attrs.batch_dims
        depth = index.shape[-1]
        sizes = data.shape[first : first + depth]
        strides = row_strides(data.shape)
        status, check = encoder.check_indices(self.op, index)
        count = prod(outputs[0].shape)
        params = kernels.GatherNdParams(
            count=count,
            inner=prod(data.shape[first + depth :]),
            tuples=prod(index.shape[first:-1]),
            depth=depth,
            batch_stride=prod(data.shape[first:]),
            size=(*sizes, *[1] * (MAX_AXES - depth)),
            stride=(*strides[first : first + depth], *[0] * (MAX_AXES - depth)),
            check=check,
        )
        shader = kernels.gather_nd(storage=encoder.load_storage)
        encoder.dispatch_linear(shader, [data, index, outputs[0], status], params, count)
