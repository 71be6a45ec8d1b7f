"""Text to speech by VITS: transformers' and MMS's models, piper's voices."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vkmnn.base.config_file import Section, read_config
from vkmnn.converter.onnx.noise_inputs import COUNT, EVEN, read_with_noise_inputs
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Pipeline, Settings
from vkmnn.pipelines.description import describe
from vkmnn.pipelines.guessing import voice_file
from vkmnn.pipelines.networks import Loaded, load, local_file, open_session
from vkmnn.pipelines.options import Check, Options, check_seed, is_flag, real_from
from vkmnn.pipelines.results.speech import Speech
from vkmnn.pipelines.sounds.spelling import PiperSpelling, Spelling, VitsSpelling
from vkmnn.pipelines.texts.inputs import TYPES

_SCALES = {"noise": 0.667, "pace": 1.0, "rhythm": 0.8}
_KEYS = {"noise": "noise_scale", "pace": "length_scale", "rhythm": "noise_w"}
"""Settings of piper's voices by their keys in `inference`."""
_RATE = 16_000


def _speaker(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInputError(f"{name}={value!r} is neither a number nor a name")
    return value


class Speak(Pipeline):
    """Speaks texts.

    Args:
        model: a folder of VITS, or a voice of piper, NAME.onnx with NAME.onnx.json.
        options: the options.

    Raises:
        InvalidInputError: the model does not speak.
        ModelError: a file is missing or damaged.
    """

    task = "text-to-speech"
    own: ClassVar[tuple[str, ...]] = ("speaker", "seed", "phonemes", *_SCALES)
    checks: ClassVar[Mapping[str, Check]] = {
        "speaker": _speaker,
        "seed": check_seed,
        "phonemes": is_flag,
        **dict.fromkeys(_SCALES, real_from(0, 10)),
    }

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(options)
        if not isinstance(model, str | Path):
            raise InvalidInputError("a model of 'text-to-speech' is a file or folder")
        path = local_file(model)
        self.about = describe(path, {}, path.name)
        phonemes = options.take("phonemes", None)
        voice = voice_file(path)
        self._voice = read_config(voice) if voice is not None else Section(path, {})
        self._spelling: Spelling
        if voice is not None:
            self._spelling = PiperSpelling(self._voice, phonemes)
            said = self._voice.section("audio").number("sample_rate")
        else:
            self._spelling = VitsSpelling(self.about.folder or path.parent, phonemes)
            said = self.about.config.number("sampling_rate")
        if not said:
            self.guess(f"no file says the rate of the sound: it is {_RATE}", "config.json")
        self.rate = said or _RATE
        loaded, self._noises = _loaded(path, options)
        self._inputs = {arg.name: arg for arg in loaded.inputs}
        self._check_inputs(loaded)
        self.session = open_session(loaded, options)
        self._outputs = [arg.name for arg in self.session.get_outputs()]
        self.settings = {
            "speaker": options.take("speaker", None),
            "seed": options.take("seed", None),
        }
        if "scales" in self._inputs:
            inference = self._voice.section("inference")
            self.settings |= {
                name: options.take(name, inference.real(_KEYS[name], usual))
                for name, usual in _SCALES.items()
            }

    def _check_inputs(self, loaded: Loaded) -> None:
        known = {*_values([], 0, (0, 0, 0)), *self._noises}
        odd = [name for name in self._inputs if name not in known]
        if odd or not {"input", "input_ids"} & set(self._inputs):
            raise InvalidInputError(
                f"'{loaded.about.name}' does not speak texts: its inputs are "
                f"{', '.join(self._inputs)}",
                hint="VITS takes input_ids, piper's voices take input, input_lengths and scales",
            )
        given = [name for name in _SCALES if name in self.options.more]
        if given and "scales" not in self._inputs:
            raise InvalidInputError(
                f"the network has no input for '{given[0]}'", hint="piper's voices have one"
            )

    @property
    def device(self) -> str:
        """The name of the device."""
        return self.session.device.name

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return the speech for a text, or a list of results for a list of texts.

        Args:
            inputs: a text, or a list of them.
            settings: `speaker`, a number or name; `seed`; for piper's voices also `noise`, `pace`
                (more is slower) and `rhythm`, how much the durations vary.

        Raises:
            InvalidInputError: nothing in a text can be spoken, or a setting does not fit.
            MissingExtraError: a package that the text's spelling takes is not installed.
        """
        chosen = self.chosen({key: one for key, one in settings.items() if one is not None})
        if not isinstance(inputs, list | tuple):
            return self._spoken(inputs, chosen)
        return [self._spoken(one, chosen) for one in inputs]

    def _spoken(self, text: Any, chosen: Settings) -> Speech:
        numbers = self._spelling.numbers(text)
        seed = secrets.randbits(31) if chosen["seed"] is None else int(chosen["seed"])
        rng = np.random.default_rng(seed)
        scales = tuple(float(chosen.get(name, usual)) for name, usual in _SCALES.items())
        values = _values(numbers, self._speaker(chosen["speaker"]), scales)
        feeds: dict[str, Array] = {}
        for name, arg in self._inputs.items():
            if name in self._noises:
                drawing: Any = rng.random if name == EVEN else rng.standard_normal
                feeds[name] = drawing(COUNT, np.float32)
            else:
                feeds[name] = np.array(values[name]).astype(TYPES[arg.type])
        made = dict(zip(self._outputs, self.session.run(None, feeds), strict=True))
        samples = np.asarray(made.get("waveform", next(iter(made.values()))), np.float32)
        samples = samples.reshape(-1)
        if not samples.size or not np.isfinite(samples).all():
            raise InvalidInputError(
                "the sound is empty, or has values that are not finite",
                hint="choose precision='high', -p high",
            )
        return Speech(samples, self.rate, seed)

    def _speaker(self, given: Any) -> int:
        """Return the number of a speaker."""
        count = self._voice.number("num_speakers") or self.about.config.number("num_speakers")
        names = self._voice.section("speaker_id_map") if "speaker_id_map" in self._voice else None
        if given is None:
            return 0
        if isinstance(given, str):
            known = {} if names is None else {name: names.number(name) for name in names.keys()}  # noqa: SIM118
            if given not in known:
                hint = nearest(given, known, "speakers") if known else "give a number"
                raise InvalidInputError(f"there is no speaker '{given}'", hint=hint)
            return known[given]
        if not 0 <= given < max(count, 1):
            raise InvalidInputError(f"there is no speaker {given}: there are {max(count, 1)}")
        return int(given)

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        self.session.close()


def _values(numbers: list[int], speaker: int, scales: tuple[float, ...]) -> dict[str, Any]:
    """Return the inputs of all networks that speak."""
    return {
        "input_ids": [numbers],
        "attention_mask": [[1] * len(numbers)],
        "speaker_id": [speaker],
        "input": [numbers],
        "input_lengths": [len(numbers)],
        "scales": scales,
        "sid": [speaker],
    }


def _loaded(path: Path, options: Options) -> tuple[Loaded, list[str]]:
    """Read a network, with inputs in place of its random nodes, and return these inputs' names."""
    if path.suffix != ".onnx":
        return load(path, options), []
    model, noises = read_with_noise_inputs(path)
    return load(model if noises else path, options), noises
