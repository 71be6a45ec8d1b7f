"""The commands other than the build: `list`, `show`, `report`, `cache` and `pack`."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.syntax import Syntax

from vkmnn.codegen.build import build, describe
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.console import fail, out, print_changes, print_table
from vkmnn.codegen.features import FEATURES, target_for
from vkmnn.codegen.outputs import entries_of, read_locked
from vkmnn.codegen.outputs import pack as pack_outputs
from vkmnn.codegen.places import TEMPLATE_SUFFIX
from vkmnn.codegen.render import Renderer
from vkmnn.codegen.report import committed_lock, compare, full_report
from vkmnn.codegen.variants import TemplateEntry, Variant, closest, expand, load_entries
from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import LOCK_FILE


@dataclass(frozen=True, slots=True)
class Settings:
    """The options before a command."""

    glslang: Path | None
    shaders: Path
    jobs: int | None

    @property
    def templates(self) -> Path:
        """The folder of the templates and of macro.json."""
        return self.shaders / "glsl"

    @property
    def cache(self) -> Cache:
        """The declarations of compiled variants."""
        return Cache.of(self.shaders)


def list_variants(
    ctx: typer.Context,
    filters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILTER…]",
            help="A template, a part of a variant's name ('texel') or a pattern ('*_f32_*').",
        ),
    ] = None,
    variants: Annotated[
        bool, typer.Option("--variants", "-v", help="The variants, one per line.")
    ] = False,
    requires: Annotated[
        str | None, typer.Option("--requires", help="Only variants that require this feature.")
    ] = None,
) -> None:
    """List the templates, or the variants that fit every FILTER."""
    settings: Settings = ctx.obj
    try:
        if requires is not None and requires not in FEATURES:
            raise ShaderError(f"unknown feature '{requires}'", hint=closest(requires, FEATURES))
        entries = load_entries(settings.templates)
        features = _features_of(settings)
        found = [
            variant
            for variant in expand(entries)
            if all(_fits(variant, word) for word in filters or ())
            and (requires is None or requires in features(variant))
        ]
        if not found:
            words = " ".join([*(filters or ()), *([f"--requires {requires}"] if requires else [])])
            raise ShaderError(
                f"no variant matches '{words}'", hint=_nearest(filters or [], entries)
            )
    except ShaderError as error:
        fail(error)
    if variants or _only_templates(filters or [], entries):
        for variant in found:
            typer.echo(variant.name)
        return
    rows = []
    for entry in entries:
        mine = [variant for variant in found if variant.template is entry]
        if mine:
            axes = " × ".join(f"{axis} ({len(values)})" for axis, values in entry.axes.items())
            rows.append(
                [
                    entry.name,
                    entry.op_type or "",
                    axes,
                    str(len(mine)),
                    _counted(map(features, mine)),
                ]
            )
    print_table(("template", "op type", "axes", "variants", "features (in how many)"), rows)
    names = {variant.template.name for variant in found}
    out.print(f"{_count(found, 'variant')} of {_count(names, 'template')}", highlight=False)


def _count(things: Sized, word: str) -> str:
    return f"{len(things)} {word}{'s' if len(things) != 1 else ''}"


def _fits(variant: Variant, word: str) -> bool:
    """A template's name means that template, anything else a part of the variant's name."""
    word = word.removesuffix(TEMPLATE_SUFFIX).lower()
    if word == variant.template.name:
        return True
    return fnmatch.fnmatchcase(variant.name, word if set(word) & set("*?[") else f"*{word}*")


def _only_templates(filters: list[str], entries: list[TemplateEntry]) -> bool:
    names = {entry.name for entry in entries}
    return bool(filters) and {word.removesuffix(TEMPLATE_SUFFIX) for word in filters} <= names


def _features_of(settings: Settings) -> Callable[[Variant], frozenset[str]]:
    """Return what tells a variant's features, with those that follow from its declarations."""
    try:
        entries = describe(settings.templates, cache=settings.cache).variants
    except ShaderError:  # in a template: entries of macro.json can be listed anyway
        entries = {}

    def features(variant: Variant) -> frozenset[str]:
        return variant.requires | frozenset(entries.get(variant.name, {}).get("requires", ()))

    return features


def _counted(features: Iterable[frozenset[str]]) -> str:
    counts: dict[str, int] = {}
    for names in features:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))


def _nearest(filters: list[str], entries: list[TemplateEntry]) -> str:
    names = [entry.name for entry in entries]
    return closest(filters[0], names) if filters else "`list` without options shows everything"


