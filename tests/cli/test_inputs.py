"""`--input` and `--shape`: typed values, files, and the defaults if nothing is given."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.cli.conftest import BOOL, FLOAT, TEXT, Cli, convolution, save

X = [[1.0, 2.0, 3.0, 4.0]]


def run(cli: Cli, *arguments: object) -> dict[str, Any]:
    """Run a model with `--json` and return the document."""
    result = cli("run", *arguments, "-d", "cpu", "-n", 0, "--json")
    assert result.status == 0, result.err
    document: dict[str, Any] = json.loads(result.out)
    return document


@pytest.mark.parametrize(
    ("ids", "rate", "x"),
    [
        ("[1,2,3]", "16000", f"{X}"),
        ("[[1, 2, 3]]", "16000", f"{X[0]}"),
        ("@ids.json", "16000", "x.npy"),
        ("@ids.json", "+16000", "@x.npy"),
    ],
)
def test_values_as_typed(
    cli: Cli, rates: Path, monkeypatch: pytest.MonkeyPatch, ids: str, rate: str, x: str
) -> None:
    monkeypatch.chdir(rates.parent)
    Path("ids.json").write_text("[1, 2, 3]")
    np.save("x.npy", np.array(X, np.float32))
    found = run(cli, rates, "-i", f"x={x}", "-i", f"ids={ids}", "-i", f"rate={rate}")
    (y,) = found["outputs"]
    assert y["shape"] == [1, 1, 3]
    assert (y["min"], y["max"]) == (32000.0, 64000.0)
    assert {one["source"] for one in found["inputs"]} == {"given"}
    assert found["notes"] == []


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [("0.5", 0.5, 0.5), ("-1e2", -100, -100), ("ones", 1, 1), ("[[7, 8]]", 7, 8), ("true", 1, 1)],
)
@pytest.mark.parametrize("named", [True, False])
def test_numbers_fill_an_input(
    cli: Cli, tmp_path: Path, value: str, least: float, most: float, named: bool
) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["N", 2])}, {"y": (FLOAT, None)})
    found = run(cli, path, "-i", f"x={value}" if named else value)
    assert (found["outputs"][0]["min"], found["outputs"][0]["max"]) == (least, most)


def test_texts_and_flags(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["text"], ["same"]),
        helper.make_node("Not", ["flag"], ["other"]),
    ]
    inputs = {"text": (TEXT, ["n"]), "flag": (BOOL, [])}
    path = save(tmp_path / "m.onnx", nodes, inputs, {"same": (TEXT, None), "other": (BOOL, None)})
    (tmp_path / "text.txt").write_text("from a file\n")
    saved = tmp_path / "out.npz"
    for value, want in {
        "a b": ["a b"],
        '"a b"': ["a b"],
        '["a b", "c"]': ["a b", "c"],
        f"@{tmp_path}/text.txt": ["from a file"],
    }.items():
        result = cli(
            "run", path, "-i", f"text={value}", "-i", "flag=true", "-o", saved, "-d", "cpu"
        )
        assert result.status == 0, result.err
        with np.load(saved) as arrays:
            assert arrays["same"].tolist() == want
    assert run(cli, path, "-i", "flag=false")["outputs"][1]["max"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "x=cat.jpg"], "'cat.jpg' is an image"),
        (["-i", "cat.PNG"], "'cat.PNG' is an image"),
        (["-i", "x=talk.wav"], "'talk.wav' is a sound"),
        (["-i", "randon"], "did you mean random?"),
        (["-i", "x=zeroes"], "did you mean zeros?"),
        (["-i", "[1,2,3]"], "say which one: --input x=[1,2,3]"),
        (["-i", "x"], "--input x has no value"),
        (["-i", "raet=3"], "did you mean rate?"),
        (["-i", "rate=1.5"], "not all values are whole numbers"),
        (["-i", "rate=99999999999999999999"], "not all values are numbers"),
        (["-i", "x=[[1e300,0,0]]"], "a value is out of range"),
        (["-i", "x=1e300"], "a value is out of range"),
        (["-s", "ids=1,10000000000000"], "input 'ids' cannot have the shape"),
        (["-s", "ids=1,99999999999999999999"], "input 'ids' cannot have the shape"),
        (["-i", "ids=[[1],[2,3]]"], "differ in length"),
        (["-i", 'ids=["a"]'], "not all values are numbers"),
        (["-i", "ids=[1,"], "not valid JSON"),
        (["-i", "x=@nothing.json"], "no such file"),
        (["-s", "1,3"], "say which one: --shape x=1,3"),
        (["-s", "idz=1,3"], "did you mean ids?"),
        (["-s", "b=1,2"], "'b' is a dimension, and takes one size"),
    ],
)
def test_values_that_make_no_sense(cli: Cli, rates: Path, arguments: list[str], words: str) -> None:
    result = cli("run", rates, "-d", "cpu", *arguments)
    assert result.status == 1
    assert words in result.err
    assert "hint: " in result.err


def test_a_number_that_decides_is_told(cli: Cli, rates: Path) -> None:
    result = cli("run", rates, "-d", "cpu", "-s", "b=1", "-s", "n=4", "-s", "k=2")
    assert "rate was taken at random" in result.err
    assert "choose with -i rate=…" in result.err
    assert "ids was taken" not in result.err


# --- shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["2,3,32,48", "2x3x32x48", "[2, 3, 32, 48]", "x=2,3,32,48"])
def test_a_shape_without_a_name(cli: Cli, classifier: Path, text: str) -> None:
    found = run(cli, classifier, "-s", text)
    assert found["inputs"][0]["shape"] == [2, 3, 32, 48]
    assert found["notes"] == []


@pytest.mark.parametrize(
    ("shape", "rank", "taken"),
    [
        (["N", 3, "?", "?"], 2, [1, 3, 224, 224]),
        (["N", 3, "h", "w"], 4, [1, 3, 640, 640]),
        ([None, "num_channels", "height", "width"], 2, [1, 3, 224, 224]),
        ([1, 3, 48, None], 4, [1, 3, 48, 320]),
        ([1, 3, 256, "w"], 4, [1, 3, 256, 256]),
    ],
)
def test_sizes_of_pictures_are_guessed(
    cli: Cli, tmp_path: Path, shape: list[Any], rank: int, taken: list[int]
) -> None:
    path = convolution(tmp_path / "m.onnx", shape, rank)
    found = run(cli, path)
    assert found["inputs"][0]["shape"] == taken
    (note,) = found["notes"]
    sizes = ",".join(map(str, taken))
    assert note.startswith(f"x was taken as {taken}; choose with -s x={sizes}")


def test_a_size_that_the_network_takes_is_found(cli: Cli, tmp_path: Path) -> None:
    """Scores of a map of 14 x 14: only images of 224 fit."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((2, 3, 16, 16)).astype(np.float32),
        "m": rng.standard_normal((2 * 14 * 14, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"], strides=[16, 16]),
        helper.make_node("Flatten", ["map"], ["row"]),
        helper.make_node("MatMul", ["row", "m"], ["y"]),
    ]
    outputs = {"y": (FLOAT, None), "map": (FLOAT, None)}
    path = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [1, 3, "h", "w"])}, outputs, weights)
    assert run(cli, path)["inputs"][0]["shape"] == [1, 3, 224, 224]


