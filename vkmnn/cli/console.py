"""What the commands share in writing to the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from vkmnn.errors import VkmnnError

_PIPED_WIDTH = 200


def _width() -> int | None:
    """Return the width of lines: the terminal's, and a large one where a program may read them."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH


# Results go to `out`, everything about them (progress, notes, errors) to `err`.
out = Console(highlight=False, width=_width())
err = Console(stderr=True, highlight=False)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table; cells of the columns in `right` are aligned to the right."""
    made = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def show(content: Table, indent: int = 2) -> None:
    """Print a table, indented, with an empty line after it."""
    out.print(Padding(content, (0, 0, 0, indent), expand=False))
    out.print()


def show_facts(rows: Mapping[str, str], indent: int = 2) -> None:
    """Print names and what belongs to them, one a line."""
    width = max(map(len, rows), default=0)
    for name, text in rows.items():
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=width)
        grid.add_column(overflow="fold")
        grid.add_row(name, Text(text))
        out.print(Padding(grid, (0, 0, 0, indent), expand=False))


def heading(text: str) -> None:
    """Print what follows is about."""
    out.print(Text(text, style="bold"))


def say(label: str, text: str, style: str) -> None:
    """Print something that is not a result; whole lines where a program may read them."""
    line = Text(f"{label}: ", style=style).append(text, style="not bold default")
    err.print(line, soft_wrap=not err.is_terminal)


def note(text: str) -> None:
    """Tell something that the user should know."""
    say("note", text, "cyan")


def show_error(error: VkmnnError) -> None:
    """Print an error as its message and its hint."""
    message, _, hint = str(error).partition("\n  hint: ")
    say("error", message, "bold red")
    if hint:
        say("hint", hint, "bold green")


class LogHandler(logging.Handler):
    """Shows the library's log; who says something matters below warnings only."""

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
    """Return a number of bytes in the unit that suits it."""
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
    """Return `Conv 53, Relu 49, Add 16`: the names by how often they come."""
    ranked = sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ranked)


def compiling() -> AbstractContextManager[Callable[[int, int], None]]:
    """Show a bar while pipelines are compiled; yields what a session takes as `progress`."""
    return _bar("compiling pipelines")


def trials() -> AbstractContextManager[Callable[[int, int], None]]:
    """Show a bar while kernels are measured; yields what `tune` takes as `progress`."""
    return _bar("measuring kernels")


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=None, visible=False)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=done < total)

        yield report
