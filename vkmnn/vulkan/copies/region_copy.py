"""Copies of regions: one dispatch each, four elements at a time where addresses allow."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Region
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.storage import element_bytes, storage_bytes
from vkmnn.vulkan.windows import room_of, windowed

MAX_AXES = 6
# Elements that small workgroups on one core move together.
PER_CORE = 1024

MAX_INNER = 8
"""Elements of the innermost axis that one invocation may move."""

Blocked = Literal["none", "source", "both"]
"""Tensors in channel-blocked order whose addresses follow plain order."""

_Axis = tuple[int, int, int]
"""Size, and the steps in the source and in the output."""


def is_contiguous(region: Region) -> bool:
    """Return whether a simplified region is contiguous on both sides."""
    return len(region.size) == 1 and region.src.strides == region.dst.strides == (1,)


def copy_region(
    region: Region,
    source: Tensor,
    output: Tensor,
    encoder: VulkanEncoder,
    *,
    by_blocks: bool = False,
) -> None:
    """Record the copy of one region: one dispatch, or several if the tensors are too large.

    A blocked tensor that is too large to bind must be addressed by blocks.

    Args:
        region: the region, simplified; addresses count elements in plain order if the source or
            both tensors are channel-blocked and `by_blocks` is not set.
        source: the source.
        output: the output; blocked only if the source is, and then with as many images.
        encoder: records the dispatch.
        by_blocks: both tensors are blocked, and addresses follow that order.
    """
    blocked = blocked_of(source, output, by_blocks)
    room = room_of(_raster(1, blocked, encoder), encoder)
    for part, read, written in windowed(region, source, output, room, encoder):
        _record(part, read, written, blocked, encoder)


def fits_blocked(source: Tensor, output: Tensor, encoder: VulkanEncoder) -> bool:
    """Return whether the blocks that a copy by plain addresses touches can be bound."""
    limit = encoder.info.limits.max_storage_buffer_range
    if max(storage_bytes(source), storage_bytes(output)) <= limit:
        return True
    blocked = blocked_of(source, output, by_blocks=False)
    room = room_of(_raster(1, blocked, encoder), encoder)
    written = storage_bytes(output) if output.layout is Layout.NC4HW4 else 0
    return storage_bytes(source) <= room.source and written <= room.output


def _raster(width: Literal[1, 4], blocked: Blocked, encoder: VulkanEncoder) -> Shader:
    return kernels.raster(width=width, blocked=blocked, element=encoder.element, load=encoder.load)


def _record(
    region: Region,
    source: Tensor,
    output: Tensor,
    blocked: Blocked,
    encoder: VulkanEncoder,
) -> None:
    """Record one dispatch."""
    walk = walk_of(region, source, output, blocked)
    axes = walk.padded
    _, out_channels, out_pixels = _sizes(output) if blocked == "both" else (1, 1, 1)
    images, channels, pixels = walk.source
    inner = inner_of(walk, blocked, encoder)
    count = walk.count // inner
    params = kernels.RasterParams(
        count=count,
        src=walk.src,
        dst=walk.dst,
        size=tuple(size for size, _, _ in axes[1:]),
        src_stride=tuple(s for _, s, _ in axes),
        dst_stride=tuple(d for _, _, d in axes),
        images=images,
        channels=(channels, out_channels),
        pixels=(pixels, out_pixels),
    )
    shader = _raster(walk.width, blocked, encoder)
    spec = {"AXES": max(1, len(walk.axes))}
    if inner > 1:
        spec["INNER"] = inner
    encoder.dispatch_linear(
        shader, [source, output], params, count, spec, reach=reach_of(source, output, blocked)
    )
    encoder.expect(lambda: moves(prod(region.size), output, encoder))


def inner_of(walk: Walk, blocked: Blocked, encoder: VulkanEncoder) -> int:
    """Return how many elements an invocation moves: on CPU devices, all of a short innermost axis.

    On CPU devices, computing an element's address takes longer than moving it. On GPUs, neighbours
    should read and write side by side.
    """
    if is_gpu(encoder.info) or walk.width != 1 or blocked != "none" or len(walk.axes) < 2:
        return 1
    inner = walk.axes[-1][0]
    return inner if 0 < inner <= MAX_INNER else 1


def moves(elements: int, output: Tensor, encoder: VulkanEncoder) -> Expected:
    """Return the predicted time of a pure copy of some elements."""
    nbytes = 2 * elements * element_bytes(output)
    # Small workgroups share a core.
    return Expected(pass_cost(nbytes, encoder.info, ceil_div(elements, PER_CORE)))


def reach_of(source: Tensor, output: Tensor, blocked: Blocked) -> int:
    """Return the range of indices: blocked tensors are addressed in plain order first."""
    return max(prod(source.shape), prod(output.shape)) if blocked != "none" else 0


@dataclass(frozen=True, slots=True)
class Walk:
    """How a kernel iterates over a region.

    Args:
        wide: moves whole vec4s, counted by offsets and steps.
        coded: four quantised values are one word.
        src: offset in the source.
        dst: offset in the output.
        axes: at most MAX_AXES, the innermost last.
        source: images, channels and pixels of a blocked source.
    """

    wide: bool
    coded: bool
    src: int
    dst: int
    axes: tuple[_Axis, ...]
    source: tuple[int, int, int]

    @property
    def width(self) -> Literal[1, 4]:
        """Words moved by an invocation."""
        return 4 if self.wide and not self.coded else 1

    @property
    def count(self) -> int:
        """Elements, or vec4s, moved."""
        return prod(size for size, _, _ in self.axes)

    @property
    def padded(self) -> tuple[_Axis, ...]:
        """The axes, filled up to MAX_AXES."""
        return ((1, 0, 0),) * (MAX_AXES - len(self.axes)) + self.axes


def walk_of(region: Region, source: Tensor, output: Tensor, blocked: Blocked) -> Walk:
    """Return how a kernel walks over a region, in whole vec4s if addresses allow.

    Args:
        region: simplified.
        source: the source.
        output: the output.
        blocked: which of them are channel-blocked.
    """
    axes = sorted(
        zip(region.size, region.src.strides, region.dst.strides, strict=True), key=_innermost_last
    )
    src, dst = region.src.offset, region.dst.offset
    images, channels, pixels = _sizes(source) if blocked != "none" else (1, 1, 1)
    if blocked == "none":
        wide = _is_wide(axes, src, dst)
    else:
        wide = blocked == "source" and _is_wide_blocked(axes, src, dst, channels, pixels)
    if wide:
        *outer, (inner, _, _) = axes
        dst //= 4
        if blocked == "source":
            axes = [(size, s, d // 4) for size, s, d in outer] + [(inner // 4, 4 * pixels, 1)]
        else:
            src //= 4
            axes = [(size, s // 4, d // 4) for size, s, d in outer] + [(inner // 4, 1, 1)]
    return Walk(wide, source.codes is not None, src, dst, tuple(axes), (images, channels, pixels))


def blocked_of(source: Tensor, output: Tensor, by_blocks: bool) -> Blocked:
    """Return the tensors that are blocked while addresses follow plain order."""
    if by_blocks or source.layout is Layout.NCHW:
        return "none"
    return "both" if output.layout is Layout.NC4HW4 else "source"


def _sizes(tensor: Tensor) -> tuple[int, int, int]:
    """Return images, channels and pixels."""
    return tensor.shape[0], tensor.shape[1], prod(tensor.shape[2:])


def _innermost_last(axis: _Axis) -> tuple[bool, int]:
    """Order axes with a doubly contiguous one last, else by output stride."""
    _, src, dst = axis
    return src == 1 and dst == 1, -dst


def _is_wide(axes: Sequence[_Axis], src: int, dst: int) -> bool:
    if not axes or axes[-1][1:] != (1, 1) or axes[-1][0] % 4:
        return False
    return not any((src % 4, dst % 4, *(s % 4 or d % 4 for _, s, d in axes[:-1])))


def _is_wide_blocked(axes: Sequence[_Axis], src: int, dst: int, channels: int, pixels: int) -> bool:
    """Return whether the copy moves whole channel blocks that end up contiguous."""
    if not axes or channels % 4 or axes[-1][1:] != (pixels, 1) or axes[-1][0] % 4:
        return False
    first, pixel = divmod(src, pixels)
    if first % 4 or dst % 4:
        return False
    for size, s, d in axes[:-1]:
        if d % 4 or (s % pixels and not 0 < s < pixels) or s // pixels % 4:
            return False
        if s % pixels:
            pixel += (size - 1) * s
    return pixel < pixels
