"""The steps for vision models and transformers: their measurements, and what they decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import vkmnn
from benchmarks import overhead, start
from benchmarks.families import SIZES
from benchmarks.gpu import problems
from benchmarks.gpu.chain import kernels, replay_of
from benchmarks.gpu.language import ROTATED_BYTES
from benchmarks.gpu.machine import machine_state
from benchmarks.gpu.report import OFF, Section
from benchmarks.gpu.step import GAIN, Setting, step, time_all
from benchmarks.networks import Network
from benchmarks.timing import interleave
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import CastAttrs, UnaryAttrs
from vkmnn.opening import OpenDevice, load_network, open_session
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import BufferRange, MemoryKind
from vkmnn.runtime.recorder import CommandBuffer
from vkmnn.schedule_config import ScheduleConfig
from vkmnn.shaders import kernels as shaders
from vkmnn.testing.case import op_case, variants
from vkmnn.testing.emulation import bench_for
from vkmnn.testing.runner import reach, run_case
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.gemm.families.coop import MatMulCoop
from vkmnn.vulkan.plan.forecast import Forecast, PlanningBackend
from vkmnn_suite.cases import load_all

# Kernels to test on a real device: barriers of subgroups, the last of several workgroups, matrices.
# Those that changed since the last hour on a GPU (26 November 2026) come first.
RISKY = (
    "matmul_coop", "conv_halo_coop",
    "matmul_codes_dot", "matmul_codes", "matmul_codes_row", "unpack_codes",
    "matmul_codes_coop", "cached_attention", "cached_attention_subgroup", "cached_attention_wide",
    "conv_codes_coop", "dynamic_codes", "attention_codes", "linear_attention", "matmul_experts",
    "matmul_dot", "conv_dot", "conv_row", "conv_gather", "conv_half", "conv_separable",
    "matmul_half", "conv_coop", "matmul_shared", "conv_shared", "attention_coop",
    "attention_rotate", "attention_tile", "matmul_gemv", "conv_rotate", "matmul_rotate",
    "conv_tile", "matmul_tile", "conv_depthwise", "conv_strip", "recurrent",
)  # fmt: skip
LOAD = (1024, 1024, 1024)
SPLIT_RUNS = 1000
SWEEP_BYTES = 160_000_000
UNSTABLE = 0.1
OF_AN_ORDER = 2


@step("device", "The device", "Limits, memory and matrices that the rules see.")
def _device(setting: Setting, section: Section) -> None:
    info = setting.device.info
    limits = info.limits
    section.tables["facts"] = [
        {"what": "type", "value": info.type.name.lower()},
        {"what": "class of the cost model", "value": class_of(info).name},
        {"what": "multiprocessors", "value": info.multiprocessors or "not told"},
        {"what": "subgroup sizes", "value": str(limits.subgroup_size_range)},
        {"what": "memory", "value": f"{info.memory_bytes:,} bytes"},
        {"what": "features", "value": ", ".join(sorted(info.features))},
    ]
    section.tables["matrices"] = [
        {"shape": f"{s.m}×{s.n}×{s.k}", "a": s.a, "b": s.b, "c": s.c, "result": s.result}
        for s in info.cooperative_matrices
    ]
    # Clocks under load: an idle GPU's say nothing.
    load = problems.product(64, 64, 64) if setting.is_rehearsal else problems.product(*LOAD)
    next(kernels(load.case, load.what, "", setting.device))
    clocks = {"driver": f"{info.driver_name} {info.driver_version}", **machine_state()}
    section.tables["under load"] = [{"what": k, "value": v} for k, v in clocks.items()]
    if not info.multiprocessors:
        section.notes.append("the driver does not tell the multiprocessors: the class's count")


@step("right", "Results", "A wrong kernel ends the run: nothing else is worth its time.")
def _right(setting: Setting, section: Section) -> None:
    load_all()
    risky = {name: i for i, name in enumerate(RISKY)}
    wanted = [variant for variant in variants() if variant.template in risky]
    # One variant of every template first, then the second ones.
    wanted.sort(key=lambda variant: risky[variant.template])
    turns: dict[str, int] = {}
    order = []
    for variant in wanted:
        turns[variant.template] = turns.get(variant.template, 0) + 1
        order.append((turns[variant.template], risky[variant.template], variant))
    rows: dict[str, dict[str, object]] = {}
    for number, (_, _, variant) in enumerate(sorted(order, key=lambda item: item[:2])):
        if setting.is_over:
            section.notes.append(f"no time for {len(order) - number} of {len(order)} variants")
            break
        bench = bench_for(variant, setting.device)
        if isinstance(bench, str) or bench.emulated:
            continue
        setting.say(variant.name)
        row = rows.setdefault(
            variant.template, {"template": variant.template, "variants": 0, "cases": 0}
        )
        try:
            cases = reach(variant, bench.device)
            for case, picks in cases:
                run_case(case, bench.device, picks)
        except (AssertionError, VkmnnError) as error:
            section.wrong = f"{variant.name}: {str(error).splitlines()[0]}"
            return
        row["variants"] = int(str(row["variants"])) + 1
        row["cases"] = int(str(row["cases"])) + len(cases)
    section.tables["kernels against numpy"] = list(rows.values())
    _split(setting, section)


def _split(setting: Setting, section: Section) -> None:
    """Run a product whose K is shared by workgroups many times: the last of them adds the parts."""
    problem = problems.product(64, 512, 4096)
    graph, feeds = problem.case.graph, dict(problem.case.feeds)
    infos = {info.name: info for info in graph.inputs}
    backend = VulkanBackend(setting.device)
    plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
    try:
        (first,) = plan.execute(feeds).values()
        runs = 0
        while runs < SPLIT_RUNS and not setting.is_over:
            (again,) = plan.execute(feeds).values()
            runs += 1
            if not np.allclose(first, again, rtol=1e-4, atol=1e-4):
                section.wrong = f"{problem.what}: run {runs} of the same plan differs"
                break
    finally:
        plan.close()
        backend.close()
    section.tables["the same product again and again"] = [
        {"product": problem.what, "runs": runs, "equal": not section.wrong}
    ]


@step("fragments", "Weights in fragment order", "Whether loads without shared memory pay.")
def _fragments(setting: Setting, section: Section) -> None:
    sizes = problems.REHEARSED_WEIGHTS if setting.is_rehearsal else problems.WEIGHTS
    items = (problems.product(*size).stored(setting.stored[0]) for size in sizes)
    rotated = ROTATED_BYTES if not setting.is_rehearsal else 0
    time_all(setting, section, items, rotated_bytes=rotated, shortlist=both_orders)
    setting.measured += section.measured


def both_orders(candidates: Sequence[Any]) -> list[Any]:
    """Return the rules' kernel, and the next ones by matrices with either order of weights."""
    chosen = [*candidates[:1]]
    by_matrices = [one for one in candidates[1:] if isinstance(one, MatMulCoop)]
    for fragments in (True, False):
        chosen += [one for one in by_matrices if one.tile.fragments is fragments][:OF_AN_ORDER]
    return chosen


