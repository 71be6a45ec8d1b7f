"""The cost of Python: importing, running (against a bare submit and wait), recording, planning."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from time import thread_time
from unittest.mock import patch

import numpy as np
from rich.table import Table

from benchmarks import planning
from benchmarks.timing import interleave
from vkmnn.cli.console import table
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import BinaryAttrs, LayerNormAttrs, MatMulAttrs, UnaryAttrs
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.shaders import kernels
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.plan.segment import VulkanSegment

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


def layers(count: int, width: int = 64) -> Graph:
    """Return a network of `count` layers [N, width], each of which normalises, multiplies and adds.

    Its length is open: planning it for another one repeats the same work in every layer.
    """
    rng = np.random.default_rng(0)
    constants: dict[str, Array] = {}
    ops: list[Op] = []

    def op(kind: str, attrs: OpAttrs, inputs: list[str], shape: tuple[int, ...] = ()) -> str:
        name = f"t{len(ops)}"
        if shape:
            constants[f"{name}.w"] = rng.standard_normal(shape).astype(np.float32)
            inputs = [*inputs, f"{name}.w"]
        ops.append(Op(kind, name, inputs, [name], attrs))
        return name

    last = "x"
    for _ in range(count):
        inner = op("LayerNorm", LayerNormAttrs(axis=-1, epsilon=1e-5), [last], (width,))
        inner = op("MatMul", MatMulAttrs(), [inner], (width, 4 * width))
        inner = op("UnaryOp", UnaryAttrs("TANH"), [inner])
        inner = op("MatMul", MatMulAttrs(), [inner], (4 * width, width))
        last = op("BinaryOp", BinaryAttrs("ADD"), [last, inner])
    given, made = (TensorInfo(name, DType.FLOAT32, ("N", width)) for name in ("x", last))
    return Graph("layers", [given], [made], ops, constants)


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
    with patch.object(segment, "_replay", lambda: None):
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
            # Every dispatch reads the result of the one before: the worst case for barriers.
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


def shape_costs(device: Device, count: int, rounds: int) -> Iterator[float]:
    """Yield CPU seconds of planning `layers` for one length after the other, per op."""
    graph, backend = layers(count), VulkanBackend(device)
    first = Plan(graph, _fixed(graph, 31), {}, backend, CpuBackend(), run_op)  # uploads the weights
    for length in range(32, 32 + rounds):
        start = thread_time()
        plan = Plan(graph, _fixed(graph, length), {}, backend, CpuBackend(), run_op)
        yield (thread_time() - start) / len(graph.ops)
        plan.close()
    first.close()


def _fixed(graph: Graph, length: int) -> dict[str, TensorInfo]:
    return {i.name: replace(i, shape=(length, *(i.shape or ())[1:])) for i in graph.inputs}


IMPORT = """
from time import process_time
start = process_time()
from vkmnn import InferenceSession
print(process_time() - start)
"""


def import_cost(rounds: int) -> tuple[float, float]:
    """Return the median and minimum CPU seconds of importing, each in a new process."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    times = [
        float(subprocess.check_output([sys.executable, "-c", IMPORT], env=env, text=True))
        for _ in range(rounds + 1)
    ][1:]  # the first may write bytecode
    return median(times), min(times)


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
    lengths = list(shape_costs(device, 12, rounds))
    figures["planning 12 layers for a new length, per op (CPU)"] = median(lengths) * 1e6
    figures["planning 12 layers for a new length, per op (CPU), best"] = min(lengths) * 1e6
    for name in planning.NETWORKS:
        further = list(planning.costs(device, name, max(2, rounds // 5)))
        figures[f"planning {name} for another size, per op (CPU)"] = median(further) * 1e6
        figures[f"planning {name} for another size, per op (CPU), best"] = min(further) * 1e6
    typical, best = import_cost(min(rounds, 10))
    figures["importing InferenceSession (CPU)"] = typical * 1e6
    figures["importing InferenceSession (CPU), best"] = best * 1e6
    return figures


def figures_table(figures: dict[str, float]) -> Table:
    """Return the figures as a table."""
    made = table("what", "µs (median)", right=("µs (median)",))
    for name, value in figures.items():
        made.add_row(name, f"{value:,.1f}")
    return made
