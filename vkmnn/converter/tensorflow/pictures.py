"""Operators of tf.image: colours, other resizing, patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.converter.nodes import BOOL, FLOAT, INT64
from vkmnn.converter.tensorflow.nodes import TfNode, reads

_MOST_WEIGHTS = 1 << 24


@reads("ResizeBicubic", "ResizeArea")
def resize(op: TfNode) -> None:
    """Products with matrices of the shares that pixels have in those of the result."""
    op.need(2)
    wanted, shape = op.settled(1, "a size"), op.sizes(op.inputs[0])
    if len(shape) != 4 or len(wanted) != 2 or None in shape[1:3] or min(wanted) < 1:
        raise op.unreadable("pictures of unknown sizes")
    corners, halves = op.flag("align_corners"), op.flag("half_pixel_centers")
    matrices = []
    for size, out in zip(shape[1:3], wanted, strict=True):
        known = size or 0
        if not 0 < known * out <= _MOST_WEIGHTS:
            raise op.unreadable(f"{known} pixels to {out}")
        cubic = op.type == "ResizeBicubic"
        shares = _cubic(known, out, corners, halves) if cubic else _shares(known, out, corners)
        matrices.append(op.constant(shares, np.float32))
    name = op.cast(op.inputs[0], FLOAT)
    made = op.make("Einsum", matrices[0], name, equation="ph,bhwc->bpwc")
    op.finish("Einsum", matrices[1], made, equation="qw,bpwc->bpqc")


def _cubic(size: int, out: int, corners: bool, halves: bool) -> npt.NDArray[Any]:
    """Return cubic weights, as TensorFlow rounds them: to those of 1,024 places.

    By half pixels, pixels outside have no weight; else they are those at the edge.
    """
    scale = np.float32((size - 1) / (out - 1) if corners and out > 1 else size / out)
    at = np.arange(out, dtype=np.float32)
    at = (at + np.float32(0.5)) * scale - np.float32(0.5) if halves else at * scale
    first = np.floor(at).astype(np.int64)
    near = np.rint((at - first) * 1024) / 1024
    bend = -0.5 if halves else -0.75
    weights = np.zeros((out, size))
    rows = np.arange(out)
    for step in (-1, 0, 1, 2):
        away = np.abs(near - step)
        if step in (0, 1):
            share = ((bend + 2) * away - (bend + 3)) * away**2 + 1
        else:
            share = ((away - 5) * away + 8) * away * bend - 4 * bend
        place = np.clip(first + step, 0, size - 1)
        share = np.where(place == first + step, share, 0) if halves else share
        np.add.at(weights, (rows, place), share)
    return weights / weights.sum(1, keepdims=True) if halves else weights


def _shares(size: int, out: int, corners: bool) -> npt.NDArray[Any]:
    """Return the shares of `size` pixels in each of `out`."""
    scale = (size - 1) / (out - 1) if corners and out > 1 else size / out
    begins = np.arange(out)[:, None] * scale
    pixels = np.arange(size + 1)[None]
    inside = np.minimum(begins + scale, pixels + 1) - np.maximum(begins, pixels)
    whole = np.maximum(inside, 0)
    shares = whole[:, :size].copy()
    shares[:, size - 1] += whole[:, size]
    return np.asarray(shares / shares.sum(1, keepdims=True))


@reads("AdjustContrastv2")
def contrast(op: TfNode) -> None:
    """Distances from the mean of each picture's channels, times a factor."""
    op.need(2)
    x = op.inputs[0]
    axes = op.constant([-3, -2])
    mean = op.make("ReduceMean", x, axes, keepdims=1)
    op.finish("Add", op.make("Mul", op.make("Sub", x, mean), op.inputs[1]), mean)


@reads("RGBToHSV", "HSVToRGB", "AdjustSaturation", "AdjustHue")
def colours(op: TfNode) -> None:
    """Conversion between red, green, blue and hue, saturation, value; and changes of these."""
    op.need(1)
    x = op.inputs[0]
    if op.type == "RGBToHSV":
        op.finish("Concat", *_hsv(op, x), axis=-1)
    elif op.type == "HSVToRGB":
        op.finish("Concat", *_rgb(op, *_channels(op, x)), axis=-1)
    else:
        op.need(2)
        hue, saturation, value = _hsv(op, x)
        if op.type == "AdjustSaturation":
            zero, one = op.constant(0, np.float32), op.constant(1, np.float32)
            saturation = op.make("Clip", op.make("Mul", saturation, op.inputs[1]), zero, one)
        else:
            moved = op.make("Add", hue, op.inputs[1])
            hue = op.make("Sub", moved, op.make("Floor", moved))
        op.finish("Concat", *_rgb(op, hue, saturation, value), axis=-1)


def _channels(op: TfNode, name: str) -> list[str]:
    return op.make_several("Split", 3, name, axis=-1, num_outputs=3)


