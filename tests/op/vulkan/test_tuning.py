"""The tuner: measures in the network, keeps its findings, and changes no result."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.op.vulkan.harness import device
from vkmnn import InferenceSession
from vkmnn.base.cache_files import cache_dir
from vkmnn.core import plans
from vkmnn.core.backend import Timing
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Graph, Op
from vkmnn.ir.ops import ConvolutionAttrs
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.recorder import CommandBuffer, CommandRecorder
from vkmnn.testing.case import tensor_info
from vkmnn.vulkan import tuning
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.choice import Preferences, choice_key, kernel_name
from vkmnn.vulkan.gemm.families.rotate import ConvRotate, MatMulRotate
from vkmnn.vulkan.gemm.families.shared import MatMulShared
from vkmnn.vulkan.gemm.shared_tiles import Tile
from vkmnn.vulkan.tuning import TuningFile

ROOT = Path(__file__).resolve().parents[3]
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VKMNN_TUNE", raising=False)
    if "timestamps" not in device().info.features:
        pytest.skip("the device has no timestamps")


def model() -> bytes:
    """Return two convolutions that face the same choice, and a product."""
    weights = {
        "w": RNG.standard_normal((8, 8, 3, 3)).astype(np.float32),
        "m": RNG.standard_normal((9, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["b", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tuned",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 7, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 7, 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def feeds() -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((1, 8, 7, 9)).astype(np.float32)}


def session(data: bytes) -> InferenceSession:
    return InferenceSession(data, device().info.name, validation=True, require_device=True)


def whole_runs(monkeypatch: pytest.MonkeyPatch, old: float, new: float) -> None:
    """Simulate the times of whole runs with the old kernels and with the new ones."""
    monkeypatch.setattr(tuning, "_whole_runs", lambda *_: [(old, new)] * 3)


def same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.ptp(want))


def test_results_stay_and_choices_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_runs(monkeypatch, 2.0, 1.0)
    data, arrays = model(), feeds()
    steps: list[tuple[int, int]] = []
    with session(data) as tuned:
        before = tuned.run(None, arrays)[0]
        found = tuned.tune(arrays, 1, lambda done, total: steps.append((done, total)))
        after = tuned.run(None, arrays)[0]
    same(after, before)
    assert steps
    assert found.kept
    settled = found.choices
    convolutions = [choice for choice in settled if choice.what == "convolution"]
    # On a busy device, one of the two may be found to be faster with another end.
    ends = {choice.taken for choice in settled if choice.what == "plain end"}
    assert "True" in ends or any(len(choice.ops) == 2 for choice in convolutions)
    assert {choice.what for choice in settled} >= {"convolution", "matmul"}
    table = TuningFile(cache_dir(), device().info).load()
    assert table == {f"{choice.what}: {choice.problem}": choice.taken for choice in settled}


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are made up: rank 1 is fast, rank 2 faster by less than what counts."""

    def measured(*arguments: object) -> list[dict[str, float]]:
        trials = arguments[4]
        assert isinstance(trials, list)
        times = [100.0, 50.0, 49.9, *[80.0] * len(trials)]
        ops = ("Conv_0", "Conv_1", "MatMul_2")
        return [dict.fromkeys(ops, times[rank]) for rank in range(len(trials))]

    monkeypatch.setattr(tuning, "_measure", measured)
    whole_runs(monkeypatch, 2.0, 1.0)
    data, arrays = model(), feeds()
    with session(data) as tuned:
        expected = tuned.run(None, arrays)[0]
        settled = tuned.tune(arrays).choices
        named = {op for choice in settled for op in choice.ops}
        result = tuned.run(None, arrays)[0]
    same(result, expected)
    assert named == {"Conv_0", "Conv_1", "MatMul_2", "b:NCHW:convert"}
    assert all(choice.taken != choice.rule for choice in settled)
    with session(data) as other:  # another session finds what was measured
        profile = other.profile(arrays, 1)
    assert {entry.choice for entry in profile if entry.type == "Convolution"} == {"tuned"}


