"""How latency grows with batch, image size and sequence length."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.networks import exported, measure
from vkmnn.bench.compare import OWN, Comparison, EngineSpec, Place
from vkmnn.cli.bench import ratio_text
from vkmnn.cli.console import table


@dataclass(frozen=True, slots=True)
class Series:
    """A known network, the sizes that grow together, and their values."""

    network: str
    axis: str
    sizes: tuple[str, ...]
    values: tuple[int, ...]


SERIES = (
    Series("MobileNetV2", "batch", ("N",), (1, 2, 4, 8, 16, 32, 64)),
    Series("ResNet-50", "batch", ("N",), (1, 2, 4, 8, 16, 32, 64)),
    Series("BERT-base 1×128", "batch", ("N",), (1, 2, 4, 8, 16, 32, 64)),
    Series("MobileNetV2", "image size", ("H", "W"), (96, 128, 160, 224, 320, 448, 640)),
    Series("U-Net-256", "image size", ("H", "W"), (64, 128, 192, 256, 384, 512)),
    Series("BERT-base 1×128", "sequence length", ("L",), (16, 32, 64, 128, 256, 384, 512)),
    Series("GPT-2 1×64", "sequence length", ("L",), (16, 32, 64, 128, 256, 512)),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A network at one size."""

    size: int
    comparison: Comparison


def run_series(
    series: Series,
    specs: Sequence[EngineSpec],
    where: Place,
    budget_s: float,
    progress: Callable[[str], None],
) -> list[Point]:
    """Measure a series, from small to large, until the time is over."""
    points: list[Point] = []
    begin = time.perf_counter()
    for value in series.values:
        spent = time.perf_counter() - begin
        # The next point probably takes longer than all before it.
        if points and 2 * spent > budget_s:
            break
        network = exported(series.network, dict.fromkeys(series.sizes, value), dynamic=True)
        progress(f"{series.network}, {series.axis} {value}")
        points.append(Point(value, measure(network, specs, where, progress)))
    return points


def series_table(series: Series, points: Sequence[Point]) -> Table:
    """Return a series as a table; milliseconds of all items together, and of vkmnn by item."""
    names = [one.engine for one in points[0].comparison.series]
    per_item = f"{OWN} ms an item" if series.sizes == ("N",) else ""
    numbers = [f"{name} ms" for name in names] + [f"{name} / {OWN}" for name in names[1:]]
    numbers += [per_item] if per_item else []
    made = table(series.axis, *numbers, right=[series.axis, *numbers])
    for point in points:
        spent = [one.median_s for one in point.comparison.series]
        cells = ["–" if seconds is None else f"{seconds * 1e3:.2f}" for seconds in spent]
        cells += [ratio_text(point.comparison.ratio(name)) for name in names[1:]]
        if per_item:
            own = spent[0]
            cells.append("–" if own is None else f"{own * 1e3 / point.size:.2f}")
        made.add_row(str(point.size), *cells)
    return made
