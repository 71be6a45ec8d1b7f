"""Text to speech: characters and phonemes as numbers, seeds, speakers and sound files."""

from __future__ import annotations

import json
import sys
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.cli.conftest import Cli, cli  # noqa: F401
from tests.pipelines.networks import Array, model_of
from vkmnn.converter.onnx.noise_inputs import COUNT, NOISE, with_noise_inputs
from vkmnn.errors import InvalidInputError, MissingExtraError, ModelFileError
from vkmnn.pipelines.sounds.reading import read_sound
from vkmnn.pipelines.sounds.spelling import PiperSpelling, VitsSpelling

_F, _I = TensorProto.FLOAT, TensorProto.INT64
LETTERS = "_ abcdefghijklmnopqrstuvwxyz'-"
PER_NUMBER = 5
"""Samples for each number of a text."""


def _speech(numbers: str) -> list[onnx.NodeProto]:
    """Nodes from numbers [1, n] to a waveform: a value for each, with noise, repeated."""
    return [
        helper.make_node("Cast", [numbers], ["real"], to=_F),
        helper.make_node("Mul", ["real", "scale"], ["small"]),
        helper.make_node("Unsqueeze", ["small", "last"], ["column"]),
        helper.make_node("Tile", ["column", "repeats"], ["many"]),
        helper.make_node("RandomNormalLike", ["many"], ["noise"], scale=0.01, mean=0.1),
    ]


_WEIGHTS: dict[str, Array] = {
    "scale": np.array(0.01, np.float32), "last": np.array([2]),
    "repeats": np.array([1, 1, PER_NUMBER]), "flat": np.array([1, -1]),
}  # fmt: skip


def vits(folder: Path, **tokenizer: Any) -> Path:
    """Write a folder as transformers' VITS has it."""
    folder.mkdir(parents=True)
    nodes = [
        *_speech("input_ids"),
        helper.make_node("Add", ["many", "noise"], ["sum"]),
        helper.make_node("Reshape", ["sum", "flat"], ["waveform"]),
    ]
    inputs = {name: (_I, [1, "n"]) for name in ("input_ids", "attention_mask")}
    made = model_of(nodes, inputs, {"waveform": (_F, [1, None])}, _WEIGHTS)
    onnx.save(made, folder / "model.onnx")
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, "<unk>": len(LETTERS)}))
    said = {"add_blank": True, "normalize": True, "phonemize": False, "pad_token": "_",
            "unk_token": "<unk>", **tokenizer}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    config = {"architectures": ["VitsModel"], "sampling_rate": 22_050}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


PIPER = {
    "audio": {"sample_rate": 16_000}, "espeak": {"voice": "de"}, "phoneme_type": "espeak",
    "inference": {"noise_scale": 0.5, "length_scale": 1.25, "noise_w": 0.75},
    "num_speakers": 3, "speaker_id_map": {"ada": 0, "bob": 2},
    "phoneme_id_map": {"_": [0], "^": [1], "$": [2], "a": [10], "ə": [11], "n": [12], "ˈ": [13],
                       "t": [14, 15]},
}  # fmt: skip


def piper(path: Path, **changed: Any) -> Path:
    """Write a voice as piper has it, whose sound shows the scales and the speaker."""
    nodes = [
        *_speech("input"),
        helper.make_node("ReduceSum", ["scales"], ["all"], keepdims=0),
        helper.make_node("Cast", ["sid"], ["who"], to=_F),
        helper.make_node("Mul", ["noise", "zero"], ["nothing"]),
        helper.make_node("Add", ["all", "who"], ["shift"]),
        helper.make_node("Mul", ["shift", "scale"], ["shifted"]),
        helper.make_node("Add", ["many", "shifted"], ["moved"]),
        helper.make_node("Add", ["moved", "nothing"], ["sum"]),
        helper.make_node("Unsqueeze", ["sum", "first"], ["output"]),
    ]
    weights = {**_WEIGHTS, "zero": np.array(0, np.float32), "first": np.array([1])}
    del weights["flat"]
    inputs = {"input": (_I, [1, "n"]), "input_lengths": (_I, [1]), "scales": (_F, [3]),
              "sid": (_I, [1])}  # fmt: skip
    made = model_of(nodes, inputs, {"output": (_F, [1, 1, "n", PER_NUMBER])}, weights)
    onnx.save(made, path)
    path.with_name(f"{path.name}.json").write_text(json.dumps({**PIPER, **changed}))
    return path


