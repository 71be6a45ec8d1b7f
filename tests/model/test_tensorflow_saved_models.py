"""SavedModels match TensorFlow's results for them: see tests/data/tensorflow/make_saved.py."""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from tests.model.test_tensorflow_files import FOLDER
from vkmnn.cli.app import run_cli
from vkmnn.errors import InvalidInputError, ModelError, ModelFileError
from vkmnn.opening import load_network

MODELS = sorted(path.stem for path in FOLDER.glob("*.zip"))
ON_DEVICE = ("cnn_keras", "masked", "recurrent", "several", "version_1")
SIGNATURES = {"several": "#encode"}


def unpacked(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as file:
        file.extractall(folder / name)
    return folder / name


def path_of(name: str, folder: Path) -> str:
    return f"{unpacked(name, folder)}{SIGNATURES.get(name, '')}"


def agrees(name: str, session: vkmnn.InferenceSession) -> None:
    """All runs, one after the other."""
    stored = np.load(FOLDER / f"{name}.npz")
    inputs = [arg.name for arg in session.get_inputs()]
    outputs = [arg.name for arg in session.get_outputs()]
    assert {one.partition("/")[2] for one in stored} == {*inputs, *outputs}
    for run in sorted({one.partition("/")[0] for one in stored}):
        found = session.run(None, {one: stored[f"{run}/{one}"] for one in inputs})
        for array, one in zip(found, outputs, strict=True):
            right = stored[f"{run}/{one}"]
            assert (array.shape, array.dtype) == (right.shape, right.dtype), one
            if right.dtype.kind == "f":
                allowed = 1e-4 * float(np.abs(right).max(initial=0))
                np.testing.assert_allclose(array, right, rtol=0, atol=allowed, err_msg=one)
            else:
                np.testing.assert_array_equal(array, right, err_msg=one)


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, tmp_path: Path) -> None:
    """Twice: states begin anew after `reset_state`."""
    with vkmnn.InferenceSession(path_of(name, tmp_path), "cpu") as session:
        agrees(name, session)
        session.reset_state()
        agrees(name, session)


@pytest.mark.parametrize("name", [name for name in MODELS if name in ON_DEVICE])
def test_model_on_the_device(name: str, tmp_path: Path) -> None:
    with vkmnn.InferenceSession(path_of(name, tmp_path), require_device=True) as session:
        agrees(name, session)


@pytest.mark.parametrize("name", MODELS)
def test_model_as_vkmnn(name: str, tmp_path: Path) -> None:
    target = tmp_path / "net.vkmnn"
    assert run_cli(["convert", path_of(name, tmp_path), str(target)]) == 0
    with vkmnn.InferenceSession(target, "cpu") as session:
        agrees(name, session)


def test_written_variables_are_states(tmp_path: Path) -> None:
    """Only those that are written; a session without `reset_state` goes on where it was."""
    graph = load_network(unpacked("counter", tmp_path)).graph
    assert len(graph.states) == 3
    assert not load_network(unpacked("recurrent", tmp_path)).graph.states
    with vkmnn.InferenceSession(tmp_path / "counter", "cpu") as session:
        x = np.ones((1, 2), np.float32)
        above = [int(session.run(["above"], {"x": x})[0]) for _ in range(3)]
        assert above == [4, 5, 6]


def test_recurrent_layers_are_recognised(tmp_path: Path) -> None:
    """Loops of Keras's layers become one op each, both with lists of tensors and in frames."""
    kinds = Counter(op.type for op in load_network(unpacked("recurrent", tmp_path)).graph.ops)
    assert kinds["Recurrent"] == 4, kinds
    for one in ("lstm_frozen.pb", "loops.pb"):
        kinds = Counter(op.type for op in load_network(FOLDER / one).graph.ops)
        assert kinds["Recurrent"] == 1, kinds
        assert not kinds["ScatterND"], kinds


def test_another_length(tmp_path: Path) -> None:
    stored = np.load(FOLDER / "lstm_frozen.npz")
    with vkmnn.InferenceSession(FOLDER / "lstm_frozen.pb", "cpu") as session:
        for run in ("2", "0", "1"):
            found = session.run(None, {"x": stored[f"{run}/x"]})[0]
            np.testing.assert_allclose(found, stored[f"{run}/Identity"], atol=1e-5)


def test_signatures(tmp_path: Path) -> None:
    """By name; without one, the usual one or the only one."""
    folder = unpacked("several", tmp_path)
    stored = np.load(FOLDER / "several.npz")
    with vkmnn.InferenceSession(f"{folder}#encode", "cpu") as session:
        (code,) = session.run(None, {"x": stored["0/x"]})
        np.testing.assert_allclose(code, stored["0/code"], atol=1e-5)
    with vkmnn.InferenceSession(f"{folder}#decode", "cpu") as session:
        assert [arg.name for arg in session.get_inputs()] == ["code"]
        assert session.run(None, {"code": code})[0].shape == code.shape
    with pytest.raises(InvalidInputError, match="several signatures: decode, encode") as caught:
        load_network(folder)
    assert "several#decode" in (caught.value.hint or "")
    with pytest.raises(InvalidInputError, match="no signature 'encodes'") as caught:
        load_network(f"{folder}#encodes")
    assert "encode" in (caught.value.hint or "")
    # The file of the graph may be given instead of the folder.
    assert load_network(f"{folder / 'saved_model.pb'}#encode").graph.outputs[0].name == "code"


def test_commands_take_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unpacked("several", tmp_path)
    for command in (["info", f"{folder}#decode"], ["run", f"{folder}#encode"]):
        assert run_cli(command) == 0
    assert run_cli(["info", str(unpacked("recurrent", tmp_path))]) == 0
    assert "decode, encode" in capsys.readouterr().out


def spoilt(folder: Path, name: str, change: str) -> Path:
    """Return a SavedModel with a damaged file."""
    path = unpacked(name, folder)
    index = path / "variables" / "variables.index"
    data = path / "variables" / "variables.data-00000-of-00001"
    if change == "no data":
        data.unlink()
    elif change == "short data":
        data.write_bytes(data.read_bytes()[:30])
    elif change == "other data":
        data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    elif change == "no index":
        index.unlink()
    elif change == "short index":
        index.write_bytes(index.read_bytes()[:-9])
    elif change == "other index":
        content = bytearray(index.read_bytes())
        content[20] ^= 1
        index.write_bytes(content)
    elif change == "compressed index":
        # Behind the restarts of a block, a list of one, comes its type.
        content = index.read_bytes()
        index.write_bytes(content.replace(b"\0\0\0\0\1\0\0\0\0", b"\0\0\0\0\1\0\0\0\1"))
    elif change == "data outside":
        shutil.move(data, folder / "elsewhere")
        data.symlink_to(folder / "elsewhere")
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no data", "cannot be read"),
        ("short data", "is outside of 'variables.data-00000-of-00001'"),
        ("other data", "checksum of the variable"),
        ("no index", "has no value in the SavedModel"),
        ("short index", "does not end as an index of variables does"),
        ("other index", "checksum of a block is wrong"),
        ("compressed index", r"compressed \(snappy\)"),
        ("data outside", "not a regular file inside the folder"),
    ],
)
def test_damaged_variables(change: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load_network(spoilt(tmp_path, "recurrent", change))
    assert caught.value.hint
    assert not caught.value.unexpected


def test_folders_that_are_no_saved_models(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x02\x12\0")
    with pytest.raises(ModelFileError, match="no nodes"):
        load_network(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(ModelFileError, match="no graph"):
        load_network(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(ModelFileError, match="not the graph of a SavedModel"):
        load_network(tmp_path)
