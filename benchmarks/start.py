"""Time to the first result with empty caches and with full ones; memory; Python's time a run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.networks import Network
from vkmnn.bench.compare import ENGINES, Place, job
from vkmnn.bench.peer import Peer
from vkmnn.cli.console import bytes_text, table, time_text


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds to the first result: of a process in all, and of loading plus the first run."""

    process_s: float
    load_s: float
    first_s: float

    @property
    def result_s(self) -> float:
        """From the model's path to its first output, Python and vkmnn being imported."""
        return self.load_s + self.first_s


@dataclass(frozen=True, slots=True)
class StartResult:
    """A network's start with no caches and with those of the run before, and its facts."""

    name: str
    cold: Start
    warm: Start
    facts: dict[str, Any]


def measure(network: Network, where: Place) -> StartResult:
    """Start vkmnn twice in a process of its own; the caches of drivers count as caches."""
    with tempfile.TemporaryDirectory(prefix="vkmnn-start-") as folder:
        env = {
            "VKMNN_CACHE_DIR": folder,
            "MESA_SHADER_CACHE_DIR": str(Path(folder, "mesa")),
            "__GL_SHADER_DISK_CACHE_PATH": folder,
            # An installed package has its bytecode, whatever this process is told about its own.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        cold, _ = _start(network, where, env)
        warm, facts = _start(network, where, env)
    return StartResult(network.name, cold, warm, facts)


def _start(network: Network, where: Place, env: dict[str, str]) -> tuple[Start, dict[str, Any]]:
    own = ENGINES[0]
    with Peer(
        own.target, job(network.path, network.feeds, own, where), where.timeout_s, env
    ) as peer:
        answer = peer.ask("load")
        process_s = time.perf_counter() - peer.started
        return Start(process_s, answer["load_s"], answer["first_s"]), peer.ask("facts")


def start_table(rows: Sequence[StartResult]) -> Table:
    """Return the results as a table."""
    numbers = ("cold", "its process", "warm", "its process", "Python a run")
    memory = ("activations", "least", "weights")
    made = table("network", *numbers, *memory, right=[*numbers, *memory])
    for row in rows:
        facts = row.facts
        made.add_row(
            row.name,
            time_text(row.cold.result_s),
            time_text(row.cold.process_s),
            time_text(row.warm.result_s),
            time_text(row.warm.process_s),
            time_text(facts["python_us"] / 1e6),
            bytes_text(facts["activations"]),
            bytes_text(facts["lower_bound"]),
            bytes_text(facts["constants"]),
        )
    return made
