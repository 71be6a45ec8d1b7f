"""A network's image input: its layout, and its companion inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.inference_session import NodeArg
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.placing import Placed

_CHANNELS = (1, 3)
_KINDS = "fui"


@dataclass(frozen=True, slots=True)
class PictureInput:
    """The image input of a network.

    Attributes:
        name: its name.
        dtype: numpy's name of its element type.
        layout: "nchw", "nhwc", "chw" or "hwc".
        channels: 1 or 3.
        height: rows; None if dynamic.
        width: columns; None if dynamic.
        batch: images per run; None if dynamic.
        quantization: scale and zero point if quantised.
    """

    name: str
    dtype: str
    layout: str
    channels: int
    height: int | None
    width: int | None
    batch: int | None
    quantization: tuple[float, int] | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width if both are static."""
        return (self.height, self.width) if self.height and self.width else None

    @property
    def is_raw(self) -> bool:
        """Whether the network takes pixels from 0 to 255 and normalises them itself."""
        return np.dtype(self.dtype).kind in "ui" and self.quantization is None

    def arranged(self, pictures: Array) -> Array:
        """Return images [n, height, width, channels] in the network's layout."""
        made = np.moveaxis(pictures, 3, 1) if "chw" in self.layout else pictures
        return np.ascontiguousarray(made if self.layout[0] == "n" else made[0])

    def cast(self, values: Array) -> Array:
        """Convert real values to the input's type, quantised if necessary."""
        kind = np.dtype(self.dtype)
        if self.quantization is not None and kind.kind in "ui":
            scale, zero = self.quantization
            values = values / np.float32(scale or 1) + np.float32(zero)
        if kind.kind in "ui":
            limits = np.iinfo(kind)
            values = np.clip(np.rint(values), limits.min, limits.max)
        return values.astype(kind)


def picture_input(args: Sequence[NodeArg]) -> PictureInput | None:
    """Return the image input; None if no input looks like one."""
    found = [one for one in map(_as_picture, args) if one is not None]
    return found[0] if found else None


def _as_picture(arg: NodeArg) -> PictureInput | None:
    shape = arg.shape
    if shape is None or len(shape) not in (3, 4) or arg.dtype == "object":
        return None
    if np.dtype(arg.dtype).kind not in _KINDS:
        return None
    if arg.dtype in ("int64", "int32") and (len(shape) != 4 or 3 not in (shape[1], shape[3])):
        return None  # tokens and their like; MoveNet's pixels are int32
    dims = [one if isinstance(one, int) else None for one in shape]
    batch, inner = (dims[0], dims[1:]) if len(dims) == 4 else (1, dims)
    layout = _layout(inner, [str(one).lower() for one in shape[len(shape) - 3 :]])
    if layout is None:
        return None
    height, width = (inner[1], inner[2]) if layout == "chw" else (inner[0], inner[1])
    channels = (inner[0] if layout == "chw" else inner[2]) or 3
    if len(dims) == 3 and (height or width or 1 << 9) < 8:
        return None
    whole = f"n{layout}" if len(dims) == 4 else layout
    return PictureInput(
        arg.name, arg.dtype, whole, channels, height, width, batch, arg.quantization
    )


def _layout(inner: Sequence[int | None], names: Sequence[str]) -> str | None:
    """Return "chw" or "hwc" from three sizes and their names; None for neither."""
    first, last = inner[0], inner[2]
    if first in _CHANNELS and (last not in _CHANNELS or last == first):
        return "chw"
    if last in _CHANNELS:
        return "hwc"
    if first is None and last is None:
        return "hwc" if names[2].startswith(("c", "num_c")) else "chw"
    return "chw" if first is None and inner[1] is not None else None


Companion = Callable[[Sequence[Placed], NodeArg], Array]
"""Computes the value of an input from the placements of a run's images."""


def _mask(placed: Sequence[Placed], arg: NodeArg) -> Array:
    """Ones where the canvas shows the image (DETR); all ones if its size differs."""
    canvas = placed[0].canvas
    sides = [one for one in (arg.shape or ())[1:] if isinstance(one, int)]
    if len(sides) == 2 and tuple(sides) != canvas:
        return np.ones((len(placed), *sides), arg.dtype)
    made = np.zeros((len(placed), *canvas), arg.dtype)
    for one, each in zip(made, placed, strict=True):
        one[each.window] = 1
    return made


def _original(placed: Sequence[Placed], arg: NodeArg) -> Array:
    return np.array([one.original for one in placed], arg.dtype)


def _original_wh(placed: Sequence[Placed], arg: NodeArg) -> Array:
    return np.array([one.original[::-1] for one in placed], arg.dtype)


def _canvas(placed: Sequence[Placed], arg: NodeArg) -> Array:
    return np.array([one.canvas for one in placed], arg.dtype)


def _factors(placed: Sequence[Placed], arg: NodeArg) -> Array:
    """Ratios of height and width after to before the resize (PaddleDetection)."""
    pairs = [np.array(one.resized) / np.array(one.original) for one in placed]
    return np.array(pairs, arg.dtype)


COMPANIONS: Mapping[str, Companion] = {
    "pixel_mask": _mask,
    "orig_target_sizes": _original_wh,
    "orig_size": _original_wh,
    "target_sizes": _original,
    "image_shape": _original,
    "im_shape": _canvas,
    "im_size": _canvas,
    "scale_factor": _factors,
}
"""Inputs that follow from the placements of images, by name."""
