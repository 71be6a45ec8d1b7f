"""Sessions prove what they use: the products on a real device, and who asks for them when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.opening import load_network, open_session, proof_trial
from vkmnn.opening.proof_trial import ProductTrial
from vkmnn.runtime.device import Device, open_device
from vkmnn.runtime.flag_line import FlagLine
from vkmnn.schedule_config import ScheduleConfig
from vkmnn.vulkan.proof import CAPABILITIES, FLAGS, ROWS, Capability, Verdict, judge


def test_products_are_those_of_numpy() -> None:
    trial = ProductTrial(device().open_again())
    try:
        for capability in CAPABILITIES:
            for used in (False, True):
                made = trial(capability, used, ROWS[0])
                assert made.us > 0
                assert made.difference <= capability.tolerance, capability.name
    finally:
        trial.close()


@pytest.mark.parametrize("in_vain", [False, True])
def test_chains_by_flags_are_those_of_numpy(in_vain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without the validation layer; a wait in vain is no result."""
    device()  # skips without one
    if in_vain:
        target = FlagLine._target
        monkeypatch.setattr(FlagLine, "_target", lambda self, number: target(self, number) + 1)
    trial = ProductTrial(open_device("auto", validation=False).open_again())
    try:
        verdict = judge(trial, replace(FLAGS, sizes=(2, 12), rounds=2))
        assert verdict is not None
        assert verdict.kind == "failed" if in_vain else verdict.kind in ("fast", "slow")
        assert (verdict.rows, verdict.difference) == (2 if in_vain else 12, 0)
    finally:
        trial.close()


class _Recorder:
    """A prover that only keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def settle(self, device: Device, capability: Capability) -> Verdict | None:
        self.asked.append(capability.name)
        return None

    def settle_codes(self, device: Device, op_type: str) -> bool:
        self.asked.append(op_type)
        return True


@pytest.mark.parametrize(
    ("precision", "mode", "asked"),
    [
        ("fp16", "on", ["matrices", "matrices-from-memory", "images", "UnaryOp"]),
        ("fp32", "on", ["images", "UnaryOp"]),
        ("fast", "on", ["images", "UnaryOp"]),  # runs as "high": the device has no matrices
        ("fp16", "off", []),
    ],
)
def test_sessions_ask_before_they_plan(
    precision: str, mode: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each: not for every op, and not for the plan of another shape."""
    device()  # skips without one
    recorder = _Recorder()
    monkeypatch.setattr(proof_trial, "PROVER", recorder)
    monkeypatch.setenv("VKMNN_PROOF", mode)
    monkeypatch.delenv("VKMNN_STORAGE", raising=False)
    ops = [
        Op("UnaryOp", name, [source], [name], UnaryAttrs("NEG"))
        for name, source in (("a", "x"), ("y", "a"))
    ]
    graph = Graph(
        "two",
        [TensorInfo("x", DType.FLOAT32, (1, "n"))],
        [TensorInfo("y", DType.FLOAT32, None)],
        ops,
        {},
    )
    config = ScheduleConfig(precision=precision)  # type: ignore[arg-type]
    opened = open_session(load_network(graph, optimised=False), config)
    try:
        for size in (4, 5):
            opened.core.run({"x": np.ones((1, size), np.float32)})
    finally:
        opened.core.close()
    assert recorder.asked == asked