# as transformers' VitsTokenizer has them
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello,  World's", [0, 9, 0, 6, 0, 13, 0, 13, 0, 16, 0, 1, 0, 24, 0, 16, 0, 19, 0, 13, 0,
                             5, 0, 28, 0, 20, 0]),
        ("ab - C", [0, 2, 0, 3, 0, 1, 0, 29, 0, 1, 0, 4, 0]),
    ],
)  # fmt: skip
def test_numbers_of_letters(tmp_path: Path, text: str, expected: list[int]) -> None:
    assert VitsSpelling(vits(tmp_path / "f"), None).numbers(text) == expected
    bare = VitsSpelling(vits(tmp_path / "g", add_blank=False, normalize=False), None)
    assert bare.numbers("aXb") == [2, len(LETTERS), 3]


def test_numbers_of_phonemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkmnn.base.config_file import read_config

    monkeypatch.setitem(sys.modules, "phonemizer", None)
    path = piper(tmp_path / "v.onnx")
    config = read_config(path.with_name("v.onnx.json"))
    expected = [1, 0, 12, 0, 13, 0, 10, 0, 14, 15, 0, 11, 0, 2]
    assert PiperSpelling(config, None).numbers("nˈatə?") == expected
    assert PiperSpelling(config, True).numbers("nat") == [1, 0, 12, 0, 10, 0, 14, 15, 0, 2]
    with pytest.raises(MissingExtraError, match="'phonemizer', which is not installed"):
        PiperSpelling(config, None).numbers("natter")
    asked: list[Any] = []

    def phonemize(text: str, **options: Any) -> str:
        asked.append((text, options["language"]))
        return "nˈatə"

    monkeypatch.setitem(sys.modules, "phonemizer", SimpleNamespace(phonemize=phonemize))
    assert PiperSpelling(config, None).numbers("natter") == expected
    assert asked == [("natter", "de")]
    with pytest.raises(InvalidInputError, match="no character that the model knows"):
        PiperSpelling(config, True).numbers("???")


def test_letters_of_other_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uroman", None)
    spelling = VitsSpelling(vits(tmp_path / "f", is_uroman=True), None)
    assert spelling.numbers("ab") == [0, 2, 0, 3, 0]
    with pytest.raises(MissingExtraError, match="'uroman'"):
        spelling.numbers("бa")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_speech_of_letters(tmp_path: Path, device: str) -> None:
    with vkmnn.pipeline(None, vits(tmp_path / "f"), device=device) as pipe:
        assert pipe.task == "text-to-speech"
        first, again = (pipe("Ab c", seed=3) for _ in range(2))
        other, listed = pipe("Ab c", seed=4), pipe(["Ab c", "b"], seed=3)
        free = pipe("Ab c")
        assert not pipe.session.placement().off_device
    assert np.array_equal(first.samples, again.samples)
    assert np.array_equal(first.samples, listed[0].samples)
    assert not np.array_equal(first.samples, other.samples)
    assert free.seed != first.seed
    numbers = np.repeat([0, 2, 0, 3, 0, 1, 0, 4, 0], PER_NUMBER) * 0.01
    noise = (first.samples - numbers - 0.1) / 0.01
    expected = np.random.default_rng(3).standard_normal(COUNT, np.float32)[: len(noise)]
    np.testing.assert_allclose(noise, expected, atol=1e-3)
    first.save(tmp_path / "a.wav")
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (22_050, 1)
        whole = np.frombuffer(file.readframes(1000), "<i2")
    np.testing.assert_allclose(whole / 32767, first.samples, atol=1e-4)
    said = json.loads(first.to_json())
    assert said == {"sampling_rate": 22_050, "samples": 45, "seconds": 0.002, "seed": 3}
    with pytest.raises(InvalidInputError, match="is no sound"):
        vkmnn.pipelines.Labels([]).save(tmp_path / "b.wav")


