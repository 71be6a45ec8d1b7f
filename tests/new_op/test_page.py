"""docs/extending/operator.md is correct: its commands are run, and its listings inserted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.new_op.conftest import Place

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending" / "operator.md"
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


def blocks(section: str) -> list[tuple[str, str, str]]:
    """Return (last line before, language, text) of the section's code blocks."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [(m["before"], m["language"], m["text"]) for m in _BLOCK.finditer(text)]


def put(path: Path, text: str) -> None:
    """Insert a listing: a whole template, or, in a module, the function that it shows."""
    if path.suffix == ".py":
        old = path.read_text("utf-8")
        name = re.search(r"^def (\w+)", text, re.MULTILINE)
        assert name is not None
        function = rf"(^@[^\n]*\n)*^def {name[1]}\(.*?(?=\n\n\n)"
        new, count = re.subn(function, lambda _: text.rstrip(), old, flags=re.DOTALL | re.MULTILINE)
        assert count == 1, f"{path} has {count} functions {name[1]}"
        text = new
    path.write_text(text, "utf-8")


def follow(section: str, place: Place) -> list[str]:
    """Follow the instructions of a section; return the output of its commands."""
    said = []
    for before, language, text in blocks(section):
        if language == "sh":
            said.append(place.run("sh", "-ec", text))
        elif language in ("glsl", "python"):
            file = re.findall(r"`([^`]+)`", before)[-1]
            assert (place.folder / file).is_file(), f"new-op has not written {file}"
            put(place.folder / file, text)
    return said


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.elsewhere("test: tests/new_op/test_example.py installs one")
def test_a_package(fresh_environment: Place, drivers: list[dict[str, str]]) -> None:
    place = fresh_environment
    said = follow("Writing the operator", place)
    assert "op type SwiGLU" in said[0]
    assert "passed" in said[0]
    assert "passed" in said[1]
    assert "swiglu_texel" in said[2] or "swiglu_buffer" in said[2]  # the table names the worst
    for env in drivers[1:]:
        assert "passed" in place.pytest("vkmnn-swiglu/tests", env=env)
    place.lint(".", folder="vkmnn-swiglu", types=False)


def test_the_page_names_what_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8")):
        assert (PAGE.parent / target).exists(), target
