"""`vkmnn profile`: where the time of a model goes."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from vkmnn.cli.console import (
    bytes_text,
    compiling,
    note,
    number_text,
    out,
    shape_text,
    show,
    table,
    time_text,
)
from vkmnn.cli.profile_page import write_page
from vkmnn.cli.run import RunOptions, introduce, opened
from vkmnn.cli.saving import saving
from vkmnn.core.profile import Profile
from vkmnn.whole_files import check_writable


def profile_model(
    model: Path, options: RunOptions, by: str, trace: Path | None, html: Path | None
) -> None:
    """Profile a model and print a table by "step", "type" or "kernel", slowest first."""
    for path, what, option in (
        (trace, "trace cannot be written", "--trace"),
        (html, "page cannot be written", "--html"),
    ):
        if path is not None:
            with saving(what, option, path):
                check_writable(path)
    with opened(model, options) as here:
        with compiling():
            profile = here.session.profile(here.feeds, options.repeat)
        introduce(model, here)
        device = here.session.device.name
        inputs = ", ".join(f"{name} {shape_text(x.shape)}" for name, x in here.feeds.items())
    if by == "step":
        _show_steps(profile)
    else:
        _show_totals(profile, by)
    out.print(Text(_summary(profile)))
    over = dict.fromkeys(
        f"{one.type} '{one.source or one.name}'" for one in profile if one.overflowed
    )
    if over:
        note(f"these overflow in float16, and would not in float32: {', '.join(over)}")
    if host := profile.host():
        spent = ", ".join(f"{name} {time_text(us / 1e6)}" for name, us in host.items())
        out.print(Text(f"the host, in one run with timestamps: {spent}"))
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


def _summary(profile: Profile) -> str:
    python = time_text(max(profile.python_us, 0) / 1e6)
    text = f"a run takes {time_text(profile.wall_us / 1e6)}, {python} of it Python"
    if profile.gpu_us:
        text += f"; its steps on the device, {time_text(profile.gpu_us / 1e6)} with timestamps"
    return f"{text} (median of {profile.runs} runs)"


def _show_steps(profile: Profile) -> None:
    rows = table("share", "µs", "op", "name", "kernel", "chosen by", right=("share", "µs"))
    total = profile.total_us or 1.0
    for entry in sorted(profile, key=lambda entry: -entry.microseconds):
        rows.add_row(
            f"{100 * entry.microseconds / total:.1f} %",
            f"{entry.microseconds:.1f}",
            entry.type,
            Text(entry.name),
            Text(entry.kernel),
            entry.choice,
        )
    show(rows)


def _show_totals(profile: Profile, key: str) -> None:
    rows = table("share", "µs", "steps", key, right=("share", "µs", "steps"))
    total = profile.total_us or 1.0
    for value, count, spent in profile.totals(key):
        rows.add_row(
            f"{100 * spent / total:.1f} %", f"{spent:.1f}", number_text(count), Text(value)
        )
    show(rows)
