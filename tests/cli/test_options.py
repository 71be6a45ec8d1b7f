"""Every command: short options of one meaning, readable usage, JSON as the page documents it."""

from __future__ import annotations

import importlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import vkmnn
from tests.cli.conftest import Cli, convolution
from vkmnn.cli.app import app
from vkmnn.cli.options import SHORT

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "command-line.md"
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SILENT = {"help", "chat", "serve"}  # what they print is not a report


def options() -> Iterator[tuple[str, list[str]]]:
    """Yield the names of every option of every command."""
    for name, command in COMMANDS.items():
        for param in command.params:
            if param.param_type_name == "option":
                yield name, [*param.opts, *param.secondary_opts]


def test_a_short_option_means_one_thing() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for _, names in options():
        for short in names:
            if len(short) == 2:
                (known,) = [long for long, its in SHORT.items() if its == short]
                assert known in names, (short, names)
                meanings[short].add(known)
    assert len(meanings) > 10
    assert all(len(found) == 1 for found in meanings.values())
    assert len(set(SHORT.values())) == len(SHORT)
    rows = dict(
        re.findall(r"^\| `(-\w)` \| `(--[\w-]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    )
    assert rows == {short: long for long, short in SHORT.items()}


def test_an_option_with_a_short_name_has_it_everywhere() -> None:
    for command, names in options():
        for name in names:
            if name in SHORT and command != "serve":
                assert SHORT[name] in names, (command, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_reads_well(cli: Cli, name: str) -> None:
    result = cli(name, "--help")
    assert result.status == 0
    usage, _, rest = result.out.partition("\n\n")
    assert usage.startswith(f"Usage: vkmnn {name} [OPTIONS]")
    for text in ("{", "<str>", "<int", "<path>", "list["):
        assert text not in result.out, text
    assert rest.strip()
    assert cli("help", name).out.split("\n\n", 1)[1] == rest


def documented_calls(program: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield page, first argument and options of a program's calls in listings and code spans."""
    start = r"(?m)(?:^(?: {4}|\$ )?|`|&& )(?:[A-Z_]+=\S+ )*"
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "vkmnn").rglob("*.md"),
    ]:
        if page.parent.name != "lab":  # notes are frozen
            calls = re.findall(start + program + r"\b([^`\n|]*)", page.read_text("utf-8"))
            for call in (found.split(" #")[0].split() for found in calls):
                dashed = re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", " ".join(call))
                yield page.name, call[0] if call else "", set(dashed)


def test_documented_commands_exist() -> None:
    have: dict[str, set[str]] = defaultdict(lambda: {"--help", "-h"})
    for command, names in options():
        have[command].update(names)
    calls = [call for call in documented_calls("vkmnn") if call[1] in COMMANDS]  # no sentences
    assert len(calls) > 200
    for page, command, used in calls:
        assert used <= have[command], (page, command)


@pytest.mark.parametrize(
    "module",
    [
        "vkmnn.codegen.cli",
        "vkmnn_suite.fuzz.__main__",
        "vkmnn_suite.faults.__main__",
        "vkmnn_suite.mutate",
    ],
)
def test_documented_tools_exist(module: str) -> None:
    tool: Any = typer.main.get_command(importlib.import_module(module).app)
    parts = [tool, *getattr(tool, "commands", {}).values()]
    have = {name for part in parts for param in part.params for name in param.opts}
    calls = list(documented_calls("python -m " + re.sub(r"\.(cli|__main__)$", "", module)))
    assert calls
    for page, command, used in calls:
        assert used <= have, (page, command)


def test_help_and_version(cli: Cli) -> None:
    assert cli("help").out == cli("--help").out
    assert "--install-completion" in cli("help").out
    assert "--show-completion" in cli("help").out
    for arguments in (["version"], ["--version"], ["-V"]):
        assert cli(*arguments).out.startswith(f"vkmnn {vkmnn.__version__} ")
    wrong = cli("help", "profil")
    assert wrong.status == 1
    assert "did you mean profile?" in wrong.err


def test_old_long_names_stay(cli: Cli) -> None:
    known = {name for _, names in options() for name in names}
    assert {"--rounds", "--size", "--repeat", "--max-tokens", "--capacity", "--prompt",
            "--calibrate"} <= known  # fmt: skip


def test_completion_script(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_VKMNN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "vkmnn pro")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert "profile" in cli().out


def test_prompts_and_precision(cli: Cli) -> None:
    result = cli("generate", "model", "-p", "fp16")
    assert result.status == 1
    assert "there is no prompt" in result.err
    assert 'vkmnn generate MODEL "Once upon a time"' in result.err


# --- JSON ---------------------------------------------------------------------------------------


def documented() -> dict[str, list[str]]:
    """Return the keys that the page lists for each command, up to the first alternative."""
    rows = re.findall(r"^\| `(\w+)` \| (`.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", cells.partition(";")[0]) for name, cells in rows}


def test_every_report_is_documented() -> None:
    assert documented().keys() == COMMANDS.keys() - SILENT
    for name in documented():
        assert any(command == name and "--json" in names for command, names in options())


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, list[object]]:
    model = convolution(tmp_path / "m.onnx", ["N", 3, "?", "?"], 2)
    small = ["-s", "1,3,48,48", "-d", "cpu"]
    values = tmp_path / "x.npy"
    np.save(values, np.ones((1, 3, 48, 48), np.float32))
    return {
        "bench": [model, *small, "-e", "onnxruntime", "-n", 1],
        "compare": [model, *small, "--with", "cpu"],
        "convert": [model, tmp_path / "m.vkmnn"],
        "devices": [],
        "info": [model],
        "map": [model, values, "-o", tmp_path / "o.jsonl", "--devices", "cpu"],
        "ops": ["Conv"],
        "plan": [model, "--as", "nvidia-h200", "--alone", "-s", "1,3,48,48"],
        "profile": [model, *small, "-n", 1],
        "quantize": [model, tmp_path / "q.onnx", "-w", "int8", *small],
        "run": [model, *small, "-n", 2, "--compare", "onnxruntime"],
        "tune": [model, *small, "-n", 1],
        "version": [],
    }


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - SILENT - {"doctor", "generate", "pull"}))
def test_documents(cli: Cli, arguments: dict[str, list[object]], name: str) -> None:
    if name in ("bench", "run", "quantize"):
        pytest.importorskip("onnxruntime")
    result = cli(name, *arguments[name], "--json")
    assert result.status == 0, result.err
    document = json.loads(result.out)
    assert list(document)[:2] == ["command", "vkmnn"]
    assert (document["command"], document["vkmnn"]) == (name, vkmnn.__version__)
    assert set(documented()[name]) <= document.keys()
    plain = cli(name, *arguments[name])
    assert plain.status == 0
    assert not plain.out.startswith("{")


