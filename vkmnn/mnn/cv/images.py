"""Images as Vars [height, width, channels] of format NHWC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.types import NHWC
from vkmnn.mnn.expr.values import cast_array, to_var
from vkmnn.mnn.expr.var import Var


def pixels_of(image: Any) -> Array:
    """Return an image as an array [height, width, channels].

    Raises:
        ArgumentError: it has another number of axes, or no pixels.
    """
    array = to_var(image).read()
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or not array.size:
        raise ArgumentError(f"an image has shape [height, width, channels], not {array.shape}")
    return array


def bytes_of(image: Any) -> Array:
    """Return an image of 8-bit numbers as an array.

    Raises:
        ArgumentError: it holds others.
    """
    array = pixels_of(image)
    if array.dtype != np.uint8:
        raise ArgumentError(
            f"the image consists of uint8, not {array.dtype}", hint="use image.astype(np.uint8)"
        )
    return array


def image_var(array: Array) -> Var:
    """Return an array as a Var in the format of images."""
    return Var(np.ascontiguousarray(array), NHWC)


def like(made: Array, source: Array, *, flat: bool = True) -> Var:
    """Return floats in the type of a source, clipped to that of 8-bit numbers and cut off.

    Args:
        made: floats [height, width, channels].
        source: what they are computed from.
        flat: drop an only channel, as MNN's filters do.
    """
    if source.dtype == np.uint8:
        made = np.clip(made, 0, 255)
    made = cast_array(made + (1e-4 if source.dtype.kind in "iu" else 0), source.dtype)
    return image_var(made[..., 0] if flat and made.shape[-1] == 1 else made)


def pair_of(value: Any, what: str) -> tuple[int, int]:
    """Return two integers.

    Raises:
        ArgumentError: they are not two.
    """
    try:
        first, second = (int(one) for one in np.asarray(to_plain(value)).reshape(-1).tolist())
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{what} consists of two integers, not {value!r}") from error
    return first, second


def to_plain(value: Any) -> Any:
    """Return a Var's data, and anything else as it is."""
    return value.read() if isinstance(value, Var) else value


def floats_of(values: Any) -> Sequence[float]:
    """Return numbers of a list or a Var."""
    flat: list[float] = np.asarray(to_plain(values), np.float64).reshape(-1).tolist()
    return flat
