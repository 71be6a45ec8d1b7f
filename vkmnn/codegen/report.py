"""Writes `report.md`: the committed summary that shows a reviewer what a change did."""

from __future__ import annotations

from collections import Counter

from vkmnn.codegen.manifest import HEADER, Manifest


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
