"""Benchmark results as plain data for JSON."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from vkmnn.bench.compare import Comparison, Place, Series
from vkmnn.runtime import environment

FORMAT = 1
"""Grows when the meaning of a field changes."""

_VECTORS = ("avx2", "avx512f", "asimd", "sve")
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
        "processor": processor(),
        "tune": environment.tune(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": _versions(),
    }


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name and vector width, which determine a software device's speed."""
    try:
        text = cpuinfo.read_text("utf-8", errors="replace")
    except OSError:
        return platform.processor()
    fields: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    flags = fields.get("flags", fields.get("Features", "")).split()
    vectors = " ".join(name for name in _VECTORS if name in flags)
    return ", ".join(filter(None, (fields.get("model name", platform.processor()), vectors)))


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
