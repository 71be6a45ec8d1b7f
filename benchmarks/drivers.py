"""Comparison of the drivers: recording, barriers, replay, networks, memory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import vkmnn
from benchmarks.networks import feeds_for, light_models
from benchmarks.overhead import KINDS, SIZE, chain
from benchmarks.timing import interleave
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Graph, Op
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device import Device, open_device
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.shaders import kernels
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.plan.segment import VulkanSegment

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits.onnx"
NETWORKS = ("light_squeezenet", "light_shufflenet")
BARRIER_KIB = (4, 16, 64, 256, 1024)
DISPATCHES = 100


@dataclass(frozen=True, slots=True)
class Candidate:
    """A driver; `features` are the device features that it may use, None for all."""

    name: str
    driver: str
    features: frozenset[str] | None = None

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Hide the features that the candidate does without."""
        if self.features is None:
            yield
            return
        have = open_device(driver=self.driver, validation=False).info.features
        off = {"VKMNN_DISABLE_FEATURES": ",".join(sorted(have - self.features))}
        with patch.dict(os.environ, off):
            yield

    def device(self) -> Device:
        """Open the candidate's device."""
        with self.environment():
            return open_device(driver=self.driver, validation=False)


def candidates() -> list[Candidate]:
    """Return `vulkan`, `kompute`, and `vulkan` with the kernels that `kompute` can run.

    Raises:
        DeviceNotFoundError: Kompute is not installed; says how to get it.
    """
    plain = open_device(driver="kompute", validation=False).info.features
    return [
        Candidate("vulkan", "vulkan"),
        Candidate("vulkan, kompute's kernels", "vulkan", plain),
        Candidate("kompute", "kompute"),
    ]


def record_cost(device: Device, rounds: int) -> float:
    """Return the median CPU seconds of recording a dispatch that depends on the last one."""
    pipeline = device.pipeline(kernels.copy(load="buffer"))
    params = kernels.CopyParams(n4=64).pack()
    buffers = [device.allocate(4096, MemoryKind.DEVICE) for _ in range(2)]
    ranges = [BufferRange(buffer, 0, 4096) for buffer in buffers]
    costs = []
    for _ in range(rounds):
        recorder = device.recorder()
        start = thread_time()
        for step in range(DISPATCHES):
            recorder.dispatch(pipeline, ranges[:: 1 if step % 2 else -1], params, (1, 1, 1), "copy")
        costs.append((thread_time() - start) / DISPATCHES)
        recorder.finish().destroy()
    for buffer in buffers:
        buffer.destroy()
    return median(costs)


def wide(width: int) -> Graph:
    """Return a network of `width` ops that do not depend on each other."""
    graph = chain(1)
    ops = [
        Op("UnaryOp", f"op{i}", ["x"], [f"y{i}"], UnaryAttrs(KINDS[i % 2])) for i in range(width)
    ]
    outputs = [dataclasses.replace(graph.outputs[0], name=f"y{i}") for i in range(width)]
    return Graph("wide", graph.inputs, outputs, ops)


def replay(device: Device, graph: Graph) -> tuple[Callable[[], object], Plan]:
    """Return a function that submits a planned network and waits, and the plan to close."""
    plan = Plan(graph, {"x": graph.inputs[0]}, {}, VulkanBackend(device), CpuBackend(), run_op)
    (segment,) = plan.segments
    assert isinstance(segment, VulkanSegment)
    plan.execute({"x": np.ones(SIZE, np.float32)})
    return segment.replay, plan


