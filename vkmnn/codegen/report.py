"""The reviewer's view: the differences between two locks, and all variants in a table."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkmnn.codegen.build import Built
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.manifest import Manifest, load_lock
from vkmnn.errors import ShaderError


@dataclass(frozen=True, slots=True)
class Change:
    """A variant that one lock has and another has not, or has with another digest.

    Attributes:
        variant: its name.
        kind: "added", "changed" or "removed".
        before: bytes of SPIR-V before; None where there was none, or where it is not known.
        after: the same now.
    """

    variant: str
    kind: str
    before: int | None
    after: int | None

    @property
    def difference(self) -> int:
        """How many bytes were added; 0 if one of the sizes of a changed variant is unknown."""
        if self.kind == "changed" and None in (self.before, self.after):
            return 0
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True, slots=True)
class Changes:
    """All differences between two locks, sorted by variant."""

    rows: tuple[Change, ...]

    def names(self, kind: str) -> list[str]:
        """Return the variants that were "added", "changed" or "removed"."""
        return [row.variant for row in self.rows if row.kind == kind]

    @property
    def difference(self) -> int:
        """How many bytes of SPIR-V were added, if known."""
        return sum(row.difference for row in self.rows)

    def counts(self) -> str:
        """Return e.g. `3 added, 1 removed`, or `no variant changed`."""
        found = Counter(row.kind for row in self.rows)
        text = ", ".join(
            f"{found[kind]} {kind}" for kind in ("added", "changed", "removed") if found[kind]
        )
        return text or "no variant changed"


def compare(before: Manifest | None, after: Manifest, cache: Cache | None = None) -> Changes:
    """Return the changes of a lock against an older one, or against nothing.

    Args:
        before: the content of the older lock.
        after: that of the newer one.
        cache: knows the sizes of the modules that were compiled here.
    """
    old: dict[str, str] = before["variants"] if before else {}
    new: dict[str, str] = after["variants"]

    def size(digest: str | None) -> int | None:
        module = cache.module(digest) if cache and digest else None
        return len(module.spirv) if module else None

    rows = []
    for name in sorted(old.keys() | new.keys()):
        digests = old.get(name), new.get(name)
        if digests[0] != digests[1]:
            kind = "removed" if name not in new else "changed" if name in old else "added"
            rows.append(Change(name, kind, *map(size, digests)))
    return Changes(tuple(rows))


def committed_lock(path: Path, revision: str) -> Manifest:
    """Return the content of the lock at `path` in a git revision.

    Raises:
        ShaderError: git, the revision or the file is missing.
    """
    git = shutil.which("git")
    if git is None:
        raise ShaderError("git is not on PATH", hint="`report` compares with a git revision")
    done = subprocess.run(
        [git, "show", f"{revision}:./{path.name}"],
        cwd=path.parent,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise ShaderError(
            f"git cannot show {path.name} of '{revision}': {done.stderr.strip()}",
            hint="name a commit, branch or tag in which it is committed",
        )
    content = load_lock(done.stdout)
    if content is None:
        raise ShaderError(f"{path.name} of '{revision}' has another schema and cannot be compared")
    return content


def _axes_text(axes: dict[str, Any]) -> str:
    return " × ".join(f"{axis} ({len(values)})" for axis, values in axes.items()) or "–"


def full_report(built: Built) -> str:
    """Return all variants that were built as Markdown, with sizes, features and digests."""
    variants = built.variants
    counts = Counter(entry["template"] for entry in variants.values())
    sizes: Counter[str] = Counter()
    needs: dict[str, set[str]] = {}
    for entry in variants.values():
        sizes[entry["template"]] += entry["bytes"]
        needs.setdefault(entry["template"], set()).update(entry["requires"])
    lines = [
        "# Shader report",
        "",
        (
            f"{len(variants)} variants of {len(built.templates)} templates, "
            f"{sum(sizes.values())} bytes of SPIR-V, compiled by {built.compiler}."
        ),
        "",
        "| template | axes | variants | bytes | features of some variants |",
        "|---|---|---:|---:|---|",
    ]
    for name, entry in sorted(built.templates.items()):
        features = ", ".join(sorted(needs.get(name, ()))) or "–"
        axes = _axes_text(entry["axes"])
        lines.append(f"| {name} | {axes} | {counts[name]} | {sizes[name]} | {features} |")
    for template in sorted(built.templates):
        lines += [
            "",
            f"## {template}",
            "",
            "| variant | bytes | optimized | digest |",
            "|---|---:|---|---|",
        ]
        lines += [
            f"| {name} | {entry['bytes']} | {entry['optimized']} | {built.digests[name][:12]} |"
            for name, entry in sorted(variants.items())
            if entry["template"] == template
        ]
    return "\n".join(lines) + "\n"
