"""Parts of tensors that are too large to bind: windows, and copies split to fit them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import gcd

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.geometry.regions import bounds, simplify
from vkmnn.ir import Region, TensorInfo, View
from vkmnn.runtime.pipeline import max_range_bytes
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.storage import VECTOR_BYTES, element_bytes, storage_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """Maximum bytes that a kernel binds of its input and of its output."""

    source: int
    output: int

    def holds(self, source: Tensor, output: Tensor) -> bool:
        """Return whether both can be bound as a whole."""
        return storage_bytes(source) <= self.source and storage_bytes(output) <= self.output


def room_of(shader: Shader, encoder: VulkanEncoder) -> Room:
    """Return the room of a kernel that binds one source, then one output."""
    source, output = (
        max_range_bytes(binding, encoder.info.limits) for binding in shader.bindings[:2]
    )
    return Room(source, output)


def window(tensor: Tensor, first: int, count: int, encoder: VulkanEncoder) -> Tensor:
    """Return `count` stored elements of a tensor from `first` on, as a view.

    The view begins at a multiple of the encoder's `part_alignment` in bytes.
    """
    info = TensorInfo(f"{tensor.name}[{first}:{first + count}]", tensor.dtype, (count,))
    view = Tensor(info, element=tensor.element, codes=tensor.codes)
    encoder.alias(view, tensor, first * element_bytes(tensor))
    return view


def chunk_starts(count: int, allowed: int, unit: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the fewest chunks of at most `allowed`, in whole units.

    Raises:
        ValueError: not even one unit fits.
    """
    step = allowed // unit * unit
    if step < 1:
        raise ValueError(f"a unit of {unit} does not fit {allowed}")
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def flat_windows(
    tensors: tuple[Tensor, ...], bytes_bound: int, encoder: VulkanEncoder
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors in chunks of equal length, or whole if they fit.

    Args:
        tensors: tensors with equal numbers of stored elements, which a kernel processes one by one.
        bytes_bound: bytes of each that can be bound.
        encoder: keeps the views.
    """
    alignment = encoder.part_alignment
    if alignment is None or all(storage_bytes(tensor) <= bytes_bound for tensor in tensors):
        yield tensors
        return
    widest = max(element_bytes(tensor) for tensor in tensors)
    count = min(storage_bytes(tensor) // element_bytes(tensor) for tensor in tensors)
    for begin, end in chunk_starts(count, bytes_bound // widest, alignment):
        yield tuple(window(tensor, begin, end - begin, encoder) for tensor in tensors)


def windowed(
    region: Region, source: Tensor, output: Tensor, room: Room, encoder: VulkanEncoder
) -> Iterator[tuple[Region, Tensor, Tensor]]:
    """Split a copy into parts whose source and output can be bound, and yield these with views.

    Args:
        region: simplified; addresses count stored elements.
        source: the source; bound as a whole if it fits.
        output: the output; likewise.
        room: the kernel's limits.
        encoder: keeps the views.
    """
    alignment = encoder.part_alignment
    if alignment is None or room.holds(source, output):
        yield region, source, output
        return
    allowed = []
    for tensor, limit in ((source, room.source), (output, room.output)):
        fits = storage_bytes(tensor) <= limit
        spare = limit - alignment - VECTOR_BYTES
        allowed.append(None if fits else max(1, spare // element_bytes(tensor)))
    for part in _cut(region, allowed[0], allowed[1]):
        src, dst, read, written = part.src, part.dst, source, output
        if allowed[0] is not None:
            src, read = _window_of(src, part.size, source, alignment, encoder)
        if allowed[1] is not None:
            dst, written = _window_of(dst, part.size, output, alignment, encoder)
        yield replace(part, src=src, dst=dst), read, written


def _window_of(
    view: View, size: tuple[int, ...], tensor: Tensor, alignment: int, encoder: VulkanEncoder
) -> tuple[View, Tensor]:
    low, high = bounds(view, size)
    unit = alignment // gcd(alignment, element_bytes(tensor))
    begin = low // unit * unit
    end = min(-(-(high + 1) // unit) * unit, storage_bytes(tensor) // element_bytes(tensor))
    return View(view.offset - begin, view.strides), window(tensor, begin, end - begin, encoder)


def _cut(region: Region, src_max: int | None, dst_max: int | None) -> Iterator[Region]:
    """Yield parts that span no more than this many elements on either side."""
    for view, allowed in ((region.src, src_max), (region.dst, dst_max)):
        if allowed is None or not region.size:
            continue
        low, high = bounds(view, region.size)
        if high - low < allowed:
            continue
        reach = [abs(s) * (n - 1) for s, n in zip(view.strides, region.size, strict=True)]
        axis = reach.index(max(reach))
        stride = abs(view.strides[axis])
        rest = high - low - reach[axis]
        # If one step alone does not fit, other axes are split after this one.
        step = max(1, (allowed - 1 - rest) // stride + 1)
        if step > 4:
            step -= step % 4
        for begin in range(0, region.size[axis], step):
            end = min(begin + step, region.size[axis])
            yield from _cut(_slice(region, axis, begin, end), src_max, dst_max)
        return
    yield simplify(region)


def _slice(region: Region, axis: int, begin: int, end: int) -> Region:
    size = (*region.size[:axis], end - begin, *region.size[axis + 1 :])
    src, dst = (
        View(view.offset + begin * view.strides[axis], view.strides)
        for view in (region.src, region.dst)
    )
    return Region(src, dst, size, region.origin)


def scratch_like(tensor: Tensor, elements: int, encoder: VulkanEncoder) -> Tensor:
    """Return a temporary that stores elements as `tensor` does."""
    scratch = encoder.scratch(elements, tensor.dtype, full=True)
    scratch.take_form(scratch.layout, tensor.element)
    return scratch


def stored_as(tensor: Tensor, encoder: VulkanEncoder) -> AbstractContextManager[None]:
    """Record kernels for tensors stored like `tensor`, whatever the current op is."""
    return encoder.in_full() if tensor.element == "f32" else nullcontext()
