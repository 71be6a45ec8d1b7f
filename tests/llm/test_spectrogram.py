"""Spectrograms of sounds, against the formula spelled out."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vkmnn
from vkmnn.llm.spectrogram import log_mel, mel_filters

RANDOM = np.random.default_rng(3)


def hertz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def mel_of(frequency: float) -> float:
    if frequency < 1000:
        return frequency * 3 / 200
    return 15 + 27 * math.log(frequency / 1000) / math.log(6.4)


def by_hand(sound: np.ndarray, bands: int) -> np.ndarray:
    """Return the spectrogram, one frame and one filter at a time."""
    mirrored = np.concatenate([sound[200:0:-1], sound, sound[-2:-202:-1]])
    edges = [hertz(mel_of(8000) * n / (bands + 1)) for n in range(bands + 2)]
    turns = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    window = [math.sin(math.pi * n / 400) ** 2 for n in range(400)]
    made = np.zeros((bands, sound.size // 160))
    for frame in range(sound.size // 160):
        power = abs(turns @ (mirrored[frame * 160 : frame * 160 + 400] * window)) ** 2
        for band in range(bands):
            low, middle, high = edges[band : band + 3]
            total = 0.0
            for place, strength in enumerate(power):
                at = place * 40.0
                if low < at < high:
                    height = (at - low) / (middle - low) if at <= middle else (high - at) / (
                        high - middle)  # fmt: skip
                    total += strength * height * 2 / (high - low)
            made[band, frame] = math.log10(max(total, 1e-10))
    return (np.maximum(made, made.max() - 8) + 4) / 4


@pytest.mark.parametrize("bands", [80, 128, 7])
def test_the_formula(bands: int) -> None:
    sound = np.sin(np.arange(1600) * 0.2) * 0.3 + RANDOM.normal(size=1600) * 0.01
    actual = log_mel(sound, bands, seconds=0.1)
    assert (actual.shape, actual.dtype) == ((1, bands, 10), np.float32)
    np.testing.assert_allclose(actual[0], by_hand(sound, bands), rtol=1e-5, atol=1e-5)


def test_sounds_are_cut_and_filled() -> None:
    sound = RANDOM.uniform(-1, 1, 4000).astype(np.float32)
    long = np.concatenate([sound[:1600], RANDOM.uniform(-1, 1, 99).astype(np.float32)])
    np.testing.assert_array_equal(log_mel(long, 80, 0.1), log_mel(sound[:1600], 80, 0.1))
    assert log_mel(sound).shape == (1, 80, 3000)
    quiet = log_mel(np.zeros(0, np.float32), 80, 1.0)
    np.testing.assert_array_equal(quiet, np.full((1, 80, 100), -1.5, np.float32))


def test_filters_have_the_areas_of_slaneys() -> None:
    filters = mel_filters(80)
    assert filters.shape == (80, 201)
    assert filters[0, 1] == pytest.approx(0.02486259, abs=1e-7)  # as Whisper's file has it


@pytest.mark.parametrize(
    "sound", [np.zeros((2, 9)), np.zeros(9, np.int16), np.array([0.0, np.nan])]
)
def test_what_is_not_a_sound(sound: np.ndarray) -> None:
    with pytest.raises(vkmnn.InvalidInputError, match="is not supported"):
        log_mel(sound)
