"""`vkmnn tune`: measure the kernels that a model could use, and keep the fastest."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from vkmnn.cli.console import document, interrupted, note, out, progress, show, table, time_text
from vkmnn.cli.run import Opened, RunOptions, introduce, opened
from vkmnn.core.backend import TunedChoice, Tuning
from vkmnn.errors import InvalidInputError, plural
from vkmnn.runtime import environment

if TYPE_CHECKING:
    from typing_extensions import Self


def tune_model(model: Path, options: RunOptions) -> None:
    """Tune a model at the shapes of its inputs and print the results.

    Raises:
        InvalidInputError: `VKMNN_TUNE=off` forbids to keep or use measurements.
    """
    if environment.tune() == "off":
        raise InvalidInputError("VKMNN_TUNE=off: nothing may be tuned", hint="unset it")
    with opened(model, options) as here:
        introduce(model, here)
        with progress("measuring kernels") as report, Stop() as stop:

            def told(done: int, total: int) -> bool:
                report(done, total)
                return stop.asked

            tuning = here.session.tune(here.feeds, options.repeat, told)
        facts = _facts(model, here, tuning) | {"interrupted": stop.asked}
    _tell(tuning)
    document("tune", facts)
    if stop.asked:
        kept = plural(len(tuning.changed), "choice") if tuning.kept else "no choices"
        measured = plural(len(tuning.choices), "choice")
        verb = "was" if len(tuning.choices) == 1 else "were"
        raise interrupted(f"{measured} {verb} measured, {kept} kept")


class Stop(AbstractContextManager["Stop"]):
    """Ctrl-C within the block asks to stop; a second one interrupts at once.

    Attributes:
        asked: whether it was pressed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._former: Any = None

    def __enter__(self) -> Self:
        """Handle the signal, if Python delivers it to this thread."""
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: object) -> None:
        if self.asked:
            note("interrupted: nothing was saved")
            raise KeyboardInterrupt
        self.asked = True
        note(
            "stopping: whole runs decide on the measurements so far; Ctrl-C again stops immediately"
        )

    def __exit__(self, *error: object) -> None:
        """Restore the previous signal handler."""
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)


def _facts(model: Path, here: Opened, tuning: Tuning) -> dict[str, Any]:
    """Return the results of tuning for a JSON document."""
    return {
        "model": str(model),
        "device": here.session.device.name,
        "precision": here.session.precision,
        "changed": [
            {
                "what": choice.what,
                "ops": list(choice.ops),
                "rule": choice.rule_name,
                "taken": choice.taken_name,
                "rule_us": choice.rule_us,
                "taken_us": choice.taken_us,
            }
            for choice in tuning.changed
        ],
        "unchanged": len(tuning.choices) - len(tuning.changed),
        "before_us": tuning.before_us or None,
        "after_us": tuning.after_us or None,
        "kept": tuning.kept,
    }


def _tell(tuning: Tuning) -> None:
    if not tuning.choices:
        note("this model offers no choice between kernels on this device")
        return
    _show(tuning.changed)
    same = len(tuning.choices) - len(tuning.changed)
    changed = plural(len(tuning.changed), "choice")
    out.print(Text(f"{changed} changed, {same} as the rules rank them"))
    if not tuning.before_us:
        out.print(Text("kept: these kernels were in use before"))
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