@step("costs", "Submits and dispatches", "submit_us, gap_us and beside_us of the model.")
def _costs(setting: Setting, section: Section) -> None:
    count = 55
    commands = {
        "an empty submit": _tiny(setting.device, 0, dependent=True),
        f"{count} dispatches, each after the other": _tiny(setting.device, count, dependent=True),
        f"{count} dispatches beside each other": _tiny(setting.device, count, dependent=False),
        f"{count}, each after the other, with timestamps": _tiny(
            setting.device, count, dependent=True, timestamps=True
        ),
    }
    times = interleave({name: each.run for name, each in commands.items()}, 200, 20)
    for each in commands.values():
        each.destroy()
    rows = [{"what": name, "µs": timing.best * 1e6} for name, timing in times.items()]
    section.tables["whole runs"] = rows
    empty, dependent, beside, timed = (timing.best * 1e6 for timing in times.values())
    model = class_of(setting.device.info)
    found = {
        "submit_us": (empty, model.submit_us),
        "gap_us + start_us": ((dependent - empty) / count, model.gap_us + model.start_us),
        "beside_us": ((beside - empty) / count, model.beside_us),
        "of a timestamp": ((timed - dependent) / count, 0.0),
    }
    section.tables["constants"] = [
        {"constant": name, "measured µs": value, "model µs": known}
        for name, (value, known) in found.items()
    ]
    for name, (value, known) in found.items():
        if known and not 1 / OFF < value / known < OFF:
            section.notes.append(f"{name} is {value:.2f} µs, the model has {known:.2f}")
    section.tables["float32 to float16"] = _rounding(setting.device)


