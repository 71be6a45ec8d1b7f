"""`vkmnn run` on texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Cli
from tests.pipelines.networks import stripes
from tests.pipelines.painters import painter_folder
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


def test_a_prompt_becomes_an_image(cli: Cli, tmp_path: Path) -> None:
    folder = painter_folder(tmp_path / "painter")
    given = ("--steps", "3", "--seed", "7", "--size", "8x16", "-d", "cpu")
    pictures = []
    for number, prompt in enumerate((("-i", "the cat"), ("--prompt", "the cat"))):
        out = tmp_path / f"{number}.png"
        result = cli("run", folder, *prompt, *given, "-o", out, "--json")
        assert result.status == 0, result.err
        found = json.loads(result.out)
        assert found["task"] == "text-to-image"
        assert found["results"][0]["result"] == [{"size": [8, 16], "seed": 7}]
        pictures.append(np.asarray(Image.open(out)))
    assert np.array_equal(*pictures)
    other = cli("run", folder, "-i", "the cat", *given, "-o", tmp_path / "0.png",
                "--negative", "red", "--guidance", "3")  # fmt: skip
    assert other.status == 0
    assert not np.array_equal(np.asarray(Image.open(tmp_path / "0.png")), pictures[0])


def test_a_prompt_changes_an_image(cli: Cli, tmp_path: Path) -> None:
    folder = painter_folder(tmp_path / "painter")
    Image.fromarray(stripes(16, 24)).save(tmp_path / "in.png")
    given = ("run", folder, "-i", tmp_path / "in.png", "-d", "cpu", "--steps", "4")
    result = cli(*given, "--prompt", "a cat", "--strength", "0.5", "-o", tmp_path / "out.png")
    assert result.status == 0, result.err
    assert Image.open(tmp_path / "out.png").size == (24, 16)
    result = cli(*given)
    assert result.status == 1
    assert "is a file, and 'text-to-image' takes a text" in result.err
    result = cli("run", folder, "-i", "a text", "--prompt", "another", "-d", "cpu")
    assert result.status == 1
    assert "--input is a text" in result.err
    result = cli("run", folder)
    assert 'vkmnn run FOLDER -i "a prompt"' in " ".join(result.err.split())
