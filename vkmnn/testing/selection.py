"""Which variants a run is about, and how its tests are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from importlib import metadata
from itertools import combinations
from typing import Any

from vkmnn.errors import PluginError
from vkmnn.testing import cases
from vkmnn.testing.case import Variant, variants
from vkmnn.testing.devices import Target

GROUP = "vkmnn.shader_cases"
"""Entry-point group of modules that register the cases of a plug-in's kernels when imported."""


def chosen_variants(patterns: Sequence[str], *, strength: int = 0) -> list[Variant]:
    """Return the variants whose names fit a pattern (`"conv_*"`); all of them without patterns.

    Args:
        patterns: what a name may fit.
        strength: return only as many as show every value of every axis of each kernel (1), or every
            pair of values of two axes (2); all by default.

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
    return _covering(fitting, strength) if strength else fitting


def _covering(candidates: Iterable[Variant], strength: int) -> list[Variant]:
    """Return variants that show every combination of the values of `strength` axes of a kernel.

    The variant that shows most of what is not shown yet comes next, as in AETG (Cohen et al. 1997).
    """
    unseen: dict[str, dict[str, set[frozenset[tuple[str, Any]]]]] = defaultdict(dict)
    by_name = {variant.name: variant for variant in candidates}
    for name, variant in by_name.items():
        axes = variant.axes.items()
        shown = combinations(axes, min(strength, len(axes)))
        unseen[variant.template][name] = {frozenset(one) for one in shown}
    chosen = set[str]()
    for kernel in unseen.values():
        while kernel:
            best = max(kernel, key=lambda name: len(kernel[name]))
            seen = kernel.pop(best)
            if not seen:
                break
            chosen.add(best)
            for rest in kernel.values():
                rest -= seen
    return [variant for name, variant in by_name.items() if name in chosen]


def id_of(variant: str, target: Target) -> str:
    """Return the part of a test's name in square brackets."""
    return f"{variant}@{target.slug}"
