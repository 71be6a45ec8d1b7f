"""Every kernel that can compute a matrix product, timed in a chain like a network's layers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
from rich.table import Table

from vkmnn.cli.console import table
from vkmnn.core.execution import Command
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import MatMulAttrs
from vkmnn.runtime.device import Device
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.recording import Recording

T = TypeVar("T")

# M, N and K: squares, the convolutions of ResNet-50 as products, the products of BERT-base and
# ViT-B/16 at batch 1, a language model's head, a classifier.
SIZES = (
    *((n, n, n) for n in (512, 1024, 2048, 4096)),
    *((3136, 64, 576), (784, 128, 512), (784, 512, 128), (784, 128, 1152)),
    *((196, 256, 1024), (196, 1024, 256), (196, 256, 2304)),
    *((49, 512, 2048), (49, 2048, 512), (49, 512, 4608)),
    *((128, 768, 768), (128, 2304, 768), (128, 3072, 768), (128, 768, 3072)),
    *((197, 768, 768), (197, 2304, 768), (197, 3072, 768), (197, 768, 3072)),
    *((64, 50257, 768), (8, 768, 768), (1, 1000, 2048), (1, 4096, 4096)),
)
# Timestamps may tick in steps of 256 ns, and a layer takes 5 µs.
CHAIN = 20
OP = "product"
STORED = {False: "f32", True: "f16"}


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """A product of M×K by a constant K×N by one kernel, in a chain of dependent dispatches.

    `workgroups` of one dispatch; `rule`: the rules rank it first; `error` is the largest difference
    from numpy, as a fraction of the range.
    """

    m: int
    n: int
    k: int
    dtype: str
    kernel: str
    workgroups: int
    rule: bool
    microseconds: float
    flops: float
    error: float


class _Take:
    """A chooser that picks candidate number `rank` for products, else the first."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.count = 1

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return the candidate."""
        if what != "matmul":
            return candidates[0]
        self.count = len(candidates)
        return candidates[self.rank]


class _ChainBackend(VulkanBackend):
    """Records everything CHAIN times; each time has to wait for the one before."""

    kernel = ""
    workgroups = 0

    def encode(self, segments: Sequence[Sequence[Command]]) -> tuple[Recording, list[int]]:
        recording, ends = super().encode(segments)
        # After it, an fp16 result is converted for the host.
        last = [dispatch for dispatch in recording.dispatches if dispatch.label == OP][-1]
        self.kernel, self.workgroups = last.shader.name, prod(last.groups)
        recording.dispatches = recording.dispatches * CHAIN
        return recording, [end * CHAIN for end in ends]


def measure(
    size: tuple[int, int, int], fp16: bool, device: Device, runs: int
) -> Iterator[FamilyResult]:
    """Yield each kernel's time for a product (minimum of several runs), the rules' first."""
    m, n, k = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k), dtype=np.float32)
    w = rng.standard_normal((k, n), dtype=np.float32) / np.float32(k**0.5)
    rows = slice(0, min(m, 64))
    want = x[rows] @ w
    seen = set()
    take = _Take(0)
    while take.rank < take.count:
        with _opened(x, w, fp16, device, take) as (backend, plan):
            name = backend.kernel, backend.workgroups
            if name not in seen:
                seen.add(name)
                y = plan.execute({"x": x})["y"]
                spent = min(_once(plan, x) for _ in range(runs))
                error = float(np.abs(y[rows] - want).max() / np.ptp(want))
                flops = 2e6 * m * n * k / spent
                yield FamilyResult(
                    m, n, k, STORED[fp16], *name, take.rank == 0, spent, flops, error
                )
        take.rank += 1


@contextmanager
def _opened(
    x: Array, w: Array, fp16: bool, device: Device, take: _Take
) -> Iterator[tuple[_ChainBackend, Plan]]:
    infos = {
        "x": TensorInfo("x", DType.FLOAT32, x.shape),
        "y": TensorInfo("y", DType.FLOAT32, (x.shape[0], w.shape[1])),
    }
    op = Op("MatMul", OP, ["x", "w"], ["y"], MatMulAttrs())
    graph = Graph("product", [infos["x"]], [infos["y"]], [op], {"w": w})
    backend = _ChainBackend(device, timestamps=True, chooser=take, element="f16" if fp16 else "f32")
    plan = Plan(graph, {"x": infos["x"]}, {}, backend, CpuBackend(), run_op)
    try:
        yield backend, plan
    finally:
        plan.close()
        backend.close()


def _once(plan: Plan, x: Array) -> float:
    plan.execute({"x": x})
    spent = [timing for _, timing in plan.timings() if timing.op == OP]
    return sum(timing.microseconds for timing in spent) / CHAIN


def families_table(rows: Sequence[FamilyResult]) -> Table:
    """Return the results as a table, a line for every kernel of a product."""
    numbers = ("M", "N", "K", "workgroups", "µs", "GFLOP/s", "difference")
    made = table(
        "M", "N", "K", "stored as", "kernel", *numbers[3:4], "by", *numbers[4:], right=numbers
    )
    for row in rows:
        made.add_row(
            *(str(value) for value in (row.m, row.n, row.k, row.dtype, row.kernel, row.workgroups)),
            "rule" if row.rule else "",
            f"{row.microseconds:,.2f}",
            f"{row.flops / 1e9:,.1f}",
            f"{row.error:.0e}",
        )
    return made
