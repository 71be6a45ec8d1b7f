"""Caches of keys and values in float16 and 8 bits: the same paths, half and a quarter of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from vkmnn.llm import KvCacheDtype, LanguageModel
from vkmnn.runtime.device import enumerate_devices

pytest.importorskip("tokenizers")

PACKED: tuple[KvCacheDtype, ...] = ("f16", "i8")
ERRORS = {"f32": 0.0, "f16": 2e-4, "i8": 5e-3}
"""Of logits, as parts of their range."""
IDS = np.random.default_rng(5).integers(0, 300, 70).tolist()


@pytest.fixture(autouse=True)
def _needs_a_device() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.genai_folder(tmp_path_factory.mktemp("packed"))


def _logits(model: LanguageModel) -> np.ndarray:
    """Return logits after a chunk of a prompt, of several rows, and of a single one."""
    with model.sequence() as sequence:
        runs = [sequence.extend(IDS), sequence.extend([5, 6, 7], 3), sequence.extend([8])]
        return np.concatenate(runs)


@pytest.mark.parametrize(
    ("family", "style"), [("llama", None), ("gpt-oss", None), ("qwen2", "indexed")]
)
def test_logits_are_close(family: str, style: str | None, tmp_path: Path) -> None:
    shape = tiny.FAMILIES[family]
    if style is None:
        tiny.genai_folder(tmp_path, shape)
    else:
        tiny.optimum_folder(tmp_path, replace(shape, style=style))
    found = {}
    for kind in ERRORS:
        with vkmnn.llm.load(tmp_path, capacity=100, kv_cache_dtype=kind) as model:  # type: ignore[arg-type]
            found[kind] = _logits(model)
    whole = found["f32"]
    for kind, most in ERRORS.items():
        error = np.abs(found[kind] - whole).max() / np.ptp(whole)
        assert error <= most, (kind, error)
        assert error > 0 or kind == "f32"


@pytest.mark.parametrize("kind", PACKED)
def test_texts_together_and_on_kept_rows(kind: KvCacheDtype, folder: Path) -> None:
    """Batched steps, rows of earlier texts, and a longer text than fits the first caches."""
    with vkmnn.llm.load(folder, capacity=300, kv_cache_dtype=kind) as model:
        prompts = [[*IDS, end] for end in range(3)]
        want = [model.generate(one, 30).tokens for one in prompts]
        before = model.counters()["submits"]
        together = model.generate(prompts, 30)
        assert [one.tokens for one in together] == want
        steps = model.counters()["submits"] - before
        assert steps < 2 * max(map(len, want)), steps
        model.share_prefixes(1 << 20)
        for end in range(3):
            model.generate([end, *IDS], 1)
            assert model.generate(prompts[end], 30).tokens == want[end]
        assert model.memory()["prefixes"] > 0
        assert model.generate(prompts[0], 200).tokens[: len(want[0])] == want[0]


def test_memory_shrinks(folder: Path) -> None:
    bytes_of = {}
    for kind in ERRORS:
        with vkmnn.llm.load(folder, capacity=128, kv_cache_dtype=kind) as model:  # type: ignore[arg-type]
            model.generate(IDS, 2)
            bytes_of[kind] = model.memory()["caches"]
    assert bytes_of["f16"] * 2 == bytes_of["f32"]
    assert bytes_of["i8"] * 16 == bytes_of["f32"] * 5  # rows of 16 elements, 4 bytes of scales


@pytest.mark.parametrize("kind", PACKED)
def test_sessions_are_kept_and_read(kind: KvCacheDtype, folder: Path, tmp_path: Path) -> None:
    """Files hold rows as they are stored; those of float32 are packed when they are read."""
    with vkmnn.llm.load(folder, capacity=100) as whole:
        text = whole.session()
        text.generate(IDS, 3)
        text.save(tmp_path / "f32.npz")
    with vkmnn.llm.load(folder, capacity=100, kv_cache_dtype=kind) as model:
        text = model.session()
        text.generate(IDS, 3)
        text.save(tmp_path / "packed.npz")
        want = text.generate([1, 2], 6).tokens
        assert model.session(tmp_path / "packed.npz").generate([1, 2], 6).tokens == want
        assert model.session(tmp_path / "f32.npz").generate([1, 2], 6).tokens == want
    assert (tmp_path / "packed.npz").stat().st_size < 0.6 * (tmp_path / "f32.npz").stat().st_size
    with (
        vkmnn.llm.load(folder, capacity=100) as whole,
        pytest.raises(vkmnn.InvalidInputError, match="int32"),
    ):
        whole.session(tmp_path / "packed.npz")


def test_what_cannot_be_packed_says_so(folder: Path) -> None:
    with pytest.raises(vkmnn.InvalidInputError, match="kv_cache_dtype is 'q8'"):
        vkmnn.llm.load(folder, kv_cache_dtype="q8")  # type: ignore[arg-type]
    with (
        vkmnn.llm.load(folder, "cpu", kv_cache_dtype="i8") as model,
        pytest.raises(vkmnn.InvalidInputError, match="cannot be stored as i8"),
    ):
        model.generate(IDS, 2)
