"""Time to the first result with empty and with full caches, against onnxruntime; memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

import vkmnn
from benchmarks.networks import Network
from vkmnn.bench.compare import ENGINES, EngineSpec, Place, job
from vkmnn.bench.engine import EngineMissingError
from vkmnn.bench.peer import Peer
from vkmnn.cli.console import bytes_text, table, time_text
from vkmnn.errors import VkmnnError

ROUNDS = 3
_OWN = ENGINES[0]
_ONNXRUNTIME = next(spec for spec in ENGINES if spec.name.startswith("onnxruntime"))


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
class Opening:
    """How an engine opens a file with full caches: median seconds, and the peak memory.

    `peak_bytes` is None if the system does not report it; `error` explains missing results.
    """

    engine: str
    load_s: float = 0.0
    first_s: float = 0.0
    peak_bytes: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StartResult:
    """A network's start with no caches and with those of the run before, and its facts.

    `openings` are those of the network's own files and of onnxruntime, alternating.
    """

    name: str
    cold: Start
    warm: Start
    facts: dict[str, Any]
    openings: list[Opening]


def measure(network: Network, where: Place) -> StartResult:
    """Start vkmnn twice, each time in a new process; the caches of drivers count as caches."""
    with tempfile.TemporaryDirectory(prefix="vkmnn-start-") as folder:
        env = {
            "VKMNN_CACHE_DIR": folder,
            "MESA_SHADER_CACHE_DIR": str(Path(folder, "mesa")),
            "__GL_SHADER_DISK_CACHE_PATH": folder,
            # An installed package has its bytecode, even if this process does not write its own.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        cold, _ = _start(network, where, env)
        warm, facts = _start(network, where, env)
        openings = _openings(network, where, env, Path(folder))
    return StartResult(network.name, cold, warm, facts, openings)


def _start(network: Network, where: Place, env: dict[str, str]) -> tuple[Start, dict[str, Any]]:
    with Peer(
        _OWN.target, job(network.path, network.feeds, _OWN, where), where.timeout_s, env
    ) as peer:
        answer = peer.ask("load")
        process_s = time.perf_counter() - peer.started
        return Start(process_s, answer["load_s"], answer["first_s"]), peer.ask("facts")


def _openings(
    network: Network, where: Place, env: Mapping[str, str], folder: Path
) -> list[Opening]:
    """Return how the network's own files, plain and packed, and onnxruntime open it."""
    answers: dict[str, list[dict[str, Any]]] = {}
    errors: dict[str, str] = {}
    runs: list[tuple[EngineSpec, Network]] = []
    sizes = _sizes(network)
    for name, packed in (("its file", False), ("its file packed", True)):
        spec, path = replace(_OWN, name=f"{_OWN.name}, {name}"), folder / f"{name}.vkmnn"
        try:
            vkmnn.convert(network.path, path, sizes=sizes, packed=packed, device=where.device)
        except VkmnnError as error:
            errors[spec.name] = error.message
        runs.append((spec, replace(network, path=path)))
    runs.append((_ONNXRUNTIME, network))
    for _ in range(1 + ROUNDS):  # the first fills caches
        for spec, file in runs:
            if spec.name in errors:
                continue
            try:
                with Peer(
                    spec.target, job(file.path, file.feeds, spec, where), where.timeout_s, env
                ) as peer:
                    answers.setdefault(spec.name, []).append(peer.ask("load"))
            except EngineMissingError as error:
                errors[spec.name] = str(error)
    return [_opening(spec.name, answers.get(spec.name, []), errors) for spec, _ in runs]


def _sizes(network: Network) -> dict[str, int]:
    """Return the sizes of the dimensions that the file leaves open, by name."""
    with vkmnn.InferenceSession(network.path, "cpu") as session:
        return {
            dim: network.feeds[node.name].shape[axis]
            for node in session.get_inputs()
            for axis, dim in enumerate(node.shape or ())
            if isinstance(dim, str)
        }


def _opening(name: str, answers: Sequence[Mapping[str, Any]], errors: Mapping[str, str]) -> Opening:
    if name in errors:
        return Opening(name, error=errors[name])
    warm = answers[1:]
    load_s, first_s = (median(one[key] for one in warm) for key in ("load_s", "first_s"))
    return Opening(name, load_s, first_s, warm[0]["peak_bytes"])


def openings_table(rows: Sequence[StartResult]) -> Table:
    """Return how files were opened as a table."""
    numbers = ("opened", "first result", "peak of memory")
    made = table("network", "engine", *numbers, "", right=[*numbers])
    for row in rows:
        for number, one in enumerate(row.openings):
            cells = ["", "", ""]
            if not one.error:
                peak = "" if one.peak_bytes is None else bytes_text(one.peak_bytes)
                cells = [time_text(one.load_s), time_text(one.load_s + one.first_s), peak]
            made.add_row("" if number else row.name, one.engine, *cells, one.error)
    return made


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
