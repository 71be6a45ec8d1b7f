"""Drawings of results as PNG files; matplotlib is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.ceilings import Ceilings
from benchmarks.kernels import KernelRate
from benchmarks.scaling import Point, Series
from vkmnn.bench.compare import OWN, Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HINT = "no drawings: pip install matplotlib"
_COLOURS = (
    *("#2f6fdb", "#d9731a", "#2a9a66", "#b5489f", "#8a6d1f"),
    *("#c43c3c", "#4b9fb8", "#7a5fc7", "#3f4a5a", "#e58fae"),
)
# Part of a network's time from which on a kernel is named.
_MIN_NAMED = 0.03


def available() -> bool:
    """Return whether plots can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_networks(results: Sequence[Comparison], title: str, path: Path) -> None:
    """Draw the engines' milliseconds as horizontal bars, network by network."""
    names = [series.engine for series in results[0].series]
    shown = [n for n in names if any(_milliseconds(result, n) for result in results)]
    figure, axes = _figure(9, 1.2 + 0.22 * len(results) * (len(shown) + 1))
    height = 0.85 / max(len(shown), 1)
    for rank, name in enumerate(shown):
        places = [row + height * rank for row in range(len(results))]
        spent = [_milliseconds(result, name) or np.nan for result in results]
        errors = [_error(result, name) for result in results]
        axes.barh(
            places, spent, height, label=name, xerr=errors,
            color=_COLOURS[names.index(name) % len(_COLOURS)],
            error_kw={"elinewidth": 0.8, "ecolor": "#555"},
        )  # fmt: skip
        for y, value, error in zip(places, spent, errors, strict=True):
            if not np.isnan(value):
                text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                axes.text((value + error) * 1.04, y, text, va="center", fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a run (log scale)")
    axes.set_yticks([row + 0.42 - height / 2 for row in range(len(results))])
    axes.set_yticklabels([result.name for result in results])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _milliseconds(result: Comparison, engine: str) -> float | None:
    series = result.of(engine)
    return None if series is None or series.median_s is None else series.median_s * 1e3


def _error(result: Comparison, engine: str) -> float:
    series = result.of(engine)
    spent = _milliseconds(result, engine)
    return 0.0 if series is None or spent is None else series.spread * spent


def _labels(rates: Sequence[KernelRate]) -> list[tuple[str, tuple[float, float]]]:
    """Return every kernel's name where it takes most, unless it would cover another name."""
    found: dict[str, tuple[float, float]] = {}
    for row in sorted(rates, key=lambda rate: -rate.share):
        place = (row.intensity, row.flops / row.microseconds / 1e3)
        # Factors that a name is long and high on logarithmic axes of this size.
        covered = any(
            1 / 8 < place[0] / x < 8 and 0.8 < place[1] / y < 1.25 for x, y in found.values()
        )
        if row.kernel not in found and not covered and row.share >= _MIN_NAMED:
            found[row.kernel] = place
    return list(found.items())


def draw_roofline(
    kernels: Mapping[str, Sequence[KernelRate]], ceilings: Ceilings, title: str, path: Path
) -> None:
    """Plot the performance of kernels over their FLOP per byte; area is the share of time."""
    figure, axes = _figure(9, 6)
    rates = [rate for rows in kernels.values() for rate in rows if rate.flops and rate.nbytes]
    reach = [rate.intensity for rate in rates] or [1.0]
    x = np.geomspace(min(*reach, 0.1) / 2, max(*reach, 100) * 2, 200)
    best, memory = max(ceilings.bandwidth.values()), list(ceilings.bandwidth.values())[-1]
    for rate, style, label in (
        (best, "--", f"fastest copy, {best / 1e9:.1f} GB/s"),
        (memory, "-", f"largest copy, {memory / 1e9:.1f} GB/s"),
    ):
        roof = np.minimum(ceilings.flops["f32"], x * rate) / 1e9
        axes.plot(x, roof, style, color="#555", linewidth=1.2, label=label)
    for rank, (name, rows) in enumerate(kernels.items()):
        used = [row for row in rows if row.flops and row.nbytes]
        axes.scatter(
            [row.intensity for row in used],
            [row.flops / row.microseconds / 1e3 for row in used],
            [12 + 400 * row.share for row in used],
            color=_COLOURS[rank % len(_COLOURS)],
            alpha=0.6,
            edgecolors="none",
            label=name,
        )
    for kernel, place in _labels(rates):
        axes.annotate(kernel, place, fontsize=6, xytext=(4, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("floating-point operations a byte")
    axes.set_ylabel("GFLOP/s")
    legend = axes.legend(fontsize=7, frameon=False)
    for handle in legend.legend_handles[2:]:
        handle.set_sizes([30])
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=130)


def draw_scaling(series: Series, points: Sequence[Point], path: Path) -> None:
    """Draw the milliseconds of a series over its sizes."""
    figure, axes = _figure(6, 4)
    for rank, one in enumerate(points[0].comparison.series):
        found = [(point.size, _milliseconds(point.comparison, one.engine)) for point in points]
        used = [(size, spent) for size, spent in found if spent is not None]
        if used:
            width = 2.0 if one.engine == OWN else 1.2
            axes.plot(*zip(*used, strict=True), "o-", color=_COLOURS[rank], linewidth=width,
                      markersize=4, label=one.engine)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([point.size for point in points], [str(point.size) for point in points])
    axes.minorticks_off()
    axes.set_xlabel(series.axis)
    axes.set_ylabel("milliseconds")
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(series.network, fontsize=10)
    figure.savefig(path, dpi=130)