def test_luck_is_not_taken_for_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are made up: rank 1 seems fast among the trials, and slow beside the rules."""

    def measured(*arguments: object) -> list[dict[str, float]]:
        trials = arguments[4]
        assert isinstance(trials, list)
        ops = ("Conv_0", "Conv_1", "MatMul_2")
        if len(trials) == 2:
            return [dict.fromkeys(ops, 60.0), {**dict.fromkeys(ops, 70.0), "MatMul_2": 40.0}]
        return [dict.fromkeys(ops, 100.0 if rank != 1 else 50.0) for rank in range(len(trials))]

    monkeypatch.setattr(tuning, "_measure", measured)
    with session(model()) as tuned:
        settled = tuned.tune(feeds()).choices
    by_ops = {choice.ops: choice for choice in settled if choice.what != "lanes"}
    kept = {ops for ops, choice in by_ops.items() if choice.taken == choice.rule}
    assert ("Conv_0", "Conv_1") in kept
    product = by_ops["MatMul_2",]
    assert product.taken != product.rule
    assert (product.rule_us, product.taken_us) == (60.0, 40.0)


@pytest.mark.parametrize(("limit_s", "tries"), [(0.0, False), (math.inf, True)])
def test_nobody_waits_for_tuning_without_end(
    limit_s: float, tries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    measure = tuning._measure

    def counted(*arguments: Any) -> list[dict[str, float]]:
        found = measure(*arguments)
        measured.append(len(found))
        return found

    monkeypatch.setattr(tuning, "_measure", counted)
    monkeypatch.setattr(plans, "TUNING_SECONDS", limit_s)
    monkeypatch.setenv("VKMNN_TUNE", "on")
    with session(model()) as tuned:
        tuned.run(None, feeds())
    assert bool(measured) == tries


@pytest.mark.parametrize(("late", "min_plans", "made"), [(True, 1, 1), (True, 2, 2), (False, 1, 3)])
def test_trials_under_way_when_time_ends(
    late: bool, min_plans: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them is the rules' own; two that are compared at last run in any case."""
    monkeypatch.setattr(tuning, "WARM_S", 0.0)
    plan = MagicMock(timings=lambda: [("conv", Timing("conv", "k", 5.0))])
    make_plan = MagicMock(return_value=plan)
    counter = tuning._Counter(None, 0.0 if late else math.inf)
    found = tuning._measure(MagicMock(), make_plan, {}, 4, [{}, {}, {}], counter, min_plans)
    assert len(found) == made
    assert plan.execute.call_count == made * (2 if late else 5)
    assert plan.close.call_count == made


def test_the_clock_s_ticks_are_seen() -> None:
    def times(*microseconds: float) -> list[list[list[Timing]]]:
        return [[[Timing("op", "k", us) for us in microseconds]]]

    coarse = [0.256 * count for count in (3, 4, 6, 9, 13, 17, 18, 30)]
    assert tuning.tick_of(times(*coarse)) == pytest.approx(0.256)
    assert tuning.tick_of(times(*coarse, 5.0)) == 0  # not a multiple
    assert tuning.tick_of(times(*coarse[:7])) == 0  # too few to tell
    assert tuning.tick_of(times(*RNG.uniform(1, 50, 40))) == 0
    assert tuning.tick_of([]) == 0
    assert tuning._gains(4.1, 3.8, 0.256)
    assert not tuning._gains(4.0, 3.8, 0.256)
    assert not tuning._gains(100.0, 98.0, 0.256)


def test_trials_warm_the_device_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(tuning, "WARM_S", 5)
    monkeypatch.setattr(tuning, "time", MagicMock(monotonic=lambda: next(clock)))
    plan = MagicMock(timings=lambda: [("conv", Timing("conv", "k", 5.0))])
    counter = tuning._Counter(None)
    for runs, executed in ((2, 1 + 4 + 2), (2, 1 + 2)):
        plan.execute.reset_mock()
        tuning._measure(MagicMock(), MagicMock(return_value=plan), {}, runs, [{}], counter)
        assert plan.execute.call_count == executed


def test_nothing_overlaps_what_is_timed() -> None:
    """Two convolutions of one input, which may run at once, are timed one after the other."""
    counts: list[tuple[int, int]] = []
    finish = CommandRecorder.finish

    def counted(recorder: CommandRecorder) -> CommandBuffer:
        counts.append((recorder.barrier_count, recorder.dispatch_count))
        return finish(recorder)

    attrs = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0,) * 4, 1)
    weights = {name: RNG.standard_normal((8, 8, 1, 1)).astype(np.float32) for name in "vw"}
    weights["bias"] = np.zeros(8, np.float32)
    x = RNG.standard_normal((1, 8, 7, 9)).astype(np.float32)
    ops = [Op("Convolution", y, ["x", w], [y], attrs) for y, w in (("a", "v"), ("b", "w"))]
    ops.append(Op("Convolution", "y", ["a", "v", "bias", "b"], ["y"], attrs))
    graph = Graph("beside", [tensor_info("x", x)], [tensor_info("y", x)], ops, weights)
    backend = VulkanBackend(device())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandRecorder, "finish", counted)
        for one in (backend.timed(), backend.timed_apart()):
            Plan(graph, {"x": tensor_info("x", x)}, {}, one, CpuBackend(), run_op).close()
    (beside, dispatches), (apart, _) = counts
    assert apart == dispatches
    assert beside == apart - 2  # two of them at once, and none to wait for after the last


