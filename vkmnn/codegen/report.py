"""What a reviewer wants to see: `report.md`, and the differences between two manifests.

`report.md` holds sorted facts of one state, so that it is the same wherever it is built; what is
new against an older state is asked of two manifests (`python -m vkmnn.codegen report`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vkmnn.codegen.manifest import HEADER, Manifest, load_manifest
from vkmnn.errors import ShaderError

# Fields of a manifest entry that a changed SPIR-V changes by itself.
_OWN_HASHES = {"bytes": "", "glsl_sha256": "GLSL", "spirv_sha256": "SPIR-V"}


@dataclass(frozen=True, slots=True)
class Change:
    """A variant that one manifest has and another has not, or has differently.

    Attributes:
        variant: its name.
        kind: "added", "changed" or "removed".
        before: bytes of SPIR-V before, 0 for an added one.
        after: bytes of SPIR-V after, 0 for a removed one.
        what: what differs in a changed one: "GLSL", "SPIR-V", names of manifest fields.
    """

    variant: str
    kind: str
    before: int
    after: int
    what: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """All differences between two manifests, sorted by variant, and the totals of both."""

    rows: tuple[Change, ...]
    before: int
    after: int

    def names(self, kind: str) -> list[str]:
        """Return the variants that were "added", "changed" or "removed"."""
        return [row.variant for row in self.rows if row.kind == kind]

    def counts(self) -> str:
        """Return e.g. `3 added, 1 removed`, or `no variant changed`."""
        found = Counter(row.kind for row in self.rows)
        text = ", ".join(
            f"{found[kind]} {kind}" for kind in ("added", "changed", "removed") if found[kind]
        )
        return text or "no variant changed"


def compare(before: Manifest | None, after: Manifest) -> Changes:
    """Return what a manifest changes against an older one, or against nothing."""
    old = before["variants"] if before else {}
    new = after["variants"]
    rows = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            rows.append(Change(name, "removed", old[name]["bytes"], 0))
        elif name not in old:
            rows.append(Change(name, "added", 0, new[name]["bytes"]))
        elif old[name] != new[name]:
            fields = sorted(old[name].keys() | new[name].keys())
            differ = [key for key in fields if old[name].get(key) != new[name].get(key)]
            what = tuple(filter(None, (_OWN_HASHES.get(key, key) for key in differ)))
            rows.append(Change(name, "changed", old[name]["bytes"], new[name]["bytes"], what))
    sums = [sum(entry["bytes"] for entry in variants.values()) for variants in (old, new)]
    return Changes(tuple(rows), *sums)


def committed_manifest(path: Path, revision: str) -> Manifest:
    """Return the manifest at `path` as a git revision has it.

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
    manifest = load_manifest(done.stdout)
    if manifest is None:
        raise ShaderError(f"{path.name} of '{revision}' is of another schema: it says nothing here")
    return manifest


def _axes_text(axes: dict[str, list[str | int]]) -> str:
    return " × ".join(f"{axis} ({len(values)})" for axis, values in axes.items()) or "–"


def report_source(manifest: Manifest) -> str:
    """Return the text of `report.md`; it depends on the manifest alone."""
    variants = manifest["variants"]
    counts = Counter(entry["template"] for entry in variants.values())
    sizes: Counter[str] = Counter()
    needs: dict[str, set[str]] = {}
    for entry in variants.values():
        sizes[entry["template"]] += entry["bytes"]
        needs.setdefault(entry["template"], set()).update(entry["requires"])
    lines = [
        "# Shader report",
        "",
        f"<!-- {HEADER} -->",
        "",
        (
            f"{len(variants)} variants of {len(manifest['templates'])} templates, "
            f"{sum(sizes.values())} bytes of SPIR-V, compiled by {manifest['compiler']}."
        ),
        "",
        "| template | axes | variants | bytes | features of some variants |",
        "|---|---|---:|---:|---|",
    ]
    for name, entry in sorted(manifest["templates"].items()):
        features = ", ".join(sorted(needs.get(name, ()))) or "–"
        axes = _axes_text(entry["axes"])
        lines.append(f"| {name} | {axes} | {counts[name]} | {sizes[name]} | {features} |")
    for template in sorted(manifest["templates"]):
        lines += [
            "",
            f"## {template}",
            "",
            "| variant | bytes | optimized | SPIR-V |",
            "|---|---:|---|---|",
        ]
        lines += [
            f"| {name} | {entry['bytes']} | {entry['optimized']} | {entry['spirv_sha256'][:12]} |"
            for name, entry in sorted(variants.items())
            if entry["template"] == template
        ]
    return "\n".join(lines) + "\n"
