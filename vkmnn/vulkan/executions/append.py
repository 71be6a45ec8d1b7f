"""Append: rows written into a tensor in place; UnpackRows: packed rows read from one."""

from __future__ import annotations

from math import prod

from vkmnn.core.execution import Rejection
from vkmnn.ir.ops import AppendAttrs, UnpackRowsAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution

MAX_PACKED_DEPTH = 1 << 20
"""Elements of a row: 32 invocations loop over its vec4s."""


@vulkan_execution("Append")
class AppendExecution(VulkanExecution[AppendAttrs]):
    """One dispatch over the appended rows; the result is the first input."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject more rows to pack than there can be workgroups, and too long ones."""
        if self.attrs.packing:
            depth = self.operand(1).shape[-1]
            if depth > MAX_PACKED_DEPTH:
                raise Rejection(f"rows of {depth} elements")
            groups = self._groups()
            if any(
                n > most
                for n, most in zip(groups, info.limits.max_workgroup_count[:2], strict=True)
            ):
                raise Rejection(f"{groups} workgroups")

    def _groups(self) -> tuple[int, int]:
        """Return the workgroups that pack rows: those of each repetition, and repetitions."""
        shape, axis = self.operand(1).shape, self.attrs.axis
        return prod(shape[axis:-1]), prod(shape[:axis])

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        whole, rows, length = self.operands
        encoder.alias(self.output, whole)
        axis, count = self.attrs.axis, prod(rows.shape)
        if count == 0:
            return
        if self.attrs.packing:
            packed = kernels.AppendPackedParams(
                depth=rows.shape[-1],
                words=whole.shape[-1],
                inner=prod(rows.shape[axis + 1 : -1]),
                rows=rows.shape[axis],
                capacity=whole.shape[axis],
            )
            packs = kernels.append_packed(packing=self.attrs.packing)
            encoder.dispatch(packs, [rows, length, self.output], packed, (*self._groups(), 1))
            return
        params = kernels.AppendParams(
            count=count,
            inner=prod(rows.shape[axis + 1 :]),
            rows=rows.shape[axis],
            capacity=whole.shape[axis],
        )
        shader = kernels.append(load=encoder.load)
        encoder.dispatch_linear(shader, [rows, length, self.output], params, count)


@vulkan_execution("UnpackRows")
class UnpackRowsExecution(VulkanExecution[UnpackRowsAttrs]):
    """One dispatch over the words of all rows."""

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        words, length = self.operands
        attrs, shape = self.attrs, words.shape
        assert attrs.packing
        count = prod(shape[:-1]) * ceil_div(attrs.depth, 4)
        if count == 0:
            return
        params = kernels.UnpackRowsParams(
            count=count,
            depth=attrs.depth,
            words=shape[-1],
            inner=prod(shape[attrs.axis + 1 : -1]),
            capacity=shape[attrs.axis],
        )
        shader = kernels.unpack_rows(packing=attrs.packing)
        encoder.dispatch_linear(shader, [words, length, self.output], params, count)
