"""`vkmnn generate`, `vkmnn chat` and `vkmnn info` of a folder."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.llm import tiny
from vkmnn.cli.app import run_cli

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
