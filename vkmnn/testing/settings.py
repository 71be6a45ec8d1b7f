"""The options of a run of the shader tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vkmnn.testing.case import Variant

VALIDATION = pytest.StashKey[bool]()
"""Whether the run is under the validation layer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run."""

    devices: list[str]
    patterns: list[str]
    strength: int
    pipelines: int
    report: Path | None
    results: Path | None
    baseline: Path | None
    update: bool
    timed: bool
    validation: bool

    def variants(self) -> list[Variant]:
        """Return the variants that the run covers."""
        from vkmnn.testing.selection import chosen_variants

        return chosen_variants(self.patterns, strength=self.strength)

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read the command line."""
        get = config.getoption
        report, results = get("--vkmnn-report"), get("--vkmnn-results")
        baseline = get("--vkmnn-perf-baseline")
        return cls(
            devices=get("--vkmnn-device") or [],
            patterns=get("--vkmnn-kernel") or [],
            strength=2 if get("--vkmnn-pairs") else int(get("--vkmnn-sample")),
            pipelines=get("--vkmnn-pipelines") or 0,
            report=Path(report) if report else None,
            results=Path(results) if results else None,
            baseline=Path(baseline) if baseline else None,
            update=get("--vkmnn-perf-update"),
            timed=bool(baseline) or get("--vkmnn-perf"),
            validation=config.stash[VALIDATION],
        )
