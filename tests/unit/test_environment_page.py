"""docs/environment.md and the code name the same environment variables."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "environment.md"
_NAME = re.compile(r"\bVKMNN_[A-Z0-9_]+\b")


def sources() -> list[Path]:
    folders = ("vkmnn", "vkmnn_suite", "tests", "benchmarks", "examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [ROOT / "tasks.py", *(path for path in found if path != Path(__file__))]


def in_code() -> dict[str, str]:
    names: dict[str, str] = {}
    for path in sources():
        for name in _NAME.findall(path.read_text("utf-8")):
            names.setdefault(name, str(path.relative_to(ROOT)))
    return names


def explained() -> list[str]:
    rows = re.findall(r"^\| `(VK[A-Z0-9_]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return [str(row) for row in rows]


def test_every_variable_of_the_code_is_on_the_page():
    missing = {name: path for name, path in in_code().items() if name not in explained()}
    assert not missing


def test_the_page_explains_nothing_that_is_gone():
    ours = {name for name in explained() if name.startswith("VKMNN_")}
    assert ours <= set(in_code())


def test_every_variable_is_explained_once():
    assert sorted(explained()) == sorted(set(explained()))
