"""ScatterND and ScatterElements."""

from __future__ import annotations

from math import prod

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
from vkmnn.vulkan.scatter import AtOnce, InOrder, Scatter
from vkmnn.vulkan.storage import kernel_dtype, vec4_count

FEW = 64
"""Updates that GPUs take in order: for more, they have rows claimed, or updates sorted."""
FEW_ON_CPU = {"none": 2_048}
"""The same for CPU devices, times the vectors of a slice; by reduction."""
FEW_REDUCED_ON_CPU = 16_384


def ways(
    reduction: str, updates: int, parallel: int, encoder: VulkanEncoder, *, lines: bool = False
) -> list[InOrder | AtOnce]:
    """Return how updates may be taken, the likely fastest way first.

    Args:
        reduction: how they combine.
        updates: how many an invocation would take in order.
        parallel: how many invocations would.
        encoder: knows the device.
        lines: each invocation has updates of its own.
    """
    info = encoder.info
    if is_gpu(info):
        in_order = updates <= FEW or is_busy(parallel, info)
    else:
        few = FEW_ON_CPU.get(reduction, FEW_REDUCED_ON_CPU)
        in_order = lines or updates * ceil_div(parallel, cpu_lanes(info)) <= few
    found: list[InOrder | AtOnce] = [InOrder(), AtOnce()]
    return found if in_order else found[::-1]


@vulkan_execution("ScatterND")
class ScatterNDExecution(VulkanExecution[ScatterNDAttrs]):
    """Copies the data, then combines the updates with it as if they were taken in turn.

    Floats are added in an order that depends on the indices alone.
    """

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse index tuples that the kernel has no room for."""
        depth = self.operand(1).shape[-1]
        if depth > MAX_AXES:
            raise Rejection(f"index tuples of {depth}, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the copy and the updates."""
        data, index, updates = self.operands
        output, reduction = self.output, self.attrs.reduction
        _copy(data, output, encoder)
        depth = index.shape[-1]
        tuples, inner = prod(index.shape[:-1]), prod(data.shape[depth:])
        if not tuples or not inner:
            return
        rows = prod(data.shape[:depth])
        scatter = Scatter(self.op, reduction, updates, output, tuples, inner, rows, encoder)
        if index.value is not None:
            addressed = data.shape[:depth]
            self._check(index.value, addressed)
            scatter.encode_known(index, str(addressed), lambda value: _rows(value, addressed))
            return
        problem = (reduction, tuples, inner, rows)
        way = encoder.choose("scatter", problem, ways(reduction, tuples, inner, encoder))
        status, check = encoder.check_indices(self.op, index)
        filled = MAX_AXES - depth
        size = (*data.shape[:depth], *[1] * filled)
        if isinstance(way, AtOnce):

            def place(rows: Tensor, winner: Tensor, clears: bool) -> None:
                params = kernels.ScatterPlaceParams(
                    count=tuples,
                    size=size,
                    stride=(*row_strides(data.shape[:depth]), *[0] * filled),
                    axis=0,
                    axis_stride=0,
                    check=check,
                )
                shader = kernels.scatter_place(kind="tuples", load=encoder.load)
                tensors = [index, rows, winner, status]
                spec = {"DEPTH": depth, "CLEARS": clears}
                encoder.dispatch_linear(shader, tensors, params, tuples, spec)

            scatter.encode(place)
            return
        shader = kernels.scatter_nd(
            element=kernel_dtype(data.dtype),  # type: ignore[arg-type]
            load=encoder.load,
        )
        spec = {
            "REDUCTION": kernels.Scatter[reduction.upper()].value,
            **column_local(inner, encoder),
        }
        chunk = MAX_LOOP_ROUNDS // (depth + 2)
        for first in range(0, tuples, chunk):
            params = kernels.ScatterNdParams(
                count=inner,
                first=first,
                last=min(first + chunk, tuples),
                depth=depth,
                size=size,
                stride=(*row_strides(data.shape)[:depth], *[0] * filled),
                check=check,
            )
            encoder.dispatch_linear(shader, [index, updates, output, status], params, inner, spec)

    def _check(self, index: Array, addressed: tuple[int, ...]) -> None:
        op = self.op
        for axis, size in enumerate(addressed):
            allowed = IndexRange(-size, size - 1, op.type, op.source or op.name)
            allowed.check(index[..., axis], self.operand(1).name)


