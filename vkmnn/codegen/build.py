"""Expand, render, compile, reflect and check: templates in, everything about their variants out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkmnn.codegen.cache import Cache, source_digest
from vkmnn.codegen.compiler import CompileError, Compiler, Module, refuse_warnings
from vkmnn.codegen.crosscheck import cross_check
from vkmnn.codegen.declare import LOCAL_SIZE_NAMES, Declarations
from vkmnn.codegen.failures import BuildFailedError, Failures, raise_all
from vkmnn.codegen.features import target_for
from vkmnn.codegen.manifest import (
    compiled_entry,
    declared_entry,
    merge_enums,
    template_entry,
)
from vkmnn.codegen.places import MACRO_FILE
from vkmnn.codegen.records import Record, Records
from vkmnn.codegen.reflect import reflect
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.rounding import rounds_to_nearest
from vkmnn.codegen.strip import without_names
from vkmnn.codegen.variants import TemplateEntry, Variant, closest, expand, read_entries
from vkmnn.errors import ShaderError

__all__ = ["BuildFailedError", "Built", "Progress", "build", "compile_variant", "describe"]

Progress = Callable[[int, int], None]
_READ_AHEAD = 3  # lines


@dataclass(slots=True)
class Built:
    """The results of one run, before they are merged with those on disk.

    Attributes:
        compiler: its name and version; empty where nothing was compiled.
        partial: only some templates were built.
        templates, variants, enums: the parts of the manifest, by name.
        digests: the lock's digest of each variant, of its source and options.
        spirv: the modules by variant, without names.
        keys: the cache entries that were used or created.
        compiled: the variants that the cache did not have, sorted.
        notes: remarks of the compiler.
    """

    compiler: str
    partial: bool
    templates: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, Any] = field(default_factory=dict)
    enums: dict[str, list[str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    spirv: dict[str, bytes] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    compiled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def placed_errors(
    error: CompileError, rendered: Rendered, variant: Variant
) -> Iterator[ShaderError]:
    """Return the compiler's errors, with places in the template."""
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


def compile_variant(
    variant: Variant, rendered: Rendered, requires: frozenset[str], compiler: Compiler
) -> Module:
    """Compile one rendered variant, and compare the module with what the template declares.

    Args:
        variant: names the target and the optimisation.
        rendered: its text.
        requires: the features that it needs.
        compiler: a glslang.

    Raises:
        CompileError: the compiler refuses it.
        ShaderError: the module is something else; `BuildFailedError` for several differences.
    """
    compiled = compiler.compile(rendered.text, target_for(variant.requires), variant.optimize)
    found = reflect(compiled.spirv)
    raise_all(cross_check(variant.template.file, rendered.declared, found, requires))
    spirv = rounds_to_nearest(without_names(compiled.spirv))
    return Module(spirv, compiled.optimized, compiled.note, tuple(found.capabilities))


