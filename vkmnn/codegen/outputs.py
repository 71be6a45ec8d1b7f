"""The files that come out of a build: merged with what is there, compared, written all or none."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from contextlib import ExitStack
from pathlib import Path

from vkmnn.cache_files import cache_dir, locked
from vkmnn.codegen.build import Built
from vkmnn.codegen.manifest import (
    Manifest,
    dump_manifest,
    load_manifest,
    without_compiler_fields,
)
from vkmnn.codegen.pymodule import kernels_source
from vkmnn.codegen.report import Changes, compare, report_source
from vkmnn.errors import ShaderError

MANIFEST_FILE = "manifest.json"
REPORT_FILE = "report.md"
KERNELS_FILE = "kernels.py"
SPIRV_FOLDER = "spirv"
_STAGING = ".staging"
LOCK_WAIT_S = 600.0


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


def _lock_file(out: Path) -> Path:
    """Return what to lock: two partial builds must not merge at the same time."""
    digest = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    return cache_dir() / "locks" / f"codegen-{digest}.lock"


def _read_manifest(out: Path) -> Manifest | None:
    path = out / MANIFEST_FILE
    return load_manifest(path.read_text(encoding="utf-8")) if path.is_file() else None


def committed_compiler(out: Path) -> str | None:
    """Return what compiled the shaders under `out`, None when there are none."""
    previous = _read_manifest(out)
    return previous["compiler"] if previous else None


def write(built: Built, out: Path) -> Changes:
    """Write the outputs under `out`; files that stay equal are not touched.

    Everything is on disk beside the old files before the first of them is replaced: a full disk
    or an interruption leaves the old outputs, or (within the moment of renaming) files each of
    which is whole, and the next build completes them.
    """
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(_lock_file(out), LOCK_WAIT_S))
        except OSError as error:
            raise ShaderError(
                f"builds of {out} cannot be kept apart: {error}",
                hint="set VKMNN_CACHE_DIR to a folder of your own, or end the other build",
            ) from error
        previous = _read_manifest(out)
        manifest = assemble(built, previous)
        files = {f"{SPIRV_FOLDER}/{name}.spv": data for name, data in built.spirv.items()}
        files |= {name: text.encode() for name, text in text_outputs(manifest).items()}
        staging = out / _STAGING
        shutil.rmtree(staging, ignore_errors=True)  # an interrupted build's
        try:
            changed = [name for name, data in files.items() if not _holds(out / name, data)]
            for name in changed:
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                (staging / name).write_bytes(files[name])
            for name in changed:
                (out / name).parent.mkdir(exist_ok=True)
                (staging / name).replace(out / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        for path in (out / SPIRV_FOLDER).glob("*.spv"):
            if path.stem not in manifest["variants"]:
                path.unlink()
    return compare(previous, manifest)


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


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
