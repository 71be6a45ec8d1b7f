"""SAME padding: ceil(size / stride) outputs; odd padding goes to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return the pads before and after an axis of a known size."""
    steps = -(-size // stride)
    total = max((steps - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def same_padding(
    sizes: Sequence[int | None],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return ONNX's attributes for SAME: pads if all sizes are known, else `auto_pad`.

    Args:
        sizes: sizes of the spatial axes.
        kernel: sizes of the window, like the others by axis.
        strides: its steps.
        dilations: distances of its elements; 1 if None.
    """
    apart = dilations or [1] * len(kernel)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return {"auto_pad": "SAME_UPPER"}
    pairs = [same_pads(*one) for one in zip(known, kernel, strides, apart, strict=True)]
    return {"pads": [begin for begin, _ in pairs] + [end for _, end in pairs]}
