"""Output of the commands: two consoles, errors, and the table of changed variants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vkmnn.codegen.failures import failures_of
from vkmnn.codegen.report import Change, Changes
from vkmnn.errors import ShaderError

out = Console()
err = Console(stderr=True)

_STYLES = {"added": "green", "changed": "yellow", "removed": "red"}
_NUMBERS = frozenset({"variants", "bytes", "before", "after", "change"})


def print_errors(error: ShaderError) -> None:
    """Print every error in an exception."""
    errors = failures_of(error)
    for one in errors:
        first, *rest = str(one).split("\n")
        err.print(f"[bold red]error:[/] {escape(first)}", highlight=False, soft_wrap=True)
        for line in rest:
            err.print(f"[dim]{escape(line)}[/]", highlight=False, soft_wrap=True)
    if len(errors) > 1:
        err.print(f"[red]{len(errors)} errors, nothing was written[/]")


def fail(error: ShaderError) -> NoReturn:
    """Print an error and end with status 1."""
    print_errors(error)
    raise typer.Exit(1)


def note(text: str) -> None:
    """Print a remark."""
    err.print(f"[yellow]note:[/] {escape(text)}", soft_wrap=True, highlight=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()
) -> None:
    """Print a table: ruled and coloured on a terminal, Markdown into a file or pipe."""
    if not out.is_terminal:
        for cells in (columns, ["---:" if name in _NUMBERS else "---" for name in columns], *rows):
            typer.echo(f"| {' | '.join(cells)} |")
        return
    shown = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        right = name in _NUMBERS
        shown.add_column(name, justify="right" if right else "left", no_wrap=not number or right)
    for number, cells in enumerate(rows):
        shown.add_row(*cells, style=styles[number] if styles else None)
    out.print(shown)


def print_changes(changes: Changes, limit: int | None = None) -> None:
    """Print additions, changes and removals, with sizes; `limit` truncates a long table."""
    rows = changes.rows[:limit]
    if rows:
        columns = ("variant", "", "before", "after", "change")
        print_table(columns, map(_cells, rows), [_STYLES[row.kind] for row in rows])
    if limit is not None and len(changes.rows) > limit:
        out.print(f"… and {len(changes.rows) - limit} more: `report` lists them", highlight=False)
    bytes_ = f" ({changes.difference:+d} bytes of SPIR-V)" if changes.difference else ""
    out.print(f"{changes.counts()}{bytes_}", highlight=False)


def _cells(row: Change) -> list[str]:
    sizes = ["" if size is None else str(size) for size in (row.before, row.after)]
    percent = f", {100 * row.difference / row.before:+.1f} %" if row.before and row.after else ""
    change = f"{row.difference:+d}{percent}" if row.difference else "±0"
    return [row.variant, row.kind, *sizes, change]
