"""Operators that torch's older exporter to ONNX converts to other results, in forms that agree.

It adds the last of several rows with one index instead of all, and rounds quotients towards zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

Form = Callable[..., Any]


@contextmanager
def script_forms(torch: Any, opset: int) -> Iterator[None]:
    """Have the exporter use the forms of this module."""
    oldest, newer = (import_module(f"torch.onnx.symbolic_opset{since}") for since in (9, 11))
    helper = import_module("torch.onnx.symbolic_helper")
    forms = {
        "index_add": _added(oldest.index_add),
        "index_put": _put(newer.index_put, helper),
        "floor_divide": lambda g, x, by: oldest.div(g, x, by, "floor"),
    }
    for name, form in forms.items():
        torch.onnx.register_custom_op_symbolic(f"aten::{name}", form, opset)
    try:
        yield
    finally:
        for name in forms:
            torch.onnx.unregister_custom_op_symbolic(f"aten::{name}", opset)


def _added(index_add: Form) -> Form:
    """The exporter's form is an Add of rows that were scattered into zeros."""

    def form(g: Any, *args: Any) -> Any:
        total = index_add(g, *args)
        for value in total.node().inputs():
            if value.node().kind() == "onnx::ScatterElements":
                value.node().s_("reduction", "add")
        return total

    return form


def _put(index_put: Form, helper: Any) -> Form:
    """Scatter to the tensor itself; indices of truth values, which do not repeat, are others."""

    def form(g: Any, x: Any, places: Any, values: Any, accumulate: Any = False) -> Any:
        result = index_put(g, x, places, values, False)
        if not helper._parse_arg(accumulate, "b"):
            return result
        if result.node().kind() != "onnx::ScatterND":
            return index_put(g, x, places, values, accumulate)
        result.node().s_("reduction", "add")
        return result

    return form
