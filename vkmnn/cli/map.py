"""`vkmnn map`: many inputs through a model, into one output, in parts that survive a kill."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from vkmnn.batch.flow import Work
from vkmnn.batch.growing import growing
from vkmnn.batch.items import Item, counted, expanded, items_of
from vkmnn.batch.job import Job, Summary, error_file, parts_folder
from vkmnn.batch.lanes import (
    array_trial,
    array_work,
    holds_arrays,
    picture_trial,
    picture_work,
)
from vkmnn.batch.pool import SessionPool, selected_devices
from vkmnn.batch.sizing import Trial, sized
from vkmnn.cli.console import document, heading, interruptible, note, number_text, out, progress
from vkmnn.cli.media_inputs import TaskOptions
from vkmnn.cli.models import local_file, local_model
from vkmnn.cli.pipeline import parsed_options
from vkmnn.errors import InvalidInputError, plural
from vkmnn.pipelines import Pipeline, pipeline
from vkmnn.schedule_config import OnOverflow, PrecisionName, Unsupported

_TELL_EVERY_S = 0.1
_FORMAT = 1
"""Version of the folder of a job in progress."""


@dataclass(frozen=True, slots=True)
class MapOptions:
    """Options of `vkmnn map`, as typed.

    Attributes:
        devices: "all", or devices separated by commas.
        batch: items in one run, at most; None: as many as a trial shows.
        part: items that are written at a time, at most.
        ordered: whether results keep the order of the inputs.
        resume: continue a job that was interrupted.
        watch: seconds without a new file until inputs that grow are complete; None: they do not.
    """

    devices: str
    driver: str | None
    precision: PrecisionName
    on_overflow: OnOverflow
    unsupported: Unsupported
    batch: int | None
    part: int
    ordered: bool
    resume: bool
    watch: float | None = None

    @property
    def of_sessions(self) -> dict[str, Any]:
        """The options of sessions and pipelines."""
        return {
            "driver": self.driver,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
            "unsupported": self.unsupported,
        }

    @property
    def listed_devices(self) -> list[str | int]:
        """What to open, one per device."""
        names = [name.strip() for name in self.devices.split(",") if name.strip()]
        wanted = "all" if names == ["all"] else names
        return selected_devices(wanted, self.driver)


def map_items(
    model: str, inputs: Sequence[str], output: Path, options: MapOptions, tasks: TaskOptions
) -> None:
    """Run a model on all items and write the results.

    Raises:
        VkmnnError: the model, an option or the output is not valid, or a device is lost.
    """
    if options.resume and output.exists() and not parts_folder(output).exists():
        note(f"'{output}' is complete: no job was interrupted")
        return
    for text in inputs:
        if output.is_file() and Path(text).exists() and output.samefile(text):
            raise InvalidInputError(
                f"'{text}' is both an input and the output", hint="choose another --output"
            )
    parts = parts_folder(output)

    def kept() -> str:
        done = f"'{parts}' keeps what is done; --resume continues"
        return done if parts.exists() else "nothing was written"

    with interruptible(kept):
        _map(model, _rounds(output, inputs, options.watch), output, options, tasks)


def _rounds(output: Path, inputs: Sequence[str], watch: float | None) -> Iterator[list[str]]:
    """Yield the files of the inputs: all at once, or as they appear."""

    def listed() -> list[str]:
        return _without_own(output, expanded(inputs))

    return iter([listed()]) if watch is None else growing(listed, watch)


def _map(
    model: str, rounds: Iterator[list[str]], output: Path, options: MapOptions, tasks: TaskOptions
) -> None:
    files = next(rounds, [])
    first = next(items_of(files), None)
    if first is None:
        raise InvalidInputError("the inputs hold no items", hint="check the archives and lists")
    arrays = holds_arrays(first) and not tasks.given
    path = local_file(model) if arrays else local_model(model)
    job = Job(output, _about(path, arrays, tasks, options), resume=options.resume,
              part=options.part)  # fmt: skip
    start = time.monotonic()
    with ExitStack() as stack:
        stack.callback(job.close)
        if not job.is_finished:
            _run(job, path, chain([files], rounds), arrays, options, tasks)
        summary = job.finish()
    _show(output, summary, time.monotonic() - start)


def _without_own(output: Path, files: Sequence[str]) -> list[str]:
    """Return the files that a job has not written itself; those are no inputs."""
    own = [str(path.absolute()) for path in (output, parts_folder(output), error_file(output))]
    inside = tuple(f"{path}{os.sep}" for path in own)
    here = Path.cwd()
    paths = ((file, os.path.join(here, os.path.normpath(file))) for file in files)  # noqa: PTH118 - a path each would take most of the time
    return [file for file, path in paths if path not in own and not path.startswith(inside)]


def _about(path: Path, arrays: bool, tasks: TaskOptions, options: MapOptions) -> Mapping[str, Any]:
    """Return what determines the results."""
    return {
        "format": _FORMAT,
        "model": str(path.absolute()),
        "model's size": path.stat().st_size if path.is_file() else None,
        "kind of items": "arrays" if arrays else "pictures",
        "task": tasks.task,
        "options": {name: str(one) for name, one in parsed_options(tasks).items()},
        "precision": options.precision,
    }


def _run(
    job: Job, model: Path, rounds: Iterator[list[str]], arrays: bool, options: MapOptions,
    tasks: TaskOptions,
) -> None:  # fmt: skip
    work: Work | None = None
    meter = _Meter(-len(job.done))
    with ExitStack() as stack:
        for files in rounds:
            meter.total += counted(files)
            rest = items_of(files, job.done)
            first = next(rest, None)
            if first is None:
                continue
            todo: Iterator[Item] = chain([first], rest)
            if work is None:
                opened = _arrays(model, options) if arrays else _pictures(model, options, tasks)
                work, trial = stack.enter_context(opened)
                if options.batch is None and trial is not None:
                    size, reason, todo = sized(trial, todo, meter.total)
                    if reason:
                        shared = f"up to {size} items share a run"
                        how = shared if size > 1 else "items run one by one"
                        note(f"{how}: {reason}; choose with --batch")
                    work = replace(work, batch=size)
                meter.start(stack.enter_context(progress("running")))
            job.run(work, todo, options.ordered, meter.report)
            meter.end_round()


class _Meter:
    """Progress over all rounds of files.

    Args:
        total: the number of items, as far as it is known.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._before = self._done = 0
        self._failed_before = self._failed = 0

    def start(self, tell: Callable[[int, int, str], None]) -> None:
        """Begin to measure."""
        self._tell, self._begun = tell, time.monotonic()
        self._told = self._begun

    def report(self, done: int, failed: int) -> None:
        """Show how many items of this round are done and failed."""
        self._done, self._failed = self._before + done, self._failed_before + failed
        now = time.monotonic()
        if now - self._told < _TELL_EVERY_S and self._done < self.total:
            return
        self._told = now
        rate = self._done / max(now - self._begun, 1e-3)
        bad = f", {self._failed} failed" if self._failed else ""
        self._tell(self._done, max(self.total, self._done), f"{number_text(rate)} items/s{bad}")

    def end_round(self) -> None:
        """Count the next round's items from here on."""
        self._before, self._failed_before = self._done, self._failed


