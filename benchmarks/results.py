"""Storage of results: the latest as one document, and a history with a line for each run."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.ceilings import Ceilings
from benchmarks.kernels import KernelRate
from benchmarks.scaling import Point, Series
from benchmarks.start import StartResult
from vkmnn.bench.compare import Place
from vkmnn.bench.document import document
from vkmnn.bench.document import networks as network_data

ROOT = Path(__file__).resolve().parents[1]
DEVICES = Path(__file__).parent / "devices"
HISTORY = Path(__file__).parent / "history.jsonl"
DEFAULT = ROOT / "build" / "bench"


class Results:
    """A folder for results.json (see results.schema.json), history.jsonl and drawings.

    Args:
        folder: created if it does not exist; sections of an earlier run on the same device remain.
        where: the device of the benchmark.
        record: also add to the history in the repository.
    """

    def __init__(self, folder: Path, where: Place, record: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._record = record
        self._head = head(where)

    def save(self, section: str, data: Any) -> None:
        """Keep a section, which results.schema.json describes: "networks", "start", …"""
        path = self.folder / "results.json"
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if before.get("device") != self._head["device"]:
            before = {}
        path.write_text(json.dumps({**before, **self._head, section: data}, indent=1) + "\n")
        line = json.dumps({**self._head, section: data}) + "\n"
        for history in (self.folder / "history.jsonl", *([HISTORY] if self._record else [])):
            with history.open("a", encoding="utf-8") as file:
                file.write(line)


def head(where: Place) -> dict[str, Any]:
    """Return the part that all documents share: device, driver, CPU, versions, date and commit."""
    return document(where) | {"commit": commit()}


def commit() -> str:
    """Return the commit of the checkout, with "+" where files differ; "" outside of one."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return told.stdout.strip()


def kernels_data(ceilings: Ceilings, kernels: dict[str, list[KernelRate]]) -> dict[str, Any]:
    """Return ceilings and kernels as plain data."""
    return {
        "ceilings": {
            "flops": ceilings.flops,
            "bandwidth": [[size, rate] for size, rate in ceilings.bandwidth.items()],
        },
        "networks": [
            {"name": name, "kernels": [asdict(row) | {"part": row.part} for row in rows]}
            for name, rows in kernels.items()
        ],
    }


def scaling_data(measured: list[tuple[Series, list[Point]]]) -> list[dict[str, Any]]:
    """Return series as plain data."""
    return [
        {
            "network": series.network,
            "axis": series.axis,
            "points": [
                {"size": point.size, **network_data([point.comparison])[0]} for point in points
            ],
        }
        for series, points in measured
    ]


def start_data(rows: list[StartResult]) -> list[dict[str, Any]]:
    """Return starts as plain data."""
    return [asdict(row) for row in rows]
