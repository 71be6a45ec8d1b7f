"""MNN's CVImageProcess: formats, transformation and normalisation of images in one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.matrix import CVMatrix
from vkmnn.mnn.memory import bytes_at, is_address
from vkmnn.mnn.pixels import CHANNELS, converted, from_planes
from vkmnn.mnn.sampling import BICUBIC, BILINEAR, CLAMP_TO_EDGE, NEAREST, REPEAT, ZERO, transformed
from vkmnn.mnn.tensor import HalideType, Tensor, Tensor_DimensionType_Tensorflow

CV_Filter_NEAREST, CV_Filter_BILINEAL, CV_Filter_BICUBIC = NEAREST, BILINEAR, BICUBIC
CV_Wrap_CLAMP_TO_EDGE, CV_Wrap_ZERO, CV_Wrap_REPEAT = CLAMP_TO_EDGE, ZERO, REPEAT
CV_ImageFormat_RGBA, CV_ImageFormat_RGB, CV_ImageFormat_BGR = 0, 1, 2
CV_ImageFormat_GRAY, CV_ImageFormat_BGRA, CV_ImageFormat_YUV_NV21 = 3, 4, 11

FORMATS = {0: "RGBA", 1: "RGB", 2: "BGR", 3: "GRAY", 4: "BGRA", 11: "YUV_NV21"}
_DEFAULTS: dict[str, Any] = {
    "filterType": NEAREST,
    "sourceFormat": CV_ImageFormat_RGBA,
    "destFormat": CV_ImageFormat_RGBA,
    "wrap": CLAMP_TO_EDGE,
    "mean": (),
    "normal": (),
}
_LARGEST = 1 << 31  # bytes of an image

__all__ = ["CVImageProcess", "CVMatrix"]


class CVImageProcess:
    """Copies images into Tensors: transformed by a matrix, in another format, as floats if wanted.

    Args:
        config: "filterType", "sourceFormat", "destFormat" and "wrap", from MNN.CV_Filter_*,
            MNN.CV_ImageFormat_* and MNN.CV_Wrap_*; "mean" and "normal", up to four numbers each:
            floats are (x - mean) · normal.

    Raises:
        ArgumentError: an unknown key or format.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        given = dict(config or {})
        unknown = sorted(set(given) - set(_DEFAULTS))
        if unknown:
            raise ArgumentError(
                f"CVImageProcess has no setting '{unknown[0]}'",
                hint=f"known are: {', '.join(_DEFAULTS)}",
            )
        settings = {**_DEFAULTS, **given}
        self._source, self._target = (
            _format(settings[key]) for key in ("sourceFormat", "destFormat")
        )
        self._filter, self._wrap = settings["filterType"], settings["wrap"]
        self._mean = _four(settings["mean"], 0.0)
        self._normal = _four(settings["normal"], 1.0)
        self._matrix = CVMatrix()
        self._padding = 0

    def setMatrix(self, matrix: CVMatrix) -> None:
        """Set the transformation, from the result's pixels to those of the source."""
        self._matrix = CVMatrix._of(matrix._values.copy())

    def setPadding(self, value: int) -> None:
        """Set the value outside the image, for MNN.CV_Wrap_ZERO."""
        self._padding = int(value)

    def convert(self, src: Any, iw: int, ih: int, stride: int, dst: Tensor) -> None:
        """Fill a Tensor with an image.

        Args:
            src: the image's bytes: an array, a tuple, bytes, or an address of them.
            iw: its width.
            ih: its height.
            stride: bytes of a row; 0 if rows follow one another.
            dst: the Tensor: N, H, W, C, or N, C, H, W, by its order of axes.

        Raises:
            ArgumentError: there are too few bytes, or no such conversion.
        """
        pixels = self._read(src, int(iw), int(ih), int(stride))
        last = dst.getDimensionType() == Tensor_DimensionType_Tensorflow
        shape = dst.getShape()
        if len(shape) not in (3, 4):
            raise ArgumentError(f"an image does not fill a Tensor of shape {shape}")
        height, width = (shape[-3:-1] if last else shape[-2:]) if len(shape) == 4 else shape[:2]
        outside = self._padding if self._wrap == ZERO else None
        matrix = self._matrix._values
        made = transformed(pixels, matrix, (height, width), self._filter, outside)
        if not self._source.startswith("YUV"):
            made = converted(made, self._source, self._target)
        dst.fromNumpy(self._arranged(made, dst, last))

    def _read(self, src: Any, width: int, height: int, stride: int) -> Array:
        """Return the source's pixels; those of two planes in the target's format already."""
        planes = self._source.startswith("YUV")
        row = stride or width * CHANNELS[self._source]
        size = row * height * 3 // 2 if planes else row * height
        if min(width, height) < 1 or row < width * CHANNELS[self._source] or size > _LARGEST:
            raise ArgumentError(f"there is no image of {width} x {height} in rows of {row} bytes")
        if is_address(src):
            data: Array = np.frombuffer(bytes_at(src, size), np.uint8)
        elif isinstance(src, bytes | bytearray | memoryview):
            data = np.frombuffer(bytes(src), np.uint8)
        else:
            data = np.asarray(src).astype(np.uint8).reshape(-1)
        if data.size < size:
            raise ArgumentError(f"an image of {size} bytes is expected, not of {data.size}")
        rows = data[: row * height].reshape(height, row)
        if not planes:
            channels = CHANNELS[self._source]
            return rows[:, : width * channels].reshape(height, width, channels)
        colours = data[row * height : size].reshape(-1, row)[:, : width // 2 * 2]
        pairs = colours.reshape(len(colours), -1, 2)
        return from_planes(rows[:, :width], pairs, self._source, self._target)

    def _arranged(self, pixels: Array, dst: Tensor, last: bool) -> Array:
        """Return pixels in a Tensor's type and order, with as many channels."""
        shape = dst.getShape()
        channels = pixels.shape[-1]
        if dst.getNumpyData().dtype == np.float32:
            mean, normal = self._mean[:channels], self._normal[:channels]
            pixels = (pixels.astype(np.float32) - mean) * normal
        wanted = shape[-1] if last or len(shape) == 3 else shape[1]
        if wanted > channels:  # MNN leaves the fourth channel 0, or makes it opaque
            extra = np.zeros((*pixels.shape[:-1], wanted - channels), pixels.dtype)
            pixels = np.concatenate([pixels, extra + (255 if pixels.dtype == np.uint8 else 0)], -1)
        elif wanted < channels:
            raise ArgumentError(f"{self._target} has {channels} channels, the Tensor {wanted}")
        made = pixels if last or len(shape) == 3 else np.moveaxis(pixels, -1, 0)
        return np.ascontiguousarray(np.broadcast_to(made, shape))

    @staticmethod
    def createImageTensor(
        dtype: HalideType, width: int, height: int, channel: int, data: Any = None
    ) -> Tensor:
        """Return a Tensor for an image, of shape (1, height, width, channels)."""
        return Tensor((1, height, width, channel), dtype, Tensor_DimensionType_Tensorflow)


def _format(number: Any) -> str:
    if number not in FORMATS:
        names = ", ".join(f"MNN.CV_ImageFormat_{name}" for name in FORMATS.values())
        raise ArgumentError(f"there is no image format {number!r}", hint=f"use one of {names}")
    return FORMATS[number]


def _four(values: Any, default: float) -> Array:
    given = [float(value) for value in values][:4]
    return np.array([*given, *[default] * (4 - len(given))], np.float32)
