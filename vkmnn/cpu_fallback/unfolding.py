"""Col2Im: blocks of an image, summed where they overlap."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required
from vkmnn.ir import Op
from vkmnn.ir.ops import Col2ImAttrs
from vkmnn.shape.unfolding import blocks_of


@cpu_execution("Col2Im")
def _col2im(op: Op[Col2ImAttrs], inputs: Inputs) -> list[AnyArray]:
    """Add the blocks, element by element, to an image with a margin."""
    x = required(inputs, 0)
    blocks = blocks_of(op.attrs, x.shape, inputs)
    taps, axes = prod(blocks.kernel), range(len(blocks.image))
    pads = op.attrs.pads or (0,) * 2 * len(axes)
    room = [max(size + pads[i] + pads[len(axes) + i], 0) for i, size in enumerate(blocks.image)]
    channels = x.shape[1] // taps
    total = np.zeros((x.shape[0], channels, *room), x.dtype)
    parts = x.reshape(x.shape[0], channels, taps, *blocks.counts)
    both = (slice(None),) * 2  # samples and channels
    for number, place in enumerate(product(*map(range, blocks.kernel))):
        target = tuple(
            slice(
                place[i] * blocks.dilations[i],
                place[i] * blocks.dilations[i] + blocks.counts[i] * blocks.strides[i],
                blocks.strides[i],
            )
            for i in axes
        )
        picked = parts[:, :, number]
        view = total[both + target]
        view += picked[tuple(map(slice, view.shape))]
    inner = tuple(slice(pads[i], pads[i] + size) for i, size in enumerate(blocks.image))
    return [total[both + inner]]