def show(
    ctx: typer.Context,
    variant: Annotated[str, typer.Argument(help="Name of a variant, e.g. unary_map_f32_buffer.")],
    glsl: Annotated[bool, typer.Option("--glsl", help="The rendered GLSL (the default).")] = False,
    spirv: Annotated[bool, typer.Option("--spirv", help="The SPIR-V, disassembled.")] = False,
    manifest: Annotated[bool, typer.Option("--manifest", help="The manifest entry.")] = False,
) -> None:
    """Show a variant as the current templates render it; coloured on a terminal."""
    settings: Settings = ctx.obj
    try:
        found = find_variant(settings.templates, variant)
        if glsl or not (spirv or manifest):
            _print_source(Renderer(settings.templates).render(found).text, "glsl", numbers=True)
        if spirv or manifest:
            compiler = find_compiler(settings.glslang)
            only = frozenset([found.template.name])
            built = build(settings.templates, compiler, cache=settings.cache, only=only)
            if manifest:
                entry = json.dumps(built.variants[variant], indent=2, ensure_ascii=False)
                _print_source(entry, "json")
            if spirv:  # compiled again, for the names
                text = Renderer(settings.templates).render(found).text
                named = compiler.compile(text, target_for(found.requires), found.optimize)
                _print_source(compiler.disassemble(named.spirv), "spirv")
    except ShaderError as error:
        fail(error)


def _print_source(text: str, language: str, *, numbers: bool = False) -> None:
    if out.is_terminal:
        background = "default"
        out.print(
            Syntax(text, language, line_numbers=numbers, background_color=background, tab_size=4)
        )
    else:
        typer.echo(text, nl=not text.endswith("\n"))


def find_variant(folder: Path, name: str) -> Variant:
    """Return the variant called `name`; raises `ShaderError` naming the nearest one."""
    files = (path.name.removesuffix(TEMPLATE_SUFFIX) for path in folder.glob(f"*{TEMPLATE_SUFFIX}"))
    # Only templates that the name can belong to: a mistake elsewhere must not hide this one.
    possible = frozenset(file for file in files if f"{name}_".startswith(f"{file}_"))
    variants = {variant.name: variant for variant in expand(load_entries(folder, possible))}
    if name not in variants:
        raise ShaderError(f"there is no variant '{name}'", hint=closest(name, variants))
    return variants[name]


def report(
    ctx: typer.Context,
    against: Annotated[
        str, typer.Option("--against", metavar="REVISION", help="A git revision.")
    ] = "HEAD",
    full: Annotated[
        bool, typer.Option("--full", help="All variants as Markdown, with sizes and features.")
    ] = False,
) -> None:
    """Show the variants added, changed and removed since a git revision."""
    settings: Settings = ctx.obj
    path = (settings.shaders / LOCK_FILE).resolve()
    try:
        if full:
            compiler = find_compiler(settings.glslang)
            built = build(settings.templates, compiler, cache=settings.cache)
            typer.echo(full_report(built), nl=False)
            return
        now = read_locked(settings.shaders)
        if now is None:
            raise ShaderError(
                f"{path} does not exist", hint="build first: `python -m vkmnn.codegen`"
            )
        print_changes(compare(committed_lock(path, against), now, settings.cache))
    except ShaderError as error:
        fail(error)


def cache(ctx: typer.Context) -> None:
    """Print the cache's folder, its size, and the part that the current templates use."""
    settings: Settings = ctx.obj
    store = settings.cache
    files = {path.name: path.stat().st_size for path in store.files()}
    out.print(f"folder    {store.folder}", highlight=False, soft_wrap=True)
    out.print(f"entries   {len(files)}, {sum(files.values())} bytes", highlight=False)
    try:
        keys = describe(settings.templates, cache=store).keys
    except ShaderError as error:
        fail(error)
    keys |= entries_of(settings.shaders)
    unused = files.keys() - keys
    text = f"{len(unused)}, {sum(files[name] for name in unused)} bytes"
    hint = "  (`python -m vkmnn.codegen --prune` deletes them)" if unused else ""
    out.print(f"unused    {text}{hint}", highlight=False, soft_wrap=True)


def pack(
    ctx: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(help="A copy of the folder of shaders; without one, the folder itself."),
    ] = None,
) -> None:
    """Compile every variant into manifest.json and spirv.zip, which run without a compiler."""
    settings: Settings = ctx.obj
    target = folder or settings.shaders
    try:
        compiler = find_compiler(settings.glslang)
        built = build(settings.templates, compiler, cache=settings.cache, jobs=settings.jobs)
        pack_outputs(built, target)
    except ShaderError as error:
        fail(error)
    out.print(f"{len(built.variants)} variants packed, {built.compiler}", highlight=False)
