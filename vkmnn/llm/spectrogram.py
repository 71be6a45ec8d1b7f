"""Log-mel spectrograms, the input of Whisper's encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array

RATE = 16_000
"""Samples per second."""
FRAMES = 100
"""Columns of a spectrogram per second."""

_WINDOW = 400
_STEP = 160
_LINEAR_HZ = 200 / 3  # of a mel, up to 1,000 Hz; from there on mels are logarithmic
_EDGE_HZ, _EDGE_MEL = 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27
_FLOOR = 1e-10
_RANGE = 8.0  # decades below the loudest that count

_Floats = npt.NDArray[np.float64]


def log_mel(samples: Any, bands: int = 80, seconds: float = 30.0) -> Array:
    """Return the log-mel spectrogram of a sound, as Whisper's feature extractor computes it.

    Args:
        samples: numbers from -1 to 1, 16,000 a second, one channel; cut, or filled with silence.
        bands: mel bands: 80, or 128 for Whisper large v3.
        seconds: duration of the result.

    Returns:
        float32 [1, bands, frames], 100 frames a second.

    Raises:
        InvalidInputError: `samples` is not an array of one axis, holds what is not finite, or a
            number is out of range.

    Source: Whisper (Radford et al., 2022), section 2.2; mel filters of Slaney's Auditory Toolbox.
    """
    sound = np.asarray(samples)
    if sound.ndim != 1 or sound.dtype.kind != "f" or not np.isfinite(sound).all():
        raise InvalidInputError(
            f"a sound of {sound.dtype} {list(sound.shape)} is not supported",
            hint="pass finite floats from -1 to 1, in one channel, at 16 kHz",
        )
    count = round(seconds * RATE)
    if bands < 1 or count <= _WINDOW:
        raise InvalidInputError(
            f"{bands} bands of {seconds:g} s", hint="80 bands of 30 s are usual"
        )
    whole = np.zeros(count)
    whole[: min(count, sound.size)] = sound[:count]
    padded = np.pad(whole, _WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_STEP][:-1]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    power = np.abs(np.fft.rfft(frames * window, axis=-1)) ** 2
    logs = np.log10(np.maximum(power @ mel_filters(bands).T, _FLOOR))
    logs = np.maximum(logs, logs.max() - _RANGE)
    return np.ascontiguousarray(((logs.T + 4.0) / 4.0)[None], np.float32)


def mel_filters(bands: int) -> _Floats:
    """Return triangles over frequencies, [bands, 201], with the areas of Slaney's."""
    frequencies = np.linspace(0.0, RATE / 2, _WINDOW // 2 + 1)
    top = _EDGE_MEL + np.log(RATE / 2 / _EDGE_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top, bands + 2)
    log = _EDGE_HZ * np.exp(_LOG_STEP * (mels - _EDGE_MEL))
    edges = np.where(mels < _EDGE_MEL, mels * _LINEAR_HZ, log)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    filters: _Floats = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (high - low)
    return filters
