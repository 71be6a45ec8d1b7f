"""The command line from a user's perspective."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.cli.app import run_cli

ROOT = Path(__file__).resolve().parents[2]
WEIGHT = np.linspace(-1, 1, 3 * 10, dtype=np.float32).reshape(3, 10)


class Result(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Result:
        capsys.readouterr()
        status = run_cli([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture(params=["0", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "0" and not vkmnn.devices():
        pytest.skip("no Vulkan device")
    return str(request.param)


def save(path: Path, nodes: list[onnx.NodeProto], **outputs: int) -> Path:
    """Save a model with inputs x [N, 3] float32 and ids [N] int64, and a weight `w` [3, 10]."""
    graph = helper.make_graph(
        nodes,
        "scores",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"]),
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="somebody",
        producer_version="1.2",
    )
    onnx.save(model, path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], name="multiply"),
        helper.make_node("Cast", ["ids"], ["shifts"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("Relu", ["shifts"], ["moved"], name="rectify"),
    ]
    outputs = {"scores": TensorProto.FLOAT, "moved": TensorProto.FLOAT}
    return save(tmp_path / "scores.onnx", nodes, **outputs)


# --- the frame ---------------------------------------------------------------------------------


def test_help_lists_the_commands(cli: Cli) -> None:
    result = cli("--help")
    assert result.status == 0
    for command in ("devices", "doctor", "run", "info", "ops", "profile", "plan", "bench", "tune"):
        assert command in result.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith(f"vkmnn {vkmnn.__version__} ")


@pytest.mark.parametrize("arguments", [["fly"], ["run"], ["run", "--nonsense"], ["info"]])
def test_wrong_usage(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert "Usage: vkmnn" in result.err


def test_an_error_shows_its_hint_and_no_traceback(cli: Cli) -> None:
    result = cli("run", "/nowhere/model.onnx")
    assert result.status == 1
    assert result.err.startswith("error: no such file")
    assert "\nhint: " in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_a_name_that_is_too_long(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("info", "a" * 300)
    assert result.status == 1
    assert "\nhint: " in result.err
    assert "Traceback" not in result.err
    monkeypatch.setenv("VKMNN_DEBUG", "1")
    with pytest.raises(OSError, match="too long"):
        cli("info", "a" * 300)


@pytest.mark.parametrize("way", ["option", "variable"])
def test_debug_raises(cli: Cli, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("VKMNN_DEBUG", "1" if way == "variable" else "0")
    with pytest.raises(vkmnn.ModelError):
        cli(*(["--debug"] if way == "option" else []), "info", "/nowhere/model.onnx")


def test_log_levels(cli: Cli, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    assert "debug: " not in cli("run", model, "-d", "cpu", "-s", "N=1").err
    monkeypatch.setenv("VKMNN_LOG", "Debug")
    assert "debug: vkmnn.converter" in cli("run", model, "-d", "cpu", "-s", "N=1").err
    monkeypatch.setenv("VKMNN_LOG", "loud")
    result = cli("devices")
    assert result.status == 1
    assert "VKMNN_LOG='loud'" in result.err


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vkmnn", "--version"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"vkmnn ")


def test_without_its_packages() -> None:
    """Packages that pip did not install are named, in one line."""
    code = (
        "import importlib.util\n"
        "from vkmnn.cli import main\n"
        "importlib.util.find_spec = lambda name: None\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "hint: pip install typer rich" in done.stderr
    assert "Traceback" not in done.stderr


# --- run ---------------------------------------------------------------------------------------


def test_run_on_made_up_inputs(cli: Cli, device: str, model: Path) -> None:
    result = cli("run", model, "--device", device)
    assert result.status == 0
    assert result.out.startswith("scores.onnx on ")
    assert "[1, 10]" in result.out
    assert "first run " in result.out
    assert "x was taken as [1, 3]; choose with -s x=…" in result.err


def test_assumed_sizes_are_told_where_they_do_not_fit(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
        helper.make_node("Reshape", ["twice", "ids"], ["y"]),
    ]
    model = save(tmp_path / "strict.onnx", nodes, y=TensorProto.FLOAT)
    result = cli("run", model)
    assert result.status == 1
    assert "x was taken as [1, 3]; choose with -s x=…" in result.err


def test_run_on_files_and_save(cli: Cli, device: str, model: Path, tmp_path: Path) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    ids = np.array([3, -1, 4, -1, 5])
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "both.npz", x=x, ids=ids)
    np.savez(tmp_path / "one.npz", something=ids)
    ways = (
        ["-i", f"x={tmp_path}/x.npy", "-i", f"ids={tmp_path}/one.npz"],
        ["-i", f"{tmp_path}/both.npz"],
        ["-i", f"x={tmp_path}/both.npz", "-i", f"ids={tmp_path}/both.npz"],
    )
    for number, way in enumerate(ways):
        for output in (tmp_path / f"{number}.npz", tmp_path / f"folder{number}"):
            result = cli("run", model, "-d", device, *way, "-o", output)
            assert (result.status, result.err) == (0, "")
            if output.suffix:
                with np.load(output) as archive:
                    saved = dict(archive)
            else:
                saved = {path.stem: np.load(path) for path in output.iterdir()}
            assert set(saved) == {"scores", "moved"}
            np.testing.assert_allclose(saved["scores"], x @ WEIGHT, rtol=1e-5, atol=1e-4)
            np.testing.assert_array_equal(saved["moved"], np.maximum(ids, 0))


def test_run_shows_statistics_and_the_highest_classes(cli: Cli, model: Path) -> None:
    result = cli("run", model, "-d", "cpu", "-i", "x=ones", "-i", "ids=zeros", "-n", 3)
    scores = WEIGHT.sum(0)
    line = next(line for line in result.out.splitlines() if line.split()[:1] == ["scores"])
    assert [float(text) for text in line.split()[-3:]] == pytest.approx(
        [scores.min(), scores.max(), scores.mean()], abs=1e-5
    )
    top = result.out.partition("highest of 'scores'")[2].splitlines()[3:8]
    assert [int(line.split()[0]) for line in top] == [9, 8, 7, 6, 5]
    assert "highest of 'moved'" not in result.out
    assert "median of 3" in result.out


def test_shapes_of_inputs_and_of_symbols(cli: Cli, model: Path) -> None:
    for shapes in (["-s", "N=4"], ["-s", "x=4,3"], ["-s", "ids=4"]):
        result = cli("run", model, "-d", "cpu", *shapes)
        assert "[4, 10]" in result.out, shapes
        assert result.err == ""


def test_random_inputs_have_a_seed(cli: Cli, model: Path, tmp_path: Path) -> None:
    saved = []
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        path = tmp_path / f"{name}.npz"
        cli("run", model, "-d", "cpu", "--seed", seed, "-s", "N=2", "-o", path)
        with np.load(path) as archive:
            saved.append(archive["scores"])
    np.testing.assert_array_equal(saved[0], saved[1])
    assert not np.array_equal(saved[0], saved[2])


def test_compare(cli: Cli, device: str, model: Path) -> None:
    good = cli("run", model, "-d", device, "--compare", "cpu", "-s", "N=5")
    assert good.status == 0
    assert good.out.count("✓") == 2
    bad = cli("run", model, "-d", device, "--compare", "cpu", "-s", "N=5", "--tolerance", -1)
    assert bad.status == 1
    assert bad.out.count("✗") == 2


def test_precision(cli: Cli, device: str, model: Path) -> None:
    """Halves differ from float32 by more than the usual tolerance, and the output says so."""
    result = cli(
        "run", model, "-d", device, "-s", "N=5", "--precision", "normal", "--compare", "cpu"
    )
    assert result.status == 0
    halves = device == "cpu" or "storage16" in vkmnn.devices()[0].features
    assert (", float16 storage" in result.out) == halves
    assert ('precision "normal" runs as "high"' in result.err) == (not halves)
    strict = cli("run", model, "-d", device, "-s", "N=5", "-p", "normal", "--compare", "cpu",
                 "--tolerance", 1e-6)  # fmt: skip
    assert strict.status == int(halves)
    unknown = cli("run", model, "-d", device, "--precision", "half")
    assert unknown.status == 1
    assert "unknown precision 'half'" in unknown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "x=nothing.npy"], "no such file: 'nothing.npy'"),
        (["-i", "x=ten"], "neither a number, JSON"),
        (["-i", "y=ones"], "no input 'y'"),
        (["-i", "something"], "no input 'something'"),
        (["-i", "nothing.npz"], "no such file: 'nothing.npz'"),
        (["-s", "x=1,two"], "not a list of sizes"),
        (["-s", "x=-1,3"], "not a list of sizes"),
        (["-s", "x"], "not a list of sizes"),
        (["-s", "M=3"], "no input and no dimension 'M'"),
        (["-s", "N=3,4"], "'N' is a dimension, and takes one size"),
        (["-s", "x=2,5"], "has shape [N, 3], got [2, 5]"),
        (["-d", "no such card"], "no device matches 'no such card'"),
        (["-o", "/proc/nowhere/out"], "cannot be saved"),
        (["-o", "/proc/nowhere.npz"], "cannot be saved"),
        (["-o", "/nonexistent/dir/x.npz"], "cannot be saved to '/nonexistent/dir/x.npz'"),
        (["-o", __file__], "its name does not end with .npz"),
    ],
)
def test_options_that_make_no_sense(
    cli: Cli, model: Path, arguments: list[str], words: str
) -> None:
    result = cli("run", model, *(["-d", "cpu"] if "-d" not in arguments else []), *arguments)
    assert result.status == 1
    assert words in result.err
    assert "hint: " in result.err
    assert "Traceback" not in result.err


def test_damaged_files(cli: Cli, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    np.save(tmp_path / "wide.npy", np.zeros((1, 3)))
    for path in sorted(tmp_path.glob("*.np?")):
        result = cli("run", model, "-d", "cpu", "-i", f"x={path}")
        assert (result.status, "hint: " in result.err) == (1, True), path
        assert "Traceback" not in result.err


def test_values_that_are_not_finite_are_told(cli: Cli, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[np.nan, 1, 1]], np.float32))
    result = cli("run", model, "-d", "cpu", "-i", f"x={tmp_path}/x.npy")
    assert result.status == 0
    assert "10 of the 10 values of 'scores' are not finite" in result.err


def test_ops_off_the_device_are_told(cli: Cli, tmp_path: Path) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], name="widen", to=TensorProto.DOUBLE),
        helper.make_node("Sqrt", ["wide"], ["root"], name="wide_root"),
        helper.make_node("Cast", ["root"], ["y"], name="narrow", to=TensorProto.FLOAT),
    ]
    path = save(tmp_path / "wide.onnx", nodes, y=TensorProto.FLOAT)
    result = cli("run", path, "-d", "0", "-s", "N=2")
    assert result.status == 0
    assert "ops run on numpy, not on the device" in result.err
    assert "float64" in result.err


# --- info --------------------------------------------------------------------------------------


def test_info(cli: Cli, model: Path) -> None:
    result = cli("info", model, "--shape", "N=7")
    assert result.status == 0
    text = result.out
    for words in (
        "scores.onnx",
        "ai.onnx 17; IR version 8",
        "somebody 1.2",
        "[N, 3]",
        "int64",
        "30 (120 B)",
        "3: Cast 1, MatMul 1, Relu 1",
    ):
        assert words in text
    assert f"{2 * 7 * 3 * 10 + 7 + 7} FLOP" in text  # product, Cast, Relu


def test_info_without_shapes(cli: Cli, model: Path) -> None:
    assert "unknown: input x [N, 3] has no fixed shape; give --shape" in cli("info", model).out


def test_info_of_tensors(cli: Cli, model: Path) -> None:
    result = cli("info", model, "--tensors", "-s", "N=7")
    rows = [line.split() for line in result.out.splitlines()]
    assert ["scores", "float32", "[7,", "10]", "MatMul"] in rows


def test_info_lists_all_that_nothing_runs(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], name="find"),
        helper.make_node("Relu", ["x"], ["y"], name="fine"),
        helper.make_node("Frobnicate", ["x"], ["z"], name="strange"),
    ]
    outputs = {"places": TensorProto.INT64, "y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    result = cli("info", save(tmp_path / "odd.onnx", nodes, **outputs))
    assert result.status == 1
    assert "1 node that nothing runs" in result.out
    for words in ("Frobnicate", "strange", "somebody"):
        assert words in result.out
    assert "Traceback" not in result.err


# --- outputs that cannot be written ------------------------------------------------------------


def shell(command: str, model: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a shell; `vkmnn` and `$MODEL` denote it and a model."""
    return subprocess.run(
        ["bash", "-c", command.replace("vkmnn", f"{sys.executable} -m vkmnn")],
        env={**os.environ, "MODEL": str(model)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_of_one_line(model: Path) -> None:
    done = shell("vkmnn info $MODEL > /dev/full", model)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: ")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("command", ["vkmnn info $MODEL >&-", "vkmnn run nothing.onnx 2>&-"])
def test_closed_streams(model: Path, command: str) -> None:
    done = shell(command, model)
    assert done.returncode == int("nothing" in command)
    assert "Traceback" not in done.stdout + done.stderr


def test_an_array_that_claims_to_be_huge(cli: Cli, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "huge.npy"
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 3)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    result = cli("run", model, "-d", "cpu", "-i", f"x={path}")
    assert result.status == 1
    assert "cannot be read" in result.err


# --- ops ---------------------------------------------------------------------------------------


def test_ops_lists_everything(cli: Cli) -> None:
    result = cli("ops")
    assert result.status == 0
    rows = {tuple(line.split()[:2]): line.split() for line in result.out.splitlines() if line}
    conv = rows["Conv", "ai.onnx"]
    assert conv[2:5] == ["7+", "direct", "Vulkan"]
    assert rows["Transpose", "ai.onnx"][-1] == "geometry"
    assert rows["Shape", "ai.onnx"][-1] == "host"
    assert "function body" in result.out


def test_ops_of_mnn_files(cli: Cli) -> None:
    result = cli("ops", "--mnn")
    assert result.status == 0
    cells = [line.split() for line in result.out.splitlines()]
    rows = {line[0]: line[1] for line in cells if line[1:] in (["yes"], ["no"])}
    assert {rows[op] for op in ("Convolution", "Input", "If", "TopKV2")} == {"yes"}
    assert {rows[op] for op in ("Attention", "ConvInt8")} == {"no"}
    assert f"of {len(rows)} ops" in result.out
    assert cli("ops", "--format", "mnn").out == result.out
    some = cli("ops", "--format", "mnn", "conv")
    assert "Convolution" in some.out
    assert "TopKV2" not in some.out
    none = cli("ops", "--mnn", "Convolutoin")
    assert none.status == 1
    assert "did you mean Convolution?" in none.out + none.err
    other = cli("ops", "--format", "mn")
    assert (other.status, "did you mean mnn?" in other.out + other.err) == (1, True)


def test_ops_of_a_name(cli: Cli) -> None:
    one = cli("ops", "conv")
    assert "ConvTranspose" not in one.out
    assert "Convolution" in one.out
    many = cli("ops", "Reduce")
    assert "ReduceL1" in many.out
    assert "ReduceMax" in many.out


def test_ops_say_what_is_declared(cli: Cli) -> None:
    lines = cli("ops", "LRN").out.splitlines()
    assert "op type LRN" in lines
    assert any(line.split()[:2] == ["axes", "shape.axes.rows,"] for line in lines)
    assert any(line.split()[:2] == ["!", "alike"] for line in lines)  # left open
    assert "    fuzzing  vkmnn_suite.fuzz.recipes.windows" in lines
    facts = json.loads(cli("ops", "LRN", "--json").out)["declared"]["op type LRN"]
    assert {one["name"]: one["left"] for one in facts}["alike"] is True
    own = cli("ops", "Raster").out.splitlines()  # no operator of ONNX
    assert own[0] == "op type Raster"


def test_ops_that_are_not_there(cli: Cli) -> None:
    known = cli("ops", "RandomNormalLike")
    assert known.status == 0
    assert "RandomNormalLike runs on the host: random numbers" in known.out
    for name, near in (("Convv", "did you mean Conv?"), ("Nosuchthing", "operators: ")):
        typo = cli("ops", name)
        assert typo.status == 1
        assert f"no operator of ONNX is called '{name}'" in typo.err
        assert near in typo.err
        assert "new-op" in typo.err


def test_ops_without_a_kernel_run_on_the_host(cli: Cli) -> None:
    result = cli("ops", "if")
    assert result.status == 0
    assert result.out.startswith("If runs on the host: constant conditions")
    assert "BitShift" not in result.out  # though its name holds "if"


def test_every_operator_becomes_something() -> None:
    from vkmnn.cli.ops import places, vocabulary
    from vkmnn.converter.onnx import supported_ops
    from vkmnn.ir import OP_TYPES

    nothing = {op.name for op in supported_ops() if not vocabulary(op)}
    assert nothing == {"Constant"}
    for op in supported_ops():
        assert set(vocabulary(op)) <= set(OP_TYPES)
    assert places(["Shape"]) == "host"
    assert places(["Transpose", "Shape"]) == "geometry"
    assert places(["no op at all"]) == "numpy"
    assert places(["Convolution", "no op at all"]) == "numpy (no op at all)"


# --- profile -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["step", "type", "kernel"])
def test_profile(cli: Cli, device: str, model: Path, tmp_path: Path, by: str) -> None:
    trace = tmp_path / "trace.json"
    result = cli("profile", model, "-d", device, "--by", by, "-n", 2, "--trace", trace)
    assert result.status == 0
    assert "a run takes " in result.out
    assert ("device memory: weights " in result.out) == (device != "cpu")
    assert "100.0 %" in result.out or result.out.count(" %") > 1
    if by != "kernel":
        assert "MatMul" in result.out
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert {"MatMul"} <= {event.get("cat") for event in events}


OUTPUTS = {
    "npz": ("run", "-o", "out.npz"),
    "npy": ("run", "-o", "folder"),
    "trace": ("profile", "-n", 1, "--trace", "out.json"),
    "page": ("profile", "-n", 1, "--html", "out.html"),
    "model": ("convert",),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_files_are_written_whole_or_not_at_all(
    cli: Cli, model: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up, simulated by a limit of this process: existing files stay unchanged."""
    resource = pytest.importorskip("resource")
    command, *options = OUTPUTS[kind]
    folder = tmp_path / "written"
    (folder / "folder").mkdir(parents=True)
    names = {"npy": "folder/scores.npy", "model": "out.vkmnn"}
    target = folder / names.get(kind, str(options[-1]) if options else "")
    target.write_bytes(b"before")
    target.chmod(0o640)
    if kind == "model":
        arguments: list[object] = [model, target]
    else:
        arguments = [model, "-d", "cpu", *options[:-1], folder / str(options[-1])]
        if kind == "npy":
            arguments += ["-s", "N=50"]
    # Python would cut bytecode that it keeps without a word.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        result = cli(command, *arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.status == 1
    assert str(target) in result.err.replace("\n", "")
    assert [path for path in folder.rglob("*") if path.is_file()] == [target]
    assert target.read_bytes() == b"before"
    assert cli(command, *arguments).status == 0
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.stat().st_size > 100


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "-o"),
        ("profile", "--trace"),
        ("profile", "--html"),
        ("plan --as lavapipe-26.2", "--html"),
    ],
)
def test_where_nothing_can_be_written_nothing_runs(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, str]
) -> None:
    def opens(*_arguments: object, **_more: object) -> None:
        raise AssertionError("the model is opened")

    for name in ("run.InferenceSession", "plan.load_network"):
        monkeypatch.setattr(f"vkmnn.cli.{name}", opens)
    command, option = arguments
    result = cli(*command.split(), model, option, "/nonexistent/dir/x.npz")
    assert result.status == 1
    assert "/nonexistent/dir/x.npz" in result.err


def test_what_is_no_file_is_written_to(cli: Cli, model: Path, tmp_path: Path) -> None:
    """A device file stays what it is, and so does a link."""
    link, real = tmp_path / "link.json", tmp_path / "real.json"
    real.write_text("before")
    link.symlink_to(real)
    for path in (Path("/dev/null"), link):
        assert cli("profile", model, "-d", "cpu", "-n", 1, "--trace", path).status == 0
    assert Path("/dev/null").is_char_device()
    assert link.is_symlink()
    assert json.loads(real.read_text("utf-8"))


def test_profile_cannot_write_its_trace(cli: Cli, model: Path) -> None:
    result = cli("profile", model, "-d", "cpu", "-n", 1, "--trace", "/proc/nowhere/trace.json")
    assert result.status == 1
    assert "the trace cannot be written" in result.err


# --- devices -----------------------------------------------------------------------------------


def test_devices(cli: Cli) -> None:
    result = cli("devices")
    assert result.status == 0
    assert "CPU (numpy backend)" in result.out
    for found in vkmnn.devices():
        assert found.name in result.out
        assert found.uuid in result.out
    assert result.out.count("→") == 2


def test_device_profiles(cli: Cli) -> None:
    from vkmnn.runtime.device_profiles import load_profile, profile_names

    result = cli("devices", "--profiles")
    assert result.status == 0
    for name in profile_names():
        assert name in result.out
    shown = json.loads(cli("devices", "--profiles", "--json").out)["profiles"]
    assert [profile["name"] for profile in shown] == profile_names()
    profile = load_profile("raspberry-pi-4")
    (described,) = (item for item in shown if item["name"] == profile.name)
    assert described["limits"]["max_shared_memory"] == profile.limits.max_shared_memory
    assert described["features"] == sorted(profile.features)
    assert described["sources"] == list(profile.sources)


def test_a_device_profile_shows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    assert "emulates" not in cli("devices").out
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", "raspberry-pi-4")
    result = cli("devices")
    assert "emulates raspberry-pi-4" in result.out
    assert "VKMNN_DEVICE_PROFILE=raspberry-pi-4" in result.err
    shown = json.loads(cli("devices", "--json").out)["devices"]
    assert {device.get("device_profile", "raspberry-pi-4") for device in shown} == {
        "raspberry-pi-4"
    }


def test_a_device_profile_that_is_not_there(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", "rasberry-pi-4")
    for arguments in (("devices",), ("run", model)):
        result = cli(*arguments)
        assert result.status == 1
        assert "there is no device profile 'rasberry-pi-4'" in result.err
        assert "did you mean raspberry-pi-4" in result.err


def test_devices_as_json(cli: Cli) -> None:
    answer = json.loads(cli("devices", "--json").out)
    found = vkmnn.devices()
    assert [device["name"] for device in answer["devices"]] == [
        *(device.name for device in found),
        "CPU (numpy backend)",
    ]
    assert answer["auto"]["reason"]
    for device, shown in zip(found, answer["devices"], strict=False):
        assert shown["features"] == sorted(device.features)
        assert shown["limits"]["max_push_constants"] == device.limits.max_push_constants


def test_auto_as_the_environment_says(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_DEVICE", "cpu")
    assert '"auto" means cpu: VKMNN_DEVICE says so' in cli("devices").out
    monkeypatch.setenv("VKMNN_DEVICE", "no such card")
    result = cli("devices")
    assert result.status == 0
    assert "no device matches" in result.out
    assert json.loads(cli("devices", "--json").out)["auto"]["index"] is None
