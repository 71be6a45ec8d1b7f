"""Tasks of sounds: files, rates, times and transcripts."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.llm.test_seq2seq import speech_folder
from tests.pipelines.networks import model_of
from vkmnn.errors import InvalidInputError
from vkmnn.llm.generation import Generated
from vkmnn.pipelines import Segment, Transcript
from vkmnn.pipelines.sounds.activity import padded
from vkmnn.pipelines.sounds.reading import read_sound, resampled
from vkmnn.pipelines.sounds.timestamps import Timestamps, pieces_of

pytest.importorskip("tokenizers")

_PLAIN, _ENDS = 299, 280
FIRST = _PLAIN + 1


def tone(count: int, rate: int, hertz: float = 440.0) -> Any:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(count) / rate)).astype(np.float32)


def write_wave(path: Path, samples: Any, rate: int, width: int = 2, channels: int = 1) -> Path:
    whole = np.round(np.asarray(samples, np.float64) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        whole = whole + 128
    raw = whole.astype("<i8").reshape(-1, 1).view(np.uint8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw.tobytes())
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wave_files_of_all_widths(tmp_path: Path, width: int) -> None:
    samples = tone(800, 16_000)
    path = write_wave(tmp_path / "a.wav", samples, 16_000, width)
    for source in (path, str(path), path.read_bytes()):
        np.testing.assert_allclose(read_sound(source, 16_000), samples, atol=2.0 ** (2 - 8 * width))
    both = np.stack([samples, np.zeros_like(samples)], 1).reshape(-1)
    path = write_wave(tmp_path / "b.wav", both, 16_000, width, channels=2)
    np.testing.assert_allclose(read_sound(path, 16_000), samples / 2, atol=2.0 ** (2 - 8 * width))


def test_other_files_by_soundfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = tone(800, 16_000)
    soundfile.write(tmp_path / "a.flac", samples, 16_000)
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    for name in ("a.flac", "a.wav"):
        np.testing.assert_allclose(read_sound(tmp_path / name, 16_000), samples, atol=1e-4)


@pytest.mark.parametrize(("have", "want"), [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000)])
def test_rates(have: int, want: int) -> None:
    made = resampled(tone(have // 2, have), have, want)
    assert len(made) == want // 2
    np.testing.assert_allclose(made[300:-300], tone(want // 2, want)[300:-300], atol=2e-3)
    if have > want:  # what the lower rate cannot hold is gone
        high = resampled(tone(have // 2, have, want * 0.62), have, want)
        assert np.abs(high[300:-300]).max() < 5e-3


def test_wave_files_from_a_pipe(tmp_path: Path) -> None:
    """Their heads announce as many bytes as there can be."""
    data = write_wave(tmp_path / "a.wav", tone(1000, 16_000), 16_000).read_bytes()
    piped = data[:40] + b"\xff" * 4 + data[44:]
    for longest in (None, 1.0):
        np.testing.assert_array_equal(read_sound(piped, 16_000, longest), read_sound(data, 16_000))
    with pytest.raises(InvalidInputError, match=r"longer than 0\.01 s"):
        read_sound(piped, 16_000, 0.01)


@pytest.mark.parametrize("source", [np.zeros((2, 2, 2)), [], np.zeros((0, 2)), np.array([np.nan]),
                                    "no.wav", b"abc", (np.zeros(5), 0), None])  # fmt: skip
def test_what_is_no_sound(source: Any) -> None:
    with pytest.raises(InvalidInputError):
        read_sound(source, 16_000)


def allowed(there: list[int], **logits: float) -> list[int]:
    """Return the tokens that may follow, of 320."""
    values = np.zeros(320, np.float32)
    for name, value in logits.items():
        values[int(name[1:])] = value
    rules = Timestamps(_PLAIN, _ENDS, frozenset({7}), frozenset({_ENDS}), 3)
    return np.flatnonzero(np.isfinite(rules.guide(values, there))).tolist()


def test_times_follow_the_rules() -> None:
    assert allowed([]) == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
    after = allowed([FIRST])  # text after a first time
    assert max(after) < _PLAIN
    assert 7 not in after
    assert min(allowed([FIRST, 5, FIRST + 4], t280=50)) == _ENDS  # a time again, or the end
    assert min(allowed([FIRST, 5, FIRST + 4])) == FIRST + 4
    assert min(allowed([FIRST, 5, FIRST + 4, FIRST + 4, 8])) == FIRST + 5  # times together win
    assert 9 in allowed([FIRST, 5, 6], t9=50)


T = FIRST


@pytest.mark.parametrize(
    ("tokens", "pieces", "heard"),
    [
        ([T, 1, T + 50], [(0, 1, [1])], None),
        ([T, 1, T + 50, T + 60, 2, T + 100], [(0, 1, [1]), (1.2, 2, [2])], None),
        ([T, 1, T + 50, T + 60, 2], [(0, 1, [1]), (1.2, 30, [2])], 1.2),
        ([T, 1, T + 50, T + 60], [(0, 1, [1])], 1.2),
        ([1, 2], [(0, 30, [1, 2])], None),
        ([T, 1, T + 1800], [(0, 30, [1])], None),
        ([], [], None),
    ],
)
def test_pieces(tokens: list[int], pieces: list[Any], heard: float | None) -> None:
    assert pieces_of(tokens, FIRST, 30.0) == (pieces, heard)


def whisper(folder: Path, *, languages: bool = True) -> Path:
    """Write a folder like Whisper's, which hears 0.2 seconds at a time."""
    speech_folder(folder)
    config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
    (folder / "config.json").write_text(json.dumps(config))
    generation: dict[str, Any] = {"decoder_start_token_id": 281, "eos_token_id": _ENDS,
                                  "no_timestamps_token_id": _PLAIN, "suppress_tokens": [7],
                                  "begin_suppress_tokens": [_ENDS], "max_length": 14}  # fmt: skip
    if languages:
        generation |= {"lang_to_id": {"<|en|>": 282, "<|de|>": 283},
                       "task_to_id": {"transcribe": 285, "translate": 286}}  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_long_sounds_are_heard_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [[T, 40, T + 4, T + 6, 41], [T, 42, T + 7], [T, 43, T + 3]]
    heard: list[tuple[int, list[int]]] = []

    def guided(source: Any, prompt: Any, *_: Any, **__: Any) -> Generated:
        heard.append((len(source), list(prompt)))
        return Generated(tokens=script[len(heard) - 1])

    with vkmnn.pipeline(None, whisper(tmp_path), device="cpu") as pipe:
        monkeypatch.setattr(pipe.model, "guided", guided)
        found = pipe(tone(6720, 16_000), language="de", translate=True)
    assert [one.start for one in found] == pytest.approx([0, 0.12, 0.32])
    assert [one.end for one in found] == pytest.approx([0.08, 0.26, 0.38])
    assert heard == [(3200, [281, 283, 286])] * 2 + [(1600, [281, 283, 286])]
    assert found.language == "de"
    assert found.text() == " ".join(one.text.strip() for one in found.segments)


