"""Voice activity: when somebody speaks, by networks like Silero's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import NodeArg
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Pipeline, Settings
from vkmnn.pipelines.networks import Loaded, open_session
from vkmnn.pipelines.options import Check, Options
from vkmnn.pipelines.results.sounds import Segment, Segments
from vkmnn.pipelines.sounds.reading import read_sound

RATES = (16_000, 8_000)
_WINDOW = {16_000: 512, 8_000: 256}
_STATES: Mapping[str, tuple[str, ...]] = {
    "state": ("staten", "state_out", "new_state", "state"),
    "h": ("hn", "h_out", "new_h"),
    "c": ("cn", "c_out", "new_c"),
    "h0": ("hn",),
    "c0": ("cn",),
}
"""Inputs of state, and what the output is called that feeds each one in the next run."""
_STATE_SHAPES = {"state": (2, 1, 128)}
_DROP = 0.15
"""How far below the threshold speech ends, as in Silero's own program."""


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        raise InvalidInputError(f"{name}={value!r} is not a number of seconds")
    return float(value)


def _rate(name: str, value: Any) -> int:
    if value not in RATES:
        raise InvalidInputError(f"{name}={value!r} is neither 16000 nor 8000")
    return int(value)


class VoiceActivity(Pipeline):
    """Says when somebody speaks.

    Args:
        loaded: a network of sounds, with state and the rate as further inputs.
        options: the options; `threshold` is the least probability of speech, 0.5 by default.
    """

    task = "voice-activity-detection"
    own: ClassVar[tuple[str, ...]] = ("rate", "least_speech", "least_silence", "padding")
    checks: ClassVar[Mapping[str, Check]] = {**dict.fromkeys(own[1:], _seconds), "rate": _rate}

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(options)
        names = {arg.name: arg for arg in loaded.inputs}
        outputs = [arg.name for arg in loaded.outputs]
        self._states = _state_pairs(names, outputs)
        sounds = [name for name in names if name not in (*self._states, "sr")]
        if len(sounds) != 1 or not self._states:
            shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.inputs)
            raise InvalidInputError(
                f"'{loaded.about.name}' is no network of voice activity: its inputs are {shapes}",
                hint="it takes a sound, a state (or h and c), and mostly the rate sr",
            )
        self._sound, self._args = sounds[0], names
        self._probability = next(one for one in outputs if one not in self._states.values())
        self._rate: int = options.take("rate", RATES[0])
        self._window, self._context = _sizes(names[self._sound], self._rate, "state" in names)
        self.session = open_session(loaded, options)
        self._outputs = outputs
        self.settings = {
            "threshold": 0.5 if options.threshold is None else options.threshold,
            "least_speech": options.take("least_speech", 0.25),
            "least_silence": options.take("least_silence", 0.1),
            "padding": options.take("padding", 0.03),
        }

    @property
    def device(self) -> str:
        """The name of the device that it runs on."""
        return self.session.device.name

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return the parts of a sound in which somebody speaks; a list of them for a list.

        Args:
            inputs: a path, bytes, (samples, rate), or samples at the network's rate; or a list.
            settings: `threshold`; `least_speech`, `least_silence` and `padding` in seconds.

        Raises:
            InvalidInputError: a sound cannot be read, or a setting is not known.
        """
        chosen = self.chosen(settings)
        if isinstance(inputs, list):
            return [self._segments(one, chosen) for one in inputs]
        return self._segments(inputs, chosen)

    def _segments(self, source: Any, chosen: Settings) -> Segments:
        samples = read_sound(source, self._rate)
        parts = speech_of(self.probabilities(samples), self._window / self._rate, chosen)
        return Segments(padded(parts, len(samples) / self._rate, chosen["padding"]))

    def probabilities(self, samples: Array) -> Array:
        """Return the probability of speech in each window, float32 [windows]."""
        count = -(-len(samples) // self._window)
        whole = np.zeros(self._context + count * self._window, np.float32)
        whole[self._context : self._context + len(samples)] = samples
        states: dict[str, Array] = {
            name: np.zeros(_shape(self._args[name]), np.float32) for name in self._states
        }
        made = np.empty(count, np.float32)
        for number in range(count):
            start = number * self._window
            part = whole[start : start + self._context + self._window]
            feeds = {self._sound: part[None], **states}
            if "sr" in self._args:
                shape = [one for one in self._args["sr"].shape or () if isinstance(one, int)]
                feeds["sr"] = np.full(shape, self._rate, np.int64)
            found = dict(zip(self._outputs, self.session.run(None, feeds), strict=True))
            states = {name: found[output] for name, output in self._states.items()}
            made[number] = float(np.asarray(found[self._probability]).reshape(-1)[-1])
        return made

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        self.session.close()


def _state_pairs(inputs: Mapping[str, NodeArg], outputs: Sequence[str]) -> dict[str, str]:
    """Return the output that feeds each input of state."""
    by_name = {name.lower(): name for name in outputs}
    pairs = {}
    for name, ends in _STATES.items():
        found = next((by_name[end] for end in ends if end in by_name), None)
        if name in inputs and found is not None:
            pairs[name] = found
    return pairs


def _sizes(sound: NodeArg, rate: int, one_state: bool) -> tuple[int, int]:
    """Return the samples of a window, and how many of the one before come with it.

    Networks with one state (Silero 5 and 6) take an eighth of the window before.
    """
    window = _WINDOW[rate]
    context = window // 8 if one_state else 0
    length = sound.shape[-1] if sound.shape else None
    if isinstance(length, int) and length != window + context:
        return length, 0
    return window, context


def _shape(arg: NodeArg) -> tuple[int, ...]:
    usual = _STATE_SHAPES.get(arg.name, (2, 1, 64))
    given = arg.shape or usual
    return tuple(
        one if isinstance(one, int) else usual[axis] if len(given) == len(usual) else 1
        for axis, one in enumerate(given)
    )


def speech_of(probabilities: Array, step: float, chosen: Settings) -> list[tuple[float, float]]:
    """Return start and end in seconds of each part that is speech.

    Speech begins where the probability reaches the threshold, and ends where it stays below a
    lower one for `least_silence`; parts shorter than `least_speech` are dropped.

    Args:
        probabilities: one for each window.
        step: seconds of a window.
        chosen: `threshold`, `least_speech` and `least_silence`.
    """
    threshold = chosen["threshold"]
    low = max(threshold - _DROP, min(threshold, 0.01))
    parts: list[tuple[float, float]] = []
    start: float | None = None
    silence: float | None = None
    for number, one in enumerate(probabilities):
        time = number * step
        if one >= threshold:
            silence = None
            start = time if start is None else start
        elif start is not None and one < low:
            silence = time if silence is None else silence
            if time + step - silence >= chosen["least_silence"]:
                parts.append((start, silence))
                start = silence = None
    if start is not None:
        parts.append((start, len(probabilities) * step))
    return [(begin, end) for begin, end in parts if end - begin >= chosen["least_speech"]]


def padded(parts: Sequence[tuple[float, float]], length: float, padding: float) -> list[Segment]:
    """Return parts that begin earlier and end later, without meeting."""
    made = []
    for number, (start, end) in enumerate(parts):
        before = parts[number - 1][1] if number else -start
        after = parts[number + 1][0] if number + 1 < len(parts) else 2 * length - end
        begin = max(start - min(padding, (start - before) / 2), 0.0)
        made.append(Segment(begin, min(end + min(padding, (after - end) / 2), length)))
    return made
