"""Networks give the same results from vkmnn's own files as from ONNX, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.test_any_model import CASES
from vkmnn.base.cache_files import cache_dir
from vkmnn.cli.app import run_cli
from vkmnn.errors import BudgetError, InvalidInputError
from vkmnn.vulkan.tuning import TuningFile


def assert_same(found: list[Any], expected: list[Any], what: str) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype, what
        np.testing.assert_array_equal(one, other, what)


@pytest.mark.parametrize("precision", ["high", "normal"])
@pytest.mark.parametrize("name", NETWORKS)
def test_small_network(name: str, precision: Any, validation: bool, tmp_path: Path):
    """Every size, on the device; weights are stored in float16 where sessions round them anyway."""
    network = NETWORKS[name]
    model = network.build()
    path = tmp_path / f"{name}.vkmnn"
    vkmnn.convert(model, path, external_data=precision == "normal")
    options: dict[str, Any] = {"validation": validation, "precision": precision}
    with (
        vkmnn.InferenceSession(model, **options) as first,
        vkmnn.InferenceSession(path, **options) as second,
    ):
        assert first.get_inputs() == second.get_inputs()
        assert first.get_outputs() == second.get_outputs()
        for number, size in enumerate(network.sizes[:2]):
            feeds = make_feeds(model, size, seed=number)
            assert_same(second.run(None, feeds), first.run(None, feeds), f"{name} {size}")
        places = [[op.backend for op in one.placement()] for one in (first, second)]
        assert places[0] == places[1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_any_model(case: Any, tmp_path: Path):
    """Networks with nodes on the host, control flow, and shapes that depend on data."""
    model, sets = case()
    vkmnn.convert(model, tmp_path / "net.vkmnn")
    with (
        vkmnn.InferenceSession(model) as first,
        vkmnn.InferenceSession(tmp_path / "net.vkmnn") as second,
    ):
        for feeds in sets:
            assert_same(second.run(None, feeds), first.run(None, feeds), case.__name__)


# Sessions on files that are shortened or overwritten before and after the first run; a second size
# has them planned again.
CHANGED = """
import os, sys
import numpy as np
import vkmnn
device, *paths = sys.argv[1:]
feeds = [{"x": np.full((count, 3, 16, 16), 0.5, np.float32)} for count in (1, 2)]
for path in paths:
    for change in (os.truncate, lambda name, size: open(name, "r+b").write(bytes(size))):
        for early in (True, False):
            kept = {name: open(name, "rb").read() for name in (path, path + ".data")
                    if os.path.exists(name)}
            with vkmnn.InferenceSession(path, device) as session:
                first = feeds[0] if not early else None
                before = session.run(None, first) if first else None
                for name in kept:
                    change(name, 300)
                results = [session.run(None, one)[0] for one in feeds]
            for name, data in kept.items():
                with open(name, "wb") as file:
                    file.write(data)
            with vkmnn.InferenceSession(path, device) as session:
                for one, result in zip(feeds, results):
                    np.testing.assert_array_equal(session.run(None, one)[0], result)
print("right")
"""


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_files_that_change_under_a_session(device: str, tmp_path: Path):
    """Results are those of the file as it was opened; nothing ends the process."""
    model = NETWORKS["resnet"].build()
    paths = [str(tmp_path / name) for name in ("plain.vkmnn", "packed.vkmnn", "outside.vkmnn")]
    options: list[dict[str, Any]] = [{}, {"packed": True}, {"external_data": True}]
    for path, option in zip(paths, options, strict=True):
        vkmnn.convert(model, path, sizes={"N": (1, 2), "H": 16, "W": 16}, **option)
    command = [sys.executable, "-c", CHANGED, device, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_files_larger_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A file with holes takes no room on the disk; only mapped does it take none in memory."""
    path = tmp_path / "net.vkmnn"
    vkmnn.convert(NETWORKS["espcn"].build(), path)
    os.truncate(path, 1 << 42)
    with pytest.raises(BudgetError, match=r"(?s)4096\.0 GiB.*VKMNN_MAP_FILES"):
        vkmnn.InferenceSession(path, "cpu")
    monkeypatch.setenv("VKMNN_MAP_FILES", "1")
    vkmnn.InferenceSession(path, "cpu").close()
    monkeypatch.setenv("VKMNN_MAP_FILES", "perhaps")
    with pytest.raises(InvalidInputError, match="VKMNN_MAP_FILES='perhaps'"):
        vkmnn.InferenceSession(path, "cpu")


