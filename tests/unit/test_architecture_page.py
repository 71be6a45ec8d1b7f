"""docs/architecture.md names existing files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_folders_and_files_exist() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", TEXT))
    assert len(named) > 25
    package = ROOT / "vkmnn"
    places = [ROOT, package, *(path for path in package.iterdir() if path.is_dir())]
    assert [n for n in sorted(named) if not any((place / n).exists() for place in places)] == []


def test_every_folder_of_the_package_is_named() -> None:
    folders = {path.parent for path in (ROOT / "vkmnn").glob("*/__init__.py")}
    assert [path.name for path in sorted(folders) if f"{path.name}/" not in TEXT] == []
