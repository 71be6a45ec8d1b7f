"""What a benchmark found, as plain data for JSON."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

from vkmnn.bench.compare import Comparison, Place, Series

FORMAT = 1
"""Grows when the meaning of a field changes."""

_PACKAGES = ("vkmnn", "numpy", "vulkan", "onnx", "onnxruntime", "ncnn", "pnnx", "torch")


def document(where: Place) -> dict[str, Any]:
    """Return when and where a benchmark ran."""
    return {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": where.device_name,
        "driver": where.driver,
        "threads": where.threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def networks(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return comparisons as plain data, times in milliseconds."""
    return [
        {
            "name": comparison.name,
            "reference": comparison.reference,
            "engines": [_engine(comparison, series) for series in comparison.series],
        }
        for comparison in comparisons
    ]


def _engine(comparison: Comparison, series: Series) -> dict[str, Any]:
    if series.median_s is None:
        return {"engine": series.engine, "error": series.error, "hint": series.hint}
    return {
        "engine": series.engine,
        "median_ms": series.median_s * 1e3,
        "spread": series.spread,
        "rounds_ms": [seconds * 1e3 for seconds in series.seconds],
        "load_s": series.load_s,
        "first_s": series.first_s,
        "difference": series.difference,
        "ratio": comparison.ratio(series.engine),
        "facts": series.facts,
    }
