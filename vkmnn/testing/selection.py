"""Which variants a run is about, and how its tests are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from importlib import metadata

from vkmnn.errors import PluginError
from vkmnn.testing import cases
from vkmnn.testing.case import Variant, variants
from vkmnn.testing.devices import Target

GROUP = "vkmnn.shader_cases"
"""Entry-point group of modules that register the cases of a plug-in's kernels when imported."""


def chosen_variants(patterns: Sequence[str], *, sample: bool = False) -> list[Variant]:
    """Return the variants whose names fit a pattern (`"conv_*"`); all of them without patterns.

    Args:
        patterns: what a name may fit.
        sample: return only as many as show every value of every axis of each kernel.

    Raises:
        PluginError: a module of a plug-in's cases cannot be imported.
    """
    cases.load_all()
    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            text = f"the shader cases '{point.name}' ({point.value}) cannot be imported: {error}"
            raise PluginError(text, hint="repair or uninstall the package") from error
    fitting = [v for v in variants() if any(fnmatch(v.name, p) for p in patterns or "*")]
    return _sampled(fitting) if sample else fitting


def _sampled(candidates: Iterable[Variant]) -> list[Variant]:
    """Return each variant that shows something new: a kernel, or a value of one of its axes."""
    shown: set[tuple[str, str, str]] = set()
    chosen = []
    for variant in candidates:
        traits = {(variant.template, axis, str(value)) for axis, value in variant.axes.items()}
        traits.add((variant.template, "", ""))
        if not traits <= shown:
            shown |= traits
            chosen.append(variant)
    return chosen


def id_of(variant: str, target: Target) -> str:
    """Return the part of a test's name in square brackets."""
    return f"{variant}@{target.slug}"
