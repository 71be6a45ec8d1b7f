"""`vkmnn tune`: measure the kernels that a model could use, and keep the fastest."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from rich.text import Text

from vkmnn.cli.console import note, out, show, table, time_text, trials
from vkmnn.cli.run import Opened, RunOptions, introduce, opened
from vkmnn.core.backend import TunedChoice
from vkmnn.errors import InvalidInputError
from vkmnn.runtime import environment

_ROUNDS = 5


def tune_model(model: Path, options: RunOptions) -> None:
    """Tune a model at the shapes of its inputs and print what was found.

    Raises:
        InvalidInputError: `VKMNN_TUNE=off` forbids to keep or use measurements.
    """
    if environment.tune() == "off":
        raise InvalidInputError("VKMNN_TUNE=off: nothing may be tuned", hint="unset it")
    with opened(model, options) as here:
        introduce(model, here)
        before = _latency(here)
        with trials() as progress:
            settled = here.session.tune(here.feeds, options.repeat, progress)
        here.run()
        after = _latency(here)
    if not settled:
        note("there is no choice between kernels in this model on this device")
        return
    changed = [choice for choice in settled if choice.taken != choice.rule]
    _show(changed)
    kept = len(settled) - len(changed)
    out.print(Text(f"{len(changed)} choices changed, {kept} stay as the rules have them"))
    out.print(Text(f"a run took {time_text(before)}, now {time_text(after)}"))


def _latency(here: Opened) -> float:
    return median(here.run() for _ in range(_ROUNDS))


def _show(changed: list[TunedChoice]) -> None:
    if not changed:
        return
    numbers = ("µs by rule", "µs now", "gain")
    rows = table("choice", "ops", "by rule", "now", *numbers, right=("ops", *numbers))
    for choice in sorted(changed, key=lambda choice: choice.taken_us - choice.rule_us):
        rows.add_row(
            choice.what,
            str(len(choice.ops)),
            Text(choice.rule),
            Text(choice.taken),
            f"{choice.rule_us:.1f}",
            f"{choice.taken_us:.1f}",
            f"{100 * (1 - choice.taken_us / choice.rule_us):.0f} %",
        )
    show(rows)
