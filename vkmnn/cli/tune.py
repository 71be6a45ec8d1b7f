"""`vkmnn tune`: measure the kernels that a model could use, and keep the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from vkmnn.cli.console import note, out, show, table, time_text, trials
from vkmnn.cli.run import RunOptions, introduce, opened
from vkmnn.core.backend import TunedChoice
from vkmnn.errors import InvalidInputError
from vkmnn.runtime import environment


def tune_model(model: Path, options: RunOptions) -> None:
    """Tune a model at the shapes of its inputs and print what was found.

    Raises:
        InvalidInputError: `VKMNN_TUNE=off` forbids to keep or use measurements.
    """
    if environment.tune() == "off":
        raise InvalidInputError("VKMNN_TUNE=off: nothing may be tuned", hint="unset it")
    with opened(model, options) as here:
        introduce(model, here)
        with trials() as progress:
            tuning = here.session.tune(here.feeds, options.repeat, progress)
    if not tuning.choices:
        note("this model offers no choice between kernels on this device")
        return
    _show(tuning.changed)
    kept = len(tuning.choices) - len(tuning.changed)
    out.print(Text(f"{len(tuning.changed)} choices changed, {kept} stay as the rules rank them"))
    if not tuning.before_us:
        out.print(Text("kept: these are the kernels that were in use before"))
        return
    before, after = time_text(tuning.before_us / 1e6), time_text(tuning.after_us / 1e6)
    if tuning.kept:
        out.print(Text(f"kept: a run took {before}, now {after}"))
    else:
        out.print(Text(f"not kept: a run takes {before} as before, and {after} with the changes"))


def _show(changed: Sequence[TunedChoice]) -> None:
    if not changed:
        return
    numbers = ("µs by rule", "µs now", "gain")
    rows = table("choice", "ops", "by rule", "now", *numbers, right=("ops", *numbers))
    for choice in sorted(changed, key=lambda choice: choice.taken_us - choice.rule_us):
        rows.add_row(
            choice.what,
            str(len(choice.ops)),
            Text(choice.rule_name),
            Text(choice.taken_name),
            f"{choice.rule_us:.1f}",
            f"{choice.taken_us:.1f}",
            f"{100 * (1 - choice.taken_us / choice.rule_us):.0f} %",
        )
    show(rows)