def test_numbers_that_json_lacks_are_null(
    cli: Cli, classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = cli("run", classifier, "-d", "cpu", "-s", "1,3,48,48", "-i", "nan", "--json")
    (output,) = json.loads(result.out)["outputs"]
    assert output["max"] is None
    assert output["not_finite"] == 24


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profiles"], "adreno-740"),
    ],
)
def test_json_of_lists(cli: Cli, arguments: list[str], words: str) -> None:
    assert words in json.dumps(json.loads(cli("devices", *arguments, "--json").out))
    assert "site-packages" not in cli("devices", *arguments).err
    assert str(PAGE.parent) not in cli("devices", *arguments).err


@pytest.mark.parametrize(
    ("more", "key"), [(["--format", "mnn"], "ops"), (["--plugins"], "plugins")]
)
def test_json_of_ops(cli: Cli, more: list[str], key: str) -> None:
    assert key in json.loads(cli("ops", *more, "--json").out)


def test_an_unknown_row(cli: Cli, classifier: Path) -> None:
    result = cli("profile", classifier, "--by", "kernals")
    assert (result.status, "did you mean kernel?" in result.err) == (1, True)
    assert "Value error" not in result.err


def test_profiles_show_the_slowest_steps(cli: Cli, classifier: Path) -> None:
    few = cli("profile", classifier, "-d", "cpu", "-s", "1,3,48,48", "-n", 1, "--top", 1)
    every = cli("profile", classifier, "-d", "cpu", "-s", "1,3,48,48", "-n", 1, "--top", 0)
    assert re.search(r"\d+ more \(--top 0 shows all\)", few.out)
    assert "more (--top" not in every.out
    assert len(every.out.splitlines()) > len(few.out.splitlines())
