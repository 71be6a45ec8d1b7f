"""Command line of the generator."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vkmnn.codegen import build as building
from vkmnn.codegen.cache import Cache, cache_folder
from vkmnn.codegen.compilers import Compiler, find_compiler
from vkmnn.codegen.render import Renderer
from vkmnn.codegen.variants import TEMPLATE_SUFFIX, Variant, closest, expand, load_entries
from vkmnn.errors import ShaderError

SHADERS = Path(__file__).resolve().parent.parent / "shaders"

app = typer.Typer(
    add_completion=False, help="Builds the shaders: templates → SPIR-V, manifest, kernels.py."
)
out = Console()
err = Console(stderr=True)

GlslangOption = Annotated[
    Path | None,
    typer.Option("--glslang", help="A glslang program or slang-glslang library to use."),
]
FolderOption = Annotated[
    Path, typer.Option("--shaders", help="Folder that holds glsl/ and gets the outputs.")
]


@app.callback(invoke_without_command=True)
def main(
    ctx: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when outputs are stale.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Build this template only (repeatable), keep the others."),
    ] = None,
    glslang: GlslangOption = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compile everything anew.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete cache entries that no variant uses.")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Threads.")] = None,
    shaders: FolderOption = SHADERS,
) -> None:
    """Build every variant (the default command)."""
    logging.basicConfig(
        level=logging.INFO,
        handlers=[RichHandler(console=err, show_time=False)],
        format="%(message)s",
    )
    ctx.obj = (glslang, shaders)
    if ctx.invoked_subcommand is not None:
        return
    try:
        _build(
            check,
            frozenset(name.removesuffix(TEMPLATE_SUFFIX) for name in only or ()),
            glslang,
            not no_cache,
            prune,
            jobs,
            shaders,
        )
    except ShaderError as error:
        _fail(error)


def _fail(error: ShaderError) -> None:
    errors = error.failures if isinstance(error, building.BuildFailedError) else [error]
    for one in errors:
        err.print(f"[red]error:[/] {escape(str(one))}", highlight=False, soft_wrap=True)
    if len(errors) > 1:
        err.print(f"[red]{len(errors)} errors, nothing was written[/]")
    raise typer.Exit(1)


def _build(
    check: bool,
    only: frozenset[str],
    glslang: Path | None,
    use_cache: bool,
    prune: bool,
    jobs: int | None,
    shaders: Path,
) -> None:
    start = time.monotonic()
    compiler = find_compiler(glslang)
    cache = Cache(cache_folder()) if use_cache else None
    columns = (TextColumn("shaders"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("shaders", total=None)
        built = building.build(
            shaders / "glsl",
            compiler,
            cache=cache,
            jobs=jobs,
            only=only,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for note in built.notes:
        err.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    summary = f"{len(built.variants)} variants, {built.compiled} compiled, {compiler.identity}"
    if check:
        diff, remarks = building.check(built, shaders)
        for remark in remarks:
            err.print(f"[yellow]note:[/] {escape(remark)}", soft_wrap=True)
        if diff:
            typer.echo(diff, nl=False)
            err.print("[red]stale:[/] run `python -m vkmnn.codegen` and commit what it writes")
            raise typer.Exit(1)
        out.print(f"up to date: {summary}")
        return
    changes = building.write(built, shaders)
    for word, names in (
        ("added", changes.added),
        ("changed", changes.changed),
        ("removed", changes.removed),
    ):
        if names:
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            out.print(f"{word} {len(names)}: {shown}", highlight=False)
    if prune and cache:
        if only:
            raise ShaderError("--prune needs a build of everything", hint="leave --only out")
        out.print(f"pruned {cache.prune(built.keys)} cache entries")
    out.print(f"{summary}, {time.monotonic() - start:.1f} s")


@app.command("list")
def list_variants(
    ctx: typer.Context,
    template: Annotated[str | None, typer.Argument(help="Only this template.")] = None,
) -> None:
    """List the templates, or the variants of one."""
    folder = ctx.obj[1] / "glsl"
    try:
        entries = load_entries(folder, frozenset([template]) if template else frozenset())
        variants = expand(entries)
    except ShaderError as error:
        _fail(error)
    if template:
        for variant in variants:
            typer.echo(variant.name)
        return
    table = Table("template", "op type", "axes", "variants")
    for entry in entries:
        axes = " × ".join(f"{axis}({len(values)})" for axis, values in entry.axes.items())
        count = sum(variant.template.name == entry.name for variant in variants)
        table.add_row(entry.name, entry.op_type or "", axes, str(count))
    out.print(table)


@app.command()
def show(
    ctx: typer.Context,
    variant: Annotated[str, typer.Argument(help="Name of a variant, e.g. unary_abs_f32_ssbo.")],
    glsl: Annotated[bool, typer.Option("--glsl", help="The rendered GLSL (the default).")] = False,
    spirv: Annotated[bool, typer.Option("--spirv", help="The SPIR-V, disassembled.")] = False,
    manifest: Annotated[bool, typer.Option("--manifest", help="The manifest entry.")] = False,
) -> None:
    """Show one variant as it is in the templates now."""
    glslang, shaders = ctx.obj
    try:
        found = find_variant(shaders / "glsl", variant)
        renderer = Renderer(shaders / "glsl")
        rendered = renderer.render(found)
        if glsl or not (spirv or manifest):
            typer.echo(rendered.text, nl=False)
        if spirv or manifest:
            compiler: Compiler = find_compiler(glslang)
            built = building.build(
                shaders / "glsl", compiler, only=frozenset([found.template.name])
            )
            if manifest:
                entry = built.variants[variant]
                typer.echo(json.dumps(entry, indent=2, ensure_ascii=False))
            if spirv:
                typer.echo(compiler.disassemble(built.spirv[variant]))
    except ShaderError as error:
        _fail(error)


def find_variant(folder: Path, name: str) -> Variant:
    """Return the variant called `name`; raises `ShaderError` naming the nearest one."""
    files = (path.name.removesuffix(TEMPLATE_SUFFIX) for path in folder.glob(f"*{TEMPLATE_SUFFIX}"))
    # Only templates that the name can belong to: a mistake elsewhere must not hide this one.
    possible = frozenset(file for file in files if f"{name}_".startswith(f"{file}_"))
    variants = {variant.name: variant for variant in expand(load_entries(folder, possible))}
    if name not in variants:
        raise ShaderError(f"there is no variant '{name}'", hint=closest(name, variants))
    return variants[name]
