"""Expand, render, compile, reflect and check: templates in, everything about their variants out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vkmnn.codegen.cache import Cache, cache_key
from vkmnn.codegen.compilers import Compiled, CompileError, Compiler, refuse_warnings
from vkmnn.codegen.crosscheck import cross_check
from vkmnn.codegen.declare import LOCAL_SIZE_NAMES, Declarations
from vkmnn.codegen.failures import BuildFailedError, Failures
from vkmnn.codegen.features import target_for
from vkmnn.codegen.manifest import merge_enums, template_entry, variant_entry
from vkmnn.codegen.places import MACRO_FILE
from vkmnn.codegen.records import Record, Records
from vkmnn.codegen.reflect import reflect
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.rounding import rounds_to_nearest
from vkmnn.codegen.strip import without_names
from vkmnn.codegen.variants import TemplateEntry, Variant, closest, expand, read_entries
from vkmnn.errors import ShaderError

__all__ = ["BuildFailedError", "Built", "Progress", "build", "compile_rendered"]

Progress = Callable[[int, int], None]
_READ_AHEAD = 3  # lines


@dataclass(slots=True)
class Built:
    """What one run made, before it is merged with what is on disk.

    Attributes:
        compiler: its name and version.
        partial: only some templates were built.
        templates, variants, enums: the parts of the manifest, by name.
        spirv: the modules by variant, without names.
        keys: the cache entries that were used or made.
        compiled: the variants that the cache did not have, sorted.
        notes: what the compiler remarked.
    """

    compiler: str
    partial: bool
    templates: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, Any] = field(default_factory=dict)
    enums: dict[str, list[str]] = field(default_factory=dict)
    spirv: dict[str, bytes] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    compiled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _compile_errors(
    error: CompileError, rendered: Rendered, variant: Variant
) -> Iterator[ShaderError]:
    lines = rendered.text.splitlines()
    errors = [message for message in error.messages if message.severity == "error"]
    first = {message.line: message for message in reversed(errors)}  # the others follow from it
    for _, message in sorted(first.items()):
        index = _blamed(lines, min(max(message.line, 1), len(lines)) - 1, message.text)
        file, line = rendered.lines[index]
        text = f"{message.text}\n  glsl: {lines[index].strip()}"
        yield ShaderError(text, template=file, line=line)
    if not errors:
        yield ShaderError(error.log_text.strip(), template=variant.template.file, line=1)


def _blamed(lines: list[str], index: int, message: str) -> int:
    """The parser reads ahead: go back to the line that has the name which the message quotes."""
    quoted = re.match(r"'(\w+)'", message)
    if quoted:
        name = re.compile(rf"\b{quoted.group(1)}\b")
        for candidate in range(index, max(index - _READ_AHEAD, 0) - 1, -1):
            if name.search(lines[candidate]):
                return candidate
    return index


def compile_rendered(
    rendered: Rendered, variant: Variant, compiler: Compiler, cache: Cache | None
) -> tuple[Compiled, bool, str]:
    """Compile one rendered variant through the cache; return result, was-it-cached and key."""
    target = target_for(variant.requires)
    key = cache_key(rendered.text, compiler.identity, target, variant.optimize)
    cached = cache.get(key) if cache else None
    if cached:
        return cached, True, key
    compiled = compiler.compile(rendered.text, target, variant.optimize)
    if cache:
        cache.put(key, compiled)
    return compiled, False, key


def build(
    folder: Path,
    compiler: Compiler,
    *,
    cache: Cache | None = None,
    jobs: int | None = None,
    only: frozenset[str] = frozenset(),
    strict: bool = False,
    progress: Progress | None = None,
) -> Built:
    """Build every variant of the templates in `folder`.

    Args:
        folder: templates, includes and macro.json.
        compiler: a glslang.
        cache: compiled results by content; None compiles everything.
        jobs: threads; None for one per CPU.
        only: names of the templates to build; empty for all.
        strict: the compiler's warnings are errors; everything is compiled, whatever is cached.
        progress: called with (done, total).

    Raises:
        BuildFailedError: with every failure of every variant.
    """
    failures = Failures(folder)
    entries, mistakes = read_entries(folder, only)
    for mistake in mistakes:
        failures.add(mistake)
    try:
        total = len(expand(entries))
    except ShaderError as error:
        failures.add(error)
        failures.check()
    built = Built(compiler.identity, bool(only))
    records = Records(folder, compiler.identity, cache) if cache else None
    stale = []
    for entry in entries:
        found = records.get(entry) if records and not strict else None
        if records and found:
            built.keys.add(records.key(entry))
            _reuse(built, entry, *found, failures)
        else:
            stale.append(entry)
    done = len(built.variants)
    if progress:
        progress(done, total)
    renderer = Renderer(folder)
    work: list[tuple[Variant, Rendered]] = []
    for variant in expand(stale):
        try:
            work.append((variant, renderer.render(variant)))
        except ShaderError as error:
            failures.add(error, variant.name)

    def make(pair: tuple[Variant, Rendered]) -> tuple[Compiled, bool, str] | CompileError:
        try:
            result = compile_rendered(pair[1], pair[0], compiler, cache)
            if strict:
                refuse_warnings(compiler, pair[1].text, target_for(pair[0].requires))
            return result
        except CompileError as error:
            return error

    keys: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count()) as pool:
        for (variant, rendered), result in zip(work, pool.map(make, work), strict=True):
            if isinstance(result, CompileError):
                problems = list(_compile_errors(result, rendered, variant))
            else:
                keys[variant.name] = result[2]
                problems = _take(built, variant, rendered, *result)
            for problem in problems:
                failures.add(problem, variant.name)
            done += 1
            if progress:
                progress(done, total)
    made = [_describe(built, entry, work, keys, renderer, failures) for entry in stale]
    failures.check()
    for entry, record in zip(stale, made, strict=True):
        if records and record:
            records.put(entry, record)
            built.keys.add(records.key(entry))
    return built


def _reuse(
    built: Built,
    entry: TemplateEntry,
    record: Record,
    compiled: dict[str, Compiled],
    failures: Failures,
) -> None:
    """Take over what an earlier build recorded of a template."""
    built.templates[entry.name] = record.template
    built.variants.update(record.variants)
    built.keys.update(record.keys.values())
    built.spirv.update({name: shipped(module.spirv) for name, module in compiled.items()})
    built.notes += [f"{name}: {module.note}" for name, module in compiled.items() if module.note]
    try:
        merge_enums(built.enums, record.enums, entry.file)
    except ShaderError as error:
        failures.add(error)


def shipped(code: bytes) -> bytes:
    """Return a compiled module as devices get it: without names, and with its rounding."""
    return rounds_to_nearest(without_names(code))


def _take(
    built: Built, variant: Variant, rendered: Rendered, compiled: Compiled, cached: bool, key: str
) -> list[ShaderError]:
    """Reflect a compiled variant into `built`; return what does not fit its declarations."""
    found = reflect(compiled.spirv)
    built.keys.add(key)
    kept = replace(compiled, spirv=shipped(compiled.spirv))
    built.spirv[variant.name] = kept.spirv
    requires = variant.requires | rendered.declared.needs
    built.variants[variant.name] = variant_entry(variant, requires, rendered, kept, found)
    if not cached:
        built.compiled.append(variant.name)
    if compiled.note:
        built.notes.append(f"{variant.name}: {compiled.note}")
    return cross_check(variant.template.file, rendered.declared, found, requires)


def _unknown_spec(entry: TemplateEntry, declared: list[Declarations]) -> Iterator[ShaderError]:
    """Find the defaults in macro.json of constants that no variant declares."""
    known = {*LOCAL_SIZE_NAMES, *(spec.name for found in declared for spec in found.specs)}
    for name, line in entry.spec_lines.items():
        if name not in known:
            yield ShaderError(
                f"'{entry.file}' declares no specialization constant '{name}'",
                template=MACRO_FILE,
                line=line,
                hint=closest(name, known),
            )


def _describe(
    built: Built,
    entry: TemplateEntry,
    work: list[tuple[Variant, Rendered]],
    keys: dict[str, str],
    renderer: Renderer,
    failures: Failures,
) -> Record | None:
    """Make the template's own entry of the manifest; return all that is known, None on failure."""
    declarations = [
        (variant.name, rendered.declared) for variant, rendered in work if variant.template is entry
    ]
    names = [name for name, _ in declarations]
    for problem in _unknown_spec(entry, [declared for _, declared in declarations]):
        failures.add(problem)
    enums: dict[str, list[str]] = {}
    try:
        made = template_entry(entry, renderer.doc(entry.file), declarations)
        for _, declared in declarations:
            mine = {name: list(members) for name, members in declared.enums.items()}
            merge_enums(enums, mine, entry.file)
        merge_enums(built.enums, enums, entry.file)
    except ShaderError as error:
        failures.add(error)
        return None
    if not keys.keys() >= set(names):  # some did not compile
        return None
    built.templates[entry.name] = made
    return Record(
        made,
        enums,
        {name: built.variants[name] for name in names},
        {name: keys[name] for name in names},
    )
