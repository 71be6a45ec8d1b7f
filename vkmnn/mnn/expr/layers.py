"""MNN.expr's layers of networks: convolutions, poolings, regions of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkmnn.ir import Op
from vkmnn.ir.ops import (
    ConvolutionAttrs,
    DeconvolutionAttrs,
    OpAttrs,
    PoolingAttrs,
    RoiAlignAttrs,
)
from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.movement import integers
from vkmnn.mnn.expr.types import NHWC, Interp_Method, Padding_Mode, Pooling_Mode, dtype
from vkmnn.mnn.expr.values import axes_of, result, to_var
from vkmnn.mnn.expr.var import Var

_AUTO = {Padding_Mode.SAME: "SAME_UPPER", Padding_Mode.CAFFE: "NOTSET"}


def _pair(value: Any) -> tuple[int, int]:
    """Return numbers along height and width, which MNN has in the order of x and y."""
    wide, high = axes_of(value, 2)
    return high, wide


def _pads(mode: Padding_Mode, pads: Any) -> tuple[str, tuple[int, ...]]:
    auto = _AUTO.get(Padding_Mode(mode), "VALID")
    high, wide = _pair(pads)
    return auto, (high, wide, high, wide) if auto == "NOTSET" else (0, 0, 0, 0)


def _shifted(x: Array, auto: str, padding: Any) -> Array:
    """Return images moved by the padding, whose end is cut off: what VALID does with one."""
    high, wide = _pair(padding)
    if auto != "VALID" or not (high or wide):
        return x
    moved = np.pad(x, ((0, 0), (0, 0), (high, 0), (wide, 0)))
    return moved[:, :, : x.shape[2], : x.shape[3]]


def _floats(value: Any) -> Var:
    return to_var(value, dtype.float)


def _run(kind: str, attrs: OpAttrs, *arrays: Array | None) -> Array:
    from vkmnn.cpu_fallback import run_op

    op = Op(kind, kind, [f"i{n}" for n in range(len(arrays))], ["y"], attrs)
    return run_op(op, arrays)[0]


def conv2d(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilate: Any = (1, 1),
    group: int = 1,
    padding_mode: Padding_Mode = Padding_Mode.VALID,
) -> Var:
    """Return the convolution of images.

    Args:
        input: [N, C, H, W].
        weight: [outputs, C / group, height, width].
        bias: [outputs].
        stride: along x and y, as `padding` and `dilate`.
        padding: before and after; with VALID, how far the images are moved to the right and down.
        dilate: distance of the pixels that a kernel reads.
        group: independent groups of channels.
        padding_mode: VALID, SAME or CAFFE.
    """
    steps, gaps = _pair(stride), _pair(dilate)
    auto, pads = _pads(padding_mode, padding)

    def compute(x: Array, w: Array, b: Array) -> Any:
        attrs = ConvolutionAttrs(*(w.shape[2:], steps, gaps, pads, int(group), auto))
        return _run("Convolution", attrs, _shifted(x, auto, padding), w, b)

    return result("Convolution", compute, _floats(input), _floats(weight), _floats(bias))


def conv2d_transpose(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilate: Any = (1, 1),
    group: int = 1,
    padding_mode: Padding_Mode = Padding_Mode.VALID,
) -> Var:
    """Return the transposed convolution of images; weights are [C, outputs / group, *kernel]."""
    steps, gaps = _pair(stride), _pair(dilate)
    auto, pads = _pads(padding_mode, padding)

    def compute(x: Array, w: Array, b: Array) -> Any:
        same = tuple(size * step for size, step in zip(x.shape[2:], steps, strict=True))
        kernel, sizes = w.shape[2:], same if auto == "SAME_UPPER" else ()
        attrs = DeconvolutionAttrs(*(kernel, steps, gaps, pads, (0, 0), sizes, int(group), auto))
        return _run("Deconvolution", attrs, x, w, b)

    return result("Deconvolution", compute, _floats(input), _floats(weight), _floats(bias))


def _pool(kind: str, x: Any, kernel: Any, stride: Any, mode: Padding_Mode, pads: Any) -> Var:
    x = _floats(x)
    auto, widths = _pads(mode, pads)
    window = (_pair(kernel), _pair(stride), (1, 1), widths, auto)
    ceil = auto == "NOTSET"
    attrs = PoolingAttrs(kind, *window, ceil, count_include_pad=ceil)

    def compute(a: Array) -> Any:
        if x.data_format == NHWC:
            a = np.moveaxis(a, -1, 1)
        made = _run("Pooling", attrs, a)
        return np.moveaxis(made, 1, -1) if x.data_format == NHWC else made

    return result("Pooling", compute, x)


def max_pool(
    x: Any,
    kernel: Any,
    stride: Any,
    padding_mode: Padding_Mode = Padding_Mode.VALID,
    pads: Any = (0, 0),
) -> Var:
    """Return the largest pixels in windows of images; `pads` are for CAFFE alone."""
    return _pool("MAX", x, kernel, stride, padding_mode, pads)


def avg_pool(
    x: Any,
    kernel: Any,
    stride: Any,
    padding_mode: Padding_Mode = Padding_Mode.VALID,
    pads: Any = (0, 0),
) -> Var:
    """Return the means of windows of images; `pads` are for CAFFE alone, and count as zeros."""
    return _pool("AVERAGE", x, kernel, stride, padding_mode, pads)


def scale(x: Any, channels: int, scale: Sequence[float], bias: Sequence[float]) -> Var:
    """Return images whose channels are multiplied by scales and added to biases."""
    factors, offsets = (np.asarray(one, np.float32) for one in (scale, bias))
    if not len(factors) == len(offsets) == channels:
        raise ArgumentError(f"{channels} channels have as many scales and biases")

    def compute(a: Array) -> Any:
        shape = [-1] + [1] * (a.ndim - 2)
        return np.asarray(a * factors.reshape(shape) + offsets.reshape(shape))

    return result("Scale", compute, _floats(x))


def normalize(
    x: Any, acrossSpatial: int, channelShared: int, eps: float, scale: Sequence[float]
) -> Var:
    """Return images divided by the Euclidean norm of their pixels, or of all their elements.

    Args:
        x: [N, C, H, W].
        acrossSpatial: the norm is that of a whole image, not of each pixel's channels.
        channelShared: one scale for all channels.
        eps: is added to the sum of squares.
        scale: factors of the channels.
    """
    factors = np.asarray(scale, np.float32)
    factors = factors[:1] if channelShared else factors

    def compute(a: Array) -> Any:
        axes = tuple(range(1, a.ndim)) if acrossSpatial else (1,)
        norm = np.sqrt(np.square(a).sum(axes, keepdims=True) + np.float32(eps))
        return np.asarray(a / norm * factors.reshape([-1] + [1] * (a.ndim - 2)))

    return result("Normalize", compute, _floats(x))


def resize(x: Any, x_scale: float, y_scale: float) -> Var:
    """Return images of another size, bilinear; the first pixels coincide."""
    scales = (float(y_scale), float(x_scale))

    def compute(a: Array) -> Any:
        for axis, factor in zip((2, 3), scales, strict=True):
            count = a.shape[axis]
            made = int(count * factor)
            places = np.arange(made) * (count / max(made, 1))
            a = _between(a, axis, np.minimum(places, count - 1).astype(np.float32))
        return a

    return result("Resize", compute, _floats(x))


def _between(a: Array, axis: int, places: Array) -> Array:
    """Return values between those along an axis, by linear interpolation."""
    first = np.floor(places).astype(np.int64)
    second = np.minimum(first + 1, a.shape[axis] - 1)
    weight = (places - first).astype(np.float32).reshape([-1] + [1] * (a.ndim - axis - 1))
    return np.asarray(a.take(first, axis) * (1 - weight) + a.take(second, axis) * weight)


def crop_and_resize(
    x: Any,
    boxes: Any,
    box_ind: Any,
    crop_size: Any,
    method: Interp_Method = Interp_Method.BILINEAR,
    extrapolation_value: float = 0.0,
) -> Var:
    """Return regions of images, resized to one size, as TensorFlow's crop_and_resize.

    Args:
        x: images [N, H, W, C] of format NHWC, or of another format with the channels second.
        boxes: [boxes, 4]: y, x, y, x, from 0 for the first pixel to 1 for the last one.
        box_ind: [boxes]: the image of each.
        crop_size: [2]: height and width.
        method: BILINEAR or NEAREST.
        extrapolation_value: what lies outside the images.
    """
    x = _floats(x)
    nearest = Interp_Method(method) == Interp_Method.NEAREST
    last = x.data_format == NHWC

    def compute(images: Array, corners: Array, numbers: Array, size: Array) -> Any:
        images = images if last else np.moveaxis(images, 1, -1)
        rows = zip(corners, numbers.tolist(), strict=True)
        parts = [_region(images[image], box, size.tolist(), nearest) for box, image in rows]
        made = np.stack(parts) if parts else np.zeros((0, *size.tolist(), images.shape[-1]))
        made = np.where(np.isnan(made), np.float32(extrapolation_value), made).astype(np.float32)
        return made if last else np.moveaxis(made, -1, 1)

    given = (_floats(boxes), integers(box_ind, "box_ind"), integers(crop_size, "crop_size"))
    return result("CropAndResize", compute, x, *given)


def _region(image: Array, box: Array, size: list[int], nearest: bool) -> Array:
    """Return a region of an image [H, W, C]; NaN outside the image."""
    outside = []
    for axis, (first, last, count) in enumerate(
        zip(box[:2].tolist(), box[2:].tolist(), size, strict=True)
    ):
        most = image.shape[axis] - 1
        steps = np.arange(count) * (last - first) * most / (count - 1) if count > 1 else np.zeros(1)
        places = first * most + steps if count > 1 else np.array([(first + last) / 2 * most])
        outside.append((places < 0) | (places > most))
        places = np.clip(places, 0, most).astype(np.float32)
        if nearest:
            image = image.take(np.trunc(places + 0.5).astype(np.int64), axis)
        else:
            image = _between(image, axis, places)
    return np.where((outside[0][:, None] | outside[1])[..., None], np.float32(np.nan), image)


def roi_pooling(
    input: Any,
    roi: Any,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    output_grad: bool = False,
    backward_diff: Any = None,
) -> Var:
    """Return the largest pixels in the parts of regions.

    Args:
        input: [N, C, H, W].
        roi: [regions, 5]: the image, then x, y, x, y.
        pooled_height: parts of a region from top to bottom.
        pooled_width: parts from left to right.
        spatial_scale: factor of the corners.
        output_grad: gradients, which vkmnn does not compute.
        backward_diff: ignored.
    """
    _no_gradients(output_grad)

    def compute(images: Array, regions: Array) -> Any:
        boxes = regions.reshape(-1, 5)
        parts = [
            _pooled(images[int(box[0])], box[1:] * spatial_scale, pooled_height, pooled_width)
            for box in boxes
        ]
        return np.stack(parts) if parts else images[:0]

    return result("ROIPooling", compute, _floats(input), _floats(roi))


def _pooled(image: Array, box: Array, rows: int, columns: int) -> Array:
    x0, y0, x1, y1 = np.trunc(box + np.float32(0.5)).astype(np.int64).tolist()
    made = np.zeros((image.shape[0], rows, columns), np.float32)
    spans = [
        _spans(y0, max(y1 - y0 + 1, 1), rows, image.shape[1]),
        _spans(x0, max(x1 - x0 + 1, 1), columns, image.shape[2]),
    ]
    for row, down in enumerate(spans[0]):
        for column, across in enumerate(spans[1]):
            part = image[:, down, across]
            if part.size:
                made[:, row, column] = part.max((1, 2))
    return made


def _spans(start: int, extent: int, bins: int, most: int) -> list[slice]:
    edges = np.arange(bins + 1) * extent / bins
    first = np.clip(np.floor(edges[:-1]).astype(np.int64) + start, 0, most)
    last = np.clip(np.ceil(edges[1:]).astype(np.int64) + start, 0, most)
    return [slice(*pair) for pair in zip(first.tolist(), last.tolist(), strict=True)]


def roi_align(
    input: Any,
    roi: Any,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    pooling_mode: Pooling_Mode,
    output_grad: bool = False,
    backward_diff: Any = None,
) -> Var:
    """Return means, or maxima, of samples in the parts of regions; see `roi_pooling`.

    Args:
        input: [N, C, H, W].
        roi: [regions, 5]: the image, then x, y, x, y.
        pooled_height: parts of a region from top to bottom.
        pooled_width: parts from left to right.
        spatial_scale: factor of the corners.
        sampling_ratio: samples in a part along each axis; 0 for as many as it has pixels.
        aligned: regions are shifted by half a pixel.
        pooling_mode: AVEPOOL or MAXPOOL.
        output_grad: gradients, which vkmnn does not compute.
        backward_diff: ignored.
    """
    _no_gradients(output_grad)
    size, ratio, factor = (
        (int(pooled_height), int(pooled_width)),
        int(sampling_ratio),
        spatial_scale,
    )
    largest = pooling_mode == Pooling_Mode.MAXPOOL

    def compute(images: Array, regions: Array) -> Any:
        boxes = regions.reshape(-1, 5)
        numbers = boxes[:, 0].astype(np.int64)
        corners = np.ascontiguousarray(boxes[:, 1:])
        if not largest:
            attrs = RoiAlignAttrs(size, ratio, float(factor), bool(aligned))
            return _run("RoiAlign", attrs, images, corners, numbers)
        parts = [
            _largest(images, box[None], number[None], size, ratio, float(factor), bool(aligned))
            for box, number in zip(corners, numbers, strict=True)
        ]
        return np.concatenate(parts) if parts else images[:0]

    return result("ROIAlign", compute, _floats(input), _floats(roi))


def _largest(
    images: Array,
    box: Array,
    number: Array,
    size: tuple[int, int],
    ratio: int,
    factor: float,
    aligned: bool,
) -> Array:
    """Return the largest samples of a region's parts; each sample is a part of finer ones."""
    least = 0.0 if aligned else 1.0
    extent = np.maximum((box[0, 2:] - box[0, :2]) * factor, least)[::-1]
    counts = [ratio or max(int(np.ceil(e / s)), 1) for e, s in zip(extent, size, strict=True)]
    fine = (size[0] * counts[0], size[1] * counts[1])
    samples = _run("RoiAlign", RoiAlignAttrs(fine, 1, factor, aligned), images, box, number)
    blocks = samples.reshape(1, -1, size[0], counts[0], size[1], counts[1])
    return np.asarray(blocks.max((3, 5)))


