"""Sounds as arrays: read from files, in one channel, at the rate that a network takes."""

from __future__ import annotations

import io
import wave
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.extras import need
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.arrays import Array

_MOST = 1 << 30
"""Bytes of samples of a file: over four hours at 16 kHz as floats."""
_FLAT = 16
"""Zeros of the resampling filter on either side."""
_RATES = (1_000, 768_000)


def read_sound(source: Any, rate: int, longest: float | None = None) -> Array:
    """Return a sound as float32 [samples] from -1 to 1, in one channel.

    Args:
        source: a path, the bytes of a file, a pair of samples and their rate, or an array of
            samples at `rate`; arrays have one axis, or channels last. Files other than .wav take
            the extra `audio`.
        rate: samples per second of the result.
        longest: maximum seconds of a file, which are checked before it is decoded.

    Raises:
        InvalidInputError: it cannot be read, is empty, is too long, or holds what is not finite.
        MissingExtraError: soundfile is needed and not installed.
    """
    if isinstance(source, str | Path | bytes | bytearray):
        samples, own = _read(source, longest)
    elif isinstance(source, tuple) and len(source) == 2:
        samples, own = source
    else:
        samples, own = source, rate
    _check_rate(own)
    mono = _mono(samples)
    return resampled(mono, int(own), rate)


def _check_rate(rate: Any) -> None:
    """Refuse what is no whole number, or a rate that no sound has."""
    whole = isinstance(rate, int | np.integer) and not isinstance(rate, bool)
    if not whole or not _RATES[0] <= rate <= _RATES[1]:
        raise InvalidInputError(
            f"a rate of {rate!r} samples per second", hint="give (samples, rate): (array, 16000)"
        )


def _mono(samples: Any) -> Array:
    given = np.asarray(samples)
    if given.dtype.kind in "iu" and given.dtype.itemsize <= 4:
        given = _scaled(given)
    if given.ndim in (1, 2) and not len(given):
        raise InvalidInputError("the sound is empty", hint="pass one with samples")
    if given.dtype.kind != "f" or given.ndim not in (1, 2) or not given.size:
        raise InvalidInputError(
            f"{given.dtype} {list(given.shape)} is no sound",
            hint="pass a path, or numbers from -1 to 1: [samples] or [samples, channels]",
        )
    made = given.astype(np.float32) if given.ndim == 1 else given.mean(1, dtype=np.float32)
    if not np.isfinite(made).all():
        raise InvalidInputError("the sound holds numbers that are not finite")
    return made


def _scaled(values: Array) -> Array:
    """Return whole numbers as floats from -1 to 1; those of 8 bits lie around 128, as in files."""
    bits = values.dtype.itemsize * 8
    middle = 2 ** (bits - 1) if values.dtype.kind == "u" else 0
    return np.asarray((values.astype(np.float32) - middle) / 2.0 ** (bits - 1), np.float32)


def _read(source: str | Path | bytes | bytearray, longest: float | None) -> tuple[Array, int]:
    data: Any
    if isinstance(source, bytes | bytearray):
        name, data = "the sound", io.BytesIO(bytes(source))
    else:
        name, data = f"'{source}'", str(source)
        if not Path(source).is_file():
            raise InvalidInputError(f"no such file: {name}", hint="check the path")
    try:
        with wave.open(data, "rb") as file:
            return _of_wave(file, name, longest, _size_of(data))
    except (wave.Error, EOFError):  # another format, or a wav file of floats
        pass
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be read: {error}") from error
    if isinstance(data, io.BytesIO):
        data.seek(0)
    soundfile = need("soundfile", f"reading {name}", "audio")
    try:
        with soundfile.SoundFile(data) as file:
            _check_size(file.frames, file.channels, file.samplerate, name, longest)
            return np.asarray(file.read(dtype="float32")), int(file.samplerate)
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).removeprefix(f"Error opening {data!r}: ")
        raise InvalidInputError(
            f"{name} cannot be read: {reason}", hint="convert it to .wav or .flac"
        ) from error


def _size_of(data: str | io.BytesIO) -> int:
    return Path(data).stat().st_size if isinstance(data, str) else data.getbuffer().nbytes


def _check_size(frames: int, channels: int, rate: int, name: str, longest: float | None) -> None:
    _check_rate(rate)
    if longest is not None and frames > longest * rate:
        raise InvalidInputError(f"{name} is longer than {longest:g} s", hint="cut it into parts")
    if frames * channels * 4 > _MOST:
        raise InvalidInputError(
            f"{name} has more than {_MOST >> 20} MiB of samples", hint="cut it into parts"
        )


def _of_wave(
    file: wave.Wave_read, name: str, longest: float | None, size: int
) -> tuple[Array, int]:
    """Return the samples and their rate.

    Args:
        file: the open file.
        name: what it is called in errors.
        longest: maximum seconds.
        size: its bytes; programs that write to a pipe do not know how many samples will follow.
    """
    width, channels = file.getsampwidth(), file.getnchannels()
    frames = min(file.getnframes(), size // (width * channels))
    _check_size(frames, channels, file.getframerate(), name, longest)
    data = file.readframes(frames)
    data = data[: len(data) // (width * channels) * width * channels]
    if width == 3:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3)
        whole = np.zeros((len(parts), 4), np.uint8)
        whole[:, 1:] = parts  # the lowest byte of four remains 0
        values = whole.view("<i4").reshape(-1)
    else:
        kinds = {1: "u1", 2: "<i2", 4: "<i4"}
        if width not in kinds:
            raise InvalidInputError(f"{name} has samples of {width * 8} bits")
        values = np.frombuffer(data, kinds[width])
    return _scaled(values).reshape(-1, channels), file.getframerate()


def resampled(samples: Array, have: int, want: int) -> Array:
    """Return samples at another rate, band-limited by a windowed sinc.

    Args:
        samples: float32 [samples].
        have: their rate.
        want: the rate of the result.
    """
    if have == want:
        return samples
    common = gcd(have, want)
    up, down = want // common, have // common
    count = -(-len(samples) * up // down)
    cut = min(1.0, want / have)
    reach = int(np.ceil(_FLAT / cut))
    padded = np.pad(samples, (reach, reach + 1))
    made = np.empty(count, np.float32)
    offsets = np.arange(-reach + 1, reach + 1)
    for phase in range(min(up, count)):  # outputs of a phase share their weights
        places = np.arange(phase, count, up, dtype=np.int64) * down
        first, share = places // up, float(places[0] % up) / up
        distance = (offsets - share) * cut
        window = np.cos(np.pi / 2 * np.clip(distance / _FLAT, -1, 1)) ** 2
        weights = (np.sinc(distance) * window).astype(np.float64)
        weights /= weights.sum()
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(offsets))
        made[phase::up] = windows[first + 1] @ weights.astype(np.float32)
    return made
