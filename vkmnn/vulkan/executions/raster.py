"""Raster and ConvertTensor: every kind of data movement."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts
from vkmnn.core.float_range import fits
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.geometry.regions import covers, simplify
from vkmnn.ir import DType, Layout, Op, Region, View, storage_elements
from vkmnn.ir.ops import RasterAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.copies.block_regions import keeps_its_place, whole_blocks
from vkmnn.vulkan.copies.fill import encode_fill
from vkmnn.vulkan.copies.layout_change import change_layout, same_order
from vkmnn.vulkan.copies.region_copy import fits_blocked, is_contiguous
from vkmnn.vulkan.copies.region_parts import copy_regions
from vkmnn.vulkan.encoder import VulkanEncoder, part_alignment
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.images.convert import convert_image
from vkmnn.vulkan.quantized.byte_codes import holds
from vkmnn.vulkan.splitting.pieces import Piece, span_view
from vkmnn.vulkan.storage import (
    element_bytes,
    storage_bytes,
    stored_dtype,
    vec4_count,
)
from vkmnn.vulkan.windows import flat_windows, room_of, scratch_like, stored_as

MIN_IMAGE_RANK = 4


@vulkan_execution("Raster")
class RasterExecution(VulkanExecution[RasterAttrs]):
    """Copies regions, except where a view suffices, or the producer can write into the output."""

    float_rule = FloatRule.FOLLOWS
    _alignment: int | None
    _of_codes: list[Region] | None

    def prepare(self, info: DeviceInfo) -> None:
        """Record the alignment of parts of a buffer."""
        self._alignment = part_alignment(info)

    def layouts(self) -> Layouts:
        """Stay channel-blocked if every region moves whole channel blocks, as in concat.

        Other movements produce plain order, from sources in either.
        """
        sources = self.operands
        if any(tensor.codes is not None for tensor in sources):
            return [Layout.NC4HW4] * len(sources), [Layout.NC4HW4]
        blocked = sources and all(t.layout is Layout.NC4HW4 for t in sources)
        if blocked and self._blocked_regions() is not None:
            return [Layout.NC4HW4] * len(sources), [Layout.NC4HW4]
        wanted = [self._read_as(number, tensor) for number, tensor in enumerate(sources)]
        return wanted, [self._write_as(wanted)]

    def _read_as(self, number: int, source: Tensor) -> Layout:
        """Read a source in its order, except for parts that are copied, or viewed, as one piece."""
        regions = [simplify(region) for region in self.attrs.regions if region.origin == number]
        whole = any(is_contiguous(region) for region in regions)
        return Layout.NCHW if whole else source.layout

    def _write_as(self, wanted: Sequence[Layout]) -> Layout:
        """Stay channel-blocked among images, as when channels are shuffled.

        The reader is unknown: images are usually read by kernels for images.
        """
        output, sources = self.output, self.operands
        images = (
            len(output.shape) >= MIN_IMAGE_RANK
            and output.shape[1] % 4 == 0
            and output.usage is not Usage.OUTPUT
            and all(layout is Layout.NC4HW4 for layout in wanted)
            and all(
                len(t.shape) == len(output.shape) and t.shape[0] == output.shape[0] for t in sources
            )
        )
        return Layout.NC4HW4 if images and sources else Layout.NCHW

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the sources, unless the value that fills the gaps does not fit."""
        fill = fits(np.array([self.attrs.fill]), element)
        codes = any(tensor.codes is not None for tensor in self.operands)
        return self.by_rule(self.float_rule if fill and not codes else FloatRule.FULL, element)

    def code_inputs(self) -> dict[int, int | None]:
        """Quantised values are read if whole channel blocks move, without extra dispatches."""
        return {} if self._regions_of_codes() is None else dict.fromkeys(range(len(self.inputs)))

    def keeps_codes(self) -> bool:
        """Moving preserves quantised values."""
        return bool(self.code_inputs())

    def needs_codes(self) -> bool:
        """Copies move words as they are."""
        return True

    def made_codes(self, wish: int | None = None) -> int | None:
        """Quantised values that all have the same shift, as must the value in the gaps."""
        shifts = {tensor.codes for tensor in self.operands}
        shift = shifts.pop() if len(shifts) == 1 else None
        fill = self.attrs.fill
        fits = shift is not None and fill == int(fill) and holds(shift, fill, fill)
        return shift if fits and self._regions_of_codes() is not None else None

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record a fill where regions leave gaps, and one dispatch per region."""
        attrs, inputs, output = self.attrs, self.operands, self.output
        by_blocks = None
        if output.codes is not None:
            by_blocks = self._regions_of_codes()
        elif output.layout is Layout.NC4HW4:
            by_blocks = self._blocked_regions()
        if by_blocks is None:
            elements = prod(output.shape)
            regions = [simplify(region) for region in attrs.regions]
        else:
            elements = storage_elements(output.shape, output.layout)
            regions = by_blocks
        if elements == 0:
            return
        if regions and _is_view(regions, elements, inputs, output, encoder):
            return
        gaps = attrs.ordered or not covers(regions, elements)
        if gaps:
            encode_fill(output, attrs.fill, encoder)
        else:
            regions = _write_in_place(regions, inputs, output, encoder)
        if by_blocks is not None:
            copy_regions(regions, dict(enumerate(inputs)), output, encoder, by_blocks=True)
        else:
            fill = attrs.fill if gaps else None
            _copy_all(regions, inputs, output, fill, encoder, ordered=attrs.ordered)

    def _regions_of_codes(self) -> list[Region] | None:
        """Return the regions of quantised values in blocked addresses; None if floats move."""
        if not hasattr(self, "_of_codes"):
            self._of_codes = self._by_whole_blocks()
        return self._of_codes

    def _by_whole_blocks(self) -> list[Region] | None:
        attrs, inputs, output = self.attrs, self.operands, self.output
        shapes = [tensor.shape for tensor in (*inputs, output)]
        floats = all(tensor.dtype is DType.FLOAT32 for tensor in (*inputs, output))
        if attrs.ordered or not inputs or not floats or min(map(len, shapes)) < 3:
            return None
        if attrs.fill and output.shape[1] % 4:
            return None  # lanes past the last channel stay zero
        moved: list[Region] = []
        size = storage_elements(output.shape, Layout.NC4HW4)
        for region in attrs.regions:
            shape = inputs[region.origin].shape
            blocks = whole_blocks(simplify(region), shape, output.shape)
            if blocks is None:
                return None
            read = storage_elements(shape, Layout.NC4HW4)
            if not keeps_its_place(blocks, read, size, self._alignment):
                return None
            moved.append(blocks)
        return moved

    def _blocked_regions(self) -> list[Region] | None:
        """Return the regions in channel-blocked addresses, None if one moves parts of blocks."""
        attrs, inputs, output = self.attrs, self.operands, self.output
        if attrs.ordered or len(output.shape) < 3:
            return None
        blocked: list[Region] = []
        for region in attrs.regions:
            shape = inputs[region.origin].shape
            moved = _blocked_region(simplify(region), shape, output.shape, region.origin)
            if moved is None:
                return None
            blocked.append(moved)
        return blocked if covers(blocked, storage_elements(output.shape, Layout.NC4HW4)) else None


def _copy_all(
    regions: Sequence[Region],
    inputs: Sequence[Tensor],
    output: Tensor,
    fill: float | None,
    encoder: VulkanEncoder,
    *,
    ordered: bool,
) -> None:
    """Copy by plain addresses; blocked tensors too large to bind are first made plain.

    A result that is too large becomes channel-blocked at the end; until then `fill`, if any, is
    where no region writes.
    """
    sources = {n: inputs[n] for n in sorted({region.origin for region in regions})}
    blocked = output.layout is Layout.NC4HW4
    plain: dict[int, Tensor] = {}
    for origin, source in sources.items():
        plain[origin] = source
        if source.layout is Layout.NC4HW4 and not fits_blocked(source, output, encoder):
            plain[origin] = scratch_like(source, prod(source.shape), encoder)
            with stored_as(source, encoder):
                change_layout(source, plain[origin], source.shape, encoder)
    result = output
    if blocked and any(plain[origin] is not source for origin, source in sources.items()):
        result = scratch_like(output, prod(output.shape), encoder)
        if fill is not None:
            encode_fill(result, fill, encoder)
    copy_regions(regions, plain, result, encoder, ordered=ordered)
    if result is not output:
        change_layout(result, output, output.shape, encoder)


def _blocked_region(
    region: Region, source: Sequence[int], output: Sequence[int], origin: int
) -> Region | None:
    """Translate a copy of a range of channels of every image into channel-blocked form."""
    if len(source) < 3 or source[0] != output[0] or prod(source[2:]) != prod(output[2:]):
        return None
    batch, pixels = source[0], prod(source[2:])
    if pixels == 0 or prod(region.size) % (batch * pixels):
        return None
    count = prod(region.size) // (batch * pixels)
    if region.src.offset % pixels or region.dst.offset % pixels:
        return None
    src, dst = region.src.offset // pixels, region.dst.offset // pixels
    plain = Region(
        View(region.src.offset, (source[1] * pixels, 1)),
        View(region.dst.offset, (output[1] * pixels, 1)),
        (batch, count * pixels),
        origin,
    )
    same = simplify(plain)
    if (same.src, same.dst, same.size) != (region.src, region.dst, region.size):
        return None
    ends_both = src + count == source[1] and dst + count == output[1]
    if src % 4 or dst % 4 or (count % 4 and not ends_both):
        return None
    block = batch * pixels * 4
    return Region(
        View(src // 4 * block, (1,)),
        View(dst // 4 * block, (1,)),
        (-(-count // 4) * block,),
        origin,
    )


def _is_view(
    regions: Sequence[Region],
    elements: int,
    inputs: Sequence[Tensor],
    output: Tensor,
    encoder: VulkanEncoder,
) -> bool:
    """Make the output a view, without a copy, if it is a contiguous part of one input."""
    region = regions[0]
    if len(regions) > 1 or not is_contiguous(region) or prod(region.size) != elements:
        return False
    source = inputs[region.origin]
    if stored_dtype(source) != stored_dtype(output) or source.codes != output.codes:
        return False
    begin = region.src.offset * element_bytes(output)
    whole = begin == 0 and storage_bytes(source) == storage_bytes(output)
    aligned = encoder.part_alignment and begin % encoder.part_alignment == 0
    # A vec4 that is only half in the output would include what follows, except for the last one.
    full = elements * element_bytes(output) == storage_bytes(output)
    full = full or begin + storage_bytes(output) == storage_bytes(source)
    if not whole and not (aligned and full and source.value is None):
        return False
    encoder.alias(output, source, begin)
    return True


def _write_in_place(
    regions: Sequence[Region],
    inputs: Sequence[Tensor],
    output: Tensor,
    encoder: VulkanEncoder,
) -> list[Region]:
    """Let producers write straight into the output, as in concat; return regions to copy.

    A tensor may move into the output if all of its bytes go there contiguously, a dispatch produces
    it, and kernels can bind it at its new offset.
    """
    alignment = encoder.part_alignment
    if alignment is None:
        return list(regions)
    size = element_bytes(output)
    whole = sum(prod(region.size) for region in regions) * size
    moves: dict[Tensor, list[tuple[Region, int]]] = {}
    for region in regions:
        root, begin = encoder.placement(inputs[region.origin])
        shift = (region.dst.offset - region.src.offset) * size - begin
        moves.setdefault(root, []).append((region, shift))
    copied: list[Region] = []
    for root, parts in moves.items():
        shift = parts[0][1]
        moved = sum(prod(region.size) for region, _ in parts) * size
        # At the very end, the padding of the last vec4 of both may be the same.
        content = storage_elements(root.shape, root.layout) * size
        if (
            root.value is None
            and encoder.is_written(root)
            and stored_dtype(root) == stored_dtype(output)
            and root.codes == output.codes
            and all(is_contiguous(region) and other == shift for region, other in parts)
            and moved == (content if shift + moved == whole else storage_bytes(root))
            and shift % alignment == 0
        ):
            encoder.alias(root, output, shift)
            encoder.writes(output)
        else:
            copied += [region for region, _ in parts]
    return copied


class PartRasterExecution(RasterExecution):
    """Extracts parts of a tensor that is too large to bind, or joins them.

    Channel-blocked tensors stay so if parts hold whole blocks, along any axis.

    Args:
        op: the Raster, with one region for each of `pieces`.
        inputs: its inputs.
        outputs: its outputs.
        info: the device.
        pieces: the part of the whole that each is.
        gathers: the input is the whole, else the output.
    """

    def __init__(
        self,
        op: Op[RasterAttrs],
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        info: DeviceInfo,
        pieces: Sequence[Piece],
        *,
        gathers: bool,
    ) -> None:
        super().__init__(op, inputs, outputs, info)
        self._pieces = tuple(pieces)
        self._gathers = gathers

    def code_inputs(self) -> dict[int, int | None]:
        """Tensors that are too large to bind are floats."""
        return {}

    def _blocked_regions(self) -> list[Region] | None:
        shape = (self.operand(0) if self._gathers else self.output).shape
        if len(shape) < 3:
            return None
        blocks = (-(-shape[1] // 4), shape[0], *shape[2:], 4)
        regions = []
        for number, piece in enumerate(self._pieces):
            axis, begin, end = piece.axis, piece.begin, piece.end
            if axis < 0 or (axis == 1 and (begin % 4 or (end % 4 and end != shape[1]))):
                return None
            if axis < 2:
                axis = 1 - axis
            if axis == 0:
                begin, end = begin // 4, -(-end // 4)
            place, size = span_view(blocks, axis, begin, end)
            part = View(0, (size[1], 1))
            src, dst = (place, part) if self._gathers else (part, place)
            regions.append(simplify(Region(src, dst, size, number)))
        return regions


@vulkan_execution("ConvertTensor")
class ConvertTensorExecution(VulkanExecution):
    """Converts between plain and channel-blocked order, and between float32 and float16."""

    repeatable = True

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record one dispatch, or a view if both forms are the same."""
        source, output = self.operand(0), self.output
        if Layout.IMAGE in (source.layout, output.layout):
            convert_image(source, output, encoder)
            return
        if source.layout is output.layout or same_order(source.shape):
            _convert_width(source, output, encoder)
            return
        change_layout(source, output, source.shape, encoder)


def _convert_width(source: Tensor, output: Tensor, encoder: VulkanEncoder) -> None:
    if source.element == output.element:
        encoder.alias(output, source)
        return
    shader = kernels.convert_width(element=source.element, result=output.element, load=encoder.load)
    room = room_of(shader, encoder)
    for read, written in flat_windows((source, output), min(room.source, room.output), encoder):
        count = vec4_count(written)
        params = kernels.ConvertWidthParams(n4=count)
        encoder.dispatch_linear(shader, [read, written], params, count)
