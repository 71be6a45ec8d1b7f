"""Results of a run of the suite: variants, devices, errors and times."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.testing.baseline import Comparison, Measured
from vkmnn.testing.files import read_json, write_atomically

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device of a run: `label` names it in the entries, `unvalidated` as in `devices`."""

    label: str
    driver: str
    type: str
    api: str
    features: int
    timestamps: bool
    unvalidated: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant on one device.

    Attributes:
        device: label of the device.
        variant: its name.
        template: template of the kernel.
        axes: its axis values.
        outcome: "passed", "failed", "skipped" or "not run".
        reached: whether a case dispatches it.
        reason: why the device cannot run it; "" when it can.
        emulated: whether its subgroups, and its matrices, were emulated: the device lacks them.
        message: the failure.
        cases: the fields of `runner.CaseResult`, of those that passed.
        largest: the case that is timed, and the choices that lead to the variant.
        time: the measurement.
        against: that compared with the baseline.
    """

    device: str
    variant: str
    template: str
    outcome: str
    axes: Mapping[str, str | int] = field(default_factory=dict)
    reached: bool = False
    reason: str = ""
    emulated: bool = False
    message: str = ""
    cases: list[Mapping[str, Any]] = field(default_factory=list)
    largest: Mapping[str, Any] | None = None
    time: Measured | None = None
    against: Comparison | None = None

    @property
    def dispatching(self) -> int:
        """Number of cases that dispatch the variant; the others run other kernels, or none."""
        return sum(self.variant in case["dispatched"] for case in self.cases)

    @property
    def worst(self) -> float:
        """Largest error of all cases, relative to the tolerance."""
        return max((float(case["error"]) for case in self.cases), default=0.0)

    @property
    def absolute(self) -> float:
        """The largest difference of all cases."""
        return max((float(case["absolute"]) for case in self.cases), default=0.0)


@dataclass(slots=True)
class Results:
    """The entries of a run, by device and variant.

    `baseline` is the path of the timing baseline, "" without one; `notes` are remarks for the
    reader.
    """

    devices: dict[str, DeviceRecord] = field(default_factory=dict)
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    baseline: str = ""
    date: str = ""
    version: str = ""
    notes: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Add an entry; a later one of the same variant replaces it."""
        self.entries[entry.device, entry.variant] = entry

    def of(self, device: str) -> list[Entry]:
        """Return the entries of a device, sorted by variant."""
        return [self.entries[key] for key in sorted(self.entries) if key[0] == device]

    def templates(self) -> list[str]:
        """Return the names of the kernels, sorted."""
        return sorted({entry.template for entry in self.entries.values()})

    def undispatched(self, device: str) -> list[Entry]:
        """Return the variants that no test dispatched on a device that supports them."""
        here = self.of(device)
        dispatched = {name for entry in here for case in entry.cases for name in case["dispatched"]}
        return [
            entry
            for entry in here
            if not entry.reached and not entry.reason and entry.variant not in dispatched
        ]

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        data = {
            "schema": SCHEMA,
            "vkmnn": self.version,
            "date": self.date,
            "baseline": self.baseline,
            "notes": self.notes,
            "devices": [dataclasses.asdict(device) for device in self.devices.values()],
            "entries": [dataclasses.asdict(self.entries[key]) for key in sorted(self.entries)],
        }
        write_atomically(path, json.dumps(data, indent=1, default=sorted) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file from `save`.

        Raises:
            InvalidInputError: the file cannot be read, or holds something else.
        """
        data = read_json(path, SCHEMA, "results of a shader test run")
        try:
            results = cls(
                baseline=data["baseline"],
                date=data["date"],
                version=data["vkmnn"],
                notes=list(data["notes"]),
            )
            for record in data["devices"]:
                results.devices[record["label"]] = DeviceRecord(**record)
            for item in data["entries"]:
                time, against = item.pop("time"), item.pop("against")
                results.add(
                    Entry(
                        **item,
                        time=Measured(**time) if time else None,
                        against=Comparison(**against) if against else None,
                    )
                )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(f"{path} is damaged: {error}") from error
        return results


def merged(several: Iterable[Results]) -> Results:
    """Return the results of several runs, of different machines for example, as one.

    Raises:
        InvalidInputError: there are none.
    """
    results = list(several)
    if not results:
        raise InvalidInputError("there are no results to merge")
    whole = results[0]
    for other in results[1:]:
        whole.devices.update(other.devices)
        whole.entries.update(other.entries)
        whole.notes += [note for note in other.notes if note not in whole.notes]
        whole.baseline = whole.baseline or other.baseline
        whole.date = max(whole.date, other.date)
    return whole
