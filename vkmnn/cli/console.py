"""Terminal output shared by the commands."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, ClassVar, Protocol

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vkmnn._version import __version__
from vkmnn.errors import VkmnnError

_PIPED_WIDTH = 200


def _width() -> int | None:
    """Return the width of lines: the terminal's, and a large one where a program may read them."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH


# Results go to `out`, everything about them (progress, notes, errors) to `err`.
out = Console(highlight=False, width=_width())
err = Console(stderr=True, highlight=False)


def table(*columns: str, right: Sequence[str] = (), cut: Sequence[str] | None = None) -> Table:
    """Return an empty table; cells of the columns in `right` are aligned to the right.

    With `cut`, rows are single lines: if there is no room, the cells of these columns are
    truncated.
    """
    made = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold" if cut is None else "ellipsis",
            no_wrap=cut is not None and name not in cut,
        )
    return made


def show(content: Table, indent: int = 2) -> None:
    """Print a table, indented, with an empty line after it."""
    out.print(Padding(content, (0, 0, 0, indent), expand=False))
    out.print()


def show_facts(rows: Mapping[str, str], indent: int = 2) -> None:
    """Print names and values, one a line."""
    width = max(map(len, rows), default=0)
    for name, text in rows.items():
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=width)
        grid.add_column(overflow="fold")
        grid.add_row(name, Text(text))
        out.print(Padding(grid, (0, 0, 0, indent), expand=False))


def heading(text: str) -> None:
    """Print a heading."""
    out.print(Text(text, style="bold"))


def say(label: str, text: str, style: str) -> None:
    """Print something that is not a result; whole lines where a program may read them."""
    line = Text(f"{label}: ", style=style).append(text, style="not bold default")
    err.print(line, soft_wrap=not err.is_terminal)


def note(text: str) -> None:
    """Print a note for the user."""
    say("note", text, "cyan")


def show_error(error: VkmnnError) -> None:
    """Print an error as its message and its hint."""
    message, _, hint = str(error).partition("\n  hint: ")
    say("error", message, "bold red")
    if hint:
        say("hint", hint, "bold green")


class LogHandler(logging.Handler):
    """Shows the library's log, with the logger's name below warnings only."""

    _STYLES: ClassVar[dict[int, str]] = {logging.WARNING: "bold yellow", logging.ERROR: "bold red"}

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        text = record.getMessage()
        if record.levelno < logging.WARNING:
            text = f"{record.name}: {text}"
        say(record.levelname.lower(), text, self._STYLES.get(record.levelno, "dim"))


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """Return a shape as `[N, 3, ?, 224]`; "unknown rank" for None."""
    if shape is None:
        return "unknown rank"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def bytes_text(count: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def number_text(count: float) -> str:
    """Return a large number with the suffix k, M, G or T."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(count) < 1000 or unit == " T":
            break
        count /= 1000
    return f"{count:.0f}{unit}" if not unit or count >= 100 else f"{count:.2f}{unit}"


def time_text(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def histogram(names: Iterable[str]) -> str:
    """Return `Conv 53, Relu 49, Add 16`: the names by frequency."""
    ranked = sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ranked)


def compiling() -> AbstractContextManager[Callable[[int, int], None]]:
    """Show a bar while pipelines are compiled; yields a session's `progress` argument."""
    return progress("compiling pipelines")


LINE_EVERY_S = 10.0
"""Seconds between lines of progress if there is no terminal for a bar."""


@contextmanager
def progress(label: str) -> Iterator[Report]:
    """Show the progress of a long job and its remaining time.

    On a terminal it is a bar, elsewhere a line every `LINE_EVERY_S` seconds.

    Yields:
        The function to call with (done, total), and with the current step, if that changes.
    """
    if not err.is_terminal:
        yield _Lines(label)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(label, total=None, visible=False)

        def report(done: int, total: int, what: str = "") -> None:
            shown = done < total
            text = what or label
            bar.update(task, description=text, completed=done, total=total, visible=shown)

        yield report


class Report(Protocol):
    """Tells how far a job is."""

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """Report that `done` of `total` steps are finished, and the current one."""


class _Lines:
    """Progress for logs: a line now and then, with the remaining time."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begun = self._told = time.monotonic()

    def __call__(self, done: int, total: int, what: str = "") -> None:
        now = time.monotonic()
        if done >= total or now - self._told < LINE_EVERY_S:
            return
        self._told = now
        spent = now - self._begun
        left = f", about {duration_text(spent * (total - done) / done)} left" if done else ""
        say("progress", f"{what or self._label}: {done} of {total}{left}", "dim")


def duration_text(seconds: float) -> str:
    """Return a duration in words: `40 s`, `3 min`, `2 h 10 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Print now and then that a job without known steps is still running."""
    if err.is_terminal:
        with err.status(Text(label)):
            yield
        return
    over = threading.Event()
    begun = time.monotonic()

    def tell() -> None:
        while not over.wait(LINE_EVERY_S):
            say("progress", f"{label}: {duration_text(time.monotonic() - begun)} so far", "dim")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as in shells."""


@contextmanager
def interruptible(kept: str | Callable[[], str]) -> Iterator[None]:
    """End the command with status 130 on Ctrl-C, and report what it leaves in place.

    Args:
        kept: the results that are kept: a sentence, or a function that returns it.
    """
    try:
        yield
    except KeyboardInterrupt:
        note(f"interrupted: {kept if isinstance(kept, str) else kept()}")
        raise typer.Exit(INTERRUPTED) from None


def interrupted(kept: str) -> typer.Exit:
    """Report what an interrupted command keeps; raise the result."""
    note(f"interrupted: {kept}")
    return typer.Exit(INTERRUPTED)


# --- documents ----------------------------------------------------------------------------------


def wants_json() -> bool:
    """Whether results are printed as a JSON document instead of tables."""
    return out.quiet


def document(command: str, facts: Mapping[str, Any]) -> None:
    """Print results as JSON, if `--json` asks for it.

    Every document is an object with the command's name and vkmnn's version before its own keys;
    numbers that JSON does not have are null.
    """
    if not wants_json():
        return
    whole = {"command": command, "vkmnn": __version__, **facts}
    typer.echo(json.dumps(_plain(whole), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """Return a value for JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [_plain(item) for item in items]
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | bool | None) else str(value)
