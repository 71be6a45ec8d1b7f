"""Matrices and the like are proved at first use: by a fake clock, a fake device and a real one."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.device_infos import COOPMAT_GPU, LARGE_GPU
from vkmnn.errors import DeviceLostError, InvalidInputError, LateFlagError
from vkmnn.opening.device import _proved, _proved_flags
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo, DeviceType
from vkmnn.schedule_config import ScheduleConfig
from vkmnn.vulkan.cost.devices import AMD, INTEL, NVIDIA
from vkmnn.vulkan.device_rules import (
    has_fast_dots,
    loads_matrices,
    may_wait_by_flags,
    refusal_reasons,
)
from vkmnn.vulkan.gemm.coop_tiles import byte_matrix_of, matrix_of
from vkmnn.vulkan.images.place import image_size
from vkmnn.vulkan.proof import (
    BUDGET_US,
    BYTE_MATRICES,
    CAPABILITIES,
    DOTS,
    FLAGS,
    FRAGMENTS,
    IMAGES,
    LIMBS,
    MATRICES,
    MIXED_DOTS,
    ROUNDS,
    ROWS,
    Capability,
    Outcome,
    Prover,
    Trial,
    Verdict,
    concerns,
    judge,
    stored_refusals,
)

BYTES = CooperativeMatrixShape(16, 16, 32, "i8", "i8", "i32", "i32", "subgroup", False)
ABLE = replace(
    COOPMAT_GPU,
    vendor="Qualcomm",
    cooperative_matrices=(*COOPMAT_GPU.cooperative_matrices, BYTES),
    features=COOPMAT_GPU.features | {"int8", "integer_dot", "integer_dot_accelerated", "images"},
)


class FakeDevice:
    """What a prover needs of a device."""

    def __init__(self, info: DeviceInfo = ABLE) -> None:
        self.info = info


class FakeTrial:
    """A device with a clock of its own.

    Args:
        with_us: microseconds of a row with the capability.
        without_us: the same without.
        difference: of results with the capability.
    """

    def __init__(self, with_us: float, without_us: float, difference: float = 0.0) -> None:
        self.us = {True: with_us, False: without_us}
        self.difference = difference
        self.runs: list[tuple[bool, int]] = []
        self.spent = 0.0
        self.error: dict[bool, Exception] = {}

    def __call__(self, capability: Capability, used: bool, rows: int) -> Outcome:
        self.runs.append((used, rows))
        if used in self.error:
            raise self.error[used]
        self.spent += self.us[used] * rows
        return Outcome(self.us[used] * rows, self.difference if used else 0.0)


def prover_of(trial: FakeTrial) -> Prover:
    @contextmanager
    def opened(device: Any) -> Iterator[Trial]:
        yield trial

    return Prover(opened)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VKMNN_PROOF", raising=False)
    return tmp_path / "cache" / "proofs"


def settled(
    trial: FakeTrial, info: DeviceInfo = ABLE, capability: Capability = MATRICES
) -> FakeDevice:
    device = FakeDevice(info)
    prover_of(trial).settle(device, capability)  # type: ignore[arg-type]
    return device


def test_a_fast_device_keeps_its_matrices(folder: Path) -> None:
    trial = FakeTrial(0.1, 0.5)
    assert settled(trial).info is ABLE
    assert len(trial.runs) == 2 * ROUNDS * len(ROWS)
    (file,) = folder.iterdir()
    data = json.loads(file.read_text())
    assert data["kind"] == "fast"
    assert (data["with_us"], data["without_us"]) == pytest.approx((102.4, 512.0))


@pytest.mark.parametrize(
    "trial",
    [
        FakeTrial(0.5, 0.1),
        FakeTrial(0.1, 0.5, difference=0.1),
        FakeTrial(0.1, 0.5, difference=math.nan),
        FakeTrial(0.1, 0.5, difference=math.inf),
    ],
    ids=["slow", "wrong", "NaN", "infinite"],
)
@pytest.mark.parametrize(
    ("capability", "used"),
    [
        (MATRICES, lambda info: matrix_of(info) is not None),
        (FRAGMENTS, loads_matrices),
        (BYTE_MATRICES, lambda info: byte_matrix_of(info) is not None),
        (DOTS, has_fast_dots),
        (IMAGES, lambda info: image_size(info, "auto") > 0),
    ],
    ids=lambda one: one.name if isinstance(one, Capability) else "",
)
def test_slow_or_wrong_capabilities_are_not_used(
    trial: FakeTrial,
    capability: Capability,
    used: Callable[[DeviceInfo], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the one that fails is left out; this is logged once, also for later sessions."""
    trial.runs.clear()
    prover = prover_of(trial)
    with caplog.at_level(logging.WARNING, "vkmnn"):
        for _ in range(2):
            device = FakeDevice()
            assert used(device.info)
            prover.settle(device, capability)  # type: ignore[arg-type]
            assert not used(device.info)
    assert [record.message for record in caplog.records if "do without" in record.message] != []
    assert len(caplog.records) == 1
    # Two have the same matrices; the others are for other GPUs.
    others = {*CAPABILITIES} - {capability, LIMBS, FRAGMENTS, FLAGS, MIXED_DOTS}
    assert all(one.present(device.info) for one in others)


