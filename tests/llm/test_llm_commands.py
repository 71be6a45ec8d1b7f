"""`vkmnn generate`, `vkmnn chat` and `vkmnn info` of a folder."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm import tiny
from vkmnn.cli.app import run_cli
from vkmnn.runtime.device import enumerate_devices

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.optimum_folder(tmp_path_factory.mktemp("tiny"))


def test_text_is_written_as_it_comes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(folder), "the quick", "-m", "5", "-c", "40"]
    assert run_cli(command) == 0
    first = capsys.readouterr()
    assert first.out.strip()
    assert "5 tokens" in first.err
    assert "tok/s" in first.err
    assert run_cli([*command, "--temperature", "1", "--seed", "7"]) == 0
    assert capsys.readouterr().out != first.out


def test_a_conversation(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nand again\n\nnever\n"))
    assert run_cli(["chat", str(folder), "-m", "4", "--system", "be brief"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("prefill") == 2
    assert "room for 512 tokens" in shown.err


def test_what_a_folder_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "onnx" / "model_q4.onnx").write_bytes(b"x" * 3000)
    assert run_cli(["info", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "writes text" in shown
    for text in ("q4", "fp32", "model_q4.onnx", "2.9 KiB", "512 tokens", "the default"):
        assert text in shown
    (folder / "onnx" / "model_q4.onnx").unlink()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "no folder", "x"], "there is no folder"),
        (["generate", "{}", "x", "--variant", "q2"], "no variant 'q2'"),
        (["generate", "{}", "--prompt", "x" * 99, "-c", "20"], "room for 20"),
        (["chat", "{}", "--top-p", "0"], "top_p is 0"),
        (["generate", "{}", "x", "--on-overflow", "perhaps"], "on_overflow"),
        (["chat", "{}", "--on-overflow", "perhaps"], "on_overflow"),
        (["serve", "{}", "--on-overflow", "perhaps"], "on_overflow"),
    ],
)
def test_errors_name_what_to_do(
    arguments: list[str],
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert run_cli([one.format(folder) for one in arguments]) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert "hint:" in shown


def test_a_text_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(folder), "the quick", "-m", "5", "--seed", "1"]
    assert run_cli(command) == 0
    plain = capsys.readouterr().out
    assert run_cli([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")
    (row,) = re.findall(r"^\| `generate` \| (.*) \|$", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) <= document.keys()
    assert document["command"] == "generate"
    assert document["text"] + "\n" == plain
    assert document["tokens"] == 5
    assert run_cli(["info", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variants"][0]["name"] == "fp32"


def test_caches_are_stored_as_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    load_models = pytest.importorskip("vkmnn.serve").load_models
    held = {}
    for kind in ("f32", "i8"):
        command = ["generate", str(folder), "the quick", "-m", "3", "-c", "64", "--json"]
        assert run_cli([*command, "--kv-cache-dtype", kind]) == 0
        held[kind] = json.loads(capsys.readouterr().out)["memory"]["caches"]
    models = load_models([f"a={folder}"], "auto", capacity=64, kv_cache_dtype="i8")
    models.language["a"].generate("the quick", 3)
    assert models.language["a"].memory()["caches"] == held["i8"] < held["f32"] / 3
    models.close()


def test_ctrl_c_ends_the_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkmnn.llm.language_model import LanguageModel

    whole = LanguageModel.pieces

    def pieces(model: LanguageModel, *arguments: Any, **how: Any) -> Iterator[Any]:
        for number, piece in enumerate(whole(model, *arguments, **how)):
            if number == 3:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(LanguageModel, "pieces", pieces)
    assert run_cli(["generate", str(folder), "the quick", "-m", "50"]) == 130
    shown = capsys.readouterr()
    assert shown.out.endswith("\n")
    assert re.search(r"interrupted: \d+ tokens? written", shown.err)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nand again\n"))
    assert run_cli(["chat", str(folder), "-m", "50"]) == 130
    assert "interrupted: the chat is over" in capsys.readouterr().err