@vulkan_execution("ScatterElements")
class ScatterElementsExecution(VulkanExecution[ScatterElementsAttrs]):
    """Copies the data, then combines the updates with it, as ScatterND does.

    Updates of one element stand in one line along the axis: those of a line are taken in order, or
    those of all at once.
    """

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse shapes with too many alternating axes."""
        data, index, _ = self.operands
        self._lines = _lines(data.shape, index.shape, self.attrs.axis)
        axes = len(self._lines.size)
        if axes > MAX_AXES:
            raise Rejection(f"{axes} alternating axes, at most {MAX_AXES} fit")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the copy and the updates."""
        attrs, output, lines = self.attrs, self.output, self._lines
        data, index, updates = self.operands
        _copy(data, output, encoder)
        axis = attrs.axis % len(data.shape)
        length = index.shape[axis]
        size = data.shape[axis]
        status, check = encoder.check_range(index, -size, size - 1, self.op)
        count = prod(lines.size) if length else 0
        if not count:
            return
        total = prod(index.shape)
        scatter = Scatter(
            self.op, attrs.reduction, updates, output, total, 1, prod(data.shape), encoder
        )
        if index.value is not None:
            key = f"{data.shape}:{axis}"
            scatter.encode_known(index, key, lambda value: _element_rows(value, data.shape, axis))
            return
        walk = elements_walk(data.shape, index.shape, axis)
        problem = (attrs.reduction, length, lines.size, size)
        found = ways(attrs.reduction, length, count, encoder, lines=True)
        if len(walk.size) > MAX_AXES:
            found = [InOrder()]
        way = encoder.choose("scatter", problem, found)
        axis_stride = row_strides(data.shape)[axis]
        if isinstance(way, AtOnce):

            def place(rows: Tensor, winner: Tensor, clears: bool) -> None:
                params = kernels.ScatterPlaceParams(
                    count=total,
                    size=padded(walk.size, 1),
                    stride=padded(walk.src.strides, 0),
                    axis=size,
                    axis_stride=axis_stride,
                    check=check,
                )
                shader = kernels.scatter_place(kind="elements", load=encoder.load)
                tensors = [index, rows, winner, status]
                encoder.dispatch_linear(shader, tensors, params, total, {"CLEARS": clears})

            scatter.encode(place)
            return
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
                axis_stride=axis_stride,
                line_stride=row_strides(index.shape)[axis],
                size=padded(lines.size, 1)[1:],
                index_stride=padded(lines.dst.strides, 0),
                stride=padded(lines.src.strides, 0),
                check=check,
            )
            encoder.dispatch_linear(shader, [index, updates, output, status], params, count, spec)


def _rows(index: Array, addressed: tuple[int, ...]) -> Array:
    """Return the rows that index tuples mean, in plain order."""
    sizes = np.array(addressed, np.int64)
    wide = index.astype(np.int64).reshape(-1, len(addressed))
    places = np.where(wide < 0, wide + sizes, wide)
    rows: Array = places @ np.array(row_strides(addressed), np.int64)
    return rows


def _element_rows(index: Array, data: tuple[int, ...], axis: int) -> Array:
    """Return which elements of the data indices along an axis mean."""
    rows = index.astype(np.int64)
    rows = np.where(rows < 0, rows + data[axis], rows) * row_strides(data)[axis]
    for number, step in enumerate(row_strides(data)):
        if number != axis:
            along = np.arange(index.shape[number]) * step
            rows = rows + along.reshape([-1 if n == number else 1 for n in range(len(data))])
    return rows


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