def test_a_slow_device_is_not_kept_busy() -> None:
    """As an Arc A770 with matrices a thousand times slower: one small product with them."""
    trial = FakeTrial(1500.0, 1.0)
    verdict = judge(trial, MATRICES)
    assert verdict is not None
    assert verdict.kind == "slow"
    assert trial.runs == [(False, ROWS[0]), (True, ROWS[0])]
    small = FakeTrial(20.0, 25.0)  # a phone: the large product would take 120 ms
    assert judge(small, MATRICES) == Verdict("fast", ROWS[0], 1280.0, 1600.0)
    assert small.spent < BUDGET_US


def test_errors_with_the_capability_exclude_it() -> None:
    trial = FakeTrial(0.1, 0.5)
    trial.error[True] = DeviceLostError("hung")
    verdict = judge(trial, MATRICES)
    assert verdict is not None
    assert (verdict.kept, verdict.text) == (False, "failed: hung")
    trial.error = {False: DeviceLostError("hung")}
    assert judge(trial, MATRICES) is None  # says nothing about matrices


def test_verdicts_are_read_back(folder: Path) -> None:
    settled(FakeTrial(0.5, 0.1))
    later = FakeTrial(0.1, 0.5)
    assert matrix_of(settled(later).info) is None
    assert later.runs == []
    # Another driver version proves anew; so does a file that holds no verdict.
    assert matrix_of(settled(later, replace(ABLE, driver_version="2")).info) is not None
    assert later.runs
    for text in ("[]", '{"kind": "great"}', '{"kind": "fast", "rows": "many"}', "{", '{"a": 1}'):
        for file in folder.iterdir():
            file.write_text(text)
        again = FakeTrial(0.1, 0.5)
        assert matrix_of(settled(again).info) is not None
        assert again.runs


def test_stored_refusals_are_shown() -> None:
    assert stored_refusals() == []
    settled(FakeTrial(0.5, 0.1))
    settled(FakeTrial(0.1, 0.5), capability=DOTS)
    (text,) = stored_refusals()
    assert text.startswith("large GPU does without matrices: 1024x1024x1024 in 512 µs, without in")


