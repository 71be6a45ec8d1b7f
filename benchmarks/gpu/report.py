"""The findings of the steps: raw numbers in a file, and a page for people."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.gpu.chain import Measured
from benchmarks.gpu.fit import Fit

OFF = 1.5
"""A kernel is listed if its time exceeds the prediction by this factor, or falls short by it."""


@dataclass(slots=True)
class Section:
    """The findings of one step.

    Args:
        title: the title of the step.
        decides: the decisions for which its numbers are needed.
        tables: rows of plain data by the title of a table.
        measured: kernels, with the predictions for them.
        notes: decisions and omissions, one sentence each.
        wrong: the first wrong result; the run ends there.
        seconds: the time that it took.
        machine: clocks and temperature at its end, if the system tells.
    """

    title: str
    decides: str
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: str = ""
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=dict)

    def keep(self, each: Measured) -> None:
        """Keep a time; a wrong result is noted."""
        self.measured.append(each)
        if each.is_wrong and not self.wrong:
            self.wrong = f"{each.what} by {each.kernel}: differs by {each.error:.1e} of the range"


def write(
    folder: Path, head: Mapping[str, Any], sections: Sequence[Section], fit: Fit | None
) -> Path:
    """Write gpu.json and gpu.md into a folder, and return the page's path."""
    data = {**head, "sections": [asdict(s) for s in sections], "fit": asdict(fit) if fit else None}
    (folder / "gpu.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    page = folder / "gpu.md"
    page.write_text("\n".join(_page(head, sections, fit)) + "\n", "utf-8")
    return page


def keep(folder: Path, kept: Path, head: Mapping[str, Any]) -> Path:
    """Copy the raw numbers to a folder of all devices; return the copy's path."""
    kept.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"[^a-z0-9]+", "-", str(head["device"]).lower()).strip("-")
    commit = str(head.get("commit", "")).rstrip("+")[-12:] or "unknown"
    path = kept / f"{str(head.get('date', ''))[:10]}-{device}-{commit}.json"
    shutil.copyfile(folder / "gpu.json", path)
    return path


def _page(head: Mapping[str, Any], sections: Sequence[Section], fit: Fit | None) -> list[str]:
    lines = [f"# {head['device']}", ""]
    lines += [f"- {name}: {value}" for name, value in head.items() if isinstance(value, str)]
    lines += ["", "## What to change", ""]
    lines += [f"- **wrong**: {section.wrong}" for section in sections if section.wrong]
    lines += [f"- {section.title}: {note}" for section in sections for note in section.notes]
    lines += ["", *_off(sections), *(_fitted(fit) if fit else [])]
    for section in sections:
        lines += ["", f"## {section.title}", "", f"{section.decides} ({section.seconds:.0f} s)", ""]
        if section.machine:
            state = ", ".join(f"{name} {value}" for name, value in section.machine.items())
            lines += [f"At its end: {state}.", ""]
        for title, rows in section.tables.items():
            lines += [f"### {title}", "", *_table(rows), ""]
        if section.measured:
            lines += [*_table([_row(each) for each in section.measured]), ""]
    return lines


def _row(each: Measured) -> dict[str, Any]:
    ratio = each.us / each.predicted_us if each.predicted_us else 0.0
    return {
        "problem": each.what,
        "stored": "f16" if each.fp16 else "f32",
        "caches": "cold" if each.cold else "warm",
        "kernel": each.kernel,
        "by": "rule" if each.rule else "",
        "workgroups": each.workgroups,
        "dispatches": each.dispatches,
        "predicted µs": f"{each.predicted_us:.2f}",
        "measured µs": f"{each.us:.2f}",
        "measured / predicted": f"{ratio:.2f}",
        "difference": f"{each.error:.0e}",
    }


def _off(sections: Sequence[Section]) -> list[str]:
    """Return the rules' kernels that take much more or less time than predicted."""
    rows = [
        (each.us / each.predicted_us, each)
        for section in sections
        for each in section.measured
        if each.rule and each.predicted_us
    ]
    far = [(ratio, each) for ratio, each in rows if ratio > OFF or ratio < 1 / OFF]
    if not far:
        return []
    far.sort(key=lambda pair: -pair[1].us * abs(1 - 1 / pair[0]))
    return [
        f"### Kernels of the rules that are off by {OFF:g} times and more",
        "",
        *_table([_row(each) for _, each in far]),
        "",
    ]


def _fitted(fit: Fit) -> list[str]:
    """Return the constants of the device's class, formatted for the table of the cost model."""
    scales = ", ".join(f"{name} {scale:.2f}" for name, scale in fit.scales.items())
    row = "\n".join(f"    {f.name}={_number(getattr(fit.row, f.name))}," for f in fields(fit.row))
    return [
        "### Constants of the cost model",
        "",
        (
            f"Typical factor between predicted and measured: {fit.before:.2f}; with the terms "
            f"scaled ({scales}): {fit.after:.2f}. The row for `vkmnn/vulkan/cost/devices.py`:"
        ),
        "",
        f"```python\nDeviceClass(\n{row}\n)\n```",
    ]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:_.0f}"
    return repr(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["(nothing)"]
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]
    return lines + [f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("|", "\\|")
