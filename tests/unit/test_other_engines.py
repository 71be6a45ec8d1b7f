"""docs/other-engines*.md: every row once, every name there, every test there."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("other-engines*.md"))

ROWS = range(1, 165)
STATES = {"works", "partial", "missing", "later", "not applicable"}
LATER: set[int] = set()
NOT_APPLICABLE = {57, 58}  # OpenCL's and OpenGL's sources


@dataclass(frozen=True)
class Row:
    """One line of the page's tables."""

    number: int
    what: str
    state: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    note: str


def rows(text: str) -> Iterator[Row]:
    """Yield the rows of all tables whose first cell is a number."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit():
            number, what, state, names, tests, note = cells
            quoted = (tuple(re.findall(r"`([^`]+)`", cell)) for cell in (names, tests))
            yield Row(int(number), what, state, *quoted, note)


TABLE = tuple(row for page in PAGES for row in rows(page.read_text("utf-8")))


def complaints(row: Row) -> Iterator[str]:
    """Describe the error in a row."""
    if row.state not in STATES:
        yield f"there is no state '{row.state}'"
    if row.state == "works" and not (row.names and row.tests):
        yield "what works has a name and a test"
    if row.state != "works" and not row.note:
        yield f"'{row.state}' needs a reason"
    for name in row.names:
        if not resolves(name):
            yield f"{name} does not exist"
    for test in row.tests:
        if not is_test(test):
            yield f"{test} is not a test"


def resolves(name: str) -> bool:
    """Whether `module:attribute.attribute` can be imported."""
    module, colon, attributes = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError):
        return False
    return bool(colon)


def is_test(name: str) -> bool:
    """Return whether pytest finds `file::function` in the folder of tests."""
    file, _, function = name.partition("::")
    return re.fullmatch(r"(.*/)?test_\w+\.py", file) is not None and function in functions(file)


@functools.cache
def functions(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text("utf-8")) if path.is_file() else ast.parse("")
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_every_row_is_there_once() -> None:
    counts = Counter(row.number for row in TABLE)
    assert counts == dict.fromkeys(ROWS, 1)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.number))
def test_names_and_tests_are_there(row: Row) -> None:
    assert list(complaints(row)) == []


def test_what_waits_and_what_does_not_apply() -> None:
    assert {row.number for row in TABLE if row.state == "later"} == LATER
    assert {row.number for row in TABLE if row.state == "not applicable"} <= NOT_APPLICABLE


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("| 1 | it | works | | | |", "a name and a test"),
        ("| 1 | it | done | | | why |", "no state"),
        ("| 1 | it | missing | | | |", "a reason"),
        ("| 1 | it | partial | `vkmnn.plugin:nothing` | | why |", "nothing does not exist"),
        ("| 1 | it | partial | `vkmnn.nothing:kernel` | | why |", "kernel does not exist"),
        ("| 1 | it | partial | `vkmnn.plugin` | | why |", "does not exist"),
        ("| 1 | it | partial | | `cli/test_commands.py::test_nothing` | why |", "not a test"),
        ("| 1 | it | partial | | `cli/test_commands.py::_helper` | why |", "not a test"),
        ("| 1 | it | partial | | `conftest.py::device` | why |", "not a test"),
        ("| 1 | it | works | `vkmnn.plugin:kernel` | `cli/test_commands.py::test_info` | |", None),
    ],
)
def test_the_check_itself(line: str, complaint: str | None) -> None:
    (row,) = rows(line)
    found = list(complaints(row))
    assert len(found) == (complaint is not None)
    assert complaint is None or complaint in found[0]
