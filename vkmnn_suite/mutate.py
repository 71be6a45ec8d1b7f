"""`python -m vkmnn_suite.mutate`: how many broken kernels the shader suite notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import open_device
from vkmnn.testing.case import Variant, variants
from vkmnn_suite import cases
from vkmnn_suite.mutation import (
    Fate,
    Outcome,
    caught_part,
    load_case_files,
    mutants,
    rendered_source,
    representatives,
    run_mutants,
    sample,
)

app = typer.Typer(add_completion=False)
_out = Console()
_err = Console(stderr=True)


@app.command()
def main(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT…]",
            help="Variants, or patterns such as 'pool_*'. Default: of every template, the variant "
            "with the most lines among those that the device runs.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--sample", help="Number of mutants per variant; 0 for all.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    device: Annotated[str, typer.Option(help="Device to run on.")] = "auto",
    minimum: Annotated[
        float, typer.Option(help="Percentage of mutants that must be caught.")
    ] = 95.0,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file.")] = None,
    more: Annotated[
        list[Path] | None,
        typer.Option("--cases", help="File with a plug-in's cases (repeatable): tests/cases_x.py."),
    ] = None,
) -> None:
    """Break kernels, one operator at a time, and check that their cases detect it."""
    files = [str(path) for path in more or []]
    load_case_files(files)
    chosen = _chosen(patterns or [], device)
    if not chosen:
        _err.print(f"[bold red]error:[/] no variant fits {escape(' '.join(patterns or []))}")
        raise typer.Exit(2)
    results: dict[str, list[Outcome]] = {}
    failed = False
    with _progress() as progress:
        whole = progress.add_task("variants", total=len(chosen))
        for variant in chosen:
            found = list(mutants(rendered_source(variant)[1], variant.name))
            picked = sample(found, count or len(found), seed)
            task = progress.add_task(variant.name, total=len(picked))

            def step(outcome: Outcome, task: int = task) -> None:
                progress.advance(task)  # type: ignore[arg-type]

            try:
                results[variant.name] = run_mutants(variant, picked, device, step, files)
            except VkmnnError as error:
                _err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
                failed = True
            progress.remove_task(task)
            progress.advance(whole)
    _print(results)
    if markdown:
        markdown.write_text("\n".join(_markdown(results)) + "\n", encoding="utf-8")
    everything = [outcome for outcomes in results.values() for outcome in outcomes]
    raise typer.Exit(int(failed or 100 * caught_part(everything) < minimum))


def _progress() -> Progress:
    columns = (TextColumn("{task.description:36}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=_err)


def _chosen(patterns: Sequence[str], device: str) -> list[Variant]:
    cases.load_all()
    if not patterns:
        with closing(open_device(device)) as opened:
            chosen = representatives(opened)
        left_out = {v.template for v in variants()} - {v.template for v in chosen}
        if left_out:
            names = ", ".join(sorted(left_out))
            _err.print(f"not on {opened.info.name}, thus left out: {names}", soft_wrap=True)
        return chosen
    return [v for v in variants() if any(fnmatch(v.name, pattern) for pattern in patterns)]


_COLUMNS = (
    "variant", "mutants", "caught", "survived", "needs a GPU", "equivalent", "not GLSL", "caught %",
)  # fmt: skip


def _rows(results: dict[str, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    total = [outcome for outcomes in results.values() for outcome in outcomes]
    for name, outcomes in [*results.items(), ("all", total)]:
        fates = Counter(outcome.fate for outcome in outcomes)
        yield (
            name,
            str(len(outcomes)),
            str(fates[Fate.CAUGHT]),
            str(fates[Fate.SURVIVED]),
            str(fates[Fate.UNSEEN]),
            str(fates[Fate.SAME] + fates[Fate.KNOWN]),
            str(fates[Fate.INVALID]),
            f"{100 * caught_part(outcomes):.1f}",
        )


def _survivors(results: dict[str, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    for name, outcomes in results.items():
        for mutant, fate, _ in outcomes:
            if fate in (Fate.SURVIVED, Fate.UNSEEN):
                change = mutant.change + ", needs a GPU" * (fate is Fate.UNSEEN)
                yield name, f"{mutant.file}:{mutant.line}", change, mutant.before.strip()


def _print(results: dict[str, list[Outcome]]) -> None:
    survivors = Table(box=box.SIMPLE_HEAD, title="survivors", title_justify="left")
    for column in ("variant", "place", "change", "line"):
        survivors.add_column(column, overflow="fold")
    for row in _survivors(results):
        survivors.add_row(*map(escape, row))
    if survivors.row_count:
        _out.print(survivors)
    table = Table(box=box.SIMPLE_HEAD)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "variant" else "right")
    for row in _rows(results):
        table.add_row(*row)
    _out.print(table)


def _markdown(results: dict[str, list[Outcome]]) -> Iterator[str]:
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "| --- |" + " ---: |" * (len(_COLUMNS) - 1)
    for row in _rows(results):
        yield f"| {' | '.join(row)} |"
    yield ""
    yield "| variant | place | change | line |"
    yield "| --- | --- | --- | --- |"
    for row in _survivors(results):
        cells = [row[0], row[1], *(f"`{cell}`" for cell in row[2:])]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    app()
