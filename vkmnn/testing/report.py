"""The HTML page of a run: one self-contained file.

`python -m vkmnn.testing.report RESULTS.json... PAGE.html` creates it from saved results, for
example of several machines.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from vkmnn.errors import VkmnnError
from vkmnn.testing.baseline import VERDICTS
from vkmnn.testing.charts import Band, Bar, Scatter, band, histogram, scatter, time_text
from vkmnn.testing.files import write_atomically
from vkmnn.testing.results import DeviceRecord, Entry, Results, merged
from vkmnn.testing.summary import by_reason

_FOLDER = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over some entries; `missing` is how many no test dispatched.

    `worst` is the entry with the largest error, `ratio` the mean of the times against the baseline.
    """

    variants: int
    passed: int
    failed: int
    beyond: int
    missing: int
    cases: int
    worst: Entry | None
    ratio: float | None
    verdicts: Mapping[str, int]

    @property
    def state(self) -> str:
        """Display state: "bad" (failures, or variants not dispatched), "good" or "none"."""
        return "bad" if self.failed or self.missing else "good" if self.passed else "none"


@dataclass(frozen=True, slots=True)
class Row:
    """A variant on a device, with its chart."""

    entry: Entry
    band: Band | None
    missing: bool

    @property
    def outcome(self) -> str:
        """Filter key of the row."""
        if self.missing:
            return "missing"
        return "beyond" if self.entry.reason else self.entry.outcome


@dataclass(frozen=True, slots=True)
class Kernel:
    """The section of a template."""

    name: str
    axes: tuple[str, ...]
    rows: list[Row]
    tally: Tally
    errors: list[Bar]
    times: Scatter | None
    reasons: Mapping[str, list[Entry]]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """The summary of a device."""

    record: DeviceRecord
    tally: Tally
    missing: list[Entry]
    reasons: Mapping[str, list[Entry]]


def render(results: Results) -> str:
    """Return the page as HTML.

    Everything that comes from a run is escaped: names of devices and kernels are foreign text.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(time=time_text, percent=_percent, number=_number)
    missing = {
        (entry.device, entry.variant)
        for device in results.devices
        for entry in results.undispatched(device)
    }
    entries = list(results.entries.values())
    return environment.get_template("report.html.j2").render(
        results=results,
        devices=[_device(results, label, missing) for label in results.devices],
        kernels=[_kernel(results, name, missing) for name in results.templates()],
        total=_tally(entries, missing),
        failures=[entry for entry in entries if entry.outcome == "failed"],
        verdicts=VERDICTS,
        timed=any(entry.time for entry in entries),
        compared=any(entry.against for entry in entries),
    )


def write_report(results: Results, path: Path) -> None:
    """Write the page atomically."""
    write_atomically(path, render(results))


def _device(results: Results, label: str, missing: set[tuple[str, str]]) -> DeviceView:
    here = results.of(label)
    return DeviceView(
        results.devices[label],
        _tally(here, missing),
        [entry for entry in here if (label, entry.variant) in missing],
        by_reason(here),
    )


def _kernel(results: Results, name: str, missing: set[tuple[str, str]]) -> Kernel:
    keys = sorted(results.entries, key=lambda key: (key[1], key[0]))
    entries = [results.entries[key] for key in keys if results.entries[key].template == name]
    return Kernel(
        name,
        tuple(dict.fromkeys(axis for entry in entries for axis in entry.axes)),
        [Row(entry, band(entry), (entry.device, entry.variant) in missing) for entry in entries],
        _tally(entries, missing),
        histogram(entries),
        scatter(entries),
        by_reason(entries),
    )


def _tally(entries: Sequence[Entry], missing: set[tuple[str, str]]) -> Tally:
    outcomes = Counter(entry.outcome for entry in entries)
    ratios = [e.against.ratio for e in entries if e.against and e.against.verdict != "new"]
    tested = [entry for entry in entries if entry.cases]
    return Tally(
        variants=len(entries),
        passed=outcomes["passed"],
        failed=outcomes["failed"],
        beyond=sum(bool(entry.reason) for entry in entries),
        missing=sum((entry.device, entry.variant) in missing for entry in entries),
        cases=sum(len(entry.cases) for entry in entries),
        worst=max(tested, key=lambda entry: entry.worst, default=None),
        ratio=geometric_mean(ratios) if ratios else None,
        verdicts=Counter(entry.against.verdict for entry in entries if entry.against),
    )


def _percent(part: float) -> str:
    """Write a fraction in per cent, with a decimal only if it matters."""
    percent = 100 * part
    return "0" if percent == 0 else "< 0.1" if percent < 0.1 else f"{percent:.1f}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")


def _main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vkmnn.testing.report",
        description="Make a page of the results that pytest --vkmnn-results has written.",
    )
    parser.add_argument("results", nargs="+", type=Path, help="JSON files; several become one page")
    parser.add_argument("page", type=Path, help="the HTML file to write")
    args: Any = parser.parse_args(argv)
    try:
        write_report(merged(map(Results.load, args.results)), args.page)
    except (VkmnnError, OSError) as error:
        parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
