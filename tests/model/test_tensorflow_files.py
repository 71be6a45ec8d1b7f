"""Frozen graphs match TensorFlow's results for them: see tests/data/tensorflow/make.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from vkmnn.cli.app import run_cli
from vkmnn.opening import load_network

FOLDER = Path(__file__).resolve().parents[1] / "data" / "tensorflow"
GRAPHS = sorted(path.stem for path in FOLDER.glob("*.pb"))
NETWORKS = ("attention", "cnn", "residual", "segmenter")


def agrees(name: str, session: vkmnn.InferenceSession) -> None:
    """Two batches, one after the other."""
    stored = np.load(FOLDER / f"{name}.npz")
    inputs = [arg.name for arg in session.get_inputs()]
    outputs = [arg.name for arg in session.get_outputs()]
    assert {one.partition("/")[2] for one in stored} == {*inputs, *outputs}
    for run in ("0", "1"):
        found = session.run(None, {one: stored[f"{run}/{one}"] for one in inputs})
        for array, one in zip(found, outputs, strict=True):
            right = stored[f"{run}/{one}"]
            assert (array.shape, array.dtype) == (right.shape, right.dtype), one
            if right.dtype.kind == "f":
                allowed = 1e-4 * max(float(np.ptp(right)), float(np.abs(right).max()))
                np.testing.assert_allclose(array, right, rtol=0, atol=allowed, err_msg=one)
            else:
                np.testing.assert_array_equal(array, right, err_msg=one)


@pytest.mark.parametrize("name", GRAPHS)
def test_graph(name: str) -> None:
    with vkmnn.InferenceSession(FOLDER / f"{name}.pb", "cpu") as session:
        agrees(name, session)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_on_the_device(name: str) -> None:
    with vkmnn.InferenceSession(FOLDER / f"{name}.pb", require_device=True) as session:
        agrees(name, session)


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_as_vkmnn(name: str, tmp_path: Path) -> None:
    target = tmp_path / "net.vkmnn"
    assert run_cli(["convert", str(FOLDER / f"{name}.pb"), str(target)]) == 0
    with vkmnn.InferenceSession(target, "cpu") as session:
        agrees(name, session)


def test_outputs_have_the_sizes_that_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frozen graph declares none; the same in a session, at the command line and converted."""
    vkmnn.convert(FOLDER / "segmenter.pb", tmp_path / "net.vkmnn")
    for path in (FOLDER / "segmenter.pb", tmp_path / "net.vkmnn"):
        [output] = vkmnn.InferenceSession(path, "cpu").get_outputs()
        assert output.shape == ["x_0", 4]
        assert run_cli(["info", str(path)]) == 0
        assert "[x_0, 4]" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cnn", "segmenter"])
def test_few_transposes_are_left(name: str) -> None:
    """At most one for the input, which has channels last, and one for the output."""
    kinds = Counter(op.type for op in load_network(FOLDER / f"{name}.pb").graph.ops)
    assert kinds["Transpose"] <= 2, kinds


def test_another_size(tmp_path: Path) -> None:
    """A network without products of all pixels runs at any."""
    with vkmnn.InferenceSession(
        FOLDER / "residual.pb", "cpu", input_shapes={"x": ("N", "H", "W", 4)}
    ) as session:
        stored = np.load(FOLDER / "residual.npz")
        right = session.run(None, {"x": stored["0/x"]})[0]
        np.testing.assert_allclose(right, stored["0/Identity"], atol=1e-4)
        assert session.run(None, {"x": np.ones((1, 6, 14, 4), np.float32)})[0].shape == (1, 8)