def _no_gradients(output_grad: bool) -> None:
    if output_grad:
        raise ArgumentError("vkmnn computes no gradients", hint="leave output_grad out")


def raster(vars: Sequence[Any], region: Any, shape: Any) -> Var:
    """Return a Var of elements copied from others.

    Args:
        vars: the sources, one for each region.
        region: 11 numbers for each region: source's offset and 3 strides, result's offset and 3
            strides, 3 sizes.
        shape: the result's shape.
    """
    rows = np.asarray(axes_of(region), np.int64).reshape(-1, 11)
    sizes = axes_of(shape)
    sources = [to_var(one) for one in vars]
    if len(sources) != len(rows):
        raise ArgumentError(f"{len(sources)} Vars have as many regions, not {len(rows)}")

    def compute(*arrays: Array) -> Any:
        made = np.zeros(int(np.prod(sizes)), arrays[0].dtype)
        for array, row in zip(arrays, rows, strict=True):
            steps = np.indices(row[8:].tolist()).reshape(3, -1)
            made[row[4] + row[5:8] @ steps] = array.reshape(-1)[row[0] + row[1:4] @ steps]
        return made.reshape(sizes)

    return result("Raster", compute, *sources)


def quant(var: Any, scale: Any, min: int = -128, max: int = 127, zero: int = 0) -> Var:
    """Return 8-bit integers for floats: x / scale + zero, rounded, within limits."""

    def compute(x: Array, s: Array) -> Any:
        codes = x / s.reshape([-1] + [1] * (x.ndim - 2)) + np.float32(zero)
        rounded = np.trunc(codes + np.copysign(np.float32(0.5), codes))
        return np.clip(rounded, min, max).astype(np.int8)

    return result("FloatToInt8", compute, _floats(var), _floats(scale))


def dequant(var: Any, scale: Any, zero: int = 0) -> Var:
    """Return floats for 8-bit integers: (x - zero) · scale."""

    def compute(x: Array, s: Array) -> Any:
        factors = s.reshape([-1] + [1] * (x.ndim - 2))
        return (x.astype(np.float32) - np.float32(zero)) * factors

    return result("Int8ToFloat", compute, to_var(var), _floats(scale))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "avg_pool": avg_pool,
    "conv2d": conv2d,
    "conv2d_transpose": conv2d_transpose,
    "crop_and_resize": crop_and_resize,
    "dequant": dequant,
    "max_pool": max_pool,
    "normalize": normalize,
    "quant": quant,
    "raster": raster,
    "resize": resize,
    "roi_align": roi_align,
    "roi_pooling": roi_pooling,
    "scale": scale,
}
