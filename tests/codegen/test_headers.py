"""The headers of vkmnn's own templates have one form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import vkmnn.shaders

FOLDER = Path(vkmnn.shaders.__file__).parent / "glsl"
PARTS = (
    *("Computes", "Grid", "Shared memory", "Axes", "Operands", "Constants", "Arithmetic", "Show"),
)
LONG = 160
"""Characters; a header of one line may have as many."""
TEMPLATES = sorted(path.name for path in FOLDER.glob("*.comp.j2"))


def header(name: str) -> str:
    found = re.match(r"\{#(.*?)#\}", (FOLDER / name).read_text("utf-8"), re.DOTALL)
    assert found is not None, f"{name} begins with no header"
    return found.group(1)


@pytest.mark.parametrize("name", TEMPLATES)
def test_form(name: str) -> None:
    text = header(name)
    if "\n" not in text:
        assert len(text) < LONG, "write it in parts: see vkmnn/codegen/README.md"
        return
    parts = re.findall(r"^(\w[\w ]*):", text, re.MULTILINE)
    assert [part for part in PARTS if part in parts] == parts
    assert parts[0] == "Computes"


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_variant_to_show_exists(name: str) -> None:
    shown = re.findall(r"codegen show (\S+)", header(name))
    variants = {f"{one}" for one in json.loads((FOLDER / "macro.json").read_text("utf-8"))}
    assert name in variants
    stem = name.removesuffix(".comp.j2")
    assert all(one == stem or one.startswith(f"{stem}_") for one in shown)
