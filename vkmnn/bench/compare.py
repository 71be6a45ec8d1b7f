"""Compares engines on one model, alternating."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from vkmnn.base.cache_files import cache_dir
from vkmnn.bench.engine import EngineMissingError, Job
from vkmnn.bench.peer import Peer
from vkmnn.ir import Array
from vkmnn.runtime import environment
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.selection import select

OWN = "vkmnn"

# A slow engine gets fewer turns: at least this many, and then none beyond these seconds.
MIN_TURNS = 3
TURNS_S = 20.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine of the benchmark: its class as `module:Class`, and its options."""

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


_ENGINES = "vkmnn.bench.engines"
ENGINES = (
    EngineSpec(OWN, f"{_ENGINES}.own:Own"),
    EngineSpec("vkmnn fp16", f"{_ENGINES}.own:Own", {"precision": "normal"}),
    EngineSpec("onnxruntime CPU", f"{_ENGINES}.ort:OnnxRuntime"),
    EngineSpec("MNN CPU", f"{_ENGINES}.mnn_cpu:MnnCpu"),
    EngineSpec("ncnn Vulkan", f"{_ENGINES}.ncnn_vulkan:NcnnVulkan"),
    EngineSpec("ncnn Vulkan fp16", f"{_ENGINES}.ncnn_vulkan:NcnnVulkan", {"precision": "normal"}),
)
"""Engines of `vkmnn bench`; those in float16 only on request."""

BY_NAME = (EngineSpec("vkmnn fast", f"{_ENGINES}.own:Own", {"precision": "fast"}),)
"""Engines that are compared only if their whole name is given."""


