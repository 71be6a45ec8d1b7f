"""Runs the steps within a time limit, saves the numbers after each, and stops at a wrong result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import flags, language, peers, steps
from benchmarks.gpu.fit import fit
from benchmarks.gpu.machine import machine_state
from benchmarks.gpu.report import Section, keep, write
from benchmarks.gpu.step import Setting, steps_in_order
from vkmnn.cli.console import heading, note
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.vulkan.cost.devices import class_of

STEPS = steps_in_order(flags, language, peers, steps)


def run(
    setting: Setting,
    minutes: float,
    folder: Path,
    head: dict[str, Any],
    only: Sequence[str] = (),
    kept: Path | None = None,
) -> bool:
    """Run the steps and write the page after each of them; return whether no result was wrong.

    Args:
        setting: the device and the models.
        minutes: in all; each step gets its share, and the time that an earlier one has left.
        folder: where gpu.json and gpu.md are written.
        head: their description of the machine.
        only: names of steps, all if empty.
        kept: a folder for a copy of the raw numbers, named by day, device and commit.

    Raises:
        InvalidInputError: a name is not a step's.
    """
    known = [step.name for step in STEPS]
    for name in only:
        if name not in known:
            raise InvalidInputError(f"no step '{name}'", hint=f"there are {', '.join(known)}")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in STEPS if not only or step.name in only]
    sections: list[Section] = []
    left = minutes * 60
    for index, step in enumerate(chosen):
        share = step.minutes / sum(later.minutes for later in chosen[index:])
        begin = time.monotonic()
        setting.end = begin + left * share
        setting.say(step.title)
        section = Section(step.title, step.decides)
        sections.append(section)
        try:
            step.run(setting, section)
        except VkmnnError as error:
            section.notes.append(f"ended early: {error}")
        section.machine = machine_state()
        section.seconds = time.monotonic() - begin
        left = max(left - section.seconds, 0.0)
        found = fit(setting.measured, class_of(setting.device.info))
        page = write(folder, head, sections, found)
        if kept is not None:
            keep(folder, kept, head)
        if section.wrong:
            note(f"wrong: {section.wrong}")
            break
    heading(f"{len(sections)} of {len(chosen)} steps in {minutes:g} minutes")
    note(f"the page is {page}")
    return not any(section.wrong for section in sections)
