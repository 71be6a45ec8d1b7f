"""The folder benchmarks/: its commands on toy networks, their output, and its arithmetic."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from typer.testing import CliRunner

import vkmnn
from benchmarks import (
    decoding,
    families,
    kernels,
    llama_cpp,
    llm,
    plots,
    results,
    scaling,
    serving,
    start,
    storm,
)
from benchmarks.__main__ import app
from benchmarks.ceilings import Ceilings, coopmat_shape
from benchmarks.networks import KNOWN, TORCH, Network, from_file, networks, specs_for
from benchmarks.shaders import kernels as kernels_of_benchmarks
from benchmarks.weightless import strip
from vkmnn.bench.compare import Comparison, EngineSpec, Place, Series, compare, engines
from vkmnn.core.profile import Profile, ProfileEntry
from vkmnn.runtime.device import open_device
from vkmnn.runtime.device_info import CooperativeMatrixShape
from vkmnn.testing.emulation import bench_for
from vkmnn_suite import mutation

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "benchmarks" / "results.schema.json").read_text("utf-8"))
CEILINGS = Ceilings({"f32": 1e9}, {1000: 1e8, 10_000: 5e8, 100_000: 5e8})


def valid(data: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(data)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A convolution and a softmax, both very small."""
    weight = np.random.default_rng(1).standard_normal((5, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="convolve"),
            helper.make_node("Softmax", ["c"], ["y"], name="normalise", axis=1),
        ],
        "toy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 7, 11])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "toy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run a command that writes results; return the valid document."""

    def run(*arguments: object) -> dict[str, Any]:
        if not vkmnn.devices():
            pytest.skip("no Vulkan device")
        folder = tmp_path / "results"
        done = CliRunner().invoke(app, [*map(str, arguments), "-o", str(folder)])
        assert done.exit_code == 0, done.output
        data: dict[str, Any] = json.loads((folder / "results.json").read_text("utf-8"))
        valid(data)
        lines = (folder / "history.jsonl").read_text("utf-8").splitlines()
        for line in lines:
            valid(json.loads(line))
        assert data["device"] == vkmnn.devices()[0].name
        return data

    return run


def test_networks(command: Callable[..., dict[str, Any]], toy: Path, tmp_path: Path) -> None:
    data = command("networks", toy, "-d", 0, "-n", 2, "-e", "vkmnn", "-e", "onnxruntime")
    (network,) = data["networks"]
    assert network["name"] == "toy"
    assert [one["engine"] for one in network["engines"]] == ["vkmnn", "onnxruntime CPU"]
    assert network["engines"][0]["difference"] < 1e-4
    assert (tmp_path / "results" / "networks.png").exists() == plots.available()


def test_kernels(command: Callable[..., dict[str, Any]], toy: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.ceilings.SIZES", (4096, 65536))
    monkeypatch.setattr("benchmarks.ceilings.MIN_MS", 0.0)
    data = command("kernels", toy, "-d", 0, "-n", 2)
    assert [size for size, _ in data["kernels"]["ceilings"]["bandwidth"]] == [4096, 65536]
    (network,) = data["kernels"]["networks"]
    by_type = {row["type"]: row for row in network["kernels"]}
    assert by_type["Convolution"]["flops"] == 2 * 5 * 5 * 9 * 3 * 9
    assert sum(row["share"] for row in network["kernels"]) == pytest.approx(1)


def test_gemm(command: Callable[..., dict[str, Any]], monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.gemm.SIZES", ((7, 13, 5), (3, 1000, 2)))
    data = command("gemm", "-d", 0, "-n", 2, "--largest", 100)
    (row,) = data["gemm"]
    assert (row["m"], row["n"], row["k"], row["dtype"]) == (7, 13, 5, "f32")
    assert row["error"] < 1e-5
    assert "matmul" in row["kernel"]
    assert "families" not in data


@pytest.mark.soak
def test_families(command: Callable[..., dict[str, Any]], monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.gemm.SIZES", ())
    monkeypatch.setattr("benchmarks.families.SIZES", ((7, 13, 5), (2, 24, 1000)))
    data = command("gemm", "-d", 0, "-n", 1, "--families", "--no-fp16")
    rows = data["families"]
    for size in ((7, 13, 5), (2, 24, 1000)):
        of_size = [row for row in rows if (row["m"], row["n"], row["k"]) == size]
        kernels = {row["kernel"].split("_")[1] for row in of_size}
        assert {"tile", "shared", "gemv"} <= kernels
        assert sum(row["rule"] for row in of_size) == 1
        assert max(row["error"] for row in of_size) < 1e-5


@pytest.mark.soak
@pytest.mark.elsewhere("test: families of float32")
def test_families_of_halves_by_matrices() -> None:
    variant = mutation.find("matmul_coop_16x32w16x32k4_128_0_0_4")
    bench = bench_for(variant, open_device("auto"))
    if isinstance(bench, str):
        pytest.skip(bench)
    rows = list(families.measure((17, 36, 40), True, bench.device, 1))
    assert [row.rule for row in rows] == [True] + [False] * (len(rows) - 1)
    assert {"coop", "tile", "shared"} <= {row.kernel.split("_")[1] for row in rows}
    assert {row.dtype for row in rows} == {"f16"}
    assert max(row.error for row in rows) < 1e-3


def test_start(command: Callable[..., dict[str, Any]], toy: Path) -> None:
    data = command("start", toy, "-d", 0)
    (row,) = data["start"]
    assert row["cold"]["process_s"] > row["cold"]["load_s"] + row["cold"]["first_s"] > 0
    assert row["facts"]["activations"] >= row["facts"]["lower_bound"] > 0
    assert 0 < row["facts"]["python_us"] < 1e5
    own, packed, peer = row["openings"]
    assert (own["engine"], packed["engine"]) == ("vkmnn, its file", "vkmnn, its file packed")
    assert peer["engine"] == "onnxruntime CPU"
    for one in (own, packed, peer):
        assert one["error"] == ""
        assert 0 < min(one["load_s"], one["first_s"]) < 60
        assert one["peak_bytes"] is None or one["peak_bytes"] > 20 << 20


def test_an_engine_that_cannot_open_says_why() -> None:
    missing = start._opening("x", [], {"x": "it is not installed"})
    one = start.Start(1.0, 0.5, 0.25)
    text = StringIO()
    row = start.StartResult("net", one, one, {}, [missing, start.Opening("y", 1.0, 0.5, None)])
    Console(file=text, width=100).print(start.openings_table([row]))
    assert "it is not installed" in text.getvalue()
    assert "1.5 s" in text.getvalue().replace("1.50", "1.5")


def test_sections_of_earlier_runs_stay(tmp_path: Path) -> None:
    def place(name: str) -> Place:
        return Place("0", name, "driver", 0, 1, 1, 1.0, tmp_path)

    results.Results(tmp_path, place("one"), False).save("overhead_us", {"a": 1.0})
    results.Results(tmp_path, place("one"), False).save("networks", [])
    data = json.loads((tmp_path / "results.json").read_text("utf-8"))
    valid(data)
    assert {"overhead_us", "networks"} <= set(data)
    results.Results(tmp_path, place("other"), False).save("networks", [])
    assert "overhead_us" not in json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert len((tmp_path / "history.jsonl").read_text("utf-8").splitlines()) == 3


def test_only_record_touches_the_history_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.jsonl"
    monkeypatch.setattr(results, "HISTORY", kept)
    where = Place("0", "one", "driver", 0, 1, 1, 1.0, tmp_path)
    results.Results(tmp_path / "a", where, False).save("networks", [])
    assert not kept.exists()
    results.Results(tmp_path / "a", where, True).save("networks", [])
    valid(json.loads(kept.read_text("utf-8")))


def test_the_schema_refuses_what_is_wrong() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        valid({"format": 2})


# --- scaling -------------------------------------------------------------------------------------


def test_scaling_ends_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    asked: list[int] = []

    def exported(name: str, sizes: dict[str, int], *, dynamic: bool) -> Network:
        assert dynamic
        asked.append(sizes["N"])
        now[0] += sizes["N"]
        return Network(name, tmp_path, {})

    monkeypatch.setattr(scaling, "exported", exported)
    monkeypatch.setattr(scaling.time, "perf_counter", lambda: now[0])
    comparison = Comparison("n", [Series("vkmnn", [0.001]), Series("other", error="no")])
    monkeypatch.setattr(scaling, "measure", lambda *_: comparison)
    series = scaling.Series("net", "batch", ("N",), (1, 2, 4, 8, 16, 32))
    where = Place("0", "one", "driver", 0, 1, 1, 1.0, tmp_path)
    points = scaling.run_series(series, [], where, 20.0, lambda text: None)
    assert [point.size for point in points] == asked == [1, 2, 4, 8]  # 15 s are spent then
    data = results.scaling_data([(series, points)])
    assert [point["size"] for point in data[0]["points"]] == asked
    results.Results(tmp_path, where, False).save("scaling", data)
    valid(json.loads((tmp_path / "results.json").read_text("utf-8")))
    assert scaling.series_table(series, points).row_count == 4


def test_every_series_grows_a_known_network() -> None:
    from tests.networks.cases import CASES

    for series in scaling.SERIES:
        case = CASES[KNOWN[series.network][0]]
        dims = {dim for item in case.inputs for dim in item.shape}
        assert set(series.sizes) <= dims
        for name, factor in case.multiples.items():
            assert name not in series.sizes or all(n % factor == 0 for n in series.values)


# --- ceilings and kernels ------------------------------------------------------------------------


def test_bandwidth_between_the_sizes_that_were_measured() -> None:
    assert CEILINGS.bandwidth_at(1000) == pytest.approx(1e8)
    assert CEILINGS.bandwidth_at(10_000) == pytest.approx(5e8)
    assert CEILINGS.bandwidth_at(1e7) == pytest.approx(5e8)
    # As long as the smallest copy takes, 10 µs; then in a line to 20 µs.
    assert 10 / CEILINGS.bandwidth_at(10) == pytest.approx(10e-6)
    assert 5500 / CEILINGS.bandwidth_at(5500) == pytest.approx(15e-6)


def test_the_least_time_of_a_step() -> None:
    assert CEILINGS.min_seconds(1e6, 0) == pytest.approx(1e-3)
    assert CEILINGS.min_seconds(1e3, 1e6) == pytest.approx(2e-3)
    assert CEILINGS.min_seconds(0, 0) == 0


def test_the_shaders_are_up_to_date() -> None:
    folder = ROOT / "benchmarks" / "shaders"
    done = subprocess.run(
        [sys.executable, "-m", "vkmnn.codegen", "--shaders", str(folder), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "shaders" / "spirv").glob("*.spv")))
def test_the_shaders_are_valid(path: Path) -> None:
    tool = shutil.which("spirv-val")
    if tool is None:
        pytest.skip("no spirv-val")
    target = "vulkan1.3" if path.stem == "mma" else "vulkan1.1"
    done = subprocess.run(
        [tool, "--target-env", target, str(path)], capture_output=True, text=True, check=False
    )
    if "Invalid capability operand: 6022" in done.stderr:
        pytest.skip("this spirv-val is older than cooperative matrices")
    assert done.returncode == 0, done.stderr


def test_the_largest_fitting_product_of_matrices_is_taken() -> None:
    if not vkmnn.devices():
        pytest.skip("no Vulkan device")
    info = vkmnn.devices()[0]
    shapes = (
        CooperativeMatrixShape(16, 8, 16, "f16", "f16", "f32", "f32", "subgroup", False),
        CooperativeMatrixShape(16, 16, 16, "f16", "f16", "f32", "f32", "subgroup", False),
        CooperativeMatrixShape(16, 16, 32, "i8", "i8", "i32", "i32", "subgroup", False),
        CooperativeMatrixShape(64, 64, 16, "f16", "f16", "f32", "f32", "workgroup", False),
    )
    able = info.features | kernels_of_benchmarks.mma().requires
    assert coopmat_shape(replace(info, features=able, cooperative_matrices=shapes)) == shapes[1]
    assert coopmat_shape(replace(info, features=able, cooperative_matrices=())) is None
    without = able - {"cooperative_matrix"}
    assert coopmat_shape(replace(info, features=without, cooperative_matrices=shapes)) is None


def test_ops_are_counted_with_all_their_steps() -> None:
    def step(op: str, kernel: str, microseconds: float, flops: int, nbytes: int) -> ProfileEntry:
        return ProfileEntry(
            op, "Convolution", op, "VULKAN", kernel, microseconds, "", flops, nbytes
        )

    entries = (
        step("a", "winograd_in", 100.0, 1_000_000, 1000),
        step("a", "gemm", 900.0, 1_000_000, 1000),
        step("b", "gemm", 500.0, 500_000, 1000),
        step("c", "copy", 500.0, 0, 100_000),
    )
    rows = kernels.rates(Profile(entries, "VULKAN", 1, 2000.0, 2000.0, 0.0), CEILINGS)
    assert [(row.kernel, row.ops, row.microseconds) for row in rows] == [
        ("gemm", 2, 1500.0),
        ("copy", 1, 500.0),
    ]
    gemm, copy = rows
    assert gemm.share == pytest.approx(0.75)
    assert gemm.min_us == pytest.approx(1500)
    assert gemm.part == pytest.approx(1)
    assert gemm.intensity == pytest.approx(750)
    assert (gemm.bound, copy.bound) == ("arithmetic", "memory")
    assert copy.part == pytest.approx(0.4)
    assert kernels.rates_table(rows).row_count == 2


def test_drawings(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    comparison = Comparison(
        "net", [Series("vkmnn", [0.001, 0.002]), Series("other", error="no"), Series("a", [0.1])]
    )
    plots.draw_networks([comparison] * 3, "device", tmp_path / "networks.png")
    entry = ProfileEntry("a", "MatMul", "a", "VULKAN", "gemm", 9.0, "", 1000, 100)
    rates = kernels.rates(Profile((entry,), "VULKAN", 1, 9.0, 9.0, 0.0), CEILINGS)
    plots.draw_roofline({"net": rates}, CEILINGS, "device", tmp_path / "roofline.png")
    series = scaling.Series("net", "batch", ("N",), (1, 2))
    points = [scaling.Point(1, comparison), scaling.Point(2, comparison)]
    plots.draw_scaling(series, points, tmp_path / "scaling.png")
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


# --- which networks ------------------------------------------------------------------------------


def test_known_networks_are_cases_of_the_tests() -> None:
    from tests.networks.cases import CASES

    for key, sizes in KNOWN.values():
        assert set(sizes) <= set(CASES[key].sizes[0])


def test_light_networks_need_no_torch() -> None:
    (found,) = networks(["squeezenet"], light=True)
    assert found.name == "light_squeezenet"
    assert not found.case
    assert [feed.shape for feed in found.feeds.values()] == [(1, 3, 224, 224)]


def test_torch_runs_only_what_it_knows(toy: Path) -> None:
    assert specs_for(from_file(toy), True) == engines(True)
    known = Network("n", toy, {}, "espcn", {"N": 1})
    assert specs_for(known, False)[:-1] == engines(False)
    with_fp16 = specs_for(known, True, ["PyTorch"])
    assert [spec.name for spec in with_fp16] == [TORCH.name, f"{TORCH.name} fp16"]
    assert with_fp16[0].options == {"case": "espcn", "sizes": {"N": 1}}
    assert with_fp16[1].options["precision"] == "normal"


def test_torch_without_a_gpu_says_so(
    tmp_path: Path, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    where = Place("cpu", "none", "", 0, 1, 1, 60.0, tmp_path)
    spec = EngineSpec(TORCH.name, TORCH.target, {"case": "espcn", "sizes": {"N": 1}})
    feeds = {"x": np.zeros((1, 1, 8, 8), np.float32)}
    (series,) = compare("espcn", toy, feeds, [spec], where).series
    assert series.error in ("PyTorch is not installed", "PyTorch finds no CUDA device")


def test_models_without_weights_run_the_same_ops(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    weights = {"a": (37, 41), "b": (41, 37), "c": (37, 41), "small": (41,)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["p"]),
            helper.make_node("Add", ["p", "small"], ["q"]),
            helper.make_node("MatMul", ["q", "b"], ["r"]),
            helper.make_node("MatMul", ["r", "c"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 37])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 41])],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    whole, bare = tmp_path / "whole.onnx", tmp_path / "bare.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), whole)
    strip(whole, bare)
    onnx.checker.check_model(bare, full_check=True)
    assert bare.stat().st_size < whole.stat().st_size / 10
    x = rng.random((5, 37), dtype=np.float32)
    placed = []
    for path in (whole, bare):
        with vkmnn.InferenceSession(path, "cpu") as session:
            (y,) = session.run(None, {"x": x})
            placed.append([op.type for op in session.placement()])
    assert placed[0] == placed[1]
    assert y.shape == (5, 41)
    assert np.isfinite(y).all()
    assert 0.01 < np.abs(y).max() < 100


def test_help_lists_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in ("networks", "overhead", "kernels", "gemm", "scaling", "start", "all", "drivers"):
        assert name in done.stdout


def test_decoding_takes_its_time():
    sizes = decoding.Decoder(layers=1, width=32, heads=2)
    times = decoding.measure(sizes, "cpu", tokens=8)
    assert times.growing > 0
    assert times.fixed > 0


@pytest.mark.parametrize("texts", [1, 3])
def test_language_models_in_several_precisions(
    texts: int, command: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = llm.Sizes(
        layers=1, width=64, heads=2, kv_heads=1, inner=96, vocabulary=64, positions=64
    )
    monkeypatch.setitem(llm.SHAPES, "125m", shape)
    wanted = ["--precision", "normal", "--precision", "high"]
    sizes = ["--prompt", "9", "--tokens", "4", "--rounds", "1", "--texts", str(texts)]
    data = command("llm", *wanted, *sizes)["llm"]
    ours = [rate for rate in data["rates"] if rate["engine"] == "vkmnn"]
    assert [rate["precision"] for rate in ours] == ["high", "normal"]
    assert all(rate["prefill"] > 0 and rate["decode"] > 0 for rate in ours)
    assert (data["prompt"], data["tokens"], data["texts"], data["layers"]) == (9, 4, texts, 1)
    assert (len(ours) == len(data["rates"])) >= (texts > 1)


def test_many_pictures(command: Callable[..., dict[str, Any]]) -> None:
    data = command("map", "--count", "20", "--rounds", "1", "--devices", "0")["mapping"]
    assert [one["engine"] for one in data] == [
        "loop, vkmnn", "loop, onnxruntime", "vkmnn map, devices 0",
    ]  # fmt: skip
    for one in data:
        assert one["rate"] > 0 or one["engine"] == "loop, onnxruntime", one["error"]
        assert one["processor_us"] >= 0


def test_servers_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "KINDS", ("vkmnn, batched", "nothing, batched"))
    monkeypatch.setattr(serving, "CLOSED", (1, 4))
    monkeypatch.setattr(serving, "OPEN", (20.0,))
    found = serving.measure("cpu", 0.3, None, lambda _: None)
    own = found[0]
    assert [(load.kind, load.level) for load in own.loads] == [
        ("closed", 1), ("closed", 4), ("open", 20.0),
    ]  # fmt: skip
    for load in own.loads:
        assert load.failed == 0
        assert 0 < load.p50_ms <= load.p99_ms
        assert load.rate > 0
    where = Place("cpu", "toy", "driver", 0, 1, 1, 1.0, tmp_path)
    results.Results(tmp_path, where, record=False).save("serving", [asdict(one) for one in found])
    valid(json.loads((tmp_path / "results.json").read_text("utf-8")))


LLAMA_SERVER = """
import http.server, json, sys, time
begin = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(503 if time.monotonic() < begin + 0.5 else 200, {})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, {"usage": {"completion_tokens": asked["max_tokens"] - 1}})
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a script")
def test_texts_beside_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for llama.cpp's server is not ready at once; one for vkmnn's ends."""
    script = tmp_path / serving.LLAMA
    script.write_text(f"#!{sys.executable}\n{LLAMA_SERVER}", "utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(serving, "_OWN", (sys.executable, "-c", "raise SystemExit(3)"))
    monkeypatch.setattr(serving, "KINDS", ())
    own, peer = serving.measure("cpu", 0.2, tmp_path / "m.gguf", lambda _: None)
    assert own == serving.Served("vkmnn", error="it has ended with status 3")
    assert (peer.engine, peer.tokens, peer.error) == ("llama.cpp", 15, "")
    assert [load.level for load in peer.loads] == [1, 8]
    assert all(load.failed == 0 and load.rate > 0 for load in peer.loads)


def test_a_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that ask and leave for a second; everybody is answered, and nothing is left."""
    pytest.importorskip("gguf")
    monkeypatch.setattr(serving, "STORMY", llama_cpp.Shape(1, 64, 2, 1, 96, 512, 256))
    found = serving.measure_storm("cpu", 1, None, clients=10, characters=150)
    assert (found.faults, found.stuck) == ([], 0)
    assert {"short: answered", "networks: answered", "nonsense: answered"} <= set(found.counts)
    if found.rest:
        before, after = found.rest
        assert after.files <= before.files + 2
    where = Place("cpu", "toy", "driver", 0, 1, 1, 1.0, tmp_path)
    results.Results(tmp_path, where, record=False).save("storm", found.summary())
    valid(json.loads((tmp_path / "results.json").read_text("utf-8")))


def test_what_a_storm_tells() -> None:
    states = [storm.State(memory, 9, 9) for memory in (1, 50, 90, 100, 100, 101, 104, 107)]
    found = storm.Storm(9, 1.0, [1.0] * 99 + [10.0], [2.0] * 99 + [30.0], states=states)
    assert (found.ratio, found.growth) == (3.0, 7.0)
    assert storm.Storm(9, 1.0, [], [2.0]).ratio == 0
