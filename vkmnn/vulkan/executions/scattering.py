"""ScatterND and ScatterElements."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Literal, TypeVar

import numpy as np

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Array, Region, View
from vkmnn.ir.ops import ScatterElementsAttrs, ScatterNDAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.checks import IndexRange
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, cpu_lanes, is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.executions.gathering import elements_walk
from vkmnn.vulkan.indexing import MAX_AXES, padded, row_strides
from vkmnn.vulkan.rows.reduction import column_local, is_busy
from vkmnn.vulkan.sorting.scatter import AtOnce, InOrder, Scatter
from vkmnn.vulkan.storage import kernel_dtype, vec4_count

_Attrs = TypeVar("_Attrs", ScatterNDAttrs, ScatterElementsAttrs)

FEW = 64
"""Maximum updates that GPUs apply in order rather than in parallel."""
FEW_ON_CPU = {"none": 2_048}
"""The same for CPU devices, by reduction; updates count once for each vector of a slice."""
FEW_REDUCED_ON_CPU = 16_384


def ways(
    reduction: str, updates: int, parallel: int, encoder: VulkanEncoder, *, lines: bool = False
) -> list[InOrder | AtOnce]:
    """Return the ways to apply updates, the likely fastest first.

    Args:
        reduction: how updates combine.
        updates: updates that an invocation would apply in order.
        parallel: invocations that would do so.
        encoder: the encoder, which knows the device.
        lines: whether each invocation has updates of its own.
    """
    info = encoder.info
    if is_gpu(info):
        in_order = updates <= FEW or is_busy(parallel, info)
    else:
        few = FEW_ON_CPU.get(reduction, FEW_REDUCED_ON_CPU)
        in_order = lines or updates * ceil_div(parallel, cpu_lanes(info)) <= few
    found: list[InOrder | AtOnce] = [InOrder(), AtOnce()]
    return found if in_order else found[::-1]


class _Scattering(VulkanExecution[_Attrs]):
    """Copies the data, then applies the updates as if in order.

    Floats are added in an order that depends on the indices alone.
    """

    def _spec(self) -> dict[str, int | float | bool]:
        return {"REDUCTION": kernels.Scatter[self.attrs.reduction.upper()].value}

    def _scatter(self, count: int, inner: int, encoder: VulkanEncoder) -> Scatter:
        """Record the copy of the data; return the scatter of `count` times `inner` elements."""
        data, _, updates = self.operands
        output = self.output
        n4 = vec4_count(output)
        params = kernels.CopyParams(n4=n4)
        encoder.dispatch_linear(kernels.copy(load=encoder.load), [data, output], params, n4)
        rows = prod(data.shape) // max(inner, 1)
        return Scatter(self.op, self.attrs.reduction, updates, output, count, inner, rows, encoder)

    def _element(self) -> Literal["f32", "i32"]:
        return "i32" if kernel_dtype(self.operand(0).dtype) == "i32" else "f32"


@vulkan_execution("ScatterND")
class ScatterNDExecution(_Scattering[ScatterNDAttrs]):
    """Updates slices: few in order, many in parallel."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject index tuples that are longer than the kernel's."""
        data, index, _ = self.operands
        self._depth = depth = index.shape[-1]
        if depth > MAX_AXES:
            raise Rejection(f"index tuples of {depth}, at most {MAX_AXES} fit")
        self._tuples, self._inner = prod(index.shape[:-1]), prod(data.shape[depth:])
        self._addressed = data.shape[:depth]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the copy and the updates."""
        index, tuples, inner = self.operand(1), self._tuples, self._inner
        addressed, reduction = self._addressed, self.attrs.reduction
        scatter = self._scatter(tuples, inner, encoder)
        if not tuples or not inner:
            return
        if index.value is not None:
            self._check(index.value)
            scatter.encode_known(index, str(addressed), lambda value: _rows(value, addressed))
            return
        problem = (reduction, tuples, inner, scatter.rows)
        way = encoder.choose("scatter", problem, ways(reduction, tuples, inner, encoder))
        status, check = encoder.check_indices(self.op, index)
        if isinstance(way, AtOnce):
            scatter.encode(partial(self._place, status, check, encoder))
        else:
            self._in_order(status, check, encoder)

    def _check(self, index: Array) -> None:
        op = self.op
        for axis, size in enumerate(self._addressed):
            allowed = IndexRange(-size, size - 1, op.type, op.source or op.name)
            allowed.check(index[..., axis], self.operand(1).name)

    def _filled(self, values: tuple[int, ...], fill: int) -> tuple[int, ...]:
        return (*values, *[fill] * (MAX_AXES - self._depth))

    def _place(
        self,
        status: Tensor,
        check: int,
        encoder: VulkanEncoder,
        rows: Tensor,
        winner: Tensor,
        clears: bool,
    ) -> None:
        """Record the rows that index tuples address."""
        params = kernels.ScatterPlaceParams(
            count=self._tuples,
            size=self._filled(self._addressed, 1),
            stride=self._filled(row_strides(self._addressed), 0),
            axis=0,
            axis_stride=0,
            check=check,
        )
        shader = kernels.scatter_place(kind="tuples", load=encoder.load)
        tensors = [self.operand(1), rows, winner, status]
        spec = {"DEPTH": self._depth, "CLEARS": clears}
        encoder.dispatch_linear(shader, tensors, params, self._tuples, spec)

    def _in_order(self, status: Tensor, check: int, encoder: VulkanEncoder) -> None:
        """Record the updates in order, in bounded chunks."""
        data, index, updates = self.operands
        shader = kernels.scatter_nd(element=self._element(), load=encoder.load)
        spec = {**self._spec(), **column_local(self._inner, encoder)}
        chunk = MAX_LOOP_ROUNDS // (self._depth + 2)
        for first in range(0, self._tuples, chunk):
            params = kernels.ScatterNdParams(
                count=self._inner,
                first=first,
                last=min(first + chunk, self._tuples),
                depth=self._depth,
                size=self._filled(self._addressed, 1),
                stride=self._filled(row_strides(data.shape)[: self._depth], 0),
                check=check,
            )
            tensors = [index, updates, self.output, status]
            encoder.dispatch_linear(shader, tensors, params, self._inner, spec)


@vulkan_execution("ScatterElements")
class ScatterElementsExecution(_Scattering[ScatterElementsAttrs]):
    """Updates elements along an axis.

    All updates of an element are in one line along the axis. An invocation applies those of a line
    in order; if few lines would leave a GPU idle, all are applied in parallel.
    """

    def prepare(self, info: DeviceInfo) -> None:
        """Reject shapes with too many alternating axes."""
        data, index, _ = self.operands
        self._axis = self.attrs.axis % len(data.shape)
        self._size = data.shape[self._axis]
        self._lines = _lines(data.shape, index.shape, self._axis)
        self._walk = elements_walk(data.shape, index.shape, self._axis)
        axes = len(self._lines.size)
        if axes > MAX_AXES:
            raise Rejection(f"{axes} alternating axes, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the copy and the updates."""
        data, index, _ = self.operands
        axis, size, reduction = self._axis, self._size, self.attrs.reduction
        scatter = self._scatter(prod(index.shape), 1, encoder)
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        if not scatter.count:
            return
        if index.value is not None:
            key = f"{data.shape}:{axis}"
            scatter.encode_known(index, key, lambda value: _element_rows(value, data.shape, axis))
            return
        length, lines = index.shape[axis], prod(self._lines.size)
        found = ways(reduction, length, lines, encoder, lines=True)
        if len(self._walk.size) > MAX_AXES:
            found = [InOrder()]
        problem = (reduction, length, self._lines.size, size)
        if isinstance(encoder.choose("scatter", problem, found), AtOnce):
            scatter.encode(partial(self._place, status, check, encoder))
        else:
            self._in_order(status, check, encoder)

    def _place(
        self,
        status: Tensor,
        check: int,
        encoder: VulkanEncoder,
        rows: Tensor,
        winner: Tensor,
        clears: bool,
    ) -> None:
        """Record the elements that indices address."""
        data, index, _ = self.operands
        walk, count = self._walk, prod(index.shape)
        params = kernels.ScatterPlaceParams(
            count=count,
            size=padded(walk.size, 1),
            stride=padded(walk.src.strides, 0),
            axis=self._size,
            axis_stride=row_strides(data.shape)[self._axis],
            check=check,
        )
        shader = kernels.scatter_place(kind="elements", load=encoder.load)
        tensors = [index, rows, winner, status]
        encoder.dispatch_linear(shader, tensors, params, count, {"CLEARS": clears})

    def _in_order(self, status: Tensor, check: int, encoder: VulkanEncoder) -> None:
        """Record the lines in bounded chunks."""
        data, index, updates = self.operands
        lines, length = self._lines, index.shape[self._axis]
        count = prod(lines.size)
        shader = kernels.scatter_elements(element=self._element(), load=encoder.load)
        for first in range(0, length, MAX_LOOP_ROUNDS):
            params = kernels.ScatterElementsParams(
                count=count,
                first=first,
                last=min(first + MAX_LOOP_ROUNDS, length),
                axis=self._size,
                axis_stride=row_strides(data.shape)[self._axis],
                line_stride=row_strides(index.shape)[self._axis],
                size=padded(lines.size, 1)[1:],
                index_stride=padded(lines.dst.strides, 0),
                stride=padded(lines.src.strides, 0),
                check=check,
            )
            tensors = [index, updates, self.output, status]
            encoder.dispatch_linear(shader, tensors, params, count, self._spec())


def _rows(index: Array, addressed: tuple[int, ...]) -> Array:
    """Return the rows that index tuples address, in plain order."""
    sizes = np.array(addressed, np.int64)
    wide = index.astype(np.int64).reshape(-1, len(addressed))
    places = np.where(wide < 0, wide + sizes, wide)
    rows: Array = places @ np.array(row_strides(addressed), np.int64)
    return rows


def _element_rows(index: Array, data: tuple[int, ...], axis: int) -> Array:
    """Return the elements of the data that indices along an axis address."""
    rows = index.astype(np.int64)
    rows = np.where(rows < 0, rows + data[axis], rows) * row_strides(data)[axis]
    for number, step in enumerate(row_strides(data)):
        if number != axis:
            along = np.arange(index.shape[number]) * step
            rows = rows + along.reshape([-1 if n == number else 1 for n in range(len(data))])
    return rows


def _lines(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> Region:
    """Return the starts of all lines along the axis, in the index (dst) and the data (src)."""
    sizes = list(index)
    sizes[axis] = 1
    views = View(0, row_strides(data)), View(0, row_strides(index))
    return simplify(Region(*views, tuple(sizes)))