def _tiny(
    device: Device, count: int, *, dependent: bool, timestamps: bool = False
) -> CommandBuffer:
    """Record copies of 1 KiB, all between the same two buffers or each between its own."""
    size = 1024
    shader = shaders.copy(load="buffer")
    pipeline = device.pipeline(shader)
    params = shaders.CopyParams(n4=size // 16).pack()
    buffer = device.allocate(2 * size * max(count, 1), MemoryKind.DEVICE)
    recorder = device.recorder(timestamps=timestamps)
    for number in range(count):
        base = 0 if dependent else 2 * size * number
        places = [BufferRange(buffer, base, size), BufferRange(buffer, base + size, size)]
        if dependent and number % 2:
            places.reverse()
        recorder.dispatch(pipeline, places, params, (1, 1, 1))
    return recorder.finish()


def _rounding(device: Device) -> list[dict[str, object]]:
    """See whether conversions round to the nearest, as IEEE 754 does by default, or towards 0."""
    if "storage16" not in device.info.features:
        return []
    x = np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2.0**-14)
    case = op_case("Cast", CastAttrs(DType.FLOAT16), [x])
    graph = case.graph
    plan = Plan(
        graph, {i.name: i for i in graph.inputs}, {}, VulkanBackend(device, element="f16"),
        CpuBackend(), run_op,
    )  # fmt: skip
    try:
        (y,) = plan.execute(dict(case.feeds)).values()
    finally:
        plan.close()
    nearest = x.astype(np.float16)
    down = (np.floor(x * 1024) / 1024).astype(np.float16)
    kind = "to nearest" if np.array_equal(y, nearest) else "otherwise"
    if kind == "otherwise" and np.array_equal(y, down):
        kind = "towards zero"
    return [{"conversion": "float32 to float16", "rounds": kind}]


@step("passes", "Between products", "The model's guesses for pooling, depthwise, norms.")
def _passes(setting: Setting, section: Section) -> None:
    items = [p.stored(fp16) for p in problems.passes() for fp16 in setting.stored]
    time_all(setting, section, items)


@step("attention", "Attention", "Whether keys want to be shared by workgroups, or matrices.")
def _attention(setting: Setting, section: Section) -> None:
    items = [
        problems.attention(*size).stored(fp16)
        for size in problems.ATTENTION
        for fp16 in setting.stored
    ]
    time_all(setting, section, items)


@step("products", "Matrix products", "Latency of a step and bytes a µs: the fit below.")
def _products(setting: Setting, section: Section) -> None:
    fp16 = setting.stored[0]
    sizes = [size for size in SIZES if max(size) <= 4096 or size[0] == 64]
    time_all(setting, section, [problems.product(*size).stored(fp16) for size in sizes])
    if section.wrong:
        return
    setting.measured += section.measured
    sweep = SWEEP_BYTES if setting.device.info.type.name != "CPU" else SWEEP_BYTES // 10
    cold = [size for size in sizes if 500_000 < size[1] * size[2] * 2 < 20_000_000]
    before = len(section.measured)
    items = (problems.product(*size).stored(fp16) for size in cold)
    time_all(setting, section, items, sweep_bytes=sweep, most=6)
    setting.measured += section.measured[before:]


@step("convolutions", "Convolutions", "What taps and channel blocks cost beside products.")
def _convolutions(setting: Setting, section: Section) -> None:
    fp16 = setting.stored[0]
    sizes = (*problems.RESNET_50, *problems.NARROW)
    time_all(setting, section, [problems.convolution(*size).stored(fp16) for size in sizes])
    setting.measured += section.measured
    rows = []
    rules = {each.what: each for each in section.measured if each.rule}
    for size in sizes:
        problem, same = problems.convolution(*size), problems.as_product(*size).stored(fp16)
        if setting.is_over or problem.what not in rules:
            break
        (product,) = kernels(same.case, same.what, "", setting.device)
        own = rules[problem.what].us
        rows.append(
            {"convolution": problem.what, "µs": own, "as a product µs": product.us,
             "times": own / product.us}
        )  # fmt: skip
    section.tables["beside the product of the same size"] = rows


