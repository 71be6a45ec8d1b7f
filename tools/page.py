"""The tables of what was run on which driver: on the screen, and in docs/drivers.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.process import TaskError
from tools.suites import Report

BEGIN = "<!-- written by `tasks.py drivers --record`; do not edit -->"
END = "<!-- end -->"
TITLES = ("Driver", "Device", "Version", "Layer", "Run", "Minutes", "Date")


def cells(report: Report) -> list[str]:
    """Return a report as a row of the table."""
    return [
        report.driver,
        report.device,
        report.version,
        report.layer,
        "; ".join(map(str, report.outcomes)),
        f"{sum(outcome.seconds for outcome in report.outcomes) / 60:.0f}",
        report.date,
    ]


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def shown(reports: Sequence[Report]) -> str:
    """Return the table at the end of a run: one line for each part."""
    rows = [("driver", "version", "layer", "what", "passed", "failed", "skipped", "seconds")]
    rows += [
        (
            *(report.driver, report.version, report.layer, outcome.part),
            *(f"{outcome.passed}", f"{outcome.failed}", f"{outcome.skipped}"),
            f"{outcome.seconds:.0f}",
        )
        for report in reports
        for outcome in report.outcomes
    ]
    return columns(rows)


def record(reports: Sequence[Report], path: Path) -> None:
    """Write the reports into the page's table; rows of other drivers stay.

    Raises:
        TaskError: the page has no place for the table.
    """
    text = path.read_text("utf-8")
    before, begun, rest = text.partition(BEGIN)
    table, ended, after = rest.partition(END)
    if not begun or not ended:
        raise TaskError(f"{path} has no lines '{BEGIN}' and '{END}'")
    rows = {line.split("|")[1].strip(): line for line in table.strip().splitlines()[2:]}
    rows |= {report.driver: _line(cells(report)) for report in reports}
    lines = [_line(TITLES), _line(["---"] * len(TITLES)), *(rows[name] for name in sorted(rows))]
    path.write_text("\n".join([before + BEGIN, "", *lines, "", END]) + after, "utf-8")


def _line(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |"