def test_the_faces_and_commands_open_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = NETWORKS["espcn"].build()
    onnx_path, path = tmp_path / "net.onnx", tmp_path / "net.vkmnn"
    onnx_path.write_bytes(model.SerializeToString())
    command = ["convert", str(onnx_path), str(path), "--static-shapes", "N=1", "-p", "fp16"]
    assert run_cli(command) == 0
    size = ["--shape", "H=8", "--shape", "W=8"]
    for command in ("info", "run", "profile"):
        assert run_cli([command, str(path), *size, *(["-d", "cpu"] * (command == "run"))]) == 0
    feeds = {**make_feeds(model, (1, 8, 8))}
    assert "Convolution" in capsys.readouterr().out
    with vkmnn.load(path, "cpu") as called:
        expected = called(*feeds.values())
    net = vkmnn.Interpreter.from_file(path)
    assert net.create_session({"device": "cpu"}).run(feeds)
    import vkmnn.onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    assert run_cli(["convert", str(onnx_path), str(path), "--static-shapes", "N=1,x"]) == 1


def test_sizes_that_sessions_plan_for_when_they_open(tmp_path: Path) -> None:
    model = NETWORKS["espcn"].build()
    onnx_path, path = tmp_path / "net.onnx", tmp_path / "net.vkmnn"
    onnx_path.write_bytes(model.SerializeToString())
    sizes = [word for text in ("N=1,3", "H=8", "W=8,9") for word in ("--static-shapes", text)]
    assert run_cli(["convert", str(onnx_path), str(path), *sizes]) == 0
    again = tmp_path / "again.vkmnn"
    vkmnn.convert(path, again)  # a copy plans for the same
    with vkmnn.InferenceSession(again) as session, vkmnn.InferenceSession(model) as usual:
        assert session.get_inputs()[0].shape == ["N", 1, 8, "W"]
        assert session.counters()["plans"] == 4
        for size in ((1, 8, 9), (3, 8, 8)):
            feeds = make_feeds(model, size)
            assert_same(session.run(None, feeds), usual.run(None, feeds), str(size))
        assert session.counters()["plans"] == 4
        other = make_feeds(model, (2, 8, 8))
        assert_same(session.run(None, other), usual.run(None, other), "a size of its own")


def test_what_was_measured_goes_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VKMNN_TUNE", raising=False)
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "here"))
    model, path = NETWORKS["espcn"].build(), tmp_path / "net.vkmnn"
    sizes = {"N": 1, "H": 8, "W": 8}
    with pytest.raises(InvalidInputError, match="nothing has been measured"):
        vkmnn.convert(model, path, sizes=sizes, tuned=True)
    with pytest.raises(InvalidInputError, match="no shapes"):
        vkmnn.convert(model, path, tuned=True)
    vkmnn.convert(model, path, sizes=sizes)
    with vkmnn.InferenceSession(path) as session:
        backend = session._session.core._main
        choice = next(one for one in backend.choices if len(one.candidates) > 1)
        assert choice.taken == choice.candidates[0]
        slower = {choice.key: repr(choice.candidates[-1])}
        TuningFile(cache_dir(), session.device).store(slower | {"of another network": "taken"})
    vkmnn.convert(model, path, sizes=sizes, tuned=True)
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "elsewhere"))
    copy = tmp_path / "copy.vkmnn"
    vkmnn.convert(path, copy)
    with vkmnn.InferenceSession(copy) as session, vkmnn.InferenceSession(model) as usual:
        backend = session._session.core._main
        assert backend.preferences == slower
        (taken,) = {one.taken for one in backend.choices if one.key == choice.key}
        assert taken == choice.candidates[-1]
        feeds = make_feeds(model, (1, 8, 8))
        for one, other in zip(session.run(None, feeds), usual.run(None, feeds), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    monkeypatch.setenv("VKMNN_TUNE", "off")
    with vkmnn.InferenceSession(copy) as session:
        assert session._session.core._main.preferences == {}
