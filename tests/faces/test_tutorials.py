"""What the tutorials show runs as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vkmnn
from tests import tutorials
from tests.tutorials import NAMES, PAGES
from vkmnn.base.registry import Snapshot


@pytest.mark.parametrize("name", NAMES)
def test_tutorials_run(name: str, registrations: Snapshot, tmp_path: Path) -> None:
    if not vkmnn.devices("vulkan"):
        pytest.skip("no Vulkan device")
    tutorials.run(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_tutorials_have_a_picture_or_say_why_not(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text("utf-8")
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert (PAGES / picture).is_file(), f"run `python -m tests.tutorials {name}`"


def test_every_tutorial_is_listed() -> None:
    index = (PAGES / "index.md").read_text("utf-8")
    site = (PAGES.parents[1] / "mkdocs.yml").read_text("utf-8")
    for name in NAMES:
        assert f"({name}.md)" in index
        assert f"tutorials/{name}.md" in site