def describe(
    folder: Path, *, cache: Cache | None = None, only: frozenset[str] = frozenset()
) -> Built:
    """Render every variant of the templates in `folder`, and compile none.

    Args:
        folder: templates, includes and macro.json.
        cache: the known facts about templates that have not changed.
        only: names of the templates; empty for all.

    Returns:
        What is known without a compiler: no modules, and nothing about modules in `variants`.

    Raises:
        BuildFailedError: with every failure of every variant.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return _Run(folder, None, cache, only, False, pool).run(None)


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
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count()) as pool:
        return _Run(folder, compiler, cache, only, strict, pool).run(progress)


class _Run:
    """One run over a folder: each template is described, and its variants go to the compiler.

    Args:
        folder: the templates.
        compiler: None where nothing is to be compiled.
        cache: None where nothing is to be remembered.
        only: names of the templates; empty for all.
        strict: compile everything, and refuse warnings.
        pool: the threads that compile.
    """

    def __init__(
        self,
        folder: Path,
        compiler: Compiler | None,
        cache: Cache | None,
        only: frozenset[str],
        strict: bool,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.built = Built(compiler.identity if compiler else "", bool(only))
        self.failures = Failures(folder)
        self._compiler = compiler
        self._cache = cache
        self._strict = strict
        self._pool = pool
        self._renderer = Renderer(folder)
        self._records = Records(folder, cache) if cache else None
        self._new: list[tuple[TemplateEntry, Record]] = []
        self._pending: list[tuple[Variant, Rendered, Future[Module]]] = []
        self._begun: dict[str, Future[Module]] = {}  # by digest: variants may have the same text
        self._entries, mistakes = read_entries(folder, only)
        for mistake in mistakes:
            self.failures.add(mistake)
        try:
            self._total = len(expand(self._entries))
        except ShaderError as error:
            self.failures.add(error)
            self.failures.check()

    def run(self, progress: Progress | None) -> Built:
        for entry in self._entries:
            record = self._records.get(entry) if self._records and not self._strict else None
            if record:
                self._reuse(entry, record)
            else:
                self._render(entry)
        self._finish(progress)
        self.failures.check()
        if self._records:
            for entry, record in self._new:
                self._records.put(entry, record)
            self.built.keys.update(map(self._records.key, self._entries))
        self.built.keys.update(self.built.digests.values())
        return self.built

    def _reuse(self, entry: TemplateEntry, record: Record) -> None:
        """Reuse the results of an earlier run for a template."""
        self._add(entry, record)
        if self._compiler:
            for variant in entry.variants():
                if not self._is_cached(variant.name):
                    self._compile(variant, self._renderer.render(variant))

    def _render(self, entry: TemplateEntry) -> None:
        """Render the variants of a template, and describe it."""
        declared: list[tuple[str, Declarations]] = []
        variants: dict[str, Any] = {}
        digests: dict[str, str] = {}
        todo: list[tuple[Variant, Rendered]] = []
        for variant in sorted(entry.variants(), key=lambda one: one.name):
            try:
                rendered = self._renderer.render(variant)
            except ShaderError as error:
                self.failures.add(error, variant.name)
                continue
            declared.append((variant.name, rendered.declared))
            described = declared_entry(variant, _requires(variant, rendered), rendered)
            variants[variant.name] = described
            digests[variant.name] = source_digest(described, variant.optimize)
            todo.append((variant, rendered))
        for problem in _unknown_spec(entry, [one for _, one in declared]):
            self.failures.add(problem)
        enums: dict[str, list[str]] = {}
        try:
            template = template_entry(entry, self._renderer.doc(entry.file), declared)
            for _, one in declared:
                mine = {name: list(members) for name, members in one.enums.items()}
                merge_enums(enums, mine, entry.file)
        except ShaderError as error:
            self.failures.add(error)
            template = {}
        record = Record(template, enums, variants, digests)
        self._add(entry, record)
        self._new.append((entry, record))
        if self._compiler:
            for variant, rendered in todo:
                if self._strict or not self._is_cached(variant.name):
                    self._compile(variant, rendered)

    def _add(self, entry: TemplateEntry, record: Record) -> None:
        self.built.templates[entry.name] = record.template
        self.built.variants.update(record.variants)
        self.built.digests.update(record.digests)
        try:
            merge_enums(self.built.enums, record.enums, entry.file)
        except ShaderError as error:
            self.failures.add(error)

    # --- modules ---------------------------------------------------------------------------------

    def _is_cached(self, name: str) -> bool:
        """Load a module from the cache; return whether it has one by this compiler."""
        digest = self.built.digests[name]
        found = self._cache.module(digest, self.built.compiler) if self._cache else None
        if found:
            self._take(name, found)
        return found is not None

    def _take(self, name: str, module: Module) -> None:
        self.built.variants[name] = compiled_entry(self.built.variants[name], module)
        self.built.spirv[name] = module.spirv
        if module.note:
            self.built.notes.append(f"{name}: {module.note}")

    def _compile(self, variant: Variant, rendered: Rendered) -> None:
        digest = self.built.digests[variant.name]
        future = self._begun.get(digest)
        if future is None:
            future = self._begun[digest] = self._pool.submit(self._compiled, variant, rendered)
            self.built.compiled.append(variant.name)
        self._pending.append((variant, rendered, future))

    def _compiled(self, variant: Variant, rendered: Rendered) -> Module:
        """Compile a variant in a thread of the pool."""
        assert self._compiler is not None
        made = compile_variant(variant, rendered, _requires(variant, rendered), self._compiler)
        if self._strict:
            refuse_warnings(self._compiler, rendered.text, target_for(variant.requires))
        if self._cache:
            digest = self.built.digests[variant.name]
            self._cache.put_module(digest, made, self._compiler.identity)
        return made

    def _finish(self, progress: Progress | None) -> None:
        """Wait for running compilations."""
        done = self._total - len(self._pending)
        if progress:
            progress(done, self._total)
        for variant, rendered, future in self._pending:
            try:
                self._take(variant.name, future.result())
            except CompileError as error:
                for problem in placed_errors(error, rendered, variant):
                    self.failures.add(problem, variant.name)
            except ShaderError as error:
                self.failures.add(error, variant.name)
            done += 1
            if progress:
                progress(done, self._total)
        self.built.compiled.sort()


def _requires(variant: Variant, rendered: Rendered) -> frozenset[str]:
    return variant.requires | rendered.declared.needs


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
