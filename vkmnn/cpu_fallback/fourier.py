"""Fourier transforms, and the weights that convert spectrograms to the mel scale."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, optional, required
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op
from vkmnn.ir.ops import DFTAttrs, MelWeightMatrixAttrs
from vkmnn.shape.common import int_scalar
from vkmnn.shape.fourier import transform_of


@cpu_execution("DFT")
def _dft(op: Op[DFTAttrs], inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    length = None if optional(inputs, 2) is None else int_scalar(inputs, 2, "the length")
    found = transform_of(op.attrs, x.shape, int_scalar(inputs, 1, "the axis"), length)
    numbers = x[..., 0].astype(np.float64)
    if found.parts == 2:
        numbers = numbers + 1j * x[..., 1].astype(np.float64)
    if not found.rows:  # numpy transforms at least one element, which may be 0
        numbers = np.zeros([*x.shape[: found.axis], 1, *x.shape[found.axis + 1 : -1]])
    count, axis = found.length, found.axis
    if found.outputs == 1:
        return [np.fft.irfft(numbers, count, axis).astype(x.dtype)[..., None]]
    made = (np.fft.ifft if found.inverse else np.fft.fft)(numbers, count, axis)
    made = np.take(made, range(found.made), axis)
    return [np.stack([made.real, made.imag], -1).astype(x.dtype)]


@cpu_execution("MelWeightMatrix")
def _mel_weight_matrix(op: Op[MelWeightMatrixAttrs], inputs: Inputs) -> list[AnyArray]:
    """Return triangular filters whose edges are equidistant on the mel scale."""
    bins, length, rate, low, high = (required(inputs, place).item() for place in range(5))
    if rate == 0:
        raise InvalidInputError("the sample rate is 0")
    ends = 2595 * np.log1p(np.array([low, high], np.float64) / 700) / np.log(10)
    mels = ends[0] + np.arange(bins + 2) * ((ends[1] - ends[0]) / (bins + 2))
    hertz = 700 * np.expm1(mels / 2595 * np.log(10))
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    if edges.min() < 0 or edges[:-1].max(initial=0) > length // 2:
        raise InvalidInputError(
            f"edges of {low:g} and {high:g} Hz lie outside a spectrogram of {length // 2 + 1} bins"
        )
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    place = np.arange(length // 2 + 1)[:, None]
    rising = (place - left) / np.maximum(middle - left, 1)
    rising = np.where(middle == left, place == middle, rising)
    falling = (right - place) / np.maximum(right - middle, 1)
    is_rising = (left <= place) & (place <= middle)
    is_falling = (middle <= place) & (place < right)
    weights = np.where(is_falling, falling, np.where(is_rising, rising, 0))
    return [weights.astype(op.attrs.dtype.numpy)]
