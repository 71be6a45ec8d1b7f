"""`vkmnn bench`: a model on vkmnn and on other engines, on the same device."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from rich.text import Text

from vkmnn.bench.compare import (
    OWN,
    Comparison,
    Series,
    compare,
    engines,
    geometric_mean,
    place,
)
from vkmnn.bench.document import document as about
from vkmnn.bench.document import networks
from vkmnn.cli import console
from vkmnn.cli.console import (
    document,
    err,
    heading,
    interrupted,
    interruptible,
    note,
    say,
    show,
    table,
    time_text,
)
from vkmnn.cli.run import RunOptions, session_feeds, tell_assumed
from vkmnn.errors import InvalidInputError, nearest, plural
from vkmnn.inference_session import InferenceSession

_BAR = 40
_ROUND = re.compile(r": round (\d+) of (\d+)$")


def bench_model(
    model: Path,
    options: RunOptions,
    names: Sequence[str],
    fp16: bool,
    threads: int,
    timeout_s: float,
) -> None:
    """Compare engines on a model and print a table and bars.

    Args:
        model: an ONNX file.
        options: inputs and device; `repeat` is the number of rounds.
        names: parts of engine names; none for all engines.
        fp16: also compare the engines' float16.
        threads: threads of engines on the CPU; 0 for one per core.
        timeout_s: maximum time for one answer of an engine.

    Raises:
        InvalidInputError: no engine has this name.
    """
    specs = engines(fp16, names)
    if not specs:
        known = [spec.name for spec in engines(True)]
        hint = nearest(names[0], [*known, *(one.partition(" ")[0] for one in known)], "engines")
        raise InvalidInputError(f"no engine is called {', '.join(names)}", hint=hint)
    where = place(options.device, threads, options.repeat, timeout_s)
    with InferenceSession(model, "cpu") as session:
        fed = session_feeds(session, options)
    tell_assumed(fed.notes)
    with interruptible("no round was complete"), progress() as report:
        result = compare(model.stem, model, fed.arrays, specs, where, report)
    heading(f"{model.name} on {where.device_name}, {plural(where.threads, 'thread')} on the CPU")
    show(_engines(result))
    show_failures([result])
    show_bars([result])
    stopped = {"interrupted": result.interrupted}
    document("bench", about(where) | {"networks": networks([result])} | stopped)
    if result.interrupted:
        done = max((len(series.seconds) for series in result.series), default=0)
        raise interrupted(f"{plural(done, 'round')} of {where.rounds} were run")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show progress; yields a function that updates it.

    Adds the remaining time to rounds. Without a terminal, prints a line every few seconds.
    """
    if err.is_terminal:
        with err.status("") as status:
            left = _Left()
            yield lambda text: status.update(Text(left.told(text)))
        return
    told, left = time.monotonic(), _Left()

    def tell(text: str) -> None:
        nonlocal told
        text = left.told(text)
        if time.monotonic() - told >= console.LINE_EVERY_S:
            told = time.monotonic()
            say("progress", text, "dim")

    yield tell


class _Left:
    """Estimates the remaining time of a model's rounds."""

    def __init__(self) -> None:
        self._begun = 0.0

    def told(self, text: str) -> str:
        """Return the text on a round with the remaining time."""
        match = _ROUND.search(text)
        if match is None:
            return text
        done, total = int(match[1]) - 1, int(match[2])
        if not done:
            self._begun = time.monotonic()
            return text
        spent = time.monotonic() - self._begun
        return f"{text}, about {console.duration_text(spent * (total - done) / done)} left"


def _engines(result: Comparison) -> Table:
    """Return one model's engines, one per row."""
    numbers = ("ms", "spread", "time by vkmnn's", "difference", "load", "first run")
    rows = table("engine", *numbers, right=numbers)
    for series in result.series:
        if series.median_s is not None:
            rows.add_row(
                series.engine,
                f"{series.median_s * 1e3:.2f}",
                f"±{100 * series.spread:.0f} %",
                ratio_text(result.ratio(series.engine)),
                "–" if series.difference is None else f"{series.difference:.0e}",
                time_text(series.load_s),
                time_text(series.first_s),
            )
    return rows


def networks_table(results: Sequence[Comparison]) -> Table:
    """Return models, one per row: milliseconds of the engines, and their time divided by vkmnn's.

    All of them have the same engines; those that ran none of the models are left out.
    """
    names = [
        one.engine
        for rank, one in enumerate(results[0].series)
        if any(result.series[rank].median_s is not None for result in results)
    ]
    others = [name for name in names if name != OWN]
    rows = table(
        "network",
        *(f"{name} ms" for name in names),
        *(f"{name} / {OWN}" for name in others),
        right=[f"{name} ms" for name in names] + [f"{name} / {OWN}" for name in others],
    )
    for result in results:
        cells = [_milliseconds(result.of(name)) for name in names]
        rows.add_row(result.name, *cells, *(ratio_text(result.ratio(name)) for name in others))
    means = []
    for name in others:
        ratios = [ratio for result in results if (ratio := result.ratio(name)) is not None]
        means.append(ratio_text(geometric_mean(ratios) if ratios else None))
    rows.add_row(Text("geometric mean", style="bold"), *("" for _ in names), *means)
    return rows


def _milliseconds(series: Series | None) -> str:
    if series is None or series.median_s is None:
        return "–"
    return f"{series.median_s * 1e3:.2f} ±{100 * series.spread:.0f} %"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio of times; "–" if there is none."""
    return "–" if ratio is None else f"{ratio:.2f}"


def show_bars(results: Sequence[Comparison]) -> None:
    """Print the times as bars, each model on its own scale."""
    rows = table("", "", "", "ms", right=("ms",))
    for result in results:
        times = [(one.engine, one.median_s) for one in result.series if one.median_s is not None]
        longest = max((seconds for _, seconds in times), default=0.0)
        for number, (name, seconds) in enumerate(times):
            length = max(1, round(_BAR * seconds / longest))
            bar = Text("█" * length, style="bold cyan" if name.startswith(OWN) else "dim")
            rows.add_row(result.name if number == 0 else "", name, bar, f"{seconds * 1e3:.2f}")
    show(rows)


def show_failures(results: Sequence[Comparison]) -> None:
    """Print which engines did not run, each reason once."""
    failed: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        for series in result.series:
            if series.error:
                key = (series.engine, series.error, series.hint)
                failed.setdefault(key, []).append(result.name)
    for (engine, error, hint), models in failed.items():
        where = "" if len(models) == len(results) else f" ({', '.join(models)})"
        note(f"{engine}{where}: {error}" + (f"; to get it: {hint}" if hint else ""))
