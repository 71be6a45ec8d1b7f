"""The steps for language models: products by quantised weights, caches, whole models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import llm
from benchmarks.gpu import problems
from benchmarks.gpu.problems import Problem
from benchmarks.gpu.report import Section
from benchmarks.gpu.step import Setting, step, time_all, within
from vkmnn.schedule_config import PrecisionName
from vkmnn.vulkan.cost.devices import class_of

ROTATED_BYTES = 160_000_000
"""Of weights, more than any cache: an H200's has 50 MB, a 7900 XTX's 96."""
ROUNDS = 2
TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    sizes: llm.Sizes


MODELS = (
    _Model("1b", llm.SHAPES["1b"]),
    _Model("8b, 4 layers", replace(llm.SHAPES["8b"], layers=4)),
)
LOADS = (
    *(llm.Load(prompt, TOKENS, texts) for texts, prompt in product((1, 8), (128, 1024))),
    llm.Load(128, TOKENS, 32),
)
TINY = llm.Sizes(layers=1, width=64, heads=2, kv_heads=1, inner=96, vocabulary=64, positions=64)
REHEARSED_MODELS = (_Model("tiny", TINY),)
REHEARSED_LOADS = (llm.Load(9, 4, 1), llm.Load(9, 4, 2))


@step(
    "codes",
    "Products by quantised weights",
    "Which kernel a token takes; what loads and arithmetic cost when they do not overlap.",
)
def _codes(setting: Setting, section: Section) -> None:
    rotated = ROTATED_BYTES // 1000 if setting.is_rehearsal else ROTATED_BYTES
    for problem in within(setting, section, _products(setting)):
        for nbytes in (rotated, 0) if " 1×" in problem.what else (rotated,):
            time_all(setting, section, [problem], rotated_bytes=nbytes)
        if section.wrong:
            return
    section.tables["weights per second"] = _streamed(setting, section)


def _products(setting: Setting) -> Iterator[Problem]:
    """Yield products, those of a prompt also by each way to unpack the weights."""
    sizes = problems.REHEARSED_CODES if setting.is_rehearsal else problems.CODES
    for rows, (columns, depth) in product(problems.CODE_ROWS, sizes):
        for kind in ("codes", "unpacked") if rows == problems.CODE_ROWS[1] else ("codes",):
            problem = problems.codes(rows, columns, depth, kind)
            for fp16 in setting.stored:
                yield problem.stored(fp16)


def _streamed(setting: Setting, section: Section) -> list[dict[str, object]]:
    """Return the bytes a second of the fastest kernel for one row, from memory and from caches."""
    rate = class_of(setting.device.info).stream_bytes
    best: dict[tuple[str, bool], dict[bool, float]] = {}
    for each in section.measured:
        times = best.setdefault((each.what, each.fp16), {})
        times[each.cold] = min(each.us, times.get(each.cold, each.us))
    rows: list[dict[str, object]] = []
    for (what, fp16), times in best.items():
        if set(times) != {True, False}:
            continue
        _, columns, depth = (int(part) for part in what.split()[1].split("×"))
        nbytes = columns * depth * problems.CODE_BITS / 8
        rows.append(
            {"product": what, "stored": "f16" if fp16 else "f32", "MB": nbytes / 1e6,
             "from memory µs": times[True], "from caches µs": times[False],
             "GB/s": nbytes / times[True] / 1e3, "of what the model streams":
             nbytes / times[True] / rate}
        )  # fmt: skip
    return rows


@step("caches", "Attention on caches", "Workgroups that share the rows of a cache.")
def _caches(setting: Setting, section: Section) -> None:
    sizes = problems.REHEARSED_CACHES if setting.is_rehearsal else problems.CACHES
    items = (problems.cached(*size).stored(fp16) for size in sizes for fp16 in setting.stored)
    time_all(setting, section, items)


@step("llm", "Language models", "Tokens per second of prompts and texts, in both precisions.")
def _models(setting: Setting, section: Section) -> None:
    rows = section.tables["tokens per second"] = []
    precisions: tuple[PrecisionName, ...] = ("normal", "high") if setting.fp16 else ("high",)
    models = REHEARSED_MODELS if setting.is_rehearsal else MODELS
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            if rows and setting.is_over:
                section.notes.append(f"no time for {model.name}")
                continue
            setting.say(f"{model.name}: writing it")
            path = Path(folder) / model.name
            llm.write_model(path, model.sizes)
            for precision in precisions:
                if rows and setting.is_over:
                    section.notes.append(f"no time for {model.name}, {precision}")
                    continue
                rows += _rates(setting, section, model, path, precision)


def _rates(
    setting: Setting, section: Section, model: _Model, path: Path, precision: PrecisionName
) -> list[dict[str, object]]:
    """Return the rates of a model; the first round, which plans, does not count."""
    loads = REHEARSED_LOADS if setting.is_rehearsal else LOADS
    longest = max(loads, key=lambda load: load.prompt + load.tokens)
    rng = np.random.default_rng(1)
    rows: list[dict[str, object]] = []
    with llm.opened(path, setting.where.device, longest, precision) as opened:
        for load in loads:
            if rows and setting.is_over:
                section.notes.append(f"no time for {model.name}, {precision}, {load}")
                continue
            setting.say(f"{model.name}, {precision}: {load.prompt} tokens, {load.texts} texts")
            found = []
            for _ in range(1 + ROUNDS):
                ids = rng.integers(0, model.sizes.vocabulary, load.prompt).tolist()
                found.append(llm.rates_of(opened, ids, load, precision))
                if setting.is_over and len(found) > 1:
                    break
            counted = found[1:]
            rows.append(
                {"model": model.name, "precision": precision, "texts": load.texts,
                 "prompt": load.prompt, "tokens": load.tokens, "rounds": len(counted),
                 "prompt, tokens/s": median(rate.prefill for rate in counted),
                 "text, tokens/s": median(rate.decode for rate in counted),
                 "dispatches a run": counted[-1].commands,
                 "host, ms a token": median(rate.host_ms or 0.0 for rate in counted)}
            )  # fmt: skip
    return rows
