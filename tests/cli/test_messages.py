"""Messages of commands about wrong files, devices and results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import vkmnn
from tests.cli.conftest import FLOAT, Cli, convolution, save
from vkmnn.comparison import references


@pytest.mark.parametrize("command", ["run", "profile", "tune", "info", "convert", "quantize"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<html>", "is a web page"),
        (b"", "is empty"),
    ],
)
def test_files_of_other_formats(
    cli: Cli, tmp_path: Path, command: str, content: bytes, words: str
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    more = {"convert": ["out.vkmnn"], "quantize": ["out.onnx", "-w", "int8"]}.get(command, [])
    result = cli(command, path, *more)
    assert result.status == 1
    assert result.err.startswith("error: ")
    assert words in result.err
    assert "hint: " in result.err


def test_folders_of_language_models(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    (folder / "onnx").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    convolution(folder / "onnx" / "model.onnx", ["N", 3, 32, 32], 2)
    for command in ("run", "profile", "bench"):
        result = cli(command, folder, "-d", "cpu")
        assert result.status == 1
        assert "is the folder of a language model" in result.err
        assert "vkmnn generate FOLDER" in result.err
    result = cli("quantize", folder, tmp_path / "q.onnx", "-w", "int4")
    assert result.status == 1
    assert "quantize writes single .onnx files" in result.err
    assert "onnx/model.onnx" in result.err.replace("\n", "")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m.gguf", b"GGUF\x03\0\0\0", "'m.gguf' is damaged: it ends too early"),
        ("m.onnx", b"\x08\x08", "'m.onnx' is a file, not the folder"),
        ("m.safetensors", b"\x02\0\0\0\0\0\0\0{}", "'m.safetensors' is a safetensors file"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "hello"], ["chat"]])
def test_language_models_that_are_files(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    name: str,
    content: bytes,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    result = cli(command[0], name, *command[1:])
    assert result.status == 1
    assert words in result.err
    assert "hint: " in result.err


# --- devices and comparisons ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda", 'write "auto"'), ("nosuchcard", "a selector is"), ("onnxruntime", "vkmnn bench")],
)
def test_devices_that_are_not_there(cli: Cli, classifier: Path, device: str, words: str) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    result = cli("run", classifier, "-d", device, "-s", "1,3,32,32")
    assert result.status == 1
    assert words in result.err


@pytest.mark.parametrize("name", ["onnxruntime", "ort", "cpu"])
def test_comparisons(cli: Cli, classifier: Path, name: str) -> None:
    if name != "cpu":
        pytest.importorskip("onnxruntime")
    small = ("-s", "2,3,32,32", "-d", "cpu")
    result = cli("run", classifier, *small, "--compare", name)
    assert result.status == 0
    expected = "onnxruntime (CPU)" if name != "cpu" else "CPU (numpy backend)"
    assert f"Difference from {expected}" in result.out
    strict = cli("run", classifier, *small, "--compare", name, "--tolerance", -1, "--json")
    assert strict.status == 1
    compared = json.loads(strict.out)["comparison"]
    assert (compared["with"], compared["ok"]) == (expected, False)


def test_comparisons_are_refused_before_the_run(
    cli: Cli, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "m.vkmnn"
    vkmnn.convert(classifier, packed)
    cases = {"nosuchcard": "no device matches"} if vkmnn.devices() else {}
    for name, words in cases.items():
        result = cli("run", classifier, "-s", "1,3,32,32", "-d", "cpu", "--compare", name)
        assert (result.status, result.out) == (1, "")
        assert words in result.err
    monkeypatch.setattr(references.importlib.util, "find_spec", lambda name: object())
    result = cli("run", packed, "-d", "cpu", "--compare", "onnxruntime")
    assert (result.status, result.out) == (1, "")
    assert "onnxruntime does not read 'm.vkmnn'" in result.err
    monkeypatch.setattr(references.importlib.util, "find_spec", lambda name: None)
    result = cli("run", classifier, "-d", "cpu", "--compare", "onnxruntime")
    assert (result.status, result.out) == (1, "")
    assert "pip install onnxruntime" in result.err


@pytest.mark.parametrize("name", ["out.txt", "out.npy", "out.JSON"])
def test_outputs_are_no_files_of_other_kinds(
    cli: Cli, classifier: Path, tmp_path: Path, name: str
) -> None:
    result = cli("run", classifier, "-d", "cpu", "-s", "1,3,32,32", "-o", tmp_path / name)
    assert (result.status, result.out) == (1, "")
    assert f"not saved as {Path(name).suffix.lower()} files" in result.err
    assert "-o out.npz" in result.err
    assert not (tmp_path / name).exists()


# --- quantize -----------------------------------------------------------------------------------


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return convolution(tmp_path / "wide.onnx", ["N", 3, "?", "?"], 2, channels=512)


@pytest.mark.parametrize("way", [("int8",), ("int8", "-a", "uint8"), ("int4",)])
def test_what_is_quantised_already(
    cli: Cli, tmp_path: Path, wide: Path, way: tuple[str, ...]
) -> None:
    pytest.importorskip("onnxruntime")
    small = ("-d", "cpu", "-s", "1,3,32,32")
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32))
    more = ("--calibrate", data) if len(way) > 1 else ()
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    first = cli("quantize", wide, once, "-w", "int8", *way[1:], *more, *small)
    assert first.status == 0, first.err
    assert once.exists()
    again = cli("quantize", once, twice, "-w", *way, *more, *small)
    assert again.status == 1
    assert "the model is already quantised (" in again.err
    assert "nothing was written" in again.err
    assert not twice.exists()


def test_int4_is_advised_against_for_convolutions(cli: Cli, tmp_path: Path, wide: Path) -> None:
    pytest.importorskip("onnxruntime")
    arguments = (wide, tmp_path / "q.onnx", "-w")
    narrow = cli("quantize", *arguments, "int4", "-s", "1,3,32,32", "-d", "cpu", "--json")
    advice = json.loads(narrow.out)["advice"]
    assert "int4 leaves the weights of 1 convolution in float" in advice
    assert "--weights int8" in advice
    assert advice in narrow.err.replace("\n", " ")
    fine = cli("quantize", *arguments, "int8", "-s", "1,3,32,32", "-d", "cpu", "--json")
    assert json.loads(fine.out)["advice"] is None


def test_quantize_says_what_it_takes(cli: Cli, tmp_path: Path, wide: Path) -> None:
    pytest.importorskip("onnxruntime")
    arguments = ("quantize", wide, tmp_path / "q.onnx", "-w", "int8", "-d", "cpu")
    result = cli(*arguments, "-x", "frist")
    assert result.status == 1
    assert "did you mean first?" in result.err
    unlike = cli(*arguments, "-x", "zzz")
    assert "nodes: " in unlike.err
    guessed = cli(*arguments)
    assert guessed.status == 0
    assert "x was taken as [1, 3, 224, 224]" in guessed.err


# --- plan, profile, doctor ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "measured"),
    [("nvidia-h200", True), *[(name, False) for name in ("raspberry-pi-4", "raspberry-pi-5")]],
)
def test_plans_tell_whether_they_were_measured(
    cli: Cli, classifier: Path, profile: str, measured: bool
) -> None:
    result = cli("plan", classifier, "--as", profile, "--alone", "-s", "1,3,32,32")
    assert ("nothing has been measured for" in result.err) is not measured
    document = json.loads(
        cli("plan", classifier, "--as", profile, "--alone", "-s", "1,3,32,32", "--json").out
    )
    assert document["sources"][profile]["constants_from"].startswith("measured") is measured


@pytest.mark.parametrize("width", [80, 110, 160])
def test_rows_of_a_plan_are_lines(
    cli: Cli, classifier: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    from vkmnn.cli.console import out

    monkeypatch.setattr(out, "width", width)
    shown = cli("plan", classifier, "--as", "nvidia-h200", "--alone", "-s", "1,3,64,64").out
    lines = shown.partition("predicted")[0].splitlines()
    rows = [line for line in lines if re.match(r"\s+\d+ ", line)]
    plan = cli("plan", classifier, "--as", "nvidia-h200", "--alone", "-s", "1,3,64,64", "--json")
    steps = json.loads(plan.out)["steps"]
    assert len(rows) == len(steps)
    for row, step in zip(rows, steps, strict=True):
        assert step["kernel"] in row
    assert len([line for line in lines if line.strip()]) == len(rows) + 3  # title, head, rule


def test_heads_of_the_plan_page_do_not_touch() -> None:
    from importlib.resources import files

    css = (files("vkmnn.cli") / "pages.css").read_text("utf-8")
    (rule,) = re.findall(r"^th \{([^}]*)\}", css, re.MULTILINE)
    assert re.search(r"padding: [1-9]\d*px [1-9]\d*px", rule)


def test_small_screens_leave_out_numbers_of_rows_only() -> None:
    from importlib.resources import files

    from vkmnn.cli import pages

    css = (files("vkmnn.cli") / "pages.css").read_text("utf-8")
    for line in re.findall(r"^.*first-child.*$", css, re.MULTILINE):
        assert line.strip().startswith(".numbered ")
    assert "numbered" in pages.table(("#", "op"), [["1", "Conv"]], {0})
    assert "numbered" not in pages.table(("term", "µs"), [["start", "1"]], {1})


def test_the_gap_of_a_profile_is_explained() -> None:
    from vkmnn.cli.profile import _summary
    from vkmnn.core.profile import Profile

    def summary(wall_us: float) -> str:
        return _summary(Profile((), "VULKAN", 3, 1000.0, wall_us, 100.0))

    assert "pass between submit and first step" in summary(9000.0)
    assert "the other 7.90 ms" in summary(9000.0)
    assert "the other" not in summary(1150.0)


# --- the host -------------------------------------------------------------------------------------


def test_ops_of_the_host_are_told_once(cli: Cli, tmp_path: Path) -> None:
    """Those inside branches are counted separately, and only once when a branch is opened."""
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    pytest.importorskip("onnxruntime")

    def branch(name: str, factor: float) -> object:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], [f"{name}_p"]),
            helper.make_node("RandomNormalLike", [f"{name}_p"], [f"{name}_r"]),
            helper.make_node("Mul", [f"{name}_p", f"{name}_r"], [f"{name}_y"]),
        ]
        infos = [helper.make_tensor_value_info(f"{name}_y", FLOAT, None)]
        return helper.make_graph(nodes, name, [], infos)

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["positive"], to=9),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branch("a", 1), else_branch=branch("b", 2)
        ),
    ]
    weights = {"w": np.ones((256, 256), np.float32)}
    inputs = {"x": (FLOAT, [64, 256])}
    path = save(tmp_path / "m.onnx", nodes, inputs, {"y": (FLOAT, None)}, weights)
    result = cli("run", path, "-d", 0)
    assert result.status == 0, result.err
    told = [line for line in result.err.splitlines() if line.startswith("warning")]
    assert len(told) == 1, result.err
    assert re.search(r"2 ops inside branches and loops run on the host", told[0])


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1000, "1000 nodes")]
)
def test_plurals(count: int, words: str) -> None:
    from vkmnn.errors import plural

    assert plural(count, "node") == words
    assert plural(count, "copy", "copies").endswith("copy" if count == 1 else "copies")


def test_no_message_has_a_plural_in_brackets() -> None:
    """Texts of the package do not write `node(s)`."""
    package = Path(vkmnn.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\"[^\"]*[a-z]{2}\(s\)[^\"]*\"", line) and "exp(s)" not in line
    ]
    assert found == []


@pytest.mark.parametrize("kind", ["Placement", "Profile", "DeviceInfo", "BoundRun"])
def test_public_objects_show_in_a_line(kind: str) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.ones((2, 4), np.float32)}
    with vkmnn.InferenceSession(model, 0) as session:
        with pytest.raises(vkmnn.InvalidInputError, match="no plan yet") as caught:
            session.placement()
        assert "resize" not in str(caught.value)
        session.prepare([{"x": (3, 4)}])
        session.run(None, feeds)
        shown = {
            "Placement": session.placement(),
            "Profile": session.profile(feeds, 1),
            "DeviceInfo": session.device,
            "BoundRun": session.bind(feeds),
        }[kind]
        assert repr(shown).startswith(f"<vkmnn.{kind}")
        assert len(repr(shown)) < 150


def test_names_of_the_package() -> None:
    names = {name for name in dir(vkmnn) if not name.startswith("__")}
    assert names == {*vkmnn.__all__, "llm", "mnn", "onnxruntime", "ray", "torch"}
    assert vkmnn.onnxruntime.InferenceSession
    assert vkmnn.mnn.__name__ == "vkmnn.mnn"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nosuch.comp", "the file 'nosuch.comp' does not exist"),
        ("folder/x.spv", "does not exist"),
        (b"\x03\x02\x23\x07\0\0\1\0", "the source is SPIR-V"),
        (b"tensor_in", "the source is bytes"),
        ("#version 450\nvoid main() {}", "the source is plain GLSL"),
        (None, "not NoneType"),
    ],
)
def test_shaders_from_elsewhere(source: object, words: str) -> None:
    with pytest.raises(vkmnn.ShaderError, match=re.escape(words)) as caught:
        vkmnn.shader(source)  # type: ignore[arg-type]
    assert caught.value.hint
