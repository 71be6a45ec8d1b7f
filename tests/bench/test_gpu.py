"""`bench gpu`: kernels in a chain, the fit of the cost model, the page, wrong results."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import chain, command, machine, peers, problems
from benchmarks.gpu.chain import Measured, kernels
from benchmarks.gpu.fit import TERMS, fit
from benchmarks.gpu.report import Section, write
from benchmarks.gpu.step import PLAN, Setting, Step
from benchmarks.gpu.steps import RISKY, both_orders
from benchmarks.networks import Network, light_models
from tests.device_infos import COOPMAT_GPU
from vkmnn.bench.compare import Comparison, Series, place
from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.testing.case import variants
from vkmnn.vulkan.cost.devices import SERVER
from vkmnn.vulkan.gemm.family import rank
from vkmnn.vulkan.gemm.problem import MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn_suite.cases import load_all

STEPS = command.STEPS
LONG_STEPS = ("products", "vectors", "networks")

needs_device = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")

TIME = Measured(
    "product 1×2×3", "matmul", 4, 1, True, False, False, us=10.0,
    terms={"gaps": 1.0, "start": 2.0, "latency": 3.0, "loads": 4.0}, error=0.0,
)  # fmt: skip


def setting(**changes: Any) -> Setting:
    return Setting(open_device(), place("auto", 1, 1, 60), [], fp16=False, **changes)


@needs_device
@pytest.mark.parametrize("sweep_bytes", [0, 1 << 20])
def test_every_kernel_of_a_product_is_timed(sweep_bytes: int) -> None:
    problem = problems.product(7, 13, 29)
    found = list(
        kernels(
            problem.case, problem.what, problem.kind, open_device(),
            runs=1, sweep_bytes=sweep_bytes,
        )
    )  # fmt: skip
    assert len(found) > 1
    assert [each.rule for each in found] == [True] + [False] * (len(found) - 1)
    for each in found:
        assert each.us > 0
        assert each.predicted_us > 0
        assert not each.is_wrong
        assert each.cold == bool(sweep_bytes)


@needs_device
@pytest.mark.parametrize(
    "problem", [*problems.passes(), problems.attention(2, 5, 7, 8)], ids=lambda p: p.what
)
def test_other_problems_are_right(problem: problems.Problem) -> None:
    found = next(kernels(problem.case, problem.what, "", open_device(), runs=1))
    assert not found.is_wrong
    assert found.dispatches > 0


@needs_device
def test_ops_of_several_dispatches_are_right() -> None:
    """The later dispatches write over the input's memory, so that a chain of them ends wrong."""
    problem = problems.convolution(64, 64, 3, 1, 28)
    found = list(kernels(problem.case, problem.what, problem.kind, open_device(), runs=1, most=3))
    assert max(each.dispatches for each in found) > 1
    assert not any(each.is_wrong for each in found)