@contextmanager
def _arrays(model: Path, options: MapOptions) -> Iterator[tuple[Work, Trial | None]]:
    with SessionPool(model, options.listed_devices, **options.of_sessions) as pool:
        heading(f"{model.name} on {', '.join(one.device.name for one in pool.sessions)}")
        if (options.batch or 1) > 1 and not pool.can_batch:
            note("items run one by one: the network's first axis is not dynamic")
        yield array_work(pool, options.batch or 1), array_trial(pool)


@contextmanager
def _pictures(
    model: Path, options: MapOptions, tasks: TaskOptions
) -> Iterator[tuple[Work, Trial | None]]:
    with ExitStack() as stack:
        pipes: list[Pipeline] = []
        for device in options.listed_devices:
            given = {**options.of_sessions, **parsed_options(tasks), "device": device}
            given["tell"] = _silent if pipes else note
            pipes.append(stack.enter_context(pipeline(tasks.task, model, **given)))
        heading(f"{model.name} on {', '.join(one.device for one in pipes)}: {pipes[0].task}")
        yield picture_work(pipes, options.batch or 1), picture_trial(pipes[0])


def _silent(text: str) -> None:
    del text  # the pipeline of the first device has said it


def _show(output: Path, summary: Summary, seconds: float) -> None:
    out.print(Text(f"saved {plural(summary.written, 'result')} in {output}"))
    if summary.skipped:
        note(f"{plural(summary.skipped, 'item')} were complete already")
    if summary.failed:
        note(f"{plural(summary.failed, 'item')} failed: {error_file(output)} has the reasons")
    if summary.repeated:
        note(f"{plural(summary.repeated, 'run')} failed, and were repeated item by item")
    document("map", {
        "output": str(output), "written": summary.written, "failed": summary.failed,
        "skipped": summary.skipped, "repeated_runs": summary.repeated, "seconds": seconds,
        "errors": str(error_file(output)) if summary.failed else None,
    })  # fmt: skip
    if not summary.written:
        raise typer.Exit(1)