def test_a_network_writes_by_the_rules(tmp_path: Path) -> None:
    folder = whisper(tmp_path)
    sound = tone(16_000, 16_000) * np.linspace(0, 1, 16_000, dtype=np.float32)
    with vkmnn.pipeline("transcribe", folder, device="cpu") as pipe:
        found = pipe(sound)
        assert found.language in ("en", "de")
        assert len(pipe([sound[:2000], np.zeros(3200, np.float32)])[1]) == 0
        with pytest.raises(InvalidInputError, match="no language 'dee'"):
            pipe(sound, language="dee")
    times = [time for one in found for time in (one.start, one.end)]
    assert len(found) > 1
    assert all(0 <= one.start <= one.end <= 1 for one in found)
    assert [one.start for one in found] == sorted(one.start for one in found)
    assert max(times) > 0.5


def test_models_without_languages(tmp_path: Path) -> None:
    with vkmnn.pipeline(None, whisper(tmp_path, languages=False), device="cpu") as pipe:
        assert pipe(tone(3200, 16_000)).language == ""


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    (whisper(tmp_path) / "generation_config.json").unlink()
    with pytest.raises(InvalidInputError, match="lacks no_timestamps_token_id"):
        vkmnn.pipeline("asr", tmp_path, device="cpu")
    with pytest.raises(InvalidInputError, match="is a folder"):
        vkmnn.pipeline("asr", b"bytes", device="cpu")