def test_the_cache_cannot_be_written(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.parent.joinpath("cache").write_text("a file")
    trial = FakeTrial(0.5, 0.1)
    assert matrix_of(settled(trial).info) is None
    assert trial.runs
    assert "could not be saved" in caplog.text


def test_nobody_pays_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither software devices, nor emulated ones, nor devices without the capability."""
    trial = FakeTrial(0.5, 0.1)
    software = replace(ABLE, type=DeviceType.CPU)
    for info in (software, replace(ABLE, device_profile="nvidia-h200"), LARGE_GPU):
        assert settled(trial, info).info is info
    monkeypatch.setenv("VKMNN_PROOF", "off")
    assert settled(trial).info is ABLE
    assert trial.runs == []
    monkeypatch.setenv("VKMNN_PROOF", "on")
    assert concerns(software)
    assert matrix_of(settled(trial, software).info) is None
    runs = len(trial.runs)
    settled(trial)
    settled(trial)
    assert len(trial.runs) == 3 * runs  # files do not count
    monkeypatch.setenv("VKMNN_PROOF", "perhaps")
    with pytest.raises(InvalidInputError, match="VKMNN_PROOF='perhaps' is not known"):
        concerns(ABLE)


def test_quantised_ops_settle_bytes_and_dots() -> None:
    trial = FakeTrial(0.5, 0.1)
    prover, device = prover_of(trial), FakeDevice()
    assert not prover.settle_codes(device, "MatMul")  # type: ignore[arg-type]
    assert trial.runs == []
    for op_type in ("QuantizedMatMul", "DynamicQuantizeMatMul", "MatMulNBits"):
        assert prover.settle_codes(device, op_type)  # type: ignore[arg-type]
    assert byte_matrix_of(device.info) is None
    assert not has_fast_dots(device.info)
    assert matrix_of(device.info) is not None


@pytest.mark.parametrize("signed", [False, True])
def test_dot_products_of_mixed_signs_are_proved_where_signed_ones_are_missing(signed: bool) -> None:
    trial = FakeTrial(0.5, 0.1)
    kept = {"integer_dot"} | ({"integer_dot_accelerated"} if signed else set())
    device = FakeDevice(replace(ABLE, features=kept | {"integer_dot_mixed_accelerated"}))
    prover_of(trial).settle(device, MIXED_DOTS)  # type: ignore[arg-type]
    assert device.info.features == (kept | {"integer_dot_mixed_accelerated"} if signed else kept)
    assert bool(trial.runs) != signed


def test_the_table_of_drivers_gives_its_reasons() -> None:
    arc = replace(
        COOPMAT_GPU,
        vendor_id=INTEL,
        cooperative_matrices=(replace(COOPMAT_GPU.cooperative_matrices[0], m=8, n=8),),
    )
    (reason,) = refusal_reasons(arc)
    assert "8x8x16 are not used: Arc before Xe2" in reason
    assert refusal_reasons(replace(arc, vendor_id=1)) == []
    assert refusal_reasons(replace(arc, cooperative_matrices=())) == []


@pytest.mark.parametrize(
    ("trial", "precision"), [(FakeTrial(0.1, 0.5), "fast"), (FakeTrial(0.5, 0.1), "high")]
)
def test_float32_by_matrices_is_proved_too(
    trial: FakeTrial, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is slow or wrong, sessions run as "high", and float16 keeps its matrices."""
    monkeypatch.setattr("vkmnn.opening.proof_trial.PROVER", prover_of(trial))
    device = FakeDevice(COOPMAT_GPU)
    settled_precision, prove = _proved(device, "fast", ScheduleConfig())  # type: ignore[arg-type]
    assert settled_precision == precision
    assert prove is not None
    assert trial.runs
    assert matrix_of(device.info) is not None


NVIDIA_GPU = replace(ABLE, vendor_id=NVIDIA, type=DeviceType.DISCRETE)


@pytest.mark.parametrize(
    ("info", "listed"),
    [
        (NVIDIA_GPU, True),
        (replace(NVIDIA_GPU, vendor_id=AMD), True),
        (replace(NVIDIA_GPU, vendor_id=INTEL), False),
        (replace(NVIDIA_GPU, vendor_id=AMD, type=DeviceType.INTEGRATED), False),
        (replace(NVIDIA_GPU, type=DeviceType.CPU), False),
        (replace(NVIDIA_GPU, limits=replace(ABLE.limits, whole_buffers=True)), False),
    ],
)
def test_devices_that_may_wait_by_flags(info: DeviceInfo, listed: bool) -> None:
    assert may_wait_by_flags(info) == listed
    assert FLAGS.present(info) == listed


@pytest.mark.parametrize(
    ("mode", "info", "trial", "used"),
    [
        ("off", NVIDIA_GPU, FakeTrial(0.1, 0.5), None),
        ("force", ABLE, FakeTrial(0.1, 0.5), None),  # the backend reads the variable
        ("on", ABLE, FakeTrial(0.1, 0.5), False),
        ("on", NVIDIA_GPU, FakeTrial(0.1, 0.5), True),
        ("on", NVIDIA_GPU, FakeTrial(0.5, 0.1), False),
        ("on", NVIDIA_GPU, FakeTrial(0.1, 0.5, difference=1e-9), False),
    ],
)
def test_flags_are_used_where_they_are_asked_for_and_proved(
    mode: str, info: DeviceInfo, trial: FakeTrial, used: bool | None, monkeypatch: Any
) -> None:
    trial.runs.clear()
    monkeypatch.setenv("VKMNN_FLAGS", mode)
    monkeypatch.setattr("vkmnn.opening.proof_trial.PROVER", prover_of(trial))
    device = FakeDevice(info)
    assert _proved_flags(device) is used  # type: ignore[arg-type]
    assert bool(trial.runs) == (mode == "on" and info is NVIDIA_GPU)
    assert len(stored_refusals()) == (info is NVIDIA_GPU and mode == "on")
    if trial.runs and used:
        assert max(levels for _, levels in trial.runs) == 1000
        assert "waits by flags: 1000 levels in 100 µs" in stored_refusals()[0]
    monkeypatch.setenv("VKMNN_FLAGS", "maybe")
    with pytest.raises(InvalidInputError, match="VKMNN_FLAGS='maybe' is not known"):
        _proved_flags(device)  # type: ignore[arg-type]


def test_a_wait_in_vain_is_a_failed_proof() -> None:
    trial = FakeTrial(0.1, 0.5)
    trial.error[True] = LateFlagError("in vain")
    verdict = judge(trial, FLAGS)
    assert verdict is not None
    assert (verdict.kept, verdict.text) == (False, "failed: in vain")