def test_voices_of_piper(tmp_path: Path) -> None:
    path = piper(tmp_path / "v.onnx")
    with vkmnn.pipeline(None, path, device="cpu", phonemes=True) as pipe:
        plain = pipe("na").samples[0]
        assert plain == pytest.approx(0.01 * (1 + 2.5), abs=1e-5)
        slow = pipe("na", pace=2.25, noise=0, rhythm=0.25, speaker="bob").samples[0]
        assert slow == pytest.approx(0.01 * (1 + 2.5 + 2), abs=1e-5)
        for given, match in (("eve", "no speaker 'eve'"), (3, "no speaker 3"), (1.5, "neither a")):
            with pytest.raises(InvalidInputError, match=match):
                pipe("na", speaker=given)
        with pytest.raises(InvalidInputError, match="pace=-1"):
            pipe("na", pace=-1)
        with pytest.raises(InvalidInputError, match="a text is a str"):
            pipe(3)


def test_models_that_do_not_speak(tmp_path: Path) -> None:
    folder = vits(tmp_path / "f")
    with pytest.raises(InvalidInputError, match="no input for 'pace'"):
        vkmnn.pipeline("tts", folder, device="cpu", pace=2)
    (folder / "vocab.json").unlink()
    with pytest.raises(ModelFileError, match=r"no vocab\.json"):
        vkmnn.pipeline("tts", folder, device="cpu")
    config = {**PIPER["phoneme_id_map"]}  # type: ignore[dict-item]
    del config["^"]
    with pytest.raises(ModelFileError, match="no phoneme '\\^'"):
        vkmnn.pipeline("tts", piper(tmp_path / "v.onnx", phoneme_id_map=config), device="cpu")


def test_all_random_nodes_become_inputs() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], shape=[3], mean=2.0, scale=0.5),
        helper.make_node("RandomUniformLike", ["a"], ["b"], low=-1.0, high=3.0),
        helper.make_node("RandomUniform", [], ["c"], shape=[3], dtype=TensorProto.DOUBLE),
        helper.make_node("RandomNormalLike", ["x"], ["d"]),
    ]
    kinds = {"a": _F, "b": _F, "c": TensorProto.DOUBLE, "d": _F}
    model = model_of(
        nodes, {"x": (_F, [3])}, {name: (kind, [3]) for name, kind in kinds.items()}, {}
    )
    names = with_noise_inputs(model)
    onnx.checker.check_model(model, full_check=True)
    tables = {name: np.linspace(0, 1, COUNT, dtype=np.float32) for name in names}
    session = vkmnn.InferenceSession(model, "cpu")
    a, b, c, d = session.run(None, {"x": np.zeros(3, np.float32), **tables})
    step = 1 / (COUNT - 1)
    at = np.arange(3)
    np.testing.assert_allclose(a, 2 + 0.5 * at * step, atol=1e-6)
    np.testing.assert_allclose(b, -1 + 4 * (at + 7919) * step, atol=1e-5)
    np.testing.assert_allclose(c, (at + 2 * 7919) * step, atol=1e-6)
    np.testing.assert_allclose(d, (at + 3 * 7919) * step, atol=1e-6)
    assert NOISE in names


def test_speech_from_the_command_line(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "out.wav"
    given = ("-d", "cpu", "--seed", "3", "-o", out)
    assert cli("run", vits(tmp_path / "f"), "-i", "hello world", *given).status == 0
    assert len(read_sound(out, 22_050)) == 23 * PER_NUMBER
    voice = piper(tmp_path / "v.onnx")
    result = cli("run", voice, "-i", "nat", *given, "--set", "phonemes=true")
    assert result.status == 0, result.err
    assert len(read_sound(out, 16_000)) == 10 * PER_NUMBER
