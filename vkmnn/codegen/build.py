"""The whole build: expand, render, compile, reflect, check, and the files that come out."""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkmnn.codegen.cache import Cache, cache_folder, cache_key, write_atomic
from vkmnn.codegen.compilers import Compiled, CompileError, Compiler
from vkmnn.codegen.crosscheck import cross_check
from vkmnn.codegen.features import target_for
from vkmnn.codegen.manifest import (
    Manifest,
    dump_manifest,
    load_manifest,
    merge_enums,
    template_entry,
    variant_entry,
    without_compiler_fields,
)
from vkmnn.codegen.pymodule import kernels_source
from vkmnn.codegen.reflect import reflect
from vkmnn.codegen.render import Rendered, Renderer, template_line
from vkmnn.codegen.report import report_source
from vkmnn.codegen.variants import TemplateEntry, Variant, expand, load_entries
from vkmnn.errors import ShaderError

MANIFEST_FILE = "manifest.json"
REPORT_FILE = "report.md"
KERNELS_FILE = "kernels.py"
SPIRV_FOLDER = "spirv"

Progress = Callable[[int, int], None]


class BuildFailedError(ShaderError):
    """Every failure of a build; `failures` holds them one by one."""

    def __init__(self, failures: list[ShaderError]) -> None:
        self.failures = failures
        text = "\n".join(str(failure) for failure in failures)
        super().__init__(f"{len(failures)} error(s), nothing was written\n{text}")


@dataclass(slots=True)
class Built:
    """What one run made, before it is merged with what is on disk.

    `partial` is set when only some templates were built.
    """

    compiler: str
    partial: bool
    templates: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, Any] = field(default_factory=dict)
    enums: dict[str, list[str]] = field(default_factory=dict)
    spirv: dict[str, bytes] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    compiled: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Failures:
    """Errors by place and text, so that one mistake in 40 variants is reported once."""

    folder: Path
    found: dict[tuple[str, int, str, str | None], list[str]] = field(default_factory=dict)
    plain: list[ShaderError] = field(default_factory=list)

    def add(self, error: ShaderError, variant: str) -> None:
        """Record an error of one variant; a line number is required to group."""
        if error.template is None or error.line is None:
            self.plain.append(error)
            return
        message = error.message.removeprefix(f"{error.template}:{error.line}: ")
        message = message.removesuffix(f" [{variant}]")
        key = (error.template, error.line, message, error.hint)
        self.found.setdefault(key, []).append(variant)

    def errors(self) -> list[ShaderError]:
        """Return the errors sorted by place, with variant names and a snippet."""
        result = list(self.plain)
        for (file, line, message, hint), variants in sorted(self.found.items(), key=str):
            names = ", ".join(variants[:3])
            if len(variants) > 3:
                names += f" and {len(variants) - 3} more"
            source = template_line(self.folder, file, line)
            snippet = f"\n  {line:>5} | {source.rstrip()}" if source and source.strip() else ""
            first, *rest = message.split("\n")
            text = "\n".join([f"{first} [{names}]", *rest]) + snippet
            result.append(ShaderError(text, template=file, line=line, hint=hint))
        return result


def _compile_errors(
    error: CompileError, rendered: Rendered, variant: Variant
) -> Iterator[ShaderError]:
    lines = rendered.text.splitlines()
    for message in error.messages:
        index = min(max(message.line, 1), len(lines)) - 1
        file, line = rendered.lines[index]
        text = f"{message.text}\n  glsl: {lines[index].strip()}"
        yield ShaderError(text, template=file, line=line)
    if not error.messages:
        yield ShaderError(error.log_text.strip(), template=variant.template.file, line=1)


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
    progress: Progress | None = None,
) -> Built:
    """Build every variant of the templates in `folder`.

    Args:
        folder: templates, includes and macro.json.
        compiler: a glslang.
        cache: compiled results by content; None compiles everything.
        jobs: threads; None for one per CPU.
        only: names of the templates to build; empty for all.
        progress: called with (done, total).

    Raises:
        BuildFailedError: with every failure of every variant.
    """
    entries = load_entries(folder, only)
    variants = expand(entries)
    renderer = Renderer(folder)
    failures = _Failures(folder)
    rendered: dict[str, Rendered] = {}
    for variant in variants:
        try:
            rendered[variant.name] = renderer.render(variant)
        except ShaderError as error:
            failures.add(error, variant.name)
    built = Built(compiler.identity, bool(only))
    work = [variant for variant in variants if variant.name in rendered]

    def make(variant: Variant) -> tuple[Compiled, bool, str] | CompileError:
        try:
            return compile_rendered(rendered[variant.name], variant, compiler, cache)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count()) as pool:
        for done, (variant, result) in enumerate(zip(work, pool.map(make, work), strict=True), 1):
            if isinstance(result, CompileError):
                problems = list(_compile_errors(result, rendered[variant.name], variant))
            else:
                problems = _take(built, variant, rendered[variant.name], *result)
            for problem in problems:
                failures.add(problem, variant.name)
            if progress:
                progress(done, len(work))
    _describe_templates(built, entries, rendered, renderer, failures)
    found = failures.errors()
    if found:
        raise BuildFailedError(found)
    return built


def _take(
    built: Built, variant: Variant, rendered: Rendered, compiled: Compiled, cached: bool, key: str
) -> list[ShaderError]:
    """Reflect a compiled variant into `built`; return what does not fit its declarations."""
    found = reflect(compiled.spirv)
    built.compiled += not cached
    built.keys.add(key)
    if compiled.note:
        built.notes.append(f"{variant.name}: {compiled.note}")
    built.variants[variant.name] = variant_entry(variant, rendered, compiled, found)
    built.spirv[variant.name] = compiled.spirv
    return cross_check(variant.template.file, rendered.declared, found, variant.requires)


