"""The examples of the pages about the faces run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("coming-from-onnxruntime.md", "coming-from-mnn.md")


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(
    page: str, dense: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(pictures if "mnn" in page else dense, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert len(blocks) > 1
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # noqa: S102 - the page is ours
