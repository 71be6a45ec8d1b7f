"""Changes between plain and channel-blocked order, as a whole or in bindable parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Region, View
from vkmnn.shaders import kernels
from vkmnn.vulkan.copies.region_copy import copy_region
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.float_rules import is_float
from vkmnn.vulkan.quantized.byte_codes import code_spec
from vkmnn.vulkan.storage import ELEMENT_BYTES, element_bytes
from vkmnn.vulkan.windows import chunk_starts, room_of, scratch_like, stored_as, window


def change_layout(
    source: Tensor,
    output: Tensor,
    shape: tuple[int, ...],
    encoder: VulkanEncoder,
    rounding: Mapping[str, float | bool] | None = None,
) -> None:
    """Record the change of order; floats may change their width in the same dispatch.

    Args:
        source: the source, in one order.
        output: the output, in the other order, given by its layout.
        shape: the shape of both, batch and channels first.
        encoder: records the dispatches.
        rounding: specialization constants for quantising floats (`byte_codes.rounding_spec`).
    """
    batch, channels = shape[:2]
    pixels = prod(shape[2:])
    blocked = output.layout is Layout.NC4HW4
    shader = kernels.convert_layout(
        dest="nc4hw4" if blocked else "nchw",
        element=source.element,
        load=encoder.load,
        result="c8" if output.codes is not None else output.element,
    )
    spec = {**code_spec(y=output), **(rounding or {})}

    def record(read: Tensor, written: Tensor, images: int, planes: int, plane: int) -> None:
        count = images * ceil_div(planes, 4) * plane
        params = kernels.ConvertLayoutParams(
            count=count, batch=images, channels=planes, pixels=plane
        )
        encoder.dispatch_linear(shader, [read, written], params, count, spec)

    room = room_of(shader, encoder)
    if encoder.part_alignment is None or room.holds(source, output) or 0 in shape:
        record(source, output, batch, channels, pixels)
        return
    # Blocks of four channels of one pixel each; a part has as many on either side.
    most = min(room.source, room.output) // (4 * ELEMENT_BYTES)
    unit = _whole_blocks(pixels, source, output, encoder.part_alignment)
    if batch == 1 and unit * pixels <= most:
        for begin, end in chunk_starts(ceil_div(channels, 4), most // pixels, unit):
            first, planes = 4 * begin, min(4 * end, channels) - 4 * begin
            plain, blocks = planes * pixels, 4 * (end - begin) * pixels
            sizes = (plain, blocks) if blocked else (blocks, plain)
            read = window(source, first * pixels, sizes[0], encoder)
            written = window(output, first * pixels, sizes[1], encoder)
            record(read, written, 1, planes, pixels)
        return
    for box in _boxes(batch, channels, pixels, most):
        plain_side, blocked_side = box.sides(batch, channels, pixels)
        size = box.planes * box.pixels, 4 * box.blocks * box.pixels
        before = scratch_like(source, size[0] if blocked else size[1], encoder)
        after = scratch_like(output, size[1] if blocked else size[0], encoder)
        gathered, scattered = (plain_side, blocked_side) if blocked else (blocked_side, plain_side)
        with stored_as(source, encoder):
            taken = Region(gathered[0], View(0, (gathered[1][1], 1)), gathered[1])
            copy_region(taken, source, before, encoder, by_blocks=True)
        record(before, after, 1, box.planes, box.pixels)
        with stored_as(output, encoder):
            put = Region(View(0, (scattered[1][1], 1)), scattered[0], scattered[1])
            copy_region(put, after, output, encoder, by_blocks=True)


def same_order(shape: Sequence[int]) -> bool:
    """Return whether a tensor has the same plain and channel-blocked order."""
    batch, channels, *spatial = shape
    return batch == 1 and prod(spatial) == 1 and channels % 4 == 0


def is_reordered(tensor: Tensor) -> bool:
    """Return whether a dispatch brings 32-bit floats from plain to channel-blocked order."""
    moves = tensor.value is None and tensor.layout is Layout.NCHW and tensor.element == "f32"
    return moves and is_float(tensor) and len(tensor.shape) > 2 and not same_order(tensor.shape)


@dataclass(frozen=True, slots=True)
class _Box:
    """Channels from the start of a block, of some pixels of one image."""

    image: int
    block: int
    planes: int
    pixel: int
    pixels: int

    @property
    def blocks(self) -> int:
        return ceil_div(self.planes, 4)

    def sides(
        self, batch: int, channels: int, pixels: int
    ) -> tuple[tuple[View, tuple[int, int]], tuple[View, tuple[int, int]]]:
        """Return the offset and size of the box in plain and in channel-blocked order."""
        plain = (self.image * channels + 4 * self.block) * pixels + self.pixel
        block = 4 * ((self.block * batch + self.image) * pixels + self.pixel)
        return (
            (View(plain, (pixels, 1)), (self.planes, self.pixels)),
            (View(block, (4 * batch * pixels, 1)), (self.blocks, 4 * self.pixels)),
        )


def _boxes(batch: int, channels: int, pixels: int, most: int) -> Iterator[_Box]:
    """Split a tensor into boxes of at most `most` blocks of one pixel each."""
    for image in range(batch):
        for first, last in chunk_starts(ceil_div(channels, 4), max(1, most // pixels), 1):
            planes = min(4 * last, channels) - 4 * first
            for begin, end in chunk_starts(pixels, most, 1):
                yield _Box(image, first, planes, begin, end - begin)


def _whole_blocks(pixels: int, source: Tensor, output: Tensor, alignment: int) -> int:
    """Return how many channel blocks of an image end at an alignment on both sides."""
    step = 4 * pixels * min(element_bytes(source), element_bytes(output))
    return alignment // gcd(alignment, step)
