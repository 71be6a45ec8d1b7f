"""docs/extending/element-type.md is correct: its listing runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vkmnn.codegen.compiler import Compiler
from vkmnn.runtime.device import enumerate_devices, open_device

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending" / "element-type.md"


@pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")
def test_the_listing_runs(compiler: Compiler) -> None:
    needs = {"storage8", "storage16", "texel_rgba8ui", "texel_rgba16f"}
    missing = needs - open_device("auto").info.features
    if missing:
        pytest.skip(f"the device lacks {', '.join(sorted(missing))}")
    (listing,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(listing, {})  # noqa: S102 - our own page


def test_the_places_exist() -> None:
    """The page names files and names in them: renaming one requires changing the page."""
    root = PAGE.parents[2]
    text = PAGE.read_text("utf-8")
    for path in re.findall(r"`(vkmnn/[\w/.]+)`", text):
        assert (root / path).is_file(), path
    for name in ("stored_element", "element_bytes", "stored_dtype"):
        assert name in text
        assert f"def {name}" in (root / "vkmnn/vulkan/storage.py").read_text("utf-8")
