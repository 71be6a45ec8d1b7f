"""Spatial axes as kernels see them: always three, of channel-blocked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.storage import pack_nc4hw4

Triple = tuple[int, int, int]
MAX_AXES = 3
MAX_STEP = 1 << 24


def triple(values: Sequence[int], fill: int) -> Triple:
    """Return spatial values as (depth, height, width); missing leading axes get `fill`."""
    axes = len(values)
    if axes == MAX_AXES - 1:  # as in most networks
        return fill, values[0], values[1]
    if axes == MAX_AXES:
        return values[0], values[1], values[2]
    padded = (*(fill,) * (MAX_AXES - axes), *values)
    return padded[0], padded[1], padded[2]


def reject_wide(*lists: Sequence[int]) -> None:
    """Raise Rejection for strides, dilations or pads that the kernels' 32 bits cannot hold."""
    for value in chain(*lists):
        if not -MAX_STEP <= value <= MAX_STEP:
            raise Rejection(f"{value} as a stride, dilation or pad, at most {MAX_STEP} fits")


def blocked(tensor: Tensor, encoder: VulkanEncoder) -> Tensor:
    """Return a tensor in NC4HW4: constants, which arrive in plain order, are packed."""
    if tensor.value is None:
        return tensor
    return encoder.constant(tensor, "nc4hw4", pack_nc4hw4)
