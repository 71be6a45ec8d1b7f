"""`python -m vkmnn_suite.faults MODEL`: what a session does when Vulkan calls fail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vkmnn_suite.faults.library import Fault
from vkmnn_suite.faults.sweep import Life, Row, sweep

app = typer.Typer(add_completion=False)
_out = Console()


@app.command()
def main(
    model: Annotated[
        Path,
        typer.Argument(
            help="A small ONNX file; for texts, the folder of a language model.", exists=True
        ),
    ],
    error: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Fault to inject (repeatable; default: all): "
            f"{', '.join(fault.name for fault in Fault)}."
        ),
    ] = None,
    tune: Annotated[bool, typer.Option(help="Also tune; adds many calls.")] = False,
    fresh: Annotated[bool, typer.Option(help="Create a VkInstance for every trial.")] = False,
    life: Annotated[
        str, typer.Option(help=f"What the session does: {', '.join(get_args(Life))}.")
    ] = "plain",
    stride: Annotated[int, typer.Option(help="Let only every n-th call fail.")] = 1,
    limit: Annotated[int, typer.Option(help="Number of the last call to let fail; 0 for all.")] = 0,
) -> None:
    """Make every Vulkan call of a session fail once, in each way, and check the invariants.

    These are: a typed error or none, correct results, no objects left behind, a session that is
    still usable unless its device is lost, and a new session that works.
    """
    names = [name.upper().replace("-", "_") for name in error or [fault.name for fault in Fault]]
    unknown = [name for name in names if name not in Fault.__members__]
    if unknown:
        raise typer.BadParameter(f"there is no fault '{unknown[0]}'")
    faults = [Fault[name] for name in names]
    lives = {kind: kind for kind in get_args(Life)}
    if life not in lives:
        raise typer.BadParameter(f"--life cannot be '{life}'")
    rows = sweep(
        model, faults, tune=tune, fresh=fresh, life=lives[life], stride=stride, limit=limit
    )
    _out.print(_table(rows))
    for row in rows:
        for text in row.violations:
            _out.print(f"[red]{escape(text)}[/]", soft_wrap=True)
    raise typer.Exit(1 if any(row.violations for row in rows) else 0)


def _table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("fault")
    table.add_column("trials", justify="right")
    table.add_column("results")
    table.add_column("violations", justify="right")
    for row in rows:
        errors = ", ".join(f"{name} {count}" for name, count in row.errors.most_common())
        table.add_row(row.fault.name, str(row.trials), errors, str(len(row.violations)))
    return table


if __name__ == "__main__":
    app()
