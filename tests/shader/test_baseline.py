"""The timing baseline: verdicts beyond the noise alone, and a file that survives updates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from vkmnn.errors import InvalidInputError
from vkmnn.testing.baseline import Baseline, Measured, compare

OLD = Measured(100.0, 90.0, 110.0, "case", "shader")


def scaled(factor: float) -> Measured:
    return dataclasses.replace(
        OLD, median_us=100 * factor, low_us=90 * factor, high_us=110 * factor
    )


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, "same"), (1.2, "same"), (0.85, "same"), (1.3, "slower"), (0.75, "faster")],
)
def test_verdict_needs_bands_that_lie_apart(factor: float, verdict: str):
    against = compare(scaled(factor), OLD)
    assert against.verdict == verdict
    assert against.ratio == pytest.approx(factor)
    assert against.low <= against.ratio <= against.high
    assert (against.low <= 1 <= against.high) == (verdict == "same")


def test_what_cannot_be_compared_is_new():
    assert compare(OLD, None).verdict == "new"
    assert compare(dataclasses.replace(OLD, case="another"), OLD).verdict == "new"


def test_changed_shader_is_compared_and_noted():
    against = compare(dataclasses.replace(OLD, shader="other"), OLD)
    assert against.verdict == "same"
    assert "changed" in against.note


def test_times_of_zero_divide():
    nothing = Measured(0.0, 0.0, 0.0, "case", "shader")
    assert compare(nothing, nothing).verdict == "same"
    assert compare(OLD, nothing).verdict == "slower"
    assert compare(nothing, OLD).verdict == "faster"


def test_file_holds_what_was_put_in(tmp_path: Path):
    path = tmp_path / "folder" / "baseline.json"
    baseline = Baseline()
    baseline.update("GPU", {"b": OLD, "a": scaled(2)}, ["a", "b"])
    baseline.update("CPU", {"a": scaled(3)}, ["a", "b"])
    baseline.save(path)
    again = Baseline.load(path)
    assert again.of("GPU") == {"a": scaled(2), "b": OLD}
    assert again.of("nothing") == {}
    text = path.read_text("utf-8")
    again.save(path)
    assert path.read_text("utf-8") == text
    assert text.index('"CPU"') < text.index('"GPU"')


def test_update_keeps_what_was_not_timed_and_forgets_what_is_gone():
    baseline = Baseline({"GPU": {"a": OLD, "b": OLD, "gone": OLD}, "CPU": {"gone": OLD}})
    baseline.update("GPU", {"a": scaled(2)}, ["a", "b"])
    assert baseline.of("GPU") == {"a": scaled(2), "b": OLD}
    assert baseline.of("CPU") == {"gone": OLD}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "devices": {"a": 1}}']
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"b\.json"):
        Baseline.load(path)
