"""Copies of whole channel blocks between images, as in concatenations, slices and pads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import covers, row_major, simplify
from vkmnn.ir import Layout, Region, View
from vkmnn.ir.ops import RasterAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.images.forms import image_form
from vkmnn.vulkan.images.place import MAX_RANK, MIN_RANK, place_of

Four = tuple[int, int, int, int]
_TEXELS = (0, 2, 1, 3)
"""Positions of batch, row, block and column, the kernel's order, among batch, channel, row and
column.
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A region as a box in both tensors, along batch, channel, row and column.

    Attributes:
        src: where it begins in the source.
        step: distance to the source's next element along each axis; 0 repeats the first.
        dst: where it begins in the output.
        size: elements along each axis.
        origin: number of the source.
    """

    src: Four
    step: Four
    dst: Four
    size: Four
    origin: int


def four_axes(shape: Sequence[int]) -> Four:
    """Return a shape of two to four axes as batch, channels, rows and columns."""
    batch, channels, *space = shape
    rows, columns = (*(1,) * (MAX_RANK - len(shape)), *space)
    return batch, channels, rows, columns


def box_of(region: Region, source: Sequence[int], output: Sequence[int]) -> Box | None:
    """Return a region as a box in both tensors; None if it is not one.

    Args:
        region: the region, in plain addresses.
        source: shape of the source, of two to four axes.
        output: shape of the output, likewise.
    """
    shapes = four_axes(source), four_axes(output)
    reach = [
        sum((size - 1) * step for size, step in zip(region.size, view.strides, strict=True))
        for view in (region.src, region.dst)
    ]
    src, end = (_place(region.src.offset + by, shapes[0]) for by in (0, reach[0]))
    dst, last = (_place(region.dst.offset + by, shapes[1]) for by in (0, reach[1]))
    size = tuple(b - a + 1 for a, b in zip(dst, last, strict=True))
    if min(size) < 1:
        return None
    step = tuple((b - a) // max(n - 1, 1) for a, b, n in zip(src, end, size, strict=True))
    strides = [row_major(shape) for shape in shapes]
    again = Region(
        View(region.src.offset, tuple(a * b for a, b in zip(step, strides[0], strict=True))),
        View(region.dst.offset, strides[1]),
        size,
        region.origin,
    )
    if prod(size) != prod(region.size) or simplify(again) != simplify(region):
        return None
    return Box(src, _four(step), dst, _four(size), region.origin)


def _four(values: Sequence[int]) -> Four:
    batch, channels, rows, columns = values
    return batch, channels, rows, columns


def _place(offset: int, shape: Four) -> Four:
    place = []
    for size in reversed(shape):
        offset, index = divmod(offset, size)
        place.append(index)
    return _four(place[::-1])


def _moves_blocks(box: Box, channels: int) -> bool:
    """Return whether a box consists of whole channel blocks, the last of the output's cut."""
    begins = box.src[1] % 4 == 0 and box.dst[1] % 4 == 0
    single = box.size[1] == 1 or box.step[1] == 1
    ends = box.size[1] % 4 == 0 or box.dst[1] + box.size[1] == channels
    return begins and single and ends


def _boxes(attrs: RasterAttrs, inputs: Sequence[Tensor | None], output: Tensor) -> list[Box] | None:
    boxes = []
    for region in attrs.regions:
        source = inputs[region.origin]
        if source is None or prod(region.size) == 0:
            return None
        box = box_of(region, source.shape, output.shape)
        if box is None or not _moves_blocks(box, four_axes(output.shape)[1]):
            return None
        boxes.append(box)
    return boxes


def _takes(execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]) -> set[int] | None:
    """Accept computed tensors if one is in an image and whole blocks move."""
    attrs, output = execution.attrs, execution.outputs[0]
    shapes = [tensor.shape for tensor in (*inputs, output) if tensor is not None]
    if any(not MIN_RANK <= len(shape) <= MAX_RANK or 0 in shape for shape in shapes):
        return None
    if attrs.ordered or not any(t is not None and t.layout is Layout.IMAGE for t in inputs):
        return None
    if any(t is None or t.value is not None for t in inputs):
        return None
    return set(range(len(inputs))) if _boxes(attrs, inputs, output) is not None else None


@image_form("Raster", _takes)
def record_raster(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record a dispatch per region, after one that fills the output where regions leave gaps."""
    attrs, inputs, output = execution.attrs, execution.operands, execution.output
    boxes = _boxes(attrs, inputs, output)
    assert boxes is not None, f"{output.name} is made of parts of blocks"
    if not covers(attrs.regions, prod(output.shape)):
        whole = Box((0,) * 4, (0,) * 4, (0,) * 4, four_axes(output.shape), 0)
        _record(whole, inputs[0], output, encoder, fill=attrs.fill)
    for box in boxes:
        _record(box, inputs[box.origin], output, encoder)


def _record(
    box: Box,
    source: Tensor,
    output: Tensor,
    encoder: VulkanEncoder,
    fill: float | None = None,
) -> None:
    limit = encoder.info.limits.max_image_dimension
    before, after = place_of(source.shape, limit), place_of(output.shape, limit)
    assert before is not None, f"{source.name} is in no image"
    assert after is not None, f"{output.name} is in no image"
    src, step, dst, size = (
        [values[axis] for axis in _TEXELS] for values in (box.src, box.step, box.dst, box.size)
    )
    blocks = ceil_div(size[2], 4)
    params = kernels.ImageRasterParams(
        count=size[0] * size[1] * blocks * size[3],
        size=(size[1], blocks, size[3]),
        x_start=(src[0], src[1], src[2] // 4, src[3]),
        x_step=(step[0], step[1], 1, step[3]),
        x_size=(before.rows, before.columns),
        y_start=(dst[0], dst[1], dst[2] // 4, dst[3]),
        y_size=(after.rows, after.columns),
        channels=four_axes(output.shape)[1],
        fill=fill or 0.0,
    )
    spec = {"FILL": fill is not None, "X_FOLDED": before.folded, "Y_FOLDED": after.folded}
    shader = kernels.image_raster(element=encoder.element)
    encoder.dispatch_linear(shader, [source, output], params, params.count, spec)
