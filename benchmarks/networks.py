"""Latency of ONNX models: vkmnn on a Vulkan device beside onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.table import Table

import vkmnn
from benchmarks.timing import interleave

THREADS = 2


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """Median milliseconds of both engines, their ratio, and how far their outputs differ."""

    name: str
    vkmnn_ms: float
    onnxruntime_ms: float
    ratio: float
    error: float
    ops: int


def feeds_for(session: vkmnn.InferenceSession, free: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return random inputs; symbolic dimensions become `free`."""
    rng = np.random.default_rng(0)
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for node in session.get_inputs():
        shape = [dim if isinstance(dim, int) else free for dim in node.shape or ()]
        values = rng.random(shape) if node.type.startswith("float") else rng.integers(0, 2, shape)
        feeds[node.name] = values.astype(node.type)
    return feeds


def measure(path: Path, device: str, rounds: int) -> NetworkResult:
    """Time one model, both engines in turn."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with vkmnn.InferenceSession(path, device) as session:
        feeds = feeds_for(session, 1)
        ours = session.run(None, feeds)[0]
        theirs = reference.run(None, feeds)[0]
        span = float(np.ptp(theirs)) or 1.0
        times = interleave(
            {
                "vkmnn": lambda: session.run(None, feeds),
                "onnxruntime": lambda: reference.run(None, feeds),
            },
            rounds,
        )
        ms = {name: timing.median * 1e3 for name, timing in times.items()}
        return NetworkResult(
            path.stem,
            ms["vkmnn"],
            ms["onnxruntime"],
            ms["vkmnn"] / ms["onnxruntime"],
            float(np.abs(ours - theirs).max()) / span,
            len(session.placement().ops),
        )


def light_models() -> list[Path]:
    """Return the networks that the onnx package brings."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("light_*.onnx"))


def table(results: Sequence[NetworkResult]) -> Table:
    """Return the results as a table with the geometric mean of the ratios."""
    result = Table(
        "network",
        "ops",
        "vkmnn ms",
        f"onnxruntime CPU ms ({THREADS} threads)",
        "ratio",
        "difference / range",
        title="Networks, batch 1",
    )
    for row in results:
        result.add_row(
            row.name,
            str(row.ops),
            f"{row.vkmnn_ms:.1f}",
            f"{row.onnxruntime_ms:.1f}",
            f"{row.ratio:.2f}",
            f"{row.error:.1e}",
        )
    if results:
        mean = exp(sum(log(row.ratio) for row in results) / len(results))
        result.add_row("geometric mean", "", "", "", f"{mean:.2f}", "")
    return result


def as_json(results: Sequence[NetworkResult]) -> list[Mapping[str, object]]:
    """Return the results as plain data."""
    return [asdict(result) for result in results]
