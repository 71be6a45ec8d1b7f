"""What Python costs: a run over the bare submit and wait, recording, planning a new shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import thread_time
from unittest.mock import patch

import numpy as np
from rich.table import Table

from benchmarks.timing import interleave
from vkmnn.cli.console import table
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.shaders import kernels
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.segment import VulkanSegment

SIZE = (1, 64, 7, 7)
# Alternating functions: no pass and no kernel can merge them.
KINDS = ("TANH", "NEG")


def chain(length: int) -> Graph:
    """Return a network of `length` dependent element-wise ops."""
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    ops = [
        Op("UnaryOp", f"op{i}", [names[i]], [names[i + 1]], UnaryAttrs(KINDS[i % 2]))
        for i in range(length)
    ]
    info = TensorInfo("x", DType.FLOAT32, SIZE)
    return Graph("chain", [info], [TensorInfo("y", DType.FLOAT32, SIZE)], ops)


@dataclass(frozen=True, slots=True)
class RunCost:
    """Seconds: a whole run, its bare submit and wait (wall), and Python's part of it (CPU)."""

    run: float
    bare: float
    python: float


def run_cost(device: Device, dispatches: int, rounds: int) -> RunCost:
    """Measure a network of `dispatches` dependent dispatches.

    Python's part is the CPU time of a run whose submit and wait do nothing: the difference of two
    wall times would drown in the noise of the device.
    """
    graph = chain(dispatches)
    plan = Plan(graph, {"x": graph.inputs[0]}, {}, VulkanBackend(device), CpuBackend(), run_op)
    segment = plan.segments[0]
    assert isinstance(segment, VulkanSegment)
    feeds = {"x": np.ones(SIZE, np.float32)}
    times = interleave(
        {"run": lambda: plan.execute(feeds), "bare": segment.replay}, rounds, warm_up=5
    )
    with patch.object(segment, "replay", lambda: None):
        python = [cpu_seconds(lambda: plan.execute(feeds)) for _ in range(rounds)]
    plan.close()
    return RunCost(times["run"].median, times["bare"].median, median(python))


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU time that this thread spends in a call, averaged over 20 calls."""
    start = thread_time()
    for _ in range(20):
        call()
    return (thread_time() - start) / 20


def record_cost(device: Device, dispatches: int, rounds: int) -> tuple[float, float]:
    """Return median and best CPU seconds of recording per dispatch, derived barriers included."""
    shader = kernels.copy(load="buffer")
    pipeline = device.pipeline(shader)
    params = kernels.CopyParams(n4=64).pack()
    size = 4096
    buffer = device.allocate(2 * size, MemoryKind.DEVICE)
    halves = [BufferRange(buffer, 0, size), BufferRange(buffer, size, size)]
    costs = []
    for _ in range(rounds):
        recorder = device.recorder()
        start = thread_time()
        for step in range(dispatches):
            # Every dispatch reads what the last one wrote: the worst case for barriers.
            pair = [halves[step % 2], halves[1 - step % 2]]
            recorder.dispatch(pipeline, pair, params, (1, 1, 1), "copy")
        costs.append((thread_time() - start) / dispatches)
        recorder.finish().destroy()
    buffer.destroy()
    return median(costs), min(costs)


def plan_cost(device: Device, dispatches: int, rounds: int) -> float:
    """Return median CPU seconds of planning a network for a new input shape, per op."""
    graph = chain(dispatches)
    backend = VulkanBackend(device)
    costs = []
    for _ in range(rounds):
        start = thread_time()
        plan = Plan(graph, {"x": graph.inputs[0]}, {}, backend, CpuBackend(), run_op)
        costs.append((thread_time() - start) / dispatches)
        plan.close()
    return median(costs)


def measure(device: Device, rounds: int = 30) -> dict[str, float]:
    """Return every figure, in microseconds."""
    figures: dict[str, float] = {}
    for count in (1, 100, 500):
        cost = run_cost(device, count, rounds)
        figures[f"{count} dispatches: run"] = cost.run * 1e6
        figures[f"{count} dispatches: bare submit and wait"] = cost.bare * 1e6
        figures[f"{count} dispatches: Python's part of a run (CPU)"] = cost.python * 1e6
    typical, best = record_cost(device, 500, rounds)
    figures["recording, per dispatch (CPU)"] = typical * 1e6
    figures["recording, per dispatch (CPU), best round"] = best * 1e6
    figures["planning a new shape, per op (CPU)"] = plan_cost(device, 100, rounds) * 1e6
    return figures


def figures_table(figures: dict[str, float]) -> Table:
    """Return the figures as a table."""
    made = table("what", "µs (median)", right=("µs (median)",))
    for name, value in figures.items():
        made.add_row(name, f"{value:,.1f}")
    return made