def engines(fp16: bool, names: Sequence[str] = ()) -> list[EngineSpec]:
    """Return the engines to compare.

    Args:
        fp16: also those that compute with float16.
        names: parts of the names of the requested engines, or a name in `BY_NAME`; none for all.
    """
    wanted = [name.lower() for name in names]
    named = [spec for spec in BY_NAME if spec.name.lower() in wanted]
    return named + [
        spec
        for spec in ENGINES
        if (fp16 or not spec.options)
        and (not wanted or any(w in spec.name.lower() for w in wanted))
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """Device, CPU threads and duration of a benchmark.

    `rounds` is the number of turns of an engine; `timeout_s` the maximum time for an answer.
    `device_name` is the Vulkan device's, and `twin` the number of preceding devices of the same
    name.
    """

    device: str
    device_name: str
    driver: str
    twin: int
    threads: int
    rounds: int
    timeout_s: float
    folder: Path


def place(device: str, threads: int, rounds: int, timeout_s: float) -> Place:
    """Return where a benchmark runs.

    Args:
        device: the device selector, as for `InferenceSession`.
        threads: threads of engines on the CPU; 0 for one per core that this process may use.
        rounds: how many turns an engine has.
        timeout_s: maximum time for one answer of an engine.

    Raises:
        DeviceNotFoundError: the device does not exist.
    """
    folder = cache_dir() / "bench"
    threads = threads or usable_cores()
    selector = environment.device_selector() if device == "auto" else device
    if selector == "cpu":
        return Place("cpu", "cpu (numpy)", "", 0, threads, rounds, timeout_s, folder)
    found = enumerate_devices()
    info, _ = select(found, selector)
    twin = sum(other.name == info.name and other.index < info.index for other in found)
    name = f"{info.driver_name} {info.driver_version}".strip()
    return Place(info.uuid, info.name, name, twin, threads, rounds, timeout_s, folder)


def usable_cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(slots=True)
class Series:
    """An engine's timings on a model: turns, loading and the first run, in seconds.

    `difference` is the largest difference of its outputs to those of the reference, as a part of
    their range. `error` says why there is nothing (and `hint` what to do), "" for all well.
    """

    engine: str
    seconds: list[float] = field(default_factory=list)
    load_s: float = 0.0
    first_s: float = 0.0
    difference: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    hint: str = ""

    @property
    def median_s(self) -> float | None:
        """The median of the turns; None when the engine failed."""
        return None if self.error or not self.seconds else median(self.seconds)

    @property
    def enough(self) -> bool:
        """Whether a slow engine has had enough turns."""
        return len(self.seconds) >= MIN_TURNS and sum(self.seconds) > TURNS_S

    @property
    def spread(self) -> float:
        """Half the interquartile range, relative to the median."""
        if self.median_s is None or len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median_s


@dataclass(slots=True)
class Comparison:
    """Engines on one model; `reference` is the engine with which the others were compared.

    `interrupted`: Ctrl-C ended it before all rounds were run.
    """

    name: str
    series: list[Series]
    reference: str = ""
    interrupted: bool = False

    def of(self, engine: str) -> Series | None:
        """Return an engine's series."""
        return next((one for one in self.series if one.engine == engine), None)

    def ratio(self, engine: str) -> float | None:
        """Return the engine's time divided by vkmnn's: above 1 if vkmnn is faster."""
        own, other = self.of(OWN), self.of(engine)
        if own is None or other is None or not own.median_s or not other.median_s:
            return None
        return other.median_s / own.median_s


def compare(
    name: str,
    model: Path,
    feeds: Mapping[str, Array],
    specs: Sequence[EngineSpec],
    where: Place,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Run a model on several engines, alternating.

    Args:
        name: the model's, for the reader.
        model: an ONNX file.
        feeds: one array per input, in the model's order.
        specs: the engines.
        where: the device, and for how long.
        progress: called with a description of the current step.
    """
    result = Comparison(name, [Series(spec.name) for spec in specs])
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for spec, series in zip(specs, result.series, strict=True):
            progress(f"{name}: {spec.name} loads")
            peer = stack.enter_context(
                Peer(spec.target, job(model, feeds, spec, where), where.timeout_s)
            )
            answer = _ask(peer, "load", series)
            if answer:
                series.load_s, series.first_s = answer["load_s"], answer["first_s"]
                peers[spec.name] = peer
        result.reference = _check(result, peers)
        try:
            _rounds(result, peers, where.rounds, progress)
        except KeyboardInterrupt:  # whatever was measured is worth showing
            result.interrupted = True
            return result
        for series in result.series:
            if not series.error:
                with suppress(EngineMissingError):
                    series.facts = peers[series.engine].ask("facts")
    return result


def _rounds(
    result: Comparison, peers: Mapping[str, Peer], rounds: int, progress: Callable[[str], None]
) -> None:
    """Give every engine its turns."""
    for number in range(rounds):
        progress(f"{result.name}: round {number + 1} of {rounds}")
        # Another engine starts each round, so that none always follows the same one.
        shift = number % len(result.series)
        for series in result.series[shift:] + result.series[:shift]:
            if not series.error and not series.enough:
                answer = _ask(peers[series.engine], "turn", series)
                series.seconds += [answer["seconds"]] if answer else []


def job(model: Path, feeds: Mapping[str, Array], spec: EngineSpec, where: Place) -> Job:
    """Return the job of an engine; arguments as of `compare`."""
    return Job(
        model,
        feeds,
        where.device,
        where.device_name,
        where.twin,
        where.threads,
        where.folder,
        spec.options,
    )


def _ask(peer: Peer, command: str, series: Series) -> dict[str, Any]:
    """Return the answer; {} with the series' error set when there is none."""
    try:
        return peer.ask(command)
    except EngineMissingError as error:
        series.error, series.hint = str(error), error.hint
        return {}


def _check(result: Comparison, peers: Mapping[str, Peer]) -> str:
    """Compare the outputs with those of a CPU engine, or of the first that runs at all."""
    running = [series for series in result.series if not series.error]
    if not running:
        return ""
    reference = next((one for one in running if one.engine.endswith("CPU")), running[0])
    want = peers[reference.engine].outputs()
    for series in running:
        if series is not reference:
            series.difference = difference(peers[series.engine].outputs(), want)
    return reference.engine


def difference(have: Sequence[Array], want: Sequence[Array]) -> float | None:
    """Return the largest difference as a fraction of the range; None if the sizes differ."""
    worst = 0.0
    for one, other in zip(have, want, strict=False):
        if one.size != other.size:
            return None
        if other.size:
            a, b = one.ravel().astype(np.float64), other.ravel().astype(np.float64)
            worst = max(worst, float(np.abs(a - b).max()) / (float(np.ptp(b)) or 1.0))
    return worst


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))
