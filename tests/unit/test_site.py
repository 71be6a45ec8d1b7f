"""Pages of the documentation: their length, navigation, links and tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROOT = DOCS.parent
MOST_WORDS = 1500
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if path.parent.name != "lab"  # notes are frozen
)
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "vkmnn", "vkmnn_suite")
ALL = sorted(
    [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
)


def prose(path: Path) -> str:
    """Return a page without its listings, whose lines stay as empty ones."""
    text = path.read_text("utf-8")
    return re.sub(r"(?ms)^```.*?^```", lambda code: "\n" * code[0].count("\n"), text)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"(?m)^#+ (.+)$", prose(path))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_tables(page: Path) -> None:
    """Links name files and anchors that exist; all rows of a table have as many cells."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link
    cells = 0
    for number, line in enumerate(prose(page).split("\n"), 1):
        if line.startswith("|"):
            found = len(re.findall(r"(?<!\\)\|", line))
            assert found == (cells or found), number
            assert line.rstrip().endswith("|"), number
            cells = found
        else:
            assert not (cells and line.strip()), number
            cells = 0


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    if page.startswith("operators"):
        text = re.sub(r"(?m)^\|.*$", "", text)  # a table to look up names in, not to be read
    words = [word for word in text.split() if set(word) - set("|-:")]
    assert len(words) <= MOST_WORDS


def test_every_page_is_on_the_site() -> None:
    site = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    listed = set(re.findall(r"^ +- ([\w/.-]+\.md)$", site, re.MULTILINE))
    assert {page for page in PAGES if not page.startswith("decisions/")} <= listed
    index = (DOCS / "decisions" / "README.md").read_text("utf-8")
    for page in PAGES:
        if page.startswith("decisions/") and not page.endswith("README.md"):
            assert f"({Path(page).name})" in index
