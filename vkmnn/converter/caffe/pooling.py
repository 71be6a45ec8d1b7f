"""Pooling by Caffe's arithmetic.

Sizes are rounded up, and averages are divided by the part of the window inside the padded image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vkmnn.converter.caffe.nodes import CaffeLayer, reads
from vkmnn.converter.nodes import FLOAT, INT64

_MAX, _AVERAGE = 0, 1
_LOWEST = float(np.finfo(np.float32).min)
"""The maximum of no elements."""


class Window(NamedTuple):
    """Windows along one axis; the last one may begin in the padding only if there is none."""

    kernel: int
    stride: int
    pad: int
    rounded_up: bool
    padded: bool

    def count(self, size: int) -> int:
        """Return how many there are."""
        room = size + 2 * self.pad - self.kernel
        count = (-(-room // self.stride) if self.rounded_up else room // self.stride) + 1
        late = self.padded and (count - 1) * self.stride >= size + self.pad
        return count - 1 if late else count

    def overhang(self, size: int) -> int:
        """Return by how much the last window extends past the axis."""
        return (self.count(size) - 1) * self.stride + self.kernel - self.pad - size


@reads("Pooling")
def pooling(op: CaffeLayer) -> None:
    """MaxPool or AveragePool; a second output holds where the maxima are in their planes."""
    op.need(1)
    pool = op.proto.pooling_param
    if pool.pool not in (_MAX, _AVERAGE):
        raise op.unreadable("stochastic pooling")
    if pool.global_pooling:
        if len(op.outputs) > 1:
            raise op.unreadable("the positions of global maxima")
        kind = "GlobalMaxPool" if pool.pool == _MAX else "GlobalAveragePool"
        op.finish(kind, op.inputs[0])
        return
    up = pool.round_mode == 0 and pool.ceil_mode
    pads = [pool.pad_h or pool.pad, pool.pad_w or pool.pad]
    steps = [pool.stride_h or pool.stride, pool.stride_w or pool.stride]
    kernel = [pool.kernel_h or pool.kernel_size, pool.kernel_w or pool.kernel_size]
    windows = [Window(*one, up, any(pads)) for one in zip(kernel, steps, pads, strict=True)]
    pooled(op, windows, pool.pool == _MAX, op.outputs)


def pooled(
    op: CaffeLayer, windows: Sequence[Window], largest: bool, outputs: Sequence[str]
) -> None:
    """Write the nodes of pooling with windows along height and width."""
    for window in windows:
        if window.kernel < 1 or window.stride < 1 or window.pad >= window.kernel:
            raise op.damaged(f"windows of {window.kernel}, by {window.stride}, pads {window.pad}")
    shape = op.sizes(op.inputs[0])
    if len(shape) != 4:
        raise op.damaged(f"it takes tensors of 4 axes, not of {len(shape)}")
    options: dict[str, Any] = {
        "kernel_shape": [window.kernel for window in windows],
        "strides": [window.stride for window in windows],
    }
    begins = [window.pad for window in windows]
    late = [
        size is not None and window.overhang(size) >= window.kernel
        for window, size in zip(windows, shape[2:], strict=True)
    ]
    for window, size in zip(windows, shape[2:], strict=True):
        if size is not None and window.count(size) < 1:
            raise op.damaged(
                f"windows of {window.kernel} on {size} elements with pads {window.pad}"
            )
    if largest:
        _maxima(op, windows, options, begins, late, outputs)
    elif any(late):
        raise op.unreadable("average pooling with windows that start past the image")
    else:
        options |= {"pads": begins * 2, "ceil_mode": int(windows[0].rounded_up)}
        op.scope.emit(
            "AveragePool", op.inputs[:1], outputs, op.name, count_include_pad=1, **options
        )


def _maxima(
    op: CaffeLayer,
    windows: Sequence[Window],
    options: dict[str, Any],
    begins: list[int],
    late: list[bool],
    outputs: Sequence[str],
) -> None:
    sizes = op.sizes(op.inputs[0])[2:]
    ends = [
        window.pad if size is None else max(window.overhang(size) - behind * window.stride, 0)
        for window, size, behind in zip(windows, sizes, late, strict=True)
    ]
    # The known part is expressed by pads; the last of them may differ from the first.
    options["pads"] = begins + ends
    options["ceil_mode"] = int(windows[0].rounded_up and None in sizes)
    if any(late):
        if len(outputs) > 1:
            raise op.unreadable("the positions of maxima in windows that start past the image")
        inside = op.make("MaxPool", op.inputs[0], **options)
        pads = op.constant([0] * 6 + [int(behind) for behind in late])
        op.scope.emit("Pad", [inside, pads, op.number(_LOWEST)], outputs, op.name)
    elif len(outputs) == 1:
        op.scope.emit("MaxPool", op.inputs[:1], outputs, op.name, **options)
    else:
        places = op.scope.fresh(op.name)
        op.scope.emit("MaxPool", op.inputs[:1], [outputs[0], places], op.name, **options)
        op.scope.types[places] = INT64
        # ONNX counts through the whole tensor.
        height, width = op.picture(op.inputs[0])
        inside = op.make("Mod", places, op.constant(height * width))
        op.scope.emit("Cast", [inside], outputs[1:2], op.name, FLOAT, to=FLOAT)


@reads("SPP")
def pyramid(op: CaffeLayer) -> None:
    """Pooling into 1, 4, 16, … bins, whose results are joined."""
    op.need(1)
    pyramid = op.proto.spp_param
    if pyramid.pool not in (_MAX, _AVERAGE) or not 1 <= pyramid.pyramid_height <= 10:
        raise op.unreadable(f"a pyramid of {pyramid.pyramid_height} levels, or a stochastic one")
    sizes = op.picture(op.inputs[0])
    levels = []
    for level in range(pyramid.pyramid_height):
        kernel = [-(-size // 2**level) for size in sizes]
        rests = [side * 2**level - size for side, size in zip(kernel, sizes, strict=True)]
        pads = [(rest + 1) // 2 for rest in rests]
        windows = [
            Window(side, side, pad, True, any(pads)) for side, pad in zip(kernel, pads, strict=True)
        ]
        found = op.scope.fresh(op.name)
        pooled(op, windows, pyramid.pool == _MAX, [found])
        levels.append(op.make("Flatten", found, axis=1))
    op.finish("Concat", *levels, axis=1)