@step("windows", "Halos, taps, large tiles", "Whether patches, taps as K and steps ahead pay.")
def _windows(setting: Setting, section: Section) -> None:
    fp16, rehearsed = setting.stored[0], setting.is_rehearsal
    windows = problems.REHEARSED_WINDOWS if rehearsed else problems.WINDOWS
    large = problems.REHEARSED_LARGE if rehearsed else problems.LARGE
    items = [problems.convolution(*size) for size in windows]
    items += [problems.product(*size) for size in large]
    time_all(setting, section, [item.stored(fp16) for item in items])
    setting.measured += section.measured


@step("float32", "float32 products", "The rules of kernels without matrices.")
def _float32(setting: Setting, section: Section) -> None:
    if not setting.fp16:
        section.notes.append("the products above are in float32")
        return
    sizes = [size for size in SIZES if max(size) <= 4096]
    time_all(setting, section, [problems.product(*size) for size in sizes])
    setting.measured += section.measured


@step("networks", "Networks", "Every dispatch far from its prediction is looked at.")
def _networks(setting: Setting, section: Section) -> None:
    rows = []
    far: list[dict[str, object]] = []
    for number, network in enumerate(setting.models):
        if setting.is_over:
            section.notes.append(f"no time for {len(setting.models) - number} networks")
            break
        for fp16 in setting.stored:
            setting.say(f"{network.name}, {'fp16' if fp16 else 'float32'}")
            row, off = _network(setting, network, fp16)
            rows.append(row)
            far += off
    section.tables["one run"] = rows
    section.tables[f"dispatches {OFF:g} times their prediction and more"] = far


def _network(
    setting: Setting, network: Network, fp16: bool
) -> tuple[dict[str, object], list[dict[str, object]]]:
    forecast = _forecast(setting.device, network, fp16)
    precision = "normal" if fp16 else "high"
    feeds = dict(network.feeds)
    with vkmnn.InferenceSession(network.path, setting.where.device, precision=precision) as session:
        bound = session.bind(feeds)
        profile = session.profile(feeds, 5)
        times = interleave({"replay": bound, "run": lambda: session.run(None, feeds)}, 9)
    row: dict[str, object] = {
        "network": network.name,
        "stored": "f16" if fp16 else "f32",
        "dispatches": len(forecast.steps),
        "levels": forecast.levels,
        "predicted µs": round(forecast.predicted_us, 1),
        "replay µs": round(times["replay"].median * 1e6, 1),
        "with copies µs": round(times["run"].median * 1e6, 1),
        "profile µs": round(profile.gpu_us, 1),
        "predicted / replay": forecast.predicted_us / (times["replay"].median * 1e6),
    }
    gap = class_of(setting.device.info).gap_us
    far: list[dict[str, object]] = []
    entries = [entry for entry in profile if entry.kernel and entry.backend != "cpu"]
    if len(entries) == len(forecast.steps):
        for entry, step in zip(entries, forecast.steps, strict=True):
            expected = step.cost.total + gap
            if entry.microseconds > OFF * expected:
                far.append(
                    {"network": network.name, "op": entry.name, "kernel": step.kernel,
                     "workgroups": step.workgroups, "predicted µs": round(expected, 2),
                     "measured µs": round(entry.microseconds, 2)}
                )  # fmt: skip
    far.sort(key=lambda item: -float(str(item["measured µs"])))
    return row, far[:10]


def _forecast(device: Device, network: Network, fp16: bool) -> Forecast:
    backend = PlanningBackend(device, "f16" if fp16 else "f32")
    precision = "normal" if fp16 else "high"
    opened = OpenDevice(backend, device.info, precision)
    session = open_session(
        load_network(network.path), ScheduleConfig(precision=precision), opened
    ).core
    try:
        session.run(dict(network.feeds))
        return backend.forecast()
    finally:
        session.close()


