"""Gather, GatherElements and GatherND."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Region, View
from vkmnn.ir.ops import AxisAttrs, GatherNDAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.indexing import MAX_AXES, padded, row_strides
from vkmnn.vulkan.storage import storage_bytes


@vulkan_execution("Gather")
class GatherExecution(VulkanExecution[AxisAttrs]):
    """One dispatch; four words at a time when rows allow."""

    float_rule = FloatRule.FOLLOWS

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        data, index = self.operands
        axis = self.attrs.axis % len(data.shape)
        size = data.shape[axis]
        inner = prod(data.shape[axis + 1 :])
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        width = 4 if inner % 4 == 0 else 1
        count = prod(self.output.shape) // width
        shader = kernels.gather(
            width=4 if width == 4 else 1, element=encoder.element, load=encoder.load
        )
        params = kernels.GatherParams(
            count=count,
            inner=inner // width,
            indices=prod(index.shape),
            axis=size,
            check=check,
        )
        encoder.dispatch_linear(shader, [data, index, self.output, status], params, count)
        expect_rows(index, self.output, encoder)


@vulkan_execution("GatherElements")
class GatherElementsExecution(VulkanExecution[AxisAttrs]):
    """One dispatch over the indices."""

    float_rule = FloatRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject shapes with too many alternating axes."""
        data, index = self.operands
        self._walk = elements_walk(data.shape, index.shape, self.attrs.axis)
        axes = len(self._walk.size)
        if axes > MAX_AXES:
            raise Rejection(f"{axes} alternating axes, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        data, index = self.operands
        axis = self.attrs.axis % len(data.shape)
        size = data.shape[axis]
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        walk = self._walk
        count = prod(index.shape)
        params = kernels.GatherElementsParams(
            count=count,
            size=padded(walk.size, 1)[1:],
            stride=padded(walk.src.strides, 0),
            axis=size,
            axis_stride=prod(data.shape[axis + 1 :]),
            check=check,
        )
        shader = kernels.gather_elements(element=encoder.element, load=encoder.load)
        encoder.dispatch_linear(shader, [data, index, self.output, status], params, count)
        expect_rows(index, self.output, encoder)


def expect_rows(index: Tensor, output: Tensor, encoder: VulkanEncoder) -> None:
    """Predict the last dispatch by the elements that it selects, not by the table they are in."""
    if 0 in output.shape:
        return
    nbytes = storage_bytes(index) + 2 * storage_bytes(output)
    workgroups = prod(encoder.recording.dispatches[-1].groups)
    encoder.expect(lambda: Expected(pass_cost(nbytes, encoder.info, workgroups), nbytes=nbytes))


def elements_walk(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> Region:
    """Return the walk from index elements (dst) to the starts of their lines in the data (src)."""
    strides = list(row_strides(data))
    strides[axis] = 0
    source = View(0, tuple(strides))
    return simplify(Region(source, View(0, row_strides(index)), index))


@vulkan_execution("GatherND")
class GatherNDExecution(VulkanExecution[GatherNDAttrs]):
    """One dispatch over the gathered slices."""

    float_rule = FloatRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Reject index tuples that are too long for the kernel."""
        depth = self.operand(1).shape[-1]
        if depth > MAX_AXES:
            raise Rejection(f"index tuples of {depth}, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        data, index = self.operands
        first = self.attrs.batch_dims
        depth = index.shape[-1]
        sizes = data.shape[first : first + depth]
        strides = row_strides(data.shape)
        status, check = encoder.check_indices(self.op, index)
        count = prod(self.output.shape)
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
        shader = kernels.gather_nd(element=encoder.element, load=encoder.load)
        encoder.dispatch_linear(shader, [data, index, self.output, status], params, count)
        expect_rows(index, self.output, encoder)
