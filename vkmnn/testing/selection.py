"""Which variants a run is about, and how its tests are called."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from importlib import metadata

from vkmnn.errors import PluginError
from vkmnn.testing import cases
from vkmnn.testing.case import Variant, variants
from vkmnn.testing.devices import Target

GROUP = "vkmnn.shader_cases"
"""Entry-point group of modules that register the cases of a plug-in's kernels when imported."""


def chosen_variants(patterns: Sequence[str]) -> list[Variant]:
    """Return the variants whose names fit a pattern (`"conv_*"`); all of them without patterns.

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
    return [v for v in variants() if any(fnmatch(v.name, pattern) for pattern in patterns or "*")]


def id_of(variant: str, target: Target) -> str:
    """Return the part of a test's name in square brackets."""
    return f"{variant}@{target.slug}"