@step("copies", "Copies", "Above which size outputs are copied instead of stored.")
def _copies(setting: Setting, section: Section) -> None:
    rows = []
    for nbytes in (4 << 10, 512 << 10, 2 << 20, 5 << 20, 13 << 20):
        if setting.is_over:
            break
        x = np.ones(nbytes // 4, np.float32)
        info = TensorInfo("x", DType.FLOAT32, x.shape)
        op = Op("UnaryOp", "op", ["x"], ["y"], UnaryAttrs("NEG"))
        graph = Graph("copies", [info], [TensorInfo("y", DType.FLOAT32, x.shape)], [op])
        plans = {}
        for way, stored_bytes in (("stored", nbytes), ("copied", 0)):
            backend = VulkanBackend(setting.device, stored_bytes=stored_bytes)
            plans[way] = Plan(graph, {"x": info}, {}, backend, CpuBackend(), run_op)
        feeds: dict[str, Array] = {"x": x}
        times = interleave(
            {
                "run": lambda p=plans["stored"], f=feeds: p.execute(f),
                **{way: replay_of(plan) for way, plan in plans.items()},
            },
            15,
        )
        for plan in plans.values():
            plan.close()
        around = max(0.0, times["run"].best - times["stored"].best) * 1e6
        rows.append(
            {"bytes in and out": nbytes, "stored µs": times["stored"].median * 1e6,
             "copied µs": times["copied"].median * 1e6,
             "host's part µs": around, "GB/s of it": 2e-3 * nbytes / around if around else None}
        )  # fmt: skip
    section.tables["a network of one op"] = rows


@step("tuner", "The tuner", "Rules that lose to measurements; choices that do not repeat.")
def _tuner(setting: Setting, section: Section) -> None:
    rows = []
    for network in setting.models[:3]:
        if setting.is_over:
            break
        setting.say(f"{network.name}: tuning")
        taken: list[dict[str, str]] = []
        for _ in range(2):
            with vkmnn.InferenceSession(network.path, setting.where.device) as session:
                tuning = session.tune(dict(network.feeds), runs=3)
            taken.append({c.what + c.problem: c.taken for c in tuning.choices})
            rows.append(
                {"network": network.name, "choices": len(tuning.choices),
                 "changed": len(tuning.changed), "before µs": tuning.before_us,
                 "after µs": tuning.after_us, "kept": tuning.kept}
            )  # fmt: skip
            if setting.is_over:
                break
            if tuning.after_us and tuning.before_us > GAIN * tuning.after_us:
                section.notes.append(
                    f"{network.name}: tuned {tuning.before_us / tuning.after_us:.2f} times as fast"
                )
        if len(taken) == 2 and taken[0]:
            differ = sum(taken[0].get(key) != value for key, value in taken[1].items())
            if differ > UNSTABLE * len(taken[0]):
                section.notes.append(f"{network.name}: {differ} choices differ between two runs")
    section.tables["two runs each"] = rows


@step("vectors", "A few rows", "Bytes in flight of products with one to eight rows.")
def _vectors(setting: Setting, section: Section) -> None:
    items = [
        problems.product(*size).stored(fp16) for size in problems.VECTORS for fp16 in setting.stored
    ]
    steps = [replace(item, what=f"{item.what}, steps at once", kind="gemv steps") for item in items]
    time_all(setting, section, [*items, *steps])
    rate = class_of(setting.device.info).stream_bytes
    rows = []
    for each in (each for each in section.measured if each.rule):
        _, outputs, k = (int(part) for part in each.what.split()[1].split("×"))
        nbytes = outputs * k * (2 if each.fp16 else 4)
        rows.append(
            {"product": each.what, "stored": "f16" if each.fp16 else "f32",
             "GB/s": nbytes / each.us / 1e3, "of what the model streams": nbytes / each.us / rate}
        )  # fmt: skip
    section.tables["weights per second"] = rows


@step("start", "The first result", "What compiling costs, without caches and with them.")
def _start(setting: Setting, section: Section) -> None:
    rows = []
    for network in setting.models[:2]:
        if setting.is_over:
            break
        setting.say(f"{network.name}: start")
        result = start.measure(network, setting.where)
        rows.append(
            {"network": network.name, "without caches s": result.cold.result_s,
             "with caches s": result.warm.result_s}
        )  # fmt: skip
    section.tables["a new process"] = rows
    figures = overhead.run_cost(setting.device, 100, 9)
    section.tables["100 dispatches"] = [
        {"run µs": figures.run * 1e6, "submit and wait µs": figures.bare * 1e6,
         "Python µs": figures.python * 1e6}
    ]  # fmt: skip
