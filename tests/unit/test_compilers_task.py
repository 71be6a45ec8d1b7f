"""tasks.py compilers: its inputs, comparisons and complaints, without a driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import compilers
from tools.compiled_kernels import figures

SAID = """Compute Shader:
*** SHADER STATS ***
Driver pipeline hash: 14733736951879952905
SGPRs: 128
VGPRs: 64
Spilled SGPRs: 0
Spilled VGPRs: 3
Code size: 7512
LDS size: 9216
Scratch size: 256
Subgroups per SIMD: 16
Instructions: 1412
Inverse Throughput: 18744
"""
KERNEL = figures(SAID) or {}


def made(**kernels: dict[str, int]) -> dict[str, Any]:
    return {"driver": "radv", "kernels": kernels, "failed": {}, "lacking": {}, "refused": []}


def test_statistics_are_read() -> None:
    assert KERNEL == {
        "registers": 64,
        "spilled": 3,
        "scratch": 256,
        "shared": 9216,
        "waves": 16,
        "instructions": 1412,
        "cycles": 18744,
    }
    assert figures("WARNING: radv is not a conformant Vulkan implementation\n") is None


def test_records_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "navi31.tsv"
    assert compilers.load(path) == ("", {})
    compilers.save(path, "radv 25", {"b": KERNEL, "a": KERNEL})
    driver, kernels = compilers.load(path)
    assert driver == "radv 25"
    assert list(kernels) == ["a", "b"]
    assert kernels["a"] == {name: KERNEL[name] for name in compilers.KEPT}


def test_changes_are_shown_longest_first() -> None:
    before = {"same": KERNEL, "longer": KERNEL, "shorter": KERNEL, "gone": KERNEL}
    after = {
        "same": KERNEL,
        "shorter": {**KERNEL, "instructions": 1000},
        "longer": {**KERNEL, "instructions": 1600, "waves": 8},
        "new": KERNEL,
    }
    longer, shorter = compilers.changes(before, after)
    assert longer == ("longer", "64", "9216", "16 -> 8", "1412 -> 1600", "18744")
    assert shorter[0] == "shorter"


def test_a_record_is_of_all_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of some of them would replace those of the others."""
    with pytest.raises(SystemExit):
        compilers.main(["navi31", "--record", "--only", "conv_.*"])
    assert "leave --only out" in capsys.readouterr().err


def test_faults() -> None:
    fine = {**KERNEL, "spilled": 0, "scratch": 0}
    longer = {**fine, "instructions": 1600}
    assert compilers.faults(made(a=fine), {"a": fine}) == []
    assert compilers.faults(made(a=longer), {}) == []  # not recorded yet
    (line,) = compilers.faults(made(a=longer), {"a": fine})
    assert "1600 instructions instead of 1412" in line
    (line,) = compilers.faults(made(a=KERNEL), {"a": KERNEL})
    assert "spills 3 registers" in line
    (line,) = compilers.faults({**made(), "failed": {"a": "why"}}, {})
    assert line == "a does not compile: why"


def test_the_page_keeps_what_is_not_compiled_anew(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{compilers.BEGIN}\n{compilers.END}\nafter\n")
    rows = {
        name: compilers.summary(compilers.COMPILERS[name], made(kernel=KERNEL))
        for name in ("navi31", "navi21")
    }
    compilers.record([rows["navi31"]], path)
    compilers.record([rows["navi21"]], path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    table = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("|")]
    assert table[2:] == ["| navi21", "| navi31"]
