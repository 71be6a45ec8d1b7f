"""Literals in calls of macros have names: `staged.place(by_row=True)`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

import vkmnn.shaders

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(vkmnn.shaders.__file__).parent / "glsl"
TEMPLATES = [*sorted(FOLDER.rglob("*.j2")), *sorted((ROOT / "examples").rglob("*.j2"))]
ENVIRONMENT = jinja2.Environment(extensions=["jinja2.ext.do"])
HELPERS = {"spec": 2, "tensor_in": 2, "tensor_out": 2, "tensor_inout": 2}
"""Functions of the generator: the first arguments, a name and a type, need no names."""


def parsed(path: Path) -> nodes.Template:
    return ENVIRONMENT.parse(path.read_text("utf-8"))


MACROS = {macro.name for path in TEMPLATES for macro in parsed(path).find_all(nodes.Macro)}


def complaints(template: nodes.Template) -> Iterator[str]:
    """Yield the calls whose arguments are unreadable without the macro's definition."""
    for call in template.find_all(nodes.Call):
        called = call.node
        name = called.name if isinstance(called, nodes.Name) else getattr(called, "attr", "")
        unnamed = call.args[HELPERS.get(name, 0) :]
        if name not in MACROS | HELPERS.keys():
            continue
        if any(isinstance(one, nodes.Const) and isinstance(one.value, bool) for one in unnamed):
            yield f"line {call.lineno}: {name} is given an unnamed true or false"
        if sum(isinstance(one, nodes.CondExpr | nodes.Concat) for one in unnamed) > 1:
            yield f"line {call.lineno}: {name} is given several texts put together"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_literals_have_names(path: Path) -> None:
    assert list(complaints(parsed(path))) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("{{ staged.place(True) }}", 1),
        ("{{ staged.place(by_row=true) }}", 0),
        ('{{ spec("A", "bool", false) }}', 1),
        ('{{ spec("A", "bool", default=false) }}', 0),
        ('{{ coop.put("at + " ~ i, "b" ~ i) }}', 1),
        ('{{ coop.put(at="at + " ~ i, value="b" ~ i) }}', 0),
        ("{{ range(true) }}", 0),  # no macro
    ],
)
def test_the_test_itself(text: str, faults: int) -> None:
    assert {"place", "put"} <= MACROS
    assert len(list(complaints(ENVIRONMENT.parse(text)))) == faults
