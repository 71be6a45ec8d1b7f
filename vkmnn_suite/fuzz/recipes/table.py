"""The tables that recipes register themselves in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vkmnn.base.registry import Registry
from vkmnn_suite.fuzz.sketch import Sketch

Recipe = Callable[[Sketch, str], None]
"""Adds a node of the named operator, or raises `Skip`."""

RECIPES: Registry[str, Recipe] = Registry("fuzzing recipe of operator")
"""By operator, with its domain before it: `com.microsoft::Gelu`."""

PATTERNS: Registry[str, Callable[[Sketch], None]] = Registry("fuzzing pattern")
"""Several nodes together, as passes look for them."""

EXCUSED: Mapping[str, str] = {
    "com.microsoft::QLinearReduceMean": "onnxruntime has no kernel for it",
    "com.microsoft::QLinearSoftmax": "onnxruntime adds up a table of exponentials: one code more or"
    " less",
    **{
        f"com.microsoft::{op}": "onnxruntime has no kernel of it for CPUs, and onnx none at all"
        for op in (
            "BiasAdd",
            "BiasSplitGelu",
            "FusedMatMulActivation",
            "GemmFastGelu",
            "GroupNorm",
            "SkipGroupNorm",
        )
    },
}
"""Operators that have a converter but can have no recipe, and why."""


def full_name(op: str, domain: str = "") -> str:
    """Return an operator's name with its domain, if that is not ONNX's own."""
    return f"{domain}::{op}" if domain else op


def recipe(*ops: str, domain: str = "") -> Callable[[Recipe], Recipe]:
    """Register a function that adds nodes of these operators.

    Raises:
        PluginError: an operator has a recipe already.
    """

    def register(function: Recipe) -> Recipe:
        for op in ops:
            RECIPES.register(full_name(op, domain))(function)
        return function

    return register


def pattern(function: Callable[[Sketch], None]) -> Callable[[Sketch], None]:
    """Register a function that adds several nodes."""
    return PATTERNS.register(function.__name__)(function)
