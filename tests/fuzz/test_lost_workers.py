"""Workers that crash or hang: the campaign reports the model that caused it, and continues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vkmnn_suite.fuzz import campaign, child
from vkmnn_suite.fuzz.case import Case
from vkmnn_suite.fuzz.check import AGREES, CRASHED, DISPUTED, HUNG
from vkmnn_suite.fuzz.options import Options

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

# The worker, but its models have one node, and the second one is never computed.
STAND_IN = """
import os, sys, time
import numpy as np
from onnx import helper
from vkmnn_suite.fuzz import worker
from vkmnn_suite.fuzz.case import Case

def make_case(seed, number, *rest):
    if number == 1:
        {while_making}
    node = helper.make_node("Exp" if number == 1 else "Neg", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]))
    return Case(model, ({{"x": np.ones(2, np.float32)}},), f"model {{number}}")

def check(case, options, oracle):
    if case.model.graph.node[0].op_type == "Exp":
        {while_running}
    return worker.Verdict("agrees")

worker.make_case, worker.check = make_case, check
worker.main()
"""


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return the reports of three models if the second one harms its process."""
    monkeypatch.setattr(campaign, "_CRASH_PATIENCE_S", 0.0)
    monkeypatch.setattr(child, "WORKER", "stand_in_worker")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(while_making: str = "pass", while_running: str = "pass", timeout_s: float = 60.0):
        text = STAND_IN.format(while_making=while_making, while_running=while_running)
        (tmp_path / "stand_in_worker.py").write_text(text)
        options = Options(seed=4, graphs=3, timeout_s=timeout_s, folder=tmp_path / "failures")
        return campaign.campaign(options)

    return run


@pytest.mark.parametrize(
    ("deed", "kind", "how"),
    [
        ("os.abort()", CRASHED, "while running: .* with signal 6: Fatal Python error: Aborted"),
        ("sys.exit('no driver')", CRASHED, "while running: .* with status 1: no driver"),
        ("time.sleep(60)", HUNG, "while running: no answer within 2 s"),
    ],
)
def test_the_model_is_named_and_saved(lost, deed: str, kind: str, how: str):
    report = lost(while_running=deed, timeout_s=2.0 if kind == HUNG else 60.0)
    (failure,) = report.failures
    assert report.kinds == {AGREES: 2, kind: 1}
    assert (failure["number"], failure["kind"]) == (1, kind)
    assert re.search(how, failure["detail"])
    saved = Case.load(Path(failure["file"]))
    assert saved.origin == "model 1"
    assert [node.op_type for node in saved.model.graph.node] == ["Exp"]
    assert "Exp" in failure["text"]


def test_a_model_that_the_oracle_does_not_survive(lost):
    """vkmnn has not seen it."""
    report = lost(while_making="os._exit(3)")
    assert report.kinds == {AGREES: 2, DISPUTED: 1}
    (reason,) = report.disputes
    assert reason.startswith("oracle: while making: its process ended with status 3")
