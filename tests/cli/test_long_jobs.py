"""Long jobs: progress without a terminal, and the files that Ctrl-C leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.cli.conftest import Cli
from vkmnn.cli import bench, console, main, run, tune
from vkmnn.cli.console import duration_text, progress, waiting

SMALL = ("-s", "1,3,48,48")


def after(calls: int, action: Callable[[], object], function: Callable[..., Any]) -> Any:
    """Return the function, with an action before the call of a number."""
    count = 0

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == calls:
            action()
        return function(*arguments, **more)

    return counted


def interrupt() -> None:
    raise KeyboardInterrupt


def test_progress_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.0)
    with progress("measuring") as report:
        report(0, 4)
        report(1, 4)
        report(2, 4, "looking")
        report(4, 4)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0] == "progress: measuring: 0 of 4"
    assert re.fullmatch(r"progress: measuring: 1 of 4, about \d+ s left", lines[1])
    assert lines[2].startswith("progress: looking: 2 of 4, about")


def test_short_jobs_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("measuring") as report:
        for number in range(100):
            report(number, 100)
    with waiting("reading"):
        pass
    assert capsys.readouterr().err == ""


def test_durations() -> None:
    texts = {3: "3 s", 99: "99 s", 200: "3 min", 7800: "2 h 10 min"}
    assert {seconds: duration_text(seconds) for seconds in texts} == texts


@pytest.mark.parametrize("command", ["tune", "quantize", "bench", "run"])
def test_commands_report(
    cli: Cli,
    classifier: Path,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.0)
    device = "0" if vkmnn.devices() else "cpu"
    if command == "tune" and device == "cpu":
        pytest.skip("no Vulkan device")
    if command in ("quantize", "bench"):
        pytest.importorskip("onnxruntime")
    more = {
        "tune": ["-n", 1, "-d", device],
        "quantize": [tmp_path / "q.onnx", "-w", "int8", "-d", "cpu"],
        "bench": ["-d", "cpu", "-e", "onnxruntime", "-n", 3],
        "run": ["-n", 5, "-d", "cpu"],
    }[command]
    result = cli(command, classifier, *more, *SMALL)
    assert result.status == 0, result.err
    assert re.search(r"progress: .* of \d+.* left", result.err), result.err


# --- Ctrl-C -------------------------------------------------------------------------------------


def test_run_reports_the_runs_done(
    cli: Cli, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.Opened, "run", after(4, interrupt, run.Opened.run))
    result = cli("run", classifier, "-d", "cpu", *SMALL, "-n", 9, "-o", tmp_path / "y.npz")
    assert result.status == 130
    assert "median of 3" in result.out
    assert "interrupted: 3 runs of 9 after the first were timed; nothing saved" in result.err
    assert not (tmp_path / "y.npz").exists()
    monkeypatch.setattr(run.Opened, "run", after(2, interrupt, run.Opened.run))
    shown = cli("run", classifier, "-d", "cpu", *SMALL, "-n", 9, "--json")
    assert shown.status == 130
    assert json.loads(shown.out)["interrupted"] is True


def test_bench_reports_the_rounds_done(
    cli: Cli, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    from vkmnn.bench import compare

    monkeypatch.setattr(compare.Peer, "ask", after(4, interrupt, compare.Peer.ask))
    result = cli("bench", classifier, "-d", "cpu", "-e", "onnxruntime", *SMALL, "-n", 9)
    assert result.status == 130
    assert "interrupted: 2 rounds of 9 were run" in result.err
    assert "onnxruntime CPU" in result.out
    monkeypatch.setattr(bench, "compare", lambda *arguments: interrupt())
    early = cli("bench", classifier, "-d", "cpu", "-e", "onnxruntime", *SMALL)
    assert (early.status, "no round was complete" in early.err) == (130, True)


@pytest.mark.parametrize("command", ["convert", "quantize"])
def test_files_that_are_not_written(
    cli: Cli, classifier: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix, more = (".vkmnn", []) if command == "convert" else (".onnx", ["-w", "int8"])
    monkeypatch.setattr(f"vkmnn.cli.{command}.{command}", lambda *_, **__: interrupt())
    output = tmp_path / f"out{suffix}"
    result = cli(command, classifier, output, *more)
    assert result.status == 130
    assert f"interrupted: {output} was not written" in result.err.replace("\n", "")
    assert not output.exists()


def test_plan_can_be_interrupted(
    cli: Cli, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkmnn.cli.plan._others", lambda *_: interrupt())
    result = cli("plan", classifier, "--as", "nvidia-h200", *SMALL)
    assert (result.status, "interrupted: nothing was planned" in result.err) == (130, True)


@pytest.fixture
def signals() -> Iterator[None]:
    """Restore the handler of Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_the_imports_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed() -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "vkmnn.cli.app", SimpleNamespace(run_cli=pressed))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130


@pytest.mark.usefixtures("signals")
def test_tune_keeps_what_it_has_measured(
    cli: Cli, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    told: list[tuple[int, int]] = []
    whole = cli("tune", classifier, "-d", 0, *SMALL, "-n", 1)
    assert whole.status == 0
    original = vkmnn.InferenceSession.tune

    def pressed(session: Any, feeds: Any, runs: int, report: Any) -> Any:
        def tell(done: int, total: int) -> Any:
            told.append((done, total))
            if len(told) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return report(done, total)

        return original(session, feeds, runs, tell)

    monkeypatch.setattr(vkmnn.InferenceSession, "tune", pressed)
    result = cli("tune", classifier, "-d", 0, *SMALL, "-n", 50)
    assert result.status == 130
    assert "stopping: whole runs decide" in result.err
    assert re.search(r"interrupted: \d+ choices? (was|were) measured, .* kept", result.err)


@pytest.mark.usefixtures("signals")
def test_a_second_ctrl_c_ends_tune_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with tune.Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert "nothing was saved" in capsys.readouterr().err


def test_a_session_stops_tuning_when_told() -> None:
    """`progress` that returns True ends the trials; the choices measured are still decided."""
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    from onnx import TensorProto, helper, numpy_helper

    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.ones((8, 64), np.float32)}
    calls: list[int] = []
    with vkmnn.InferenceSession(model, 0) as session:
        tuning = session.tune(feeds, 3, lambda done, total: bool(calls.append(done)) or True)
        assert len(tuning.choices) <= 2
        (y,) = session.run(None, feeds)
    assert y.shape == (8, 64)
