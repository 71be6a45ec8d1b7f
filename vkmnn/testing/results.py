"""What a run of the suite found: which variants ran where, with which errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant on one device.

    `outcome` is "passed", "failed" or "skipped"; `reason` says why it was skipped; `cases` are the
    fields of `runner.CaseResult`.
    """

    device: str
    variant: str
    template: str
    outcome: str
    reason: str
    cases: list[Mapping[str, Any]]


@dataclass(slots=True)
class Results:
    """The entries of a run, in any order."""

    entries: list[Entry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def add(self, data: Mapping[str, Any], outcome: str) -> None:
        """Add what a test reported."""
        self.entries.append(Entry(outcome=outcome, **data))

    def devices(self) -> list[str]:
        """Return the names of the devices, sorted."""
        return sorted({entry.device for entry in self.entries})

    def undispatched(self, device: str) -> list[Entry]:
        """Return what no test dispatched on a device that can run it."""
        dispatched = {
            name
            for entry in self.entries
            if entry.device == device
            for case in entry.cases
            for name in case["dispatched"]
        }
        return [
            entry
            for entry in sorted(self.entries, key=lambda entry: entry.variant)
            if entry.device == device
            and entry.outcome != "skipped"
            and entry.variant not in dispatched
        ]

    def coverage_lines(self) -> list[str]:
        """Return the coverage table as lines of text."""
        lines = []
        for device in self.devices():
            here = [entry for entry in self.entries if entry.device == device]
            ran = [entry for entry in here if entry.outcome != "skipped"]
            missing = self.undispatched(device)
            cases = sum(len(entry.cases) for entry in ran)
            lines.append(
                f"{device}: {len(ran)} variants in {cases} cases, {len(missing)} never dispatched, "
                f"{len(here) - len(ran)} beyond the device"
            )
            lines += [f"  never dispatched: {entry.variant}" for entry in missing]
        return lines