def test_what_makes_the_network_slower_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are made up: each op gains alone, and whole runs lose."""

    def measured(*arguments: object) -> list[dict[str, float]]:
        trials = arguments[4]
        assert isinstance(trials, list)
        ops = ("Conv_0", "Conv_1", "MatMul_2")
        return [dict.fromkeys(ops, 100.0 - 50 * (rank == 1)) for rank in range(len(trials))]

    monkeypatch.setattr(tuning, "_measure", measured)
    whole_runs(monkeypatch, 20.0, 21.0)
    arrays = feeds()
    with session(model()) as tuned:
        found = tuned.tune(arrays)
        profile = tuned.profile(arrays, 1)
    assert found.changed
    assert not found.kept
    assert (found.before_us, found.after_us) == (20.0, 21.0)
    assert "tuned" not in {entry.choice for entry in profile}
    assert TuningFile(cache_dir(), device().info).load() == {}


def test_names_of_kernels_are_for_people() -> None:
    assert kernel_name(ConvRotate(32, 8)) == "rotate_32_8"
    assert kernel_name(MatMulRotate(32, 8, True)) == "rotate_32_8_by_blocks"
    assert kernel_name(MatMulShared(Tile(64, 64), 2)) == "shared_64_64_2"
    assert [kernel_name(value) for value in (True, False, "rows", (2, 4))] == [
        *("yes", "no", "rows", "2x4")
    ]


def test_off_uses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data, arrays = model(), feeds()
    whole_runs(monkeypatch, 2.0, 1.0)
    with session(data) as tuned:
        tuned.tune(arrays, 1)
    file = TuningFile(cache_dir(), device().info)
    table = file.load()
    file.store(dict.fromkeys(table, "nonsense"))
    with session(data) as other:  # candidates that are gone count for nothing
        other.run(None, arrays)
    monkeypatch.setenv("VKMNN_TUNE", "off")
    with session(data) as untuned:
        profile = untuned.profile(arrays, 1)
    assert "tuned" not in {entry.choice for entry in profile}


def test_on_tunes_new_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_TUNE", "on")
    whole_runs(monkeypatch, 2.0, 1.0)
    with session(model()) as tuned:
        tuned.run(None, feeds())
    assert TuningFile(cache_dir(), device().info).load()


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"key": "other", "choices": {}}', "[" * 100_000, "\0"],
    ids=["empty", "cut", "list", "of another", "nested", "zero"],
)
def test_damaged_files_are_ignored(damage: str) -> None:
    file = TuningFile(cache_dir(), device().info)
    file.store({"a": "b"})
    assert file.load() == {"a": "b"}
    file.path.write_text(damage, "utf-8")
    assert file.load() == {}


STORE = """
import sys
from pathlib import Path
from vkmnn.runtime.device import enumerate_devices
from vkmnn.vulkan.tuning import TuningFile
file = TuningFile(Path(sys.argv[1]), enumerate_devices()[0])
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    file.store({f"{sys.argv[2]} {number}": "value"})
"""


def test_processes_that_tune_at_once_lose_nothing(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", STORE, str(tmp_path), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for child in children:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=120)
        assert child.returncode == 0
    table = TuningFile(tmp_path, enumerate_devices()[0]).load()
    assert sorted(table) == sorted(f"{name} {n}" for name in range(4) for n in range(20))


def test_a_session_takes_nothing_back_that_others_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_runs(monkeypatch, 2.0, 1.0)
    file = TuningFile(cache_dir(), device().info)
    file.store({"of others": "old"})
    with session(model()) as tuned:
        file.store({"of others": "new"})
        tuned.tune(feeds(), 1)
    assert file.load()["of others"] == "new"


def test_a_file_for_other_shaders_is_ignored() -> None:
    file = TuningFile(cache_dir(), device().info)
    file.store({"a": "b"})
    data = json.loads(file.path.read_text("utf-8"))
    file.path.write_text(json.dumps({**data, "key": data["key"][::-1]}), "utf-8")
    assert file.load() == {}


def test_preferences() -> None:
    chooser = Preferences({choice_key("matmul", (1, 2)): "'b'"})
    assert chooser("matmul", (1, 2), ["a", "b"]) == "b"
    assert chooser("matmul", (1, 3), ["a", "b"]) == "a"
    assert chooser("matmul", (1, 2), ["a", "c"]) == "a"


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with session(model()) as tuned, pytest.raises(InvalidInputError, match="number of runs is 0"):
        tuned.tune(feeds(), 0)
    monkeypatch.setenv("VKMNN_TUNE", "perhaps")
    with pytest.raises(InvalidInputError, match="VKMNN_TUNE"):
        session(model())


def test_numpy_has_no_choices() -> None:
    with InferenceSession(model(), "cpu") as cpu:
        assert cpu.tune(feeds()).choices == ()