def test_rows_are_not_pictures(cli: Cli, rates: Path) -> None:
    assert run(cli, rates, "-s", "n=2")["inputs"][0]["shape"] == [1, 2]


@pytest.mark.parametrize("name", ["?", "", "-1", "None"])
def test_anonymous_dimensions_have_no_name(
    cli: Cli, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = convolution(tmp_path / "m.onnx", [name, 3, name, name], 4)
    result = cli("run", path, "-s", "1,3,48,192")
    assert result.status == 0
    assert "without such names" not in result.err + caplog.text
    assert "[?, 3, ?, ?]" in cli("info", path).out


def _npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.ones((1, 3), np.float32))


def _npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones((1, 3), np.float32))


def _bad_deflate(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1000))
    data = bytearray(path.read_bytes())
    data[35:37] = b"\xff\xff"  # the first block of the compressed bytes
    path.write_bytes(data)


ARRAY_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "an archive called .npy": ("x.npy", _npz, ""),
    "an array called .npz": ("x.npz", _npy, ""),
    "the start of an archive": ("x.npy", lambda path: path.write_bytes(b"PK\3\4"), "not a zip"),
    "a damaged archive": ("x.npz", _bad_deflate, "cannot be read"),
    "a folder": ("x.npy", lambda path: path.mkdir(), "it is not a file"),
    "text": ("x.npz", lambda path: path.write_text("words"), "cannot be read"),
}


@pytest.mark.parametrize("kind", ARRAY_FILES)
def test_files_of_arrays(cli: Cli, tmp_path: Path, kind: str) -> None:
    name, write, words = ARRAY_FILES[kind]
    write(tmp_path / name)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, None)})
    result = cli("run", path, "-d", "cpu", "-i", f"x={tmp_path / name}")
    assert result.status == (1 if words else 0), result.err
    assert words in result.err


@pytest.mark.parametrize("output", ["out.npz", "out"])
def test_sequences_are_not_saved_as_arrays(cli: Cli, tmp_path: Path, output: str) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])]
    graph = helper.make_graph(
        nodes,
        "sequence",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("s", FLOAT, None)],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    result = cli("run", tmp_path / "m.onnx", "-d", "cpu", "-o", tmp_path / output)
    assert result.status == 1
    assert "output 's' cannot be saved: it is a list" in result.err
    assert not (tmp_path / output).exists()


def test_plans_ask_for_the_rank_too(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": (FLOAT, None)}, {"y": (FLOAT, None)})
    for command in (["run", path, "-d", "cpu"], ["plan", path, "--as", "adreno-740"]):
        result = cli(*command)
        assert result.status == 1
        assert "does not say the rank of input 'x'" in result.err
