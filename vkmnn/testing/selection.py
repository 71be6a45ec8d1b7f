"""The variants of a run, and the names of its tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import combinations
from typing import Any

from vkmnn._version import __version__
from vkmnn.errors import MissingExtraError, PluginError
from vkmnn.shaders.library import BUILTIN
from vkmnn.testing.case import Variant, variants
from vkmnn.testing.devices import Target

BUILTIN_CASES = "vkmnn_suite.cases"
"""Cases of vkmnn's own kernels: in a checkout, or from the distribution `vkmnn-suite`."""

ABSENT = "vkmnn's own kernels are left out, since the package vkmnn-suite is not installed"

GROUP = "vkmnn.shader_cases"
"""Entry-point group of modules that register the cases of a plug-in's kernels when imported."""


def chosen_variants(patterns: Sequence[str], *, strength: int = 0) -> list[Variant]:
    """Return the variants whose names fit a pattern (`"conv_*"`); all of them without patterns.

    Args:
        patterns: patterns for names.
        strength: return only as many as show every value of every axis of each kernel (1), or every
            pair of values of two axes (2); all by default.

    Raises:
        PluginError: a module of a plug-in's cases cannot be imported.
        MissingExtraError: only built-in kernels fit, and their cases are not installed.
    """
    builtin = has_builtin()
    if builtin:
        import_module(BUILTIN_CASES).load_all()
    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            text = f"the shader cases '{point.name}' ({point.value}) cannot be imported: {error}"
            raise PluginError(text, hint="repair or uninstall the package") from error
    fitting = [v for v in variants() if _fits(v.name, patterns)]
    if not (builtin or fitting) and any(_fits(name, patterns) for name, *_ in BUILTIN.variants()):
        hint = f"pip install vkmnn-suite=={__version__}, or run pytest in a checkout of vkmnn"
        raise MissingExtraError(ABSENT, hint=hint)
    return _covering(fitting, strength) if strength else fitting


def has_builtin() -> bool:
    """Return whether the cases of vkmnn's own kernels are installed."""
    return find_spec(BUILTIN_CASES.partition(".")[0]) is not None


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def _covering(candidates: Iterable[Variant], strength: int) -> list[Variant]:
    """Return variants that show every combination of the values of `strength` axes of a kernel.

    The variant that covers the most new values comes next, as in AETG (Cohen et al. 1997).
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
