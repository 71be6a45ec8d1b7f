"""The examples of the pages about the faces run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import vkmnn
from tests.cli.conftest import convolution
from tests.llm import tiny
from tests.llm.test_described import _spoken
from vkmnn import discovery
from vkmnn.base.registry import Snapshot
from vkmnn.runtime import drivers

DOCS = Path(__file__).resolve().parents[2] / "docs"
TENSORFLOW = DOCS.parent / "tests" / "data" / "tensorflow"
EXTENDING = tuple(
    f"extending/{name}.md" for name in ("README", "front-end", "driver", "pass", "plugin")
)
PAGES = (
    *("coming-from-onnxruntime.md", "coming-from-mnn.md", "coming-from-tflite.md"),
    *("coming-from-tensorflow.md", "formats.md", "tools.md", "map.md"),
    *("coming-from-ncnn.md", "coming-from-llama-cpp.md", "mnn-functions.md"),
    *("model-file.md", "operators.md"),
)


def test_every_page_on_extending_is_listed() -> None:
    index = (DOCS / "extending" / "README.md").read_text("utf-8")
    pages = {path.name for path in (DOCS / "extending").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([\w.-]+\.md)\)", index))
    for link in re.findall(r"\]\(([\w./-]+\.md)\)", index):
        assert (DOCS / "extending" / link).is_file(), link


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(
    page: str,
    dense: Path,
    pictures: Path,
    registrations: Snapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copy(pictures if "mnn" in page else dense, tmp_path / "model.onnx")
    shutil.copy(TENSORFLOW / "cnn.pb", tmp_path / "frozen.pb")
    for name in ("several", "counter") if "tensorflow" in page else ():
        shutil.unpack_archive(TENSORFLOW / f"{name}.zip", tmp_path / name)
    if "llama" in page:
        pytest.importorskip("tokenizers")
        _spoken(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    run(page, listings(page))


@pytest.mark.parametrize("page", ["../README.md", "start.md"])
def test_first_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    convolution(tmp_path / "model.onnx", ["N", 3, 224, 224], 2)
    run(page, listings(page))


@pytest.mark.parametrize(
    ("page", "packages"),
    [("language-models.md", ()), ("openai-api.md", ("openai", "llguidance"))],
)
def test_examples_of_language_models_run(
    page: str, packages: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tokenizers", *packages):
        pytest.importorskip(package)
    qwen = tmp_path / "onnx-community" / "Qwen2.5-0.5B-Instruct"
    tiny.optimum_folder(qwen, name="onnx/model_q4f16.onnx")
    tiny.optimum_folder(tmp_path / "my-model")
    tiny.embedding_folder(tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2")
    tiny.seq2seq_folder(tmp_path / "my-t5")
    monkeypatch.chdir(tmp_path)  # a folder that exists is no name on the hub
    run(page, listings(page))


@pytest.mark.parametrize("page", EXTENDING)
def test_extensions_run(
    page: str,
    dense: Path,
    registrations: Snapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "driver" in page and not vkmnn.devices("vulkan"):
        pytest.skip("no Vulkan device")
    shutil.copy(dense, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(drivers, "DRIVERS", dict(drivers.DRIVERS))
    monkeypatch.setattr(discovery, "_loaded", dict(discovery._loaded))
    blocks = listings(page)
    for block in blocks:
        if (name := re.match(r"# (\w+\.py)\n", block)) is not None:
            Path(name[1]).write_text(block, "utf-8")
    names = run(page, [block for block in blocks if not re.match(r"# \w+\.py\n", block)])
    if "driver" in page:
        session: Any = names["session"]
        assert drivers.get_driver("counting").dispatches > 0  # type: ignore[attr-defined]
        session.close()


def listings(page: str) -> list[str]:
    """Return the Python listings of a page."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    return blocks


def run(page: str, blocks: list[str]) -> dict[str, object]:
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # noqa: S102 - the page is ours
    return names
