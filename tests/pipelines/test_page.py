"""The pages on pipelines: examples run, the table has every task, the picture is up to date."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vkmnn
from tests.pipelines.networks import canned, stripes
from tests.pipelines.painters import painter_folder
from tests.pipelines.test_detect import ULTRALYTICS, yolov8
from tests.pipelines.test_ocr import letters
from vkmnn.pipelines import TASKS, task_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
PAINTING = (ROOT / "docs" / "text-to-image.md").read_text("utf-8")
PICTURE = ROOT / "docs" / "images" / "boxes.png"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canned(tmp_path / "yolo.onnx", yolov8(), props=ULTRALYTICS)
    Image.fromarray(stripes(240, 400)).save(tmp_path / "street.png")
    (tmp_path / "ocr").mkdir()
    letters(tmp_path / "ocr")
    painter_folder(tmp_path / "sd")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE + PAINTING, re.DOTALL):
        exec(compile(block, "pipelines.md", "exec"), names)  # noqa: S102 - the pages are ours
    made = np.asarray(Image.open("out.png").convert("RGB")).astype(int)
    if not PICTURE.is_file():  # made anew by deleting it
        shutil.copy("out.png", PICTURE)
    kept = np.asarray(Image.open(PICTURE).convert("RGB")).astype(int)
    assert made.shape == kept.shape
    assert np.abs(made - kept).mean() < 3  # fonts of other versions of pillow may differ


def test_the_table_has_every_task() -> None:
    listed = {}
    for title in ("Tasks", "Texts and sounds"):
        table = PAGE.partition(f"## {title}")[2].partition("## ")[0]
        listed[title] = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \|", table, re.MULTILINE)
    pictures = {task.name for task in TASKS if task.on == "picture"}
    assert {name for name, _ in listed["Tasks"]} == pictures - {"instance-segmentation"}
    others = {task.name for task in TASKS} - pictures
    assert {name for name, _ in listed["Texts and sounds"]} == others
    for name, short in (*listed["Tasks"], *listed["Texts and sounds"]):
        assert task_of(short).name == name
    assert task_of("instances").name == "instance-segmentation"


def test_results_are_public() -> None:
    from vkmnn import pipelines

    for name in re.findall(r"\| `([A-Z]\w+)` \|$", PAGE, re.MULTILINE):
        assert hasattr(pipelines, name)
    assert vkmnn.pipeline is pipelines.pipeline
