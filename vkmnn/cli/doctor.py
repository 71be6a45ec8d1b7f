"""`vkmnn doctor`: check that this machine can run networks, and say what to do if not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import groupby

from rich.padding import Padding
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from vkmnn.cli.checks import CHECKS, Check, Status, has_usable_device
from vkmnn.cli.console import document, err, heading, out
from vkmnn.errors import VkmnnError

_MARKS = {
    Status.OK: ("✓", "bold green"),
    Status.WARNING: ("!", "bold yellow"),
    Status.FAILED: ("✗", "bold red"),
    Status.INFO: ("·", "dim"),
}
_NAME_WIDTH = 16


def examine() -> bool:
    """Run all checks and print them; False when something that a device needs is missing."""
    columns = (SpinnerColumn(), TextColumn("checking"))
    found: list[Check] = []
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        progress.add_task("")
        for group, checks in groupby(_run(), lambda check: check.group):
            heading(group)
            for check in checks:
                found.append(check)
                _show(check)
            out.print()
    document("doctor", {"ok": _is_ok(found), "checks": list(map(dataclasses.asdict, found))})
    if _is_ok(found):
        out.print(Text("vkmnn works here.", style="bold green"))
    elif has_usable_device(found):
        out.print(Text("A device works, but see the ✗ above.", style="bold red"))
    else:
        text = 'No usable device: networks run with device="cpu" only. See the ✗ above.'
        out.print(Text(text, style="bold red"))
    return _is_ok(found)


def _run() -> Iterator[Check]:
    for check in CHECKS:
        try:
            yield from check()
        except VkmnnError as error:
            name = check.__name__.removeprefix("check_")
            yield Check("Trouble", name, Status.FAILED, error.message, error.hint or "")
        except ImportError as error:
            name = check.__name__.removeprefix("check_")
            yield Check("Trouble", name, Status.FAILED, str(error), "pip install vkmnn again")


def _is_ok(found: list[Check]) -> bool:
    return has_usable_device(found) and not any(c.status is Status.FAILED for c in found)


def _show(check: Check) -> None:
    mark, style = _MARKS[check.status]
    detail = Text(check.detail)
    if check.remedy:
        detail.append("\n→ ", style="green").append(check.remedy)
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column()
    row.add_column(width=_NAME_WIDTH)
    row.add_column(overflow="fold")
    row.add_row(Text(mark, style=style), check.name, detail)
    out.print(Padding(row, (0, 0, 0, 2), expand=False))