def _hsv(op: TfNode, name: str) -> tuple[str, str, str]:
    red, green, blue = _channels(op, name)
    value = op.make("Max", red, green, blue)
    span = op.make("Sub", value, op.make("Min", red, green, blue))
    zero, one = op.constant(0, np.float32), op.constant(1, np.float32)

    def chosen(condition: str, yes: str, no: str) -> str:
        return op.make("Where", condition, yes, no, dtype=FLOAT)

    def safe(name: str) -> tuple[str, str]:
        some = op.make("Greater", name, zero, dtype=BOOL)
        return some, chosen(some, name, one)

    bright, divisor = safe(value)
    saturation = chosen(bright, op.make("Div", span, divisor), zero)
    coloured, divisor = safe(span)
    parts = []
    for a, b, turn in ((green, blue, 0), (blue, red, 2), (red, green, 4)):
        share = op.make("Div", op.make("Sub", a, b), divisor)
        parts.append(op.make("Add", share, op.constant(turn, np.float32)))
    is_red = op.make("Equal", red, value, dtype=BOOL)
    is_green = op.make("Equal", green, value, dtype=BOOL)
    sixths = chosen(is_red, parts[0], chosen(is_green, parts[1], parts[2]))
    hue = op.make("Div", sixths, op.constant(6, np.float32))
    below = op.make("Less", hue, zero, dtype=BOOL)
    hue = chosen(below, op.make("Add", hue, one), hue)
    return chosen(coloured, hue, zero), saturation, value


def _rgb(op: TfNode, hue: str, saturation: str, value: str) -> list[str]:
    found = []
    chroma = op.make("Mul", value, saturation)
    zero, one = op.constant(0, np.float32), op.constant(1, np.float32)
    six = op.make("Mul", hue, op.constant(6, np.float32))
    for middle, sign, start in ((3, 1, -1), (2, -1, 2), (4, -1, 2)):
        distance = op.make("Abs", op.make("Sub", six, op.constant(middle, np.float32)))
        share = op.make("Mul", distance, op.constant(sign, np.float32))
        share = op.make("Add", share, op.constant(start, np.float32))
        share = op.make("Clip", share, zero, one)
        less = op.make("Mul", op.make("Sub", one, share), chroma)
        found.append(op.make("Sub", value, less))
    return found


@reads("ExtractImagePatches")
def patches(op: TfNode) -> None:
    """Conv with a kernel that copies each pixel of a window into a channel of its own."""
    op.need(1)
    kernel, strides, apart = (op.spatial(op.listed(one)) for one in ("ksizes", "strides", "rates"))
    x = op.picture()
    channels = (op.shape_of(x) or (None, None))[1]
    if channels is None:
        raise op.unreadable("a number of channels that is not known")
    if min(*kernel, *strides, *apart) < 1 or channels**2 * (kernel[0] * kernel[1]) ** 2 > 1 << 26:
        raise op.unreadable(f"patches of {kernel} with steps {strides}")
    window = kernel[0] * kernel[1]
    eye = np.eye(window * channels, dtype=np.float32)
    weights = eye.reshape(window * channels, *kernel, channels).transpose(0, 3, 1, 2)
    options = op.padding(x, kernel, strides, apart)
    made = op.make(
        "Conv", op.cast(x, FLOAT), op.scope.constant(np.ascontiguousarray(weights), op.name),
        kernel_shape=kernel, strides=strides, dilations=apart, **options,
    )  # fmt: skip
    op.finish_picture(made)


@reads("MaxPoolWithArgmax")
def pooling_with_places(op: TfNode) -> None:
    """MaxPool with the places of the largest elements, counted with channels last."""
    op.need(1)
    kernel, strides = (op.spatial(op.listed(one)) for one in ("ksize", "strides"))
    x = op.picture()
    shape = op.sizes(x)
    if len(shape) != 4 or None in shape[1:]:
        raise op.unreadable("pictures of unknown sizes")
    if op.flag("include_batch_in_index"):
        raise op.unreadable("places that count the pictures, too")
    if min(*kernel, *strides) < 1:
        raise op.damaged(f"windows of {kernel} with steps {strides}")
    options = op.padding(x, kernel, strides, [1, 1])
    largest, places = op.make_several(
        "MaxPool", 2, x, kernel_shape=kernel, strides=strides, **options
    )
    op.scope.types[places] = INT64
    op.finish_picture(largest)
    if len(op.outputs) < 2:
        return
    channels, height, width = (size or 1 for size in shape[1:])
    inside = op.make("Mod", places, op.constant(height * width))
    channel = op.constant(np.arange(channels).reshape(1, -1, 1, 1))
    made = op.make("Add", op.make("Mul", inside, op.constant(channels)), channel)
    made = op.make("Transpose", made, perm=[0, 2, 3, 1])
    dtype = op.dtype("Targmax") if "Targmax" in op.attrs else INT64
    op.scope.emit("Cast", [made], op.outputs[1:2], op.name, dtype, to=dtype)
