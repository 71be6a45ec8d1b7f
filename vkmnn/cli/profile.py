"""`vkmnn profile`: where the time of a model goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from vkmnn.base.whole_files import check_writable
from vkmnn.cli.console import (
    bytes_text,
    document,
    interruptible,
    note,
    number_text,
    out,
    shape_text,
    show,
    table,
    time_text,
    waiting,
)
from vkmnn.cli.profile_page import write_page
from vkmnn.cli.run import Opened, RunOptions, introduce, opened
from vkmnn.cli.saving import saving
from vkmnn.core.profile import Profile
from vkmnn.errors import plural

_GAP = 0.2
"""The share of a run outside Python and the steps from which on it is explained."""


def profile_model(
    model: Path, options: RunOptions, by: str, top: int, trace: Path | None, html: Path | None
) -> None:
    """Profile a model and print a table by "step", "type" or "kernel", slowest first.

    Args:
        model: an ONNX file.
        options: device and inputs; `repeat` is the number of runs to measure.
        by: grouping of the rows.
        top: number of rows to show; 0 for all.
        trace: path of the trace.
        html: path of the page.
    """
    for path, what, option in (
        (trace, "trace cannot be written", "--trace"),
        (html, "page cannot be written", "--html"),
    ):
        if path is not None:
            with saving(what, option, path):
                check_writable(path)
    with opened(model, options) as here:
        with interruptible("no run was measured"), waiting(f"measuring {model.name}"):
            profile = here.session.profile(here.feeds, options.repeat)
        introduce(model, here)
        device = here.session.device.name
        facts = _facts(model, here, profile)
        inputs = ", ".join(f"{name} {shape_text(x.shape)}" for name, x in here.feeds.items())
    if by == "step":
        _show_steps(profile, top)
    else:
        _show_totals(profile, by, top)
    out.print(Text(_summary(profile)))
    over = dict.fromkeys(
        f"{one.type} '{one.source or one.name}'" for one in profile if one.overflowed
    )
    if over:
        note(f"these overflow in float16, and would not in float32: {', '.join(over)}")
    if host := profile.host():
        spent = ", ".join(f"{name} {time_text(us / 1e6)}" for name, us in host.items())
        out.print(Text(f"activities of the host in one run with timestamps: {spent}"))
    memory = profile.memory
    if memory.activations or memory.constants:
        text = (
            f"device memory: weights {bytes_text(memory.constants)}, activations "
            f"{bytes_text(memory.activations)} (at least {bytes_text(memory.lower_bound)}), "
            f"inputs and outputs {bytes_text(memory.io)}"
        )
        out.print(Text(text))
    if trace is not None:
        with saving("trace cannot be written", "--trace", trace):
            profile.to_chrome_trace(trace)
        out.print(Text(f"saved {trace}; open it in https://ui.perfetto.dev or chrome://tracing"))
    if html is not None:
        with saving("page cannot be written", "--html", html):
            write_page(profile, html, model.name, f"{device}; inputs {inputs}")
        out.print(Text(f"saved {html}; open it in a browser"))
    document("profile", facts)


def _facts(model: Path, here: Opened, profile: Profile) -> dict[str, Any]:
    """Return the measurements for a JSON document."""
    memory = profile.memory
    return {
        "model": str(model),
        "device": here.session.device.name,
        "precision": here.session.precision,
        "runs": profile.runs,
        "wall_us": profile.wall_us,
        "python_us": profile.python_us,
        "gpu_us": profile.gpu_us,
        "host_us": profile.host(),
        "away_us": profile.away_us,
        "crossings_us": profile.crossings_us,
        "memory": {
            "constants": memory.constants,
            "activations": memory.activations,
            "lower_bound": memory.lower_bound,
            "io": memory.io,
        },
        "steps": [dataclasses.asdict(entry) for entry in profile],
        "notes": here.fed.notes,
    }


def _summary(profile: Profile) -> str:
    python = time_text(max(profile.python_us, 0) / 1e6)
    text = f"a run takes {time_text(profile.wall_us / 1e6)}, including {python} in Python"
    if profile.gpu_us:
        text += f"; the steps on the device take {time_text(profile.gpu_us / 1e6)} with timestamps"
    text += f" (median of {plural(profile.runs, 'run')})"
    if away := profile.away_us:
        share = 100 * away / (profile.total_us or 1.0)
        text += (
            f"\nsteps off the device take {time_text(away / 1e6)}, {share:.1f} % of all steps; "
            f"copies between backends {time_text(profile.crossings_us / 1e6)}"
        )
    between = profile.wall_us - profile.gpu_us - max(profile.python_us, 0)
    if profile.gpu_us and between > _GAP * profile.wall_us:
        text += (
            f"\nthe other {time_text(between / 1e6)} pass between submit and first step, and "
            "between last step and host: in the driver, and in other work on this machine"
        )
    return text


def _rest(rows: Table, hidden: Sequence[float], total: float) -> None:
    """Add a row that sums up those not shown."""
    if hidden:
        spent = sum(hidden)
        rows.add_row(
            f"{100 * spent / total:.1f} %",
            f"{spent:.1f}",
            f"{len(hidden)} more (--top 0 shows all)",
            style="dim",
        )


def _show_steps(profile: Profile, top: int) -> None:
    rows = table("share", "µs", "op", "name", "kernel", "chosen by", right=("share", "µs"))
    total = profile.total_us or 1.0
    entries = sorted(profile, key=lambda entry: -entry.microseconds)
    shown = top or len(entries)
    for entry in entries[:shown]:
        rows.add_row(
            f"{100 * entry.microseconds / total:.1f} %",
            f"{entry.microseconds:.1f}",
            entry.type,
            Text(entry.name),
            Text(entry.kernel),
            entry.choice,
        )
    _rest(rows, [entry.microseconds for entry in entries[shown:]], total)
    show(rows)


def _show_totals(profile: Profile, key: str, top: int) -> None:
    rows = table("share", "µs", key, "steps", right=("share", "µs", "steps"))
    total = profile.total_us or 1.0
    totals = profile.totals(key)
    shown = top or len(totals)
    for value, count, spent in totals[:shown]:
        share = f"{100 * spent / total:.1f} %"
        rows.add_row(share, f"{spent:.1f}", Text(value), number_text(count))
    _rest(rows, [spent for _, _, spent in totals[shown:]], total)
    show(rows)
