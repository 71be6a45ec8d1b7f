"""Summary of a run in the terminal: coverage, unsupported variants, changed times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vkmnn.testing.baseline import VERDICTS
from vkmnn.testing.results import Entry, Results

_NAMED = 20
_COLUMNS = ("device", "variants", "passed", "failed", "beyond", "cases", "worst error")


def summary_lines(results: Results) -> list[str]:
    """Return the coverage table and notable findings, as lines of text."""
    lines = _table([_COLUMNS, *(_row(results, device) for device in results.devices)])
    for device in results.devices:
        here = results.of(device)
        emulated = sum(entry.emulated for entry in here)
        if emulated:
            lines.append(f"with emulated subgroups or matrices on {device}: {emulated} variants")
        lines += _beyond(here, device)
        lines += _never(results.undispatched(device), device)
        lines += _times(here, device, results.baseline)
    return lines + results.notes


def by_reason(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the variants beyond a device by the reason, the most frequent first."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.reason:
            groups.setdefault(entry.reason, []).append(entry)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def _row(results: Results, device: str) -> tuple[str, ...]:
    here = results.of(device)
    outcomes = Counter(entry.outcome for entry in here)
    cases = sum(len(entry.cases) for entry in here)
    worst = max(here, key=lambda entry: entry.worst, default=None)
    error = f"{worst.worst:.0%} of tolerance, {worst.variant}" if worst and worst.cases else "–"
    numbers = (len(here), outcomes["passed"], outcomes["failed"], outcomes["skipped"], cases)
    return (device, *map(str, numbers), error)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _beyond(here: Sequence[Entry], device: str) -> list[str]:
    lines = []
    for reason, entries in by_reason(here).items():
        kernels = Counter(entry.template for entry in entries)
        text = ", ".join(f"{name} {count}" for name, count in sorted(kernels.items()))
        lines.append(f"beyond {device}: {reason}: {text}")
    return lines


def _never(entries: Sequence[Entry], device: str) -> list[str]:
    if not entries:
        return []
    names = [entry.variant for entry in entries]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [
        f"never dispatched on {device} ({len(names)}):",
        f"  {' '.join(names[:_NAMED])}{more}",
    ]


def _times(here: Sequence[Entry], device: str, baseline: str) -> list[str]:
    compared = [(entry, entry.against) for entry in here if entry.against]
    if not compared:
        return []
    count = Counter(against.verdict for _, against in compared)
    counts = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])
    lines = [f"times on {device} against {baseline}: {counts}"]
    changed = [pair for pair in compared if pair[1].verdict in ("slower", "faster")]
    changed.sort(key=lambda pair: -abs(pair[1].ratio - 1))
    for entry, against in changed[:_NAMED]:
        band = f"{against.ratio:.2f}x ({against.low:.2f} to {against.high:.2f})"
        note = f", {against.note}" if against.note else ""
        lines.append(f"  {against.verdict} {band}  {entry.variant}{note}")
    return lines
