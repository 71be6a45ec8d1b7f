"""Memory layouts of tensors."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod


class Layout(enum.Enum):
    """Order of a tensor's elements in memory.

    NCHW is plain row-major order for a tensor of any rank. NC4HW4 is MNN's channel-blocked order
    `[ceil(C/4)][N][spatial][4]` (channel blocks outermost) of a tensor with rank >= 3; tail lanes
    of the last block are zero. IMAGE holds the same blocks of four as the texels of a 2-D image,
    for a tensor of rank 2 to 4.
    """

    NCHW = "NCHW"
    NC4HW4 = "NC4HW4"
    IMAGE = "IMAGE"

    # Members are singletons that planning hashes often; `Enum` hashes their names in Python.
    __hash__ = object.__hash__


def storage_elements(shape: Sequence[int], layout: Layout) -> int:
    """Return the number of elements in memory, including the padding of blocks."""
    if layout is not Layout.NCHW:
        channels = -(-shape[1] // 4) * 4
        return shape[0] * channels * prod(shape[2:])
    return prod(shape)