@needs_device
@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("kind", ["codes", "unpacked"])
def test_kernels_of_quantised_weights_take_turns_with_copies(
    kind: str, fp16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain reads other weights each time: as many buffers as make the bytes."""
    copied: list[int] = []

    copies = chain._copies

    def counted(*arguments: Any) -> Any:
        made = copies(*arguments)
        copied.append(len(made))
        return made

    monkeypatch.setattr(chain, "_copies", counted)
    rows = 1 if kind == "codes" else 40
    problem = problems.codes(rows, 96, 64, kind).stored(fp16)
    found = list(
        kernels(problem.case, problem.what, kind, open_device(), runs=1, rotated_bytes=20_000)
    )
    assert len(found) > 1
    assert all(each.cold and not each.is_wrong and each.us > 0 for each in found)
    assert set(copied) == {6}  # of 3,072 bytes of values and 768 of scales


@needs_device
@pytest.mark.parametrize("size", problems.REHEARSED_CACHES)
def test_every_kernel_of_attention_on_caches_is_right(size: tuple[int, int, int, int]) -> None:
    problem = problems.cached(*size)
    found = list(kernels(problem.case, problem.what, problem.kind, open_device(), runs=1))
    assert len(found) > 1
    assert not any(each.is_wrong for each in found)


@needs_device
@pytest.mark.parametrize("size", problems.REHEARSED_WINDOWS)
def test_every_kernel_of_small_windows_is_right(size: tuple[int, int, int, int, int]) -> None:
    problem = problems.convolution(*size)
    found = list(kernels(problem.case, problem.what, problem.kind, open_device(), runs=1, most=2))
    assert len(found) > 1
    assert not any(each.is_wrong for each in found)


def test_weights_in_both_orders_are_timed_beside_the_rules_kernel() -> None:
    """Even where neither is among the first by prediction."""
    problem = MatMulProblem((), (), (), 512, 64, 96)
    ranked = rank(problem, Target(COOPMAT_GPU, "f16"))
    chosen = both_orders(ranked)
    assert chosen[0] == ranked[0]
    assert [kernel.tile.fragments for kernel in chosen[1:]] == [True, True, False, False]
    assert len(set(chosen)) == 5


def test_the_plan_is_of_thirty_minutes_and_begins_with_language_models() -> None:
    assert [step.name for step in STEPS] == list(PLAN)
    assert sum(PLAN.values()) == pytest.approx(30)
    assert [step.name for step in STEPS][:4] == ["device", "codes", "caches", "llm"]


def test_what_changed_since_the_last_hour_is_checked() -> None:
    load_all()
    templates = {variant.template for variant in variants()}
    assert set(RISKY) <= templates
    assert len(set(RISKY)) == len(RISKY)
    assert {"matmul_codes_dot", "cached_attention_wide", "unpack_codes"} <= set(RISKY)


def test_the_state_of_the_machine_if_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.machine_state() == {}
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '580.1, 1980, 1980, 2619, 41, 120.5, P0, 0x0'\n")
    tool.chmod(0o755)
    state = machine.machine_state()
    assert (state["driver"], state["multiprocessors, MHz"], state["°C"]) == ("580.1", "1980", "41")
    section = Section("A step", "", machine=state)
    assert (
        "multiprocessors, MHz 1980" in write(tmp_path, {"device": "A"}, [section], None).read_text()
    )
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert machine.machine_state() == {}


@needs_device
def test_numbers_are_kept_after_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note(setting: Setting, section: Section) -> None:
        seen.append([len(json.loads(p.read_text())["sections"]) for p in kept.glob("*.json")])

    kept = tmp_path / "devices"
    monkeypatch.setattr(command, "STEPS", [Step(n, n, "", 1, note) for n in ("one", "two")])
    head = {"device": "A GPU (1)", "date": "2026-11-28T10:00:00+00:00", "commit": "abc+"}
    assert command.run(setting(), 0.1, tmp_path, head, kept=kept)
    assert seen == [[], [1]]
    assert [path.name for path in kept.iterdir()] == ["2026-11-28-a-gpu-1-abc.json"]


def test_the_fit_finds_what_is_off() -> None:
    """Times that follow other constants: the fit finds the factors; unused terms stay."""
    factors = {"latency": 2.0, "loads": 0.5}
    times = []
    for number in range(30):
        terms = {"gaps": 1.0, "start": 2.0, "latency": 1.0 + number % 7, "loads": 1.0 + number % 5}
        spent = sum(value * factors.get(name, 1.0) for name, value in terms.items())
        times.append(replace(TIME, terms=terms, us=spent))
    found = fit(times, SERVER)
    assert found is not None
    assert found.after < found.before
    assert found.after < 1.1
    assert found.scales["latency"] == pytest.approx(2.0, rel=0.25)
    assert found.scales["loads"] == pytest.approx(0.5, rel=0.25)
    assert found.scales["split"] == pytest.approx(1.0)
    assert found.row.step_us == pytest.approx(SERVER.step_us * found.scales["latency"])
    assert found.row.core_bytes == pytest.approx(SERVER.core_bytes / found.scales["loads"])
    assert set(found.scales) == set(TERMS)


def test_there_is_no_fit_without_times() -> None:
    assert fit([], SERVER) is None
    assert fit([replace(TIME, error=float("nan"))], SERVER) is None


def test_the_page_begins_with_what_to_change(tmp_path: Path) -> None:
    section = Section("Products", "The rules.", notes=["another kernel is faster"])
    section.keep(TIME)
    section.keep(replace(TIME, kernel="slow", us=90.0))
    section.keep(replace(TIME, kernel="broken", error=0.5))
    page = write(
        tmp_path, {"device": "A GPU"}, [section], fit(section.measured, SERVER)
    ).read_text()
    change, rest = page.split("## Products")
    assert "**wrong**: product 1×2×3 by broken" in change
    assert "Products: another kernel is faster" in change
    assert "slow" in change
    assert "DeviceClass(" in change
    assert "matmul" in rest
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert data["sections"][0]["measured"][1]["us"] == 90.0


@needs_device
def test_a_wrong_result_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def good(setting: Setting, section: Section) -> None:
        ran.append("good")

    def bad(setting: Setting, section: Section) -> None:
        section.wrong = "a kernel"
        ran.append("bad")

    steps = [Step(run.__name__, run.__name__, "", 1, run) for run in (good, bad, good)]
    monkeypatch.setattr(command, "STEPS", steps)
    assert not command.run(setting(), 0.1, tmp_path, {"device": "x"})
    assert ran == ["good", "bad"]
    assert "**wrong**: a kernel" in (tmp_path / "gpu.md").read_text()


@needs_device
def test_only_known_steps(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no step 'nothing'"):
        command.run(setting(), 1, tmp_path, {"device": "x"}, ["nothing"])


@needs_device
@pytest.mark.parametrize("name", ["device", "codes", "caches", "llm", "flags", "torch"])
def test_steps_are_rehearsed_as_a_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half precision and tiny sizes, each runs to its end, and has a table."""
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", "nvidia-h200")
    run = setting()
    run.fp16 = True
    assert run.is_rehearsal
    assert command.run(run, 0.001, tmp_path, {"device": "x"}, [name])
    (section,) = json.loads((tmp_path / "gpu.json").read_text())["sections"]
    if name in ("codes", "llm", "device"):
        assert section["tables"]
    if name == "llm":
        (rows,) = section["tables"].values()
        assert rows[0]["precision"] == "normal"
        assert rows[0]["prompt, tokens/s"] > 0
    if name == "flags":
        chains, proof = section["tables"].values()
        assert {row["levels"] for row in chains} == {6}
        assert proof[0]["verdict"] in ("fast", "slow")
    if name == "torch":
        assert section["notes"]


@needs_device
@pytest.mark.parametrize("finds", [True, False])
def test_columns_of_torch(finds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to be faster has a column, unless there is no CUDA device."""
    asked = []

    def compared(name: str, path: Path, feeds: Any, specs: Any, where: Any) -> Comparison:
        asked.append([(s.name, s.options.get("with"), s.options.get("precision")) for s in specs])
        error = "" if finds else "PyTorch finds no CUDA device"
        return Comparison(name, [Series(s.name, [0.002], error=error) for s in specs])

    monkeypatch.setattr(peers, "compare", compared)
    monkeypatch.setattr(peers, "find_spec", lambda name: name)
    run = setting()
    run.fp16 = True
    run.models = [Network("n", tmp_path, {}, "espcn", {"N": 1})]
    run.end = time.monotonic() + 60
    section = Section("PyTorch", "")
    next(s for s in STEPS if s.name == "torch").run(run, section)
    name = "PyTorch CUDA graph tf32 channels_last"
    if finds:
        assert len(asked) == len(peers.COLUMNS)
        ways = ["tf32", "channels_last"]
        assert asked[2] == [(name, ways, None), (f"{name} fp16", ways, "normal")]
        assert {row["ms"] for row in section.tables["one run, milliseconds"]} == {2.0}
    else:
        assert len(asked) == 1
        assert "no CUDA" in section.notes[0]


@needs_device
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(step.name, marks=[pytest.mark.soak] if step.name in LONG_STEPS else [])
        for step in STEPS
        if step.name not in ("start", "tuner", "device", "codes", "caches", "llm", "flags", "torch")
    ],
)
def test_every_step_runs_in_no_time(name: str, tmp_path: Path) -> None:
    """With hardly any time, a step measures little, and reports that."""
    from benchmarks.networks import from_file

    squeeze = next(path for path in light_models() if "squeezenet" in path.name)
    run = setting()
    run.models = [from_file(squeeze)] if name == "networks" else []
    assert command.run(run, 0.001, tmp_path, {"device": "x"}, [name])
    assert (
        f"## {next(step.title for step in STEPS if step.name == name)}"
        in (tmp_path / "gpu.md").read_text()
    )
