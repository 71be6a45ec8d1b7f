"""Command line of the generator: the build itself; the other commands are in browse and watch."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vkmnn.codegen import browse, new_op
from vkmnn.codegen.build import Built, build, describe
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.console import err, fail, note, out, print_changes
from vkmnn.codegen.outputs import check as compare_outputs
from vkmnn.codegen.outputs import entries_of, keep_entries, write
from vkmnn.codegen.places import SHADERS, TEMPLATE_SUFFIX
from vkmnn.codegen.watch import watch
from vkmnn.errors import ShaderError

_SHOWN_CHANGES = 20

app = typer.Typer(
    add_completion=False,
    help="Build the shaders: shaders.lock, kernels.pyi and SPIR-V from templates.",
)
app.command("list")(browse.list_variants)
app.command()(browse.show)
app.command()(browse.report)
app.command()(browse.cache)
app.command()(browse.pack)
app.command("new-op")(new_op.new_op)
app.command()(watch)


@app.callback(invoke_without_command=True)
def main(
    ctx: typer.Context,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Render only, write nothing; exit with 1 if the lock is stale."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Build only this template (repeatable); keep the others."),
    ] = None,
    glslang: Annotated[
        Path | None,
        typer.Option("--glslang", help="The shader compiler; see VKMNN_GLSLANG."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Recompile everything.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete cache entries that no variant uses.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Treat compiler warnings as errors.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Number of threads.")
    ] = None,
    shaders: Annotated[
        Path, typer.Option("--shaders", help="Folder with glsl/, where the outputs are written.")
    ] = SHADERS,
) -> None:
    """Build every variant (the default command)."""
    logging.basicConfig(
        level=logging.INFO,
        handlers=[RichHandler(console=err, show_time=False)],
        format="%(message)s",
    )
    ctx.obj = browse.Settings(glslang, shaders, jobs)
    if ctx.invoked_subcommand is not None:
        return
    names = frozenset(name.removesuffix(TEMPLATE_SUFFIX) for name in only or ())
    try:
        _build(ctx.obj, check, names, not no_cache, prune, strict)
    except ShaderError as error:
        fail(error)


def _build(
    settings: browse.Settings,
    check: bool,
    only: frozenset[str],
    use_cache: bool,
    prune: bool,
    strict: bool,
) -> None:
    if prune and only:
        raise ShaderError("--prune needs a build of everything", hint="leave --only out")
    start = time.monotonic()
    cache = settings.cache if use_cache else None
    if check and not strict:
        _check(describe(settings.templates, cache=cache, only=only), settings)
        return
    built = _compiled(settings, cache, only, strict)
    if check:
        _check(built, settings)
        return
    changes = write(built, settings.shaders, cache)
    if changes.rows:
        print_changes(changes, _SHOWN_CHANGES)
    if prune and cache:
        keep = built.keys | entries_of(settings.shaders)
        out.print(f"pruned {cache.prune(keep)} cache entries")
    out.print(f"{_summary(built)}, {time.monotonic() - start:.1f} s", highlight=False)


def _compiled(
    settings: browse.Settings, cache: Cache | None, only: frozenset[str], strict: bool
) -> Built:
    """Build with a progress bar, and print the compiler's remarks."""
    compiler = find_compiler(settings.glslang)
    columns = (TextColumn("shaders"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("shaders", total=None)
        built = build(
            settings.templates,
            compiler,
            cache=cache,
            jobs=settings.jobs,
            only=only,
            strict=strict,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for text in built.notes:
        note(text)
    return built


def _summary(built: Built) -> str:
    return f"{len(built.variants)} variants, {len(built.compiled)} compiled, {built.compiler}"


def _check(built: Built, settings: browse.Settings) -> None:
    """Compare with the files on disk; end with status 1 if they are stale."""
    diff = compare_outputs(built, settings.shaders)
    if diff:
        typer.echo(diff, nl=False)
        err.print(
            "[red]stale:[/] run `python -m vkmnn.codegen` and commit what it writes",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)
    out.print(f"up to date: {len(built.variants)} variants", highlight=False)


def compile_locked(ctx: typer.Context) -> None:
    """Compile every variant that has not been compiled yet; write only to the cache."""
    settings: browse.Settings = ctx.obj
    start = time.monotonic()
    try:
        built = _compiled(settings, settings.cache, frozenset(), False)
        _check(built, settings)
        keep_entries(built, settings.shaders, settings.cache)
    except ShaderError as error:
        fail(error)
    out.print(f"{_summary(built)}, {time.monotonic() - start:.1f} s", highlight=False)


app.command("compile")(compile_locked)
