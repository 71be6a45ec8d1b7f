"""Pages of docs/: short enough to be read, and on the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST_WORDS = 1500
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if path.parent.name != "lab"  # notes are frozen
)


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
