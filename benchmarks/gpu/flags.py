"""The step for flags instead of barriers: what a level saves, and whether long chains are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.gpu import problems
from benchmarks.gpu.chain import replay_of
from benchmarks.gpu.report import Section
from benchmarks.gpu.step import Setting, step
from benchmarks.timing import interleave
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import MatMulAttrs, SoftmaxAttrs
from vkmnn.opening.proof_trial import ProductTrial, chain
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.proof import FLAGS, judge

LEVELS, REHEARSED_LEVELS = 55, 6
RUNS, LEAST_RUNS = 200, 20
PROOF_ROUNDS = 50

Made = tuple[Graph, dict[str, Array]]


def sums(levels: int, _size: int) -> Made:
    """Levels that transpose and add: 132 workgroups, each of which needs nearly all before."""
    graph, feeds, _ = chain(levels)
    return graph, feeds


def products_of_codes(levels: int, size: int) -> Made:
    """Products by 4-bit weights, which kernels for a single row ask for before they wait."""
    case = problems.codes(1, size, size).case
    return _repeated(case.graph, levels), dict(case.feeds)


def products(levels: int, size: int) -> Made:
    """Products of 64 rows, whose tiles fill shared memory, in turns with sums."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((size, size)).astype(np.float32) * size**-0.5
    x = rng.standard_normal((64, size)).astype(np.float32)
    ops = [
        Op("MatMul", "op", ["x", "w"], ["p"], MatMulAttrs()),
        Op("Softmax", "rows", ["p"], ["y"], SoftmaxAttrs()),
    ]
    graph = Graph(
        "products",
        [TensorInfo("x", DType.FLOAT32, x.shape)],
        [TensorInfo("y", DType.FLOAT32, x.shape)],
        ops,
        {"w": weights},
    )
    return _repeated(graph, levels // 2), {"x": x}


CHAINS: dict[str, tuple[Callable[[int, int], Made], int]] = {
    "sums, transposed": (sums, 0),
    "products by 4-bit weights": (products_of_codes, 2048),
    "products and softmax, other shared memory each": (products, 512),
}
"""Chains by name, and the size of their matrices."""


def _repeated(graph: Graph, times: int) -> Graph:
    """Return a network that computes y from x, so many times in a row, with the same constants."""
    ops = []
    for turn in range(times):
        names = {"x": f"x{turn}" if turn else "x", "y": f"x{turn + 1}", "p": f"p{turn}"}
        ops += [
            replace(
                op,
                name=f"{op.name}{turn}",
                inputs=[names.get(name, name) for name in op.inputs],
                outputs=[names.get(name, name) for name in op.outputs],
            )
            for op in graph.ops
        ]
    outputs = [replace(graph.outputs[0], name=f"x{times}")]
    return replace(graph, ops=ops, outputs=outputs)


@step("flags", "Flags instead of barriers", "Whether `VKMNN_FLAGS=on` pays, and is right.")
def _flags(setting: Setting, section: Section) -> None:
    levels = REHEARSED_LEVELS if setting.is_rehearsal else LEVELS
    rows = section.tables["chains"] = []
    for name, (make, size) in CHAINS.items():
        if rows and setting.is_over:
            section.notes.append(f"no time for {name}")
            continue
        setting.say(name)
        row = _compared(
            setting, section, *make(levels, size // 8 if setting.is_rehearsal else size)
        )
        rows.append({"chain": name, "levels": levels, **row})
        if section.wrong:
            return
    saved = [float(str(row["saved, µs a level"])) for row in rows]
    known = class_of(setting.device.info).flag_us
    section.notes.append(
        f"flag_us is {min(saved):.2f} to {max(saved):.2f} µs, the model has {known}"
    )
    _prove(setting, section)


def _compared(
    setting: Setting, section: Section, graph: Graph, feeds: dict[str, Array]
) -> dict[str, object]:
    """Return the times of a chain with barriers and with flags, which must agree to the bit."""
    infos = {info.name: info for info in graph.inputs}
    plans, results = {}, {}
    try:
        for name in ("barriers", "flags"):
            backend = VulkanBackend(setting.device, flags=name == "flags")
            plan = plans[name] = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
            (results[name],) = plan.execute(feeds).values()
        if not np.array_equal(results["barriers"], results["flags"]):
            section.wrong = f"{graph.name}: flags and barriers differ"
        runs = 2 if setting.is_rehearsal else RUNS
        times = interleave(
            {name: replay_of(plan) for name, plan in plans.items()}, runs, min(runs, LEAST_RUNS)
        )
    finally:
        for plan in plans.values():
            plan.close()
    barriers, flags = (times[name].best * 1e6 for name in ("barriers", "flags"))
    count = len(graph.ops)
    return {"barriers, µs": barriers, "flags, µs": flags,
            "saved, µs a level": (barriers - flags) / count}  # fmt: skip


def _prove(setting: Setting, section: Section) -> None:
    """Run chains of 1,000 levels again and again, on a device of their own."""
    proof = replace(FLAGS, rounds=PROOF_ROUNDS, budget_us=float("inf"))
    if setting.is_rehearsal:
        proof = replace(proof, sizes=(2, REHEARSED_LEVELS), rounds=1)
    setting.say(f"a chain of {proof.sizes[-1]} levels")
    trial = ProductTrial(setting.device.open_again())
    try:
        verdict = judge(trial, proof)
    finally:
        trial.close()
    text = "nothing could be computed" if verdict is None else verdict.text
    kind = "failed" if verdict is None else verdict.kind
    section.tables["proof"] = [{"rounds": proof.rounds, "verdict": kind, "what": text}]
    if kind == "wrong":
        section.wrong = f"flags: {text}"
    elif kind != "fast":
        section.notes.append(f"flags are not used here: {kind}, {text}")
