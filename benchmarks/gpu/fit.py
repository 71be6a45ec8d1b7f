"""The constants of the cost model, as measured times would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log

import numpy as np

from benchmarks.gpu.chain import Measured
from vkmnn.vulkan.cost.devices import DeviceClass
from vkmnn.vulkan.cost.terms import Cost

TERMS = tuple(field.name for field in fields(Cost))
# How strongly a term on which hardly any time depends is held to its constant.
PRIOR = 0.05
MOST = 8.0
ROUNDS = 400

# The constants that a term is proportional to, and those that it is inversely proportional to.
TIMES: Mapping[str, tuple[str, ...]] = {
    "start": ("start_us",),
    "latency": (
        *("step_us", "single_step_us", "ahead_step_us"),
        *("cold_step_us", "round_us", "cold_round_us"),
    ),
    "split": ("split_us", "part_us"),
}
RATES: Mapping[str, tuple[str, ...]] = {
    "loads": ("core_bytes", "cached_bytes", "cold_bytes", "stream_bytes", "memory_bytes"),
    "arithmetic": ("core_flops", "matrix_flops", "shared_bytes"),
    "stores": ("core_results",),
    "split": ("part_bytes",),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """How the model's terms must be scaled to predict the measurements.

    Args:
        scales: factor of each term.
        before: the typical factor between a predicted and a measured time.
        after: the same once the terms are scaled.
        row: the device's class with its constants changed accordingly.
    """

    scales: Mapping[str, float]
    before: float
    after: float
    row: DeviceClass


def fit(measured: Sequence[Measured], device: DeviceClass) -> Fit | None:
    """Scale the terms so that the logarithms of the times agree best; None where nothing was timed.

    Least squares of log(predicted / measured) by gradient descent on the logarithms of the factors,
    which keeps them positive. Dispatches of an op share its terms; the gaps between them are not
    changed, as another step measures these.
    """
    used = [each for each in measured if each.us > 0 and not each.is_wrong]
    if not used:
        return None
    terms = np.array([[each.terms.get(name, 0.0) for name in TERMS] for each in used])
    fixed = np.array([sum(v for k, v in each.terms.items() if k not in TERMS) for each in used])
    times = np.array([each.us for each in used])
    logs = np.zeros(len(TERMS))
    before = _typical(terms.sum(1) + fixed, times)
    for _ in range(ROUNDS):
        scaled = terms * np.exp(logs)
        total = scaled.sum(1) + fixed
        error = np.log(np.maximum(total, 1e-9) / times)
        slope = scaled / np.maximum(total, 1e-9)[:, None]
        # Gauss-Newton, held back by the prior.
        system = slope.T @ slope / len(used) + PRIOR**2 * np.diag(slope.mean(0) + 1e-3)
        gradient = slope.T @ error / len(used) + PRIOR**2 * (slope.mean(0) + 1e-3) * logs
        step = np.linalg.solve(system, gradient)
        logs = np.clip(logs - 0.3 * step, -log(MOST), log(MOST))
    scales = dict(zip(TERMS, map(float, np.exp(logs)), strict=True))
    after = _typical((terms * np.exp(logs)).sum(1) + fixed, times)
    return Fit(scales, before, after, _row(device, scales))


def _typical(predicted: np.ndarray, times: np.ndarray) -> float:
    return exp(float(np.median(np.abs(np.log(np.maximum(predicted, 1e-9) / times)))))


def _row(device: DeviceClass, scales: Mapping[str, float]) -> DeviceClass:
    changed: dict[str, float] = {}
    for term, names in TIMES.items():
        changed |= {name: getattr(device, name) * scales[term] for name in names}
    for term, names in RATES.items():
        changed |= {name: getattr(device, name) / scales[term] for name in names}
    return replace(device, source="fitted to measurements", **changed)  # type: ignore[arg-type]
