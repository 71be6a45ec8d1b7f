"""The timing baseline: times of variants by device, and the comparison with new ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.testing.files import read_json, write_atomically

SCHEMA = 1
VERDICTS = ("slower", "faster", "same", "new")
_TICK_US = 1e-3  # times below a nanosecond are equal


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of a variant's largest case on the device.

    Attributes:
        median_us: median of all runs.
        low_us: the lower end of the noise band; see `timing`.
        high_us: its upper end.
        case: the case that was run.
        shader: digest of the SPIR-V.
    """

    median_us: float
    low_us: float
    high_us: float
    case: str
    shader: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A time as a multiple of the baseline's, with the range that noise alone explains.

    `low` to `high` contains every quotient of the two noise bands; the verdict is "slower" or
    "faster" only if 1 is outside. It is "new" without a time to compare with; `note` gives the
    reason.
    """

    verdict: str
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    note: str = ""


def compare(now: Measured, before: Measured | None) -> Comparison:
    """Compare a time with the baseline's."""
    if before is None:
        return Comparison("new", note="not in the baseline")
    if now.case != before.case:
        return Comparison("new", note="the baseline timed another case")
    low = _quotient(now.low_us, before.high_us)
    high = _quotient(now.high_us, before.low_us)
    verdict = "slower" if low > 1 else "faster" if high < 1 else "same"
    note = "" if now.shader == before.shader else "the shader has changed"
    return Comparison(verdict, _quotient(now.median_us, before.median_us), low, high, note)


def _quotient(now: float, before: float) -> float:
    return max(now, _TICK_US) / max(before, _TICK_US)


class Baseline:
    """Times by device and variant, and the JSON file that holds them.

    A device is identified by its name and its driver's version, since a new driver is a new
    compiler.
    """

    def __init__(self, times: Mapping[str, Mapping[str, Measured]] | None = None) -> None:
        self._times = {device: dict(variants) for device, variants in (times or {}).items()}

    @classmethod
    def load(cls, path: Path) -> Baseline:
        """Read a file.

        Raises:
            InvalidInputError: it cannot be read, or is not a baseline.
        """
        data = read_json(path, SCHEMA, "a timing baseline")
        try:
            return cls(
                {
                    device: {name: Measured(**fields) for name, fields in variants.items()}
                    for device, variants in data["devices"].items()
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(f"{path} is damaged: {error}") from error

    def save(self, path: Path) -> None:
        """Write a file with one variant per line, for readable differences."""
        devices = {
            device: {name: dataclasses.asdict(variants[name]) for name in sorted(variants)}
            for device, variants in sorted(self._times.items())
        }
        write_atomically(path, _text({"schema": SCHEMA, "devices": devices}))

    def of(self, device: str) -> Mapping[str, Measured]:
        """Return the times of a device; none when it is not there."""
        return self._times.get(device, {})

    def update(self, device: str, times: Mapping[str, Measured], known: Iterable[str]) -> None:
        """Set the times of some variants of a device; forget those of variants not in `known`."""
        names = set(known)
        old = {name: time for name, time in self.of(device).items() if name in names}
        self._times[device] = {**old, **times}


def device_key(info: DeviceInfo) -> str:
    """Return the name of a device in the file."""
    return f"{info.name}, {info.driver_name} {info.driver_version}"


def _text(data: Mapping[str, Any]) -> str:
    lines = ["{", f' "schema": {data["schema"]},', ' "devices": {']
    devices = []
    for device, variants in data["devices"].items():
        rows = ",\n".join(
            f"   {json.dumps(name)}: {json.dumps(fields)}" for name, fields in variants.items()
        )
        devices.append(f"  {json.dumps(device)}: {{\n{rows}\n  }}")
    return "\n".join([*lines, ",\n".join(devices), " }", "}"]) + "\n"
