"""`vkmnn.compare` and `vkmnn compare`: the first tensor that differs, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.model.networks import NETWORKS
from vkmnn.cli.app import run_cli
from vkmnn.comparison import difference, references
from vkmnn.comparison import run as comparing
from vkmnn.errors import HostError, InvalidInputError, MissingExtraError

FROZEN = Path(__file__).resolve().parents[1] / "data" / "tensorflow" / "cnn.pb"
REFERENCES = ("onnxruntime", "cpu")
X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


def need(reference: str) -> None:
    if reference == "onnxruntime":
        pytest.importorskip("onnxruntime")


def chain() -> onnx.ModelProto:
    """Return a model of four nodes that no pass fuses, x [3, 4] to y [4, 3]."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="first", axis=1),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="second"),
        helper.make_node("Softmax", ["b"], ["c"], name="third", axis=1),
        helper.make_node("Transpose", ["c"], ["y"], name="last", perm=[1, 0]),
    ]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3]),
    ]
    weights = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    constants = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device compute b[1, 2], and what follows from it, wrongly: by 0.5, then by 0.25."""
    real = comparing.values_of

    def values_of(network: Any, config: Any) -> Any:
        compute = real(network, config)

        def values(feeds: Any, names: Any) -> dict[str, Any]:
            made = {name: value.copy() for name, value in compute(feeds, names).items()}
            for name, at, error in (("b", (1, 2), 0.5), ("c", (0, 1), 0.25), ("y", (1, 0), 0.25)):
                if name in made:
                    made[name][at] += error
            return made

        return values

    monkeypatch.setattr(comparing, "values_of", values_of)


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_first_that_differs(reference: str, wrong: None) -> None:
    need(reference)
    found = vkmnn.compare(chain(), {"x": X}, reference, "cpu")
    assert [row.name for row in found] == ["a", "b", "c", "y"]
    assert [row.status for row in found] == ["same", "differs", "differs", "differs"]
    assert not found.ok
    first = found.first
    assert first is not None
    assert (first.node, first.at, first.shape) == ("second (MatMul)", (1, 2), (3, 4))
    assert first.have is not None
    assert first.want is not None
    assert first.have - first.want == pytest.approx(0.5, rel=1e-6)
    assert first.largest == pytest.approx(0.5, rel=1e-6)
    a = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    b = a @ np.linspace(-1, 1, 16).reshape(4, 4)
    assert first.relative == pytest.approx(0.5 / np.ptp(b), rel=1e-4)
    assert first.want == pytest.approx(b[1, 2], rel=1e-4)
    assert "'b' of second (MatMul) is the first to differ" in str(found)
    assert repr(found) == "<vkmnn.Comparison: 3 of 4 tensors differ>"
    assert vkmnn.compare(chain(), {"x": X}, reference, "cpu", tolerance=10).ok


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("name", ["resnet", "bert", "vit"])
def test_networks_agree_and_fused_tensors_are_listed(reference: str, name: str) -> None:
    need(reference)
    model = NETWORKS[name].build()
    rng = np.random.default_rng(0)
    feeds = {
        info.name: rng.integers(0, 2, [1, 8]).astype(np.int64)
        if info.type.tensor_type.elem_type == TensorProto.INT64
        else rng.standard_normal([1, 3, 32, 32]).astype(np.float32)
        for info in model.graph.input
    }
    if name == "vit":
        feeds = {"x": rng.standard_normal([1, 3, 224, 224]).astype(np.float32)}
    found = vkmnn.compare(model, feeds, reference, "cpu")
    assert found.ok, str(found)
    compared = [row for row in found if row.compared]
    assert len(compared) > 10
    assert {row.status for row in found} <= {"same", "fused", "constant", "removed"}
    fused = [row for row in found if row.status == "fused"]
    assert fused
    assert all(row.into for row in fused)
    if name == "resnet":
        assert fused[0].into == "Convolution 'Conv_0'"
    outputs = [row.name for row in found if row.output]
    assert outputs == [info.name for info in model.graph.output]
    only = vkmnn.compare(model, feeds, reference, "cpu", layers=False)
    assert [row.name for row in only] == outputs


def test_tensors_are_compared_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    whole = vkmnn.compare(chain(), {"x": X}, "onnxruntime", "cpu")
    seen: list[tuple[int, int]] = []
    for name, value in (("GROUP_TENSORS", 1), ("GROUP_BYTES", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(comparing, name, value)
            parts = vkmnn.compare(
                chain(), {"x": X}, "onnxruntime", "cpu", progress=lambda *at: seen.append(at)
            )
        assert parts == whole
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)] * 2


def test_other_formats(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with vkmnn.InferenceSession(FROZEN, "cpu") as session:
        (arg,) = session.get_inputs()
        shape = [size if isinstance(size, int) else 1 for size in arg.shape]
    feeds = {arg.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    for reference in REFERENCES:
        found = vkmnn.compare(FROZEN, feeds, reference, "cpu")
        assert found.ok, str(found)
        assert sum(row.compared for row in found) > 2
    vkmnn.convert(FROZEN, tmp_path / "m.vkmnn")
    assert vkmnn.compare(tmp_path / "m.vkmnn", feeds, "cpu", "cpu").ok
    with pytest.raises(InvalidInputError, match=r"onnxruntime does not read 'm\.vkmnn'"):
        vkmnn.compare(tmp_path / "m.vkmnn", feeds, "onnxruntime", "cpu")


@pytest.mark.parametrize("name", ["tensorflow/loops.pb", "tflite/cnn_uint8.tflite"])
def test_loops_and_quantised_values_of_other_formats(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    model = FROZEN.parents[1] / name
    for reference in REFERENCES:
        arguments = ["compare", str(model), "-d", "cpu", "--with", reference, "--tolerance", "0.02"]
        assert run_cli(arguments) == 0, capsys.readouterr()


def test_external_data_and_devices(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = chain()
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    assert vkmnn.compare(path, {"x": X}, "onnxruntime", "cpu").ok
    assert vkmnn.compare(path, {"x": X}, "cpu", "cpu").ok
    if vkmnn.devices():
        found = vkmnn.compare(path, {"x": X}, "auto", "cpu")
        assert found.ok
        assert found.reference != found.device


def test_references_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    model = chain()
    model.graph.node[1].CopyFrom(
        helper.make_node("QuickGelu", ["a"], ["b"], domain="com.microsoft")
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert vkmnn.compare(model, {"x": X}, "onnxruntime", "cpu").ok
    model.graph.node[1].attribute.append(helper.make_attribute("nonsense", 1))
    with pytest.raises(HostError, match="onnxruntime cannot run the model") as caught:
        vkmnn.compare(model, {"x": X}, "onnxruntime", "cpu")
    assert caught.value.hint
    with pytest.raises(InvalidInputError, match="'y'"):
        vkmnn.compare(chain(), {"y": X}, "cpu", "cpu")
    monkeypatch.setattr(references.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="not installed"):
        vkmnn.compare(chain(), {"x": X}, "onnxruntime", "cpu")


def test_differences_of_odd_values() -> None:
    inf, nan = np.inf, np.nan
    for have, want, largest in (
        ([1.0, inf, nan], [1.0, inf, nan], 0.0),
        ([1.0, inf], [1.0, 2.0], inf),
        ([nan], [1.0], inf),
        ([-inf], [inf], inf),
        ([], [], 0.0),
        ([1.0], [1.0, 2.0], inf),
    ):
        assert difference(np.array(have), np.array(want))[0] == largest


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "chain.onnx"
    onnx.save(chain(), path)
    np.save(tmp_path / "x.npy", X / 2)
    return path


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ["compare", str(model), "-d", "cpu", "-i", f"x={tmp_path / 'x.npy'}"]
    assert run_cli(arguments) == 0
    assert "1 tensor agrees with onnxruntime" in capsys.readouterr().out
    low = [*arguments, "--tolerance", "0.01"]
    assert run_cli(low) == 0


def test_the_command_finds_the_first(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: None
) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ["compare", str(model), "-d", "cpu", "-i", f"x={tmp_path / 'x.npy'}"]
    assert run_cli(arguments) == 1
    told = capsys.readouterr().out
    assert "'b' of second (MatMul) is the first to differ" in told
    assert "  ✓  a " in told
    assert run_cli([*arguments, "--with", "cpu", "--layers", "--json"]) == 1
    whole = json.loads(capsys.readouterr().out)
    assert (whole["command"], whole["ok"], whole["first"]) == ("compare", False, "b")
    assert [row["name"] for row in whole["tensors"]] == ["a", "b", "c", "y"]
    page = tmp_path / "page.html"
    assert run_cli([*arguments, "--html", str(page)]) == 1
    text = page.read_text("utf-8")
    assert text.count('<tr class="wrong">') == 3
    assert "http" not in text.replace("http://www.w3.org", "")
    assert run_cli([*arguments, "--html", str(tmp_path / "none" / "page.html")]) == 1
    assert "page cannot be written" in capsys.readouterr().err
    assert run_cli([*arguments, "--with", "nosuch"]) == 1


def test_run_hands_over(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ["run", str(model), "-d", "cpu", "--compare", "onnxruntime"]
    assert run_cli(arguments) == 0
    assert "vkmnn compare" not in capsys.readouterr().err
    assert run_cli([*arguments, "--tolerance", "-1"]) == 1
    told = capsys.readouterr().err.replace("\n", " ")
    assert "--with onnxruntime finds the first tensor that differs" in told