def _describe_templates(
    built: Built,
    entries: list[TemplateEntry],
    rendered: dict[str, Rendered],
    renderer: Renderer,
    failures: _Failures,
) -> None:
    for entry in entries:
        names = [variant.name for variant in entry.variants() if variant.name in rendered]
        try:
            built.templates[entry.name] = template_entry(
                entry,
                renderer.doc(entry.file),
                [(name, rendered[name].declared) for name in names],
            )
            for name in names:
                merge_enums(built.enums, rendered[name].declared, entry.file)
        except ShaderError as error:
            failures.add(error, entry.name)


# --- outputs ----------------------------------------------------------------------------


def assemble(built: Built, previous: Manifest | None) -> Manifest:
    """Return the manifest: what was built, and for a partial build the rest of the previous one."""
    if not built.partial:
        return {
            "compiler": built.compiler,
            "enums": built.enums,
            "templates": built.templates,
            "variants": built.variants,
        }
    if previous is None:
        previous = {"compiler": built.compiler, "enums": {}, "templates": {}, "variants": {}}
    if previous["compiler"] != built.compiler:
        raise ShaderError(
            f"the committed shaders are by {previous['compiler']}, this is {built.compiler}",
            hint="build everything (no --only), or use the same compiler",
        )
    kept = {
        name: entry
        for name, entry in previous["variants"].items()
        if entry["template"] not in built.templates
    }
    return {
        "compiler": built.compiler,
        "enums": {**previous["enums"], **built.enums},
        "templates": {**previous["templates"], **built.templates},
        "variants": {**kept, **built.variants},
    }


def text_outputs(manifest: Manifest) -> dict[str, str]:
    """Return the generated text files by name."""
    return {
        MANIFEST_FILE: dump_manifest(manifest),
        REPORT_FILE: report_source(manifest),
        KERNELS_FILE: kernels_source(manifest),
    }


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Hold the lock of an output folder: two partial builds must not merge at the same time."""
    digest = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"codegen-{digest}.lock").open("w", encoding="utf-8") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of the variants that a write added, changed and removed."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


def _read_manifest(out: Path) -> Manifest | None:
    path = out / MANIFEST_FILE
    return load_manifest(path.read_text(encoding="utf-8")) if path.is_file() else None


def write(built: Built, out: Path) -> Changes:
    """Write the outputs under `out`; files that stay equal are not touched."""
    spirv = out / SPIRV_FOLDER
    spirv.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        previous = _read_manifest(out)
        manifest = assemble(built, previous)
        texts = text_outputs(manifest)
        for name, data in built.spirv.items():
            _write_if_new(spirv / f"{name}.spv", data)
        for name, text in texts.items():
            _write_if_new(out / name, text.encode())
        for path in spirv.glob("*.spv"):
            if path.stem not in manifest["variants"]:
                path.unlink()
    before = previous["variants"] if previous else {}
    after = manifest["variants"]
    return Changes(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(n for n in after.keys() & before.keys() if _differs(before[n], after[n]))),
        tuple(sorted(before.keys() - after.keys())),
    )


def _differs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return bool(a["spirv_sha256"] != b["spirv_sha256"])


def _write_if_new(path: Path, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)


def check(built: Built, out: Path) -> tuple[str, list[str]]:
    """Compare with the files under `out`.

    Returns:
        A unified diff of the text files (empty when they agree), and remarks: binary files that
        differ, or why they were not compared.
    """
    previous = _read_manifest(out)
    manifest = assemble(built, previous)
    remarks: list[str] = []
    if previous is not None and previous["compiler"] != manifest["compiler"]:
        remarks.append(
            f"committed by {previous['compiler']}, checked with {manifest['compiler']}: "
            "rendered GLSL and manifest are compared, binaries are not"
        )
        old = {MANIFEST_FILE: dump_manifest_text(previous), KERNELS_FILE: _text(out, KERNELS_FILE)}
        new = {MANIFEST_FILE: dump_manifest_text(manifest), KERNELS_FILE: kernels_source(manifest)}
        return _diff(old, new), remarks
    new = text_outputs(manifest)
    diff = _diff({name: _text(out, name) for name in new}, new)
    for name in sorted(manifest["variants"]):
        path = out / SPIRV_FOLDER / f"{name}.spv"
        data = path.read_bytes() if path.is_file() else None
        if data is None:
            diff += f"Only in the build: {SPIRV_FOLDER}/{name}.spv\n"
        elif hashlib.sha256(data).hexdigest() != manifest["variants"][name]["spirv_sha256"]:
            diff += f"Binary files differ: {SPIRV_FOLDER}/{name}.spv\n"
    for path in sorted((out / SPIRV_FOLDER).glob("*.spv")):
        if path.stem not in manifest["variants"]:
            diff += f"Only committed: {SPIRV_FOLDER}/{path.name}\n"
    return diff, remarks


def dump_manifest_text(manifest: Manifest) -> str:
    """Return the manifest without the fields that depend on the compiler."""
    return dump_manifest(without_compiler_fields(manifest))


def _text(out: Path, name: str) -> str:
    path = out / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _diff(old: dict[str, str], new: dict[str, str]) -> str:
    chunks: list[str] = []
    for name in sorted(new):
        chunks += difflib.unified_diff(
            old[name].splitlines(keepends=True),
            new[name].splitlines(keepends=True),
            f"committed/{name}",
            f"built/{name}",
        )
    return "".join(chunks)