def test_transcripts_are_saved(tmp_path: Path) -> None:
    made = Transcript([Segment(0, 1.5, " Hello."), Segment(3661.25, 3662, "A --> b")], "en")
    made.save(tmp_path / "a.srt")
    made.save(tmp_path / "a.vtt")
    made.save(tmp_path / "a.txt")
    made.save(tmp_path / "a.json")
    made.save(tmp_path / "a.npz")
    assert (tmp_path / "a.srt").read_text() == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello.\n\n2\n01:01:01,250 --> 01:01:02,000\nA -> b\n"
    )
    assert (tmp_path / "a.vtt").read_text().startswith("WEBVTT\n\n1\n00:00:00.000 --> 00:00:01.500")
    assert (tmp_path / "a.txt").read_text() == "Hello. A --> b\n"
    read = json.loads((tmp_path / "a.json").read_text())
    assert read["chunks"][1]["timestamp"] == [3661.25, 3662]
    assert np.load(tmp_path / "a.npz")["times"].shape == (2, 2)


def detector(path: Path, *, one_state: bool) -> Path:
    """Save a network whose probability is the loudness of a window, and whose state counts runs."""
    states = {"state": ("stateN", (2, 1, 128))} if one_state else {
        "h": ("hn", (2, 1, 64)), "c": ("cn", (2, 1, 64))}  # fmt: skip
    nodes = [
        helper.make_node("Abs", ["input"], ["loud"]),
        helper.make_node("ReduceMax", ["loud"], ["output"], axes=[1], keepdims=1),
        *(helper.make_node("Add", [name, "one"], [out]) for name, (out, _) in states.items()),
    ]
    inputs: dict[str, Any] = {"input": (TensorProto.FLOAT, [None, None]),
                              "sr": (TensorProto.INT64, [])}  # fmt: skip
    outputs: dict[str, Any] = {"output": (TensorProto.FLOAT, [None, 1])}
    for name, (out, (layers, _, wide)) in states.items():
        inputs[name] = TensorProto.FLOAT, [layers, None, wide]
        outputs[out] = TensorProto.FLOAT, [layers, None, wide]
    model = model_of(nodes, inputs, outputs, {"one": np.ones(1, np.float32)})
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("one_state", [True, False])
@pytest.mark.parametrize("rate", [16_000, 8_000])
def test_speech_is_where_the_network_hears_it(tmp_path: Path, one_state: bool, rate: int) -> None:
    sound = np.zeros(rate * 2, np.float32)
    sound[rate // 2 : rate] = 0.9
    sound[rate + rate // 50 : rate + rate // 2] = 0.9  # a pause of 0.02 s is none
    sound[rate * 9 // 5 : rate * 9 // 5 + 100] = 0.9  # a click
    path = detector(tmp_path / "vad.onnx", one_state=one_state)
    said: list[str] = []
    with vkmnn.pipeline(None, path, device="cpu", rate=rate, tell=said.append) as pipe:
        assert pipe.task == "voice-activity-detection"
        assert len(said) == 1
        found = pipe(write_wave(tmp_path / "a.wav", sound, rate))
        assert len(pipe(sound * 0.4)) == 0
        assert len(pipe(sound * 0.4, threshold=0.3, least_speech=0.01)) == 2
        with pytest.raises(InvalidInputError, match="number of seconds"):
            pipe(sound, padding=-1)
    with pytest.raises(InvalidInputError, match="neither 16000 nor 8000"):
        vkmnn.pipeline("vad", path, device="cpu", rate=44_100)
    assert len(found) == 1
    assert found.segments[0].start == pytest.approx(0.47, abs=0.04)
    assert found.segments[0].end == pytest.approx(1.53, abs=0.04)
    found.save(tmp_path / "out.json")


def test_parts_do_not_meet() -> None:
    made = padded([(0.01, 1), (1.02, 2)], 2.01, 0.1)
    assert [(one.start, one.end) for one in made] == [
        (0.0, pytest.approx(1.01)), (pytest.approx(1.01), pytest.approx(2.01)),
    ]  # fmt: skip
