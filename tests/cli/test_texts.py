"""`vkmnn run` on texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.pipelines.test_sounds import tone, whisper, write_wave
from tests.pipelines.test_texts import encoder

pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    encoder(made, "logits", architectures=["XForSequenceClassification"],
            id2label={"0": "bad", "1": "fair", "2": "good"})  # fmt: skip
    return made


def test_a_text_on_the_line_and_in_a_file(cli: Cli, tmp_path: Path, folder: Path) -> None:
    text = "is the quick = brown fox? yes " + "and so on " * 40
    (tmp_path / "in.txt").write_text(text)
    made = []
    for model in (folder, folder / "model.onnx"):
        for given in (text, tmp_path / "in.txt", f"@{tmp_path}/in.txt"):
            result = cli("run", model, "-i", given, "-d", "cpu", "--json", "-n", "2")
            made.append(json.loads(result.out))
    assert {one["task"] for one in made} == {"text-classification"}
    assert all(one["results"][0]["result"] == made[0]["results"][0]["result"] for one in made)
    assert {one["label"] for one in made[0]["results"][0]["result"]} == {"bad", "fair", "good"}
    out = tmp_path / "out.json"
    assert cli("run", folder, "-i", "a text", "-i", "another", "-o", out, "-d", "cpu").status == 0
    assert sorted(json.loads(out.read_text())) == ["a text", "another"]
    assert cli("run", folder, "-i", "a", "-i", "b", "-o", tmp_path / "o", "-d", "cpu").status == 0
    assert sorted(one.name for one in (tmp_path / "o").iterdir()) == ["00000.json", "00001.json"]


def test_arrays_are_still_arrays(cli: Cli, folder: Path) -> None:
    given = ("-i", "input_ids=[[1, 2]]", "-i", "attention_mask=[[1, 1]]")
    result = cli("run", folder / "model.onnx", *given, "-d", "cpu")
    assert result.status == 0
    assert "text-classification" not in result.out


def test_a_task_that_is_named(cli: Cli, tmp_path: Path) -> None:
    encoder(tmp_path, "last_hidden_state")
    result = cli("run", tmp_path, "-i", "a text", "--task", "embed-text", "-d", "cpu", "--json")
    assert len(json.loads(result.out)["results"][0]["result"]) == 8
    result = cli("run", tmp_path, "-i", "a text", "--task", "detect", "-d", "cpu")
    assert result.status == 1
    assert "is for images, sounds and texts" in result.err


def test_speech_becomes_subtitles(cli: Cli, tmp_path: Path) -> None:
    folder = whisper(tmp_path / "whisper")
    path = write_wave(tmp_path / "talk.wav", tone(8000, 16_000), 16_000)
    out = tmp_path / "out.srt"
    result = cli("run", folder, "-i", path, "-o", out, "-d", "cpu", "--set", "language=en")
    assert result.status == 0
    assert "automatic-speech-recognition" in result.out
    assert " --> " in out.read_text()
    result = cli("run", folder, "-i", path, "-i", path, "-o", tmp_path / "all", "-d", "cpu")
    assert [one.name for one in (tmp_path / "all").iterdir()] == ["talk.srt"]
