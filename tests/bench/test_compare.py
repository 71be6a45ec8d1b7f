"""Comparing engines, each in its own process, whatever happens to them."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

import vkmnn
from vkmnn.bench.compare import (
    ENGINES,
    Comparison,
    EngineSpec,
    Place,
    Series,
    compare,
    difference,
    engines,
    geometric_mean,
    job,
    place,
)
from vkmnn.bench.document import document, networks, processor
from vkmnn.bench.engine import EngineMissingError, Job
from vkmnn.bench.engines.mnn_cpu import MnnCpu
from vkmnn.bench.peer import Peer
from vkmnn.cli.app import run_cli
from vkmnn.cli.bench import networks_table, show_failures

X = {"x": np.linspace(-1, 1, 7, dtype=np.float32).reshape(1, 7)}


@pytest.fixture
def where(tmp_path: Path) -> Place:
    return Place("cpu", "nothing", "", 0, 2, 3, 900.0, tmp_path)


def toy(name: str, **options: float) -> EngineSpec:
    return EngineSpec(options.pop("name", name), f"tests.bench.toys:{name}", options)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"], name="double")],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = tmp_path / "double.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def test_engines_take_turns(where: Place, model: Path) -> None:
    specs = [
        EngineSpec("vkmnn", "tests.bench.toys:Good", {"seconds": 0.06}),
        EngineSpec("slow CPU", "tests.bench.toys:Good", {"seconds": 0.18, "error": 0.4}),
    ]
    told: list[str] = []
    result = compare("double", model, X, specs, where, told.append)
    own, slow = result.series
    assert not own.error
    assert not slow.error
    assert len(own.seconds) == len(slow.seconds) == 3
    assert min(own.seconds) >= 0.06
    assert result.ratio("slow CPU") == pytest.approx(3, rel=0.4)
    assert result.ratio("vkmnn") == 1
    assert own.first_s >= 0.06
    # 0.4 of the range of 4; the CPU's engine is the reference.
    assert result.reference == "slow CPU"
    assert own.difference == pytest.approx(0.1, rel=1e-3)
    assert slow.difference is None
    # The first run, and one a round: these runs are long enough.
    assert own.facts == {"runs": 4, "threads": 2, "model": "double.onnx"}
    assert told[-1] == "double: round 3 of 3"


def test_slow_engines_have_fewer_turns(
    where: Place, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkmnn.bench.compare.TURNS_S", 1.0)
    specs = [
        EngineSpec("vkmnn", "tests.bench.toys:Good", {"seconds": 0.06}),
        EngineSpec("slow", "tests.bench.toys:Good", {"seconds": 0.4}),
    ]
    own, slow = compare("double", model, X, specs, replace(where, rounds=5)).series
    assert (len(own.seconds), len(slow.seconds)) == (5, 3)


def test_an_engine_that_fails_ends_only_its_row(where: Place, model: Path) -> None:
    names = ("Missing", "Good", "Crashes", "Raises", "OtherShape")
    result = compare("double", model, X, [toy(name) for name in names], where)
    by_name = {series.engine: series for series in result.series}
    assert (by_name["Missing"].error, by_name["Missing"].hint) == (
        "it is not installed",
        "install it",
    )
    assert "its process ended with signal 9" in by_name["Crashes"].error
    assert by_name["Raises"].error == "ValueError: no such operator"
    assert not by_name["Good"].error
    assert len(by_name["Good"].seconds) == where.rounds
    assert by_name["OtherShape"].difference is None
    assert by_name["Crashes"].median_s is None
    assert result.ratio("Crashes") is None


def test_an_engine_that_hangs_is_ended(where: Place, model: Path) -> None:
    result = compare("double", model, X, [toy("Hangs")], replace(where, timeout_s=1.0))
    assert result.series[0].error == "no answer within 1 s"


def test_an_engine_that_cannot_be_imported(where: Place, model: Path) -> None:
    result = compare("double", model, X, [EngineSpec("none", "tests.bench.none:None")], where)
    assert "ModuleNotFoundError" in result.series[0].error


def test_the_job_arrives_as_it_was_sent(where: Place, model: Path) -> None:
    feeds = {"b": np.arange(3), "a": np.float16([1.5])}
    sent = job(model, feeds, EngineSpec("", "", {"precision": "normal"}), where)
    with Peer("tests.bench.toys:Good", sent, 900.0) as peer:
        from vkmnn.bench.worker import Worker

        read = Worker("tests.bench.toys:Good", Path(peer._folder.name))._job()
    assert list(read.feeds) == ["b", "a"]
    for name, array in feeds.items():
        np.testing.assert_array_equal(read.feeds[name], array)
        assert read.feeds[name].dtype == array.dtype
    assert read.model == model
    assert read.options == {"precision": "normal"}


def test_statistics() -> None:
    series = Series("a", [1.0, 2.0, 3.0, 4.0, 50.0])
    assert series.median_s == 3.0
    assert series.spread == pytest.approx(1 / 3)
    assert Series("a", [2.0]).spread == 0
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2)
    assert Comparison("n", [Series("b", [1.0])]).ratio("b") is None  # no vkmnn


def test_difference() -> None:
    a = np.float32([[0, 2]])
    assert difference([a], [a.ravel()]) == 0
    assert difference([a + 1], [a]) == 0.5
    assert difference([a], [np.zeros(3)]) is None
    assert difference([np.zeros(0)], [np.zeros(0)]) == 0


def test_which_engines() -> None:
    names = ["vkmnn", "onnxruntime CPU", "MNN CPU", "ncnn Vulkan"]
    assert [spec.name for spec in engines(False)] == names
    assert engines(True) == list(ENGINES)
    assert [spec.name for spec in engines(True, ["NCNN"])] == ["ncnn Vulkan", "ncnn Vulkan fp16"]
    assert not engines(True, ["no such"])


def test_place() -> None:
    here = place("cpu", 0, 3, 5.0)
    assert here.device == "cpu"
    assert here.threads >= 1
    if vkmnn.devices():
        there = place("0", 3, 1, 5.0)
        assert there.device_name == vkmnn.devices()[0].name
        assert there.threads == 3
        assert there.twin == 0


# --- the command ---------------------------------------------------------------------------------


def bench(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run_cli(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = "0" if vkmnn.devices() else "cpu"
    status, out, err = bench(capsys, model, "-d", device, "-n", 2, "-e", "vkmnn", "-e", "onnx")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert any(line[:1] == ["vkmnn"] and "1.00" in line for line in lines)
    assert "onnxruntime CPU" in out
    assert "█" in out
    assert "x was taken as [1, 7]" in err


def test_the_command_says_what_is_missing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = bench(capsys, model, "-d", "cpu", "-n", 1, "-e", "vkmnn fp16", "--fp16")
    assert status == 0
    assert "note: vkmnn fp16: " in err or "vkmnn fp16" in out
    status, _, err = bench(capsys, model, "-e", "tensorrt")
    assert status == 1
    assert "engines: vkmnn, vkmnn fp16, onnxruntime CPU, MNN CPU, ncnn Vulkan" in err


def test_the_command_gives_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = bench(capsys, model, "-d", "cpu", "-n", 2, "-e", "vkmnn", "--json")
    assert status == 0
    data = json.loads(out)
    assert data["device"] == "cpu (numpy)"
    (engine,) = data["networks"][0]["engines"]
    assert engine["engine"] == "vkmnn"
    assert len(engine["rounds_ms"]) == 2
    assert engine["facts"]["ops"] == 1


def test_the_document_of_a_failure(where: Place) -> None:
    failed = Comparison("n", [Series("a", error="it crashed", hint="install it")])
    data = document(where) | {"networks": networks([failed])}
    (engine,) = data["networks"][0]["engines"]
    assert engine == {"engine": "a", "error": "it crashed", "hint": "install it"}
    json.dumps(data)


def test_the_processor_is_told_with_its_vectors(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fma avx avx2 sse\n\n")
    assert processor(cpuinfo) == "A CPU, avx2"
    assert processor(tmp_path / "none") == platform.processor()


# --- ncnn ----------------------------------------------------------------------------------------


def small_convolution(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Return a convolution with a ReLU as a file, and its input."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((5, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 11, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 11, 7])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    path = folder / "net.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path, {"x": rng.standard_normal((1, 3, 11, 7)).astype(np.float32)}


@pytest.mark.skipif(find_spec("_mnncengine") is None, reason="MNN is not installed")
def test_mnn_converts_and_runs(tmp_path: Path) -> None:
    path, feeds = small_convolution(tmp_path)
    here = replace(place("cpu", 2, 1, 900.0), folder=tmp_path)
    for _ in range(2):
        result = compare("net", path, feeds, engines(False, ["onnx", "MNN CPU"]), here)
        assert [series.error for series in result.series] == [""] * 2
        assert all((series.difference or 0) < 1e-4 for series in result.series)
        (converted,) = tmp_path.glob("mnn-*/done")
        before = converted.stat().st_mtime_ns
    assert converted.stat().st_mtime_ns == before  # the second time nothing is converted


def test_mnn_is_told_how_to_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And its Python files, which would install packages, are never imported."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setitem(sys.modules, "_mnncengine", None)
    path, feeds = small_convolution(tmp_path)
    with pytest.raises(EngineMissingError, match="MNN is not installed") as missing:
        MnnCpu().load(Job(path, feeds, "cpu", "", 0, 1, tmp_path))
    assert missing.value.hint == "pip install 'vkmnn[bench,peers]'"
    assert "MNN" not in sys.modules


def test_ncnn_converts_and_runs(where: Place, tmp_path: Path) -> None:
    pytest.importorskip("ncnn")
    pytest.importorskip("pnnx")
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    path, feeds = small_convolution(tmp_path)
    here = replace(place("0", 2, 1, 900.0), folder=tmp_path)
    specs = engines(False, ["vkmnn", "onnx", "ncnn"])
    result = compare("net", path, feeds, specs, here)
    assert not result.series[2].error, result.series[2].error
    assert all((series.difference or 0) < 1e-3 for series in result.series)
    # A second time nothing is converted.
    (converted,) = tmp_path.glob("ncnn-*/1/done")
    before = converted.stat().st_mtime_ns
    compare("net", path, feeds, engines(False, ["ncnn"]), here)
    assert converted.stat().st_mtime_ns == before


# --- tables --------------------------------------------------------------------------------------


def text_of(table: Table) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_of_networks() -> None:
    results = [
        Comparison("a", [Series("vkmnn", [0.1]), Series("x", [0.2]), Series("gone", error="no")]),
        Comparison("b", [Series("vkmnn", [0.1]), Series("x", [0.8]), Series("gone", error="no")]),
        Comparison(
            "c", [Series("vkmnn", [0.1]), Series("x", error="no"), Series("gone", error="")]
        ),
    ]
    lines = text_of(networks_table(results)).splitlines()
    assert "gone" not in lines[0]
    assert lines[2].split() == ["a", "100.00", "±0", "%", "200.00", "±0", "%", "2.00"]
    assert lines[4].split() == ["c", "100.00", "±0", "%", "–", "–"]
    assert lines[5].split() == ["geometric", "mean", "4.00"]


def test_each_failure_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Series("x", error="it is not installed", hint="install it")
    both = [Comparison("a", [failed]), Comparison("b", [failed])]
    show_failures(both)
    assert capsys.readouterr().err == "note: x: it is not installed; to get it: install it\n"
    show_failures([*both, Comparison("c", [Series("x", [1.0])])])
    assert capsys.readouterr().err.startswith("note: x (a, b): it is")


def test_fast_is_compared_by_name() -> None:
    names = [spec.name for spec in engines(False, ["vkmnn", "vkmnn fast"])]
    assert names == ["vkmnn fast", "vkmnn"]
    assert "vkmnn fast" not in [spec.name for spec in engines(True)]
    assert [spec.name for spec in engines(True, ["vkmnn"])] == ["vkmnn", "vkmnn fp16"]