def replay_costs(devices: dict[str, Device], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of a run, by kind of run and by candidate."""
    result = {}
    for name, graph in (
        ("1 dispatch", chain(1)),
        (f"{DISPATCHES} dispatches, each after the last", chain(DISPATCHES)),
        (f"{DISPATCHES} independent dispatches", wide(DISPATCHES)),
    ):
        made = {key: replay(device, graph) for key, device in devices.items()}
        times = interleave({key: run for key, (run, _) in made.items()}, rounds)
        for _, plan in made.values():
            plan.close()
        result[name] = {key: timing.median for key, timing in times.items()}
    return result


def barrier_costs(device: Device, kib: int, rounds: int) -> dict[str, float]:
    """Return the median seconds per dispatch of dependent copies, by the method of ordering them.

    "boundary" is the driver's method: a sequence each. "chain" is one sequence in which kp's copy
    to the host comes between two dispatches: a barrier to the transfer stage, and, in the next
    dispatch, one back. It needs tensors with a copy for the host, orders reads after writes only,
    and may use each tensor once per sequence. "none" has a hazard: it is the lower bound.
    """
    made: Any = device.driver_device
    kp, manager = made.kp, made.manager
    shader = kernels.copy(load="buffer")
    words = kib * 256
    params = np.frombuffer(kernels.CopyParams(n4=words // 4).pack(), np.uint32)
    spec = np.array([constant.default for constant in shader.spec_constants], np.uint32)

    def steps(kind: Any) -> list[tuple[Any, Any]]:
        tensors = [manager.tensor_t(np.zeros(words, np.uint32), kind) for _ in range(2)]
        grid = (-(-words // 4 // 64), 1, 1)
        pairs = [(tensors, 1), (tensors[::-1], 0)]
        return [
            (manager.algorithm(pair, shader.spirv(), grid, spec, params), tensors[target])
            for pair, target in pairs
        ]

    host, local = steps(kp.TensorTypes.host), steps(kp.TensorTypes.device)
    boundary = [
        manager.sequence().record(kp.OpAlgoDispatch(host[i % 2][0], params))
        for i in range(DISPATCHES)
    ]
    chained, bare = manager.sequence(), manager.sequence()
    for i in range(DISPATCHES):
        algorithm, target = local[i % 2]
        chained.record(kp.OpAlgoDispatch(algorithm, params))
        chained.record(kp.OpTensorSyncLocal([target]))
        bare.record(kp.OpAlgoDispatch(host[i % 2][0], params))
    times = interleave(
        {
            "boundary": lambda: [sequence.eval() for sequence in boundary],
            "chain": chained.eval,
            "none": bare.eval,
        },
        rounds,
    )
    for sequence in (*boundary, chained, bare):
        sequence.destroy()
    return {name: timing.median / DISPATCHES for name, timing in times.items()}


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """A network on one driver: seconds of the first run (planning, compiling) and of later ones.

    Bytes: those of the plan's tensors, and those that the driver allocated for them.
    """

    first: float
    run: float
    planned_bytes: int
    allocated_bytes: int


def network_costs(path: Path, everyone: list[Candidate], rounds: int) -> dict[str, NetworkCost]:
    """Measure a network on all candidates, alternating."""
    sessions, firsts, runs, allocated = {}, {}, {}, {}
    for candidate in everyone:
        device = candidate.device()
        before = device.stats().get("bytes", 0)
        with candidate.environment():
            start = perf_counter()
            session = vkmnn.InferenceSession(path, driver=candidate.driver, validation=False)
            feeds = feeds_for(session, 1)
            session.run(None, feeds)
            firsts[candidate.name] = perf_counter() - start
        sessions[candidate.name] = session
        allocated[candidate.name] = device.stats().get("bytes", 0) - before
        runs[candidate.name] = lambda session=session, feeds=feeds: session.run(None, feeds)
    times = interleave(runs, rounds)
    result = {}
    for name, session in sessions.items():
        use = session.memory()
        planned = use.activations + use.constants + use.io
        result[name] = NetworkCost(firsts[name], times[name].median, planned, allocated[name])
        session.close()
    return result


def show(title: str, head: list[str], rows: list[list[str]], console: Console) -> None:
    """Print a table."""
    table = Table(*head, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main(
    rounds: Annotated[int, typer.Option(help="timed rounds per candidate")] = 15,
    models: Annotated[list[Path] | None, typer.Argument(help="ONNX files")] = None,
    output: Annotated[Path | None, typer.Option(help="write all figures as JSON")] = None,
) -> None:
    """Compare the drivers; they alternate, and medians are shown."""
    console = Console()
    everyone = candidates()
    devices = {candidate.name: candidate.device() for candidate in everyone}
    names = list(devices)
    info = devices["vulkan"].info
    console.print(f"[bold]{info.name}[/] ({info.driver_version})")

    recording = {name: record_cost(device, rounds) for name, device in devices.items()}
    show(
        "Recording a dependent dispatch, µs of CPU time",
        names,
        [[f"{recording[name] * 1e6:.1f}" for name in names]],
        console,
    )
    barriers = {kib: barrier_costs(devices["kompute"], kib, rounds) for kib in BARRIER_KIB}
    ways = list(next(iter(barriers.values())))
    show(
        "Dependent dispatches with kp, µs each, by size of the tensor and way of ordering",
        ["KiB", *ways],
        [[str(kib), *(f"{by[way] * 1e6:.0f}" for way in ways)] for kib, by in barriers.items()],
        console,
    )
    replays = replay_costs(devices, rounds)
    show(
        "Replay, µs a run",
        ["", *names],
        [[what, *(f"{by[name] * 1e6:,.0f}" for name in names)] for what, by in replays.items()],
        console,
    )
    paths = models or [DIGITS, *(path for path in light_models() if path.stem in NETWORKS)]
    costs = {path.stem: network_costs(path, everyone, rounds) for path in paths}
    show(
        "Networks",
        ["network", "driver", "first run ms", "run ms", "planned MiB", "allocated MiB"],
        [
            [
                network,
                name,
                f"{cost.first * 1e3:.0f}",
                f"{cost.run * 1e3:.2f}",
                f"{cost.planned_bytes / 2**20:.2f}",
                f"{cost.allocated_bytes / 2**20:.2f}",
            ]
            for network, by in costs.items()
            for name, cost in by.items()
        ],
        console,
    )
    if output is not None:
        data = {
            "device": info.name,
            "driver_version": info.driver_version,
            "recording_s": recording,
            "barriers_s": barriers,
            "replay_s": replays,
            "networks": {
                network: {name: dataclasses.asdict(cost) for name, cost in by.items()}
                for network, by in costs.items()
            },
        }
        output.write_text(json.dumps(data, indent=2) + "\n")
