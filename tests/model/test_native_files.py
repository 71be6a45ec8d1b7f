"""Networks give the same results from vkmnn's own files as from ONNX, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.test_any_model import CASES
from vkmnn.cli.app import run_cli


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
    assert run_cli(["convert", str(onnx_path), str(path), "--static-shapes", "N=1,8"]) == 1
