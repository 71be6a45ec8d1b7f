"""The output files of a build: merged with existing ones, compared, written all or none."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vkmnn.base.cache_files import cache_dir, locked
from vkmnn.codegen.build import Built, describe
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.manifest import (
    Manifest,
    dump_entries,
    dump_lock,
    dump_manifest,
    load_lock,
    locked_template,
)
from vkmnn.codegen.pymodule import KERNELS_SOURCE, stub_source
from vkmnn.codegen.report import Changes, compare
from vkmnn.codegen.variants import variant_names
from vkmnn.errors import ShaderError
from vkmnn.shader_files.archive import ARCHIVE_FILE
from vkmnn.shader_files.archive import pack as pack_modules
from vkmnn.shader_files.lock import LOCK_FILE, MANIFEST_FILE, fingerprint_of
from vkmnn.shader_files.store import entries_key, entry_key

KERNELS_FILE = "kernels.py"
STUB_FILE = "kernels.pyi"
_STAGING = ".staging"
LOCK_WAIT_S = 600.0


def assemble(built: Built, previous: Manifest | None) -> Manifest:
    """Return the lock's content: what was built, and what a partial build leaves as it was."""
    mine: Manifest = {
        "enums": built.enums,
        "templates": {name: locked_template(entry) for name, entry in built.templates.items()},
        "variants": built.digests,
    }
    if not built.partial or previous is None:
        return mine
    kept: dict[str, str] = {}
    for name, entry in previous["templates"].items():
        if name not in built.templates:
            variants = variant_names(name, entry["axes"])
            kept |= {
                one: previous["variants"][one] for one in variants if one in previous["variants"]
            }
    return {
        "enums": {**previous["enums"], **built.enums},
        "templates": {**previous["templates"], **mine["templates"]},
        "variants": {**kept, **built.digests},
    }


def text_outputs(content: Manifest) -> dict[str, str]:
    """Return the generated files by name; `content` is the lock's."""
    return {
        LOCK_FILE: dump_lock(content),
        KERNELS_FILE: KERNELS_SOURCE,
        STUB_FILE: stub_source(content),
    }


def _lock_file(out: Path) -> Path:
    """Return the lock file: two partial builds must not merge at the same time."""
    name = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    return cache_dir() / "locks" / f"codegen-{name}.lock"


def read_locked(out: Path) -> Manifest | None:
    """Return the lock under `out`; None when there is none, or one of another schema."""
    path = out / LOCK_FILE
    return load_lock(path.read_text(encoding="utf-8")) if path.is_file() else None


def write(built: Built, out: Path, cache: Cache | None = None) -> Changes:
    """Write the outputs under `out`; files that stay equal are not touched.

    All new files are on disk next to the old ones before the first is replaced: a full disk or an
    interruption leaves the old outputs, or (within the moment of renaming) files each of which is
    whole, and the next build completes them.

    Args:
        built: all templates, or some.
        out: the folder that holds glsl/.
        cache: stores the declarations of variants; None leaves that to their first user.
    """
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(_lock_file(out), LOCK_WAIT_S))
        except OSError as error:
            raise ShaderError(
                f"builds of {out} cannot be locked against other builds: {error}",
                hint="set VKMNN_CACHE_DIR to a folder of your own, or end the other build",
            ) from error
        previous = read_locked(out)
        content = assemble(built, previous)
        texts = text_outputs(content)
        with _staged(out) as staging:
            changed = [name for name, text in texts.items() if _text(out, name) != text]
            for name in changed:
                (staging / name).write_text(texts[name], encoding="utf-8", newline="\n")
            for name in changed:
                (staging / name).replace(out / name)
    if cache:
        keep_entries(built, out, cache)
    return compare(previous, content, cache)


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """Yield a temporary folder next to the outputs."""
    staging = out / _STAGING
    shutil.rmtree(staging, ignore_errors=True)  # an interrupted build's
    try:
        staging.mkdir()
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def keep_entries(built: Built, out: Path, cache: Cache) -> None:
    """Store the declarations of all variants where processes that read the lock look for them."""
    lock = _text(out, LOCK_FILE)
    content = load_lock(lock)
    if built.partial:
        try:
            built = describe(out / "glsl", cache=cache)
        except ShaderError:  # in a template that was left alone
            return
    if content and built.digests == content["variants"]:
        key = entries_key(fingerprint_of(lock))
        if not cache.has(key):
            cache.put(key, {}, dump_entries(built.variants).encode())


def entries_of(out: Path) -> set[str]:
    """Return the cache keys of the declarations of the variants under `out`."""
    content = read_locked(out)
    variants = content["variants"] if content else {}
    single = {entry_key(name, digest) for name, digest in variants.items()}
    return {entries_key(fingerprint_of(_text(out, LOCK_FILE))), *single}


def check(built: Built, out: Path) -> str:
    """Return a unified diff against the files under `out`, empty when they agree."""
    texts = text_outputs(assemble(built, read_locked(out)))
    chunks: list[str] = []
    for name in sorted(texts):
        chunks += difflib.unified_diff(
            _text(out, name).splitlines(keepends=True),
            texts[name].splitlines(keepends=True),
            f"committed/{name}",
            f"built/{name}",
        )
    return "".join(chunks)


def pack(built: Built, out: Path) -> None:
    """Write manifest.json and spirv.zip under `out`: shaders that need no compiler to run.

    Args:
        built: all templates, compiled.
        out: the folder that holds kernels.py and shaders.lock, or a copy of it in a wheel.
    """
    lock = dump_lock(assemble(built, None))
    if _text(out, LOCK_FILE) != lock:
        raise ShaderError(
            f"{out / LOCK_FILE} is out of date",
            hint="write it first: `python -m vkmnn.codegen`, for a package with --shaders FOLDER",
        )
    manifest = {
        "lock": fingerprint_of(lock),
        "compiler": built.compiler,
        "enums": built.enums,
        "templates": built.templates,
        "variants": built.variants,
    }
    with _staged(out) as staging:
        (staging / MANIFEST_FILE).write_text(
            dump_manifest(manifest), encoding="utf-8", newline="\n"
        )
        pack_modules(staging / ARCHIVE_FILE, built.spirv)
        for name in (ARCHIVE_FILE, MANIFEST_FILE):
            (staging / name).replace(out / name)


def _text(out: Path, name: str) -> str:
    path = out / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""
