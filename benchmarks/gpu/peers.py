"""The step that runs PyTorch: strict, and by everything that makes it faster."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec

from benchmarks.gpu.report import Section
from benchmarks.gpu.step import Setting, step
from benchmarks.networks import torch_specs
from vkmnn.bench.compare import compare, engines

COLUMNS = (
    (),
    ("tf32",),
    ("tf32", "channels_last"),
    ("tf32", "channels_last", "compile"),
)
"""Ways of `torch_graphs.WAYS`, each added to the ones before."""
FIRST = ("resnet50", "vit_b16", "bert_base")
"""The networks to begin with."""
LEAST_S = 30.0
ROUNDS = 3


@step(
    "torch",
    "PyTorch",
    "How far ahead of PyTorch vkmnn is once TF32, channels last and torch.compile are on.",
)
def _torch(setting: Setting, section: Section) -> None:
    known = [network for network in setting.models if network.case]
    if find_spec("torch") is None or not known:
        section.notes.append("PyTorch is not installed, or none of the networks is known to it")
        return
    known.sort(key=lambda network: network.case not in FIRST)
    rows = section.tables["one run, milliseconds"] = []
    for number, network in enumerate(known):
        if setting.is_over:
            section.notes.append(f"no time for {len(known) - number} networks")
            return
        for ways in COLUMNS:
            if setting.is_over:
                break
            setting.say(f"{network.name}: PyTorch {' '.join(ways) or 'strict'}")
            left = max(setting.end - time.monotonic(), LEAST_S)
            where = replace(setting.where, rounds=ROUNDS, timeout_s=left)
            specs = torch_specs(network, setting.fp16, ways)
            if not ways:
                specs = [*engines(setting.fp16, ["vkmnn"]), *specs]
            found = compare(network.name, network.path, network.feeds, specs, where)
            for one in found.series:
                ms = None if one.median_s is None else one.median_s * 1e3
                row = {"network": network.name, "engine": one.engine, "ms": ms}
                rows.append({**row, "spread": one.spread, "difference": one.difference,
                             "failed": one.error})  # fmt: skip
            if any("CUDA" in one.error for one in found.series):
                section.notes.append("PyTorch finds no CUDA device")
                return
