"""docs/gallery.md: its commands print what it shows, and draw its pictures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vkmnn
from tests import gallery
from tests.gallery import MEASURED, PAGE, PICTURES, SHOWN

TEXT = PAGE.read_text("utf-8")
MOST_BYTES = 150_000


@pytest.mark.parametrize("name", SHOWN)
def test_commands_print_and_draw_what_is_shown(name: str, tmp_path: Path) -> None:
    if not vkmnn.devices("vulkan"):
        pytest.skip("no Vulkan device")
    section = TEXT.partition(f"```sh\n{SHOWN[name].line(name)}\n```")[2]
    printed, pair = gallery.run(name, tmp_path)
    shown = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert shown is not None, "the page does not have the command"
    text = " ".join(printed.export_text().split())
    for line in shown[1].splitlines():
        assert " ".join(line.split()) in text
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", section)
    assert picture is not None
    assert picture[1] == f"images/gallery/{name}.webp"
    kept = np.asarray(Image.open(PICTURES / f"{name}.webp").convert("RGB")).astype(int)
    drawn = np.asarray(pair.convert("RGB")).astype(int)
    assert drawn.shape == kept.shape, f"run `python -m tests.gallery {name}`"
    assert np.abs(drawn - kept).mean() < 5  # fonts of other versions of pillow, and WebP's losses


def test_pictures_are_small_and_shown() -> None:
    files = sorted(PICTURES.iterdir())
    assert {path.stem for path in files} == set(SHOWN)
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_figures_are_of_all_networks(tmp_path: Path) -> None:
    """Sizes and nodes are up to date; kernels and times depend on the device."""
    rows = gallery.recorded()
    assert list(rows) == [*SHOWN, *MEASURED]
    assert len(rows) >= 20
    for name, make in gallery.cases().items():
        model, feeds = make(tmp_path)
        assert rows[name][2:4] == [gallery.kib(model), str(len(model.graph.node))], name
        assert set(feeds) <= {one.name for one in model.graph.input}
