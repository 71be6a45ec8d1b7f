"""How many dispatches a layer of a decoder adds to a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.llm import tiny
from tests.llm.oracle import greedy
from vkmnn.llm.sequence import Sequence
from vkmnn.runtime.device import enumerate_devices

MOST = 5
BESIDE = 4
"""Of a greedy step, beside its layers: the embedding, the logits, the choice, and the length."""
SAMPLED = 5
"""Of a sampled step, beside its layers: a random number more."""
PROMPT = [5, 100, 7, 3, 250, 9]


def _commands(folder: Path, tokens: int, caches: vkmnn.llm.KvCacheDtype = "f32") -> float:
    """Return the commands of a token after the first step."""
    with vkmnn.llm.load(folder, capacity=100, kv_cache_dtype=caches) as model:
        session = model.session()
        session.generate(PROMPT, 1)
        session.generate([1], 1)
        before = model.counters()
        session.generate([1], tokens)
        after = model.counters()
    runs = after["submits"] - before["submits"]
    for name in ("plans", "recordings", "allocations"):
        assert after[name] == before[name], name
    return (after["commands"] - before["commands"]) / runs


def _check(counts: list[float], shape: tiny.Shape) -> None:
    """Check the dispatches of a step with one layer and with three."""
    layer = (counts[1] - counts[0]) / 2
    more = shape.scaled + bool(shape.softcap)  # of embeddings, of logits
    assert layer <= MOST
    assert counts[0] - layer <= BESIDE + more


def _folder(path: Path, shape: tiny.Shape, codes: bool) -> Path:
    tiny.genai_folder(path, shape)
    if codes:
        proto = tiny.four_bits(onnx.load(str(path / "model.onnx")))
        onnx.save(proto, str(path / "model.onnx"))
    return path


@pytest.mark.parametrize(
    ("codes", "packed", "family"),
    [
        (True, True, "llama"),
        (True, False, "qwen2"),
        (False, True, "qwen2"),
        (False, False, "llama"),
        (True, True, "gemma2"),
        (False, True, "gpt-oss"),
    ],
)
def test_dispatches_of_a_layer(codes: bool, packed: bool, family: str, tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    counts = []
    for layers in (1, 3):
        shape = replace(tiny.FAMILIES[family], layers=layers, packed=packed)
        folder = _folder(tmp_path / f"{layers}", shape, codes)
        counts.append(_commands(folder, 6))
        with vkmnn.llm.load(folder, capacity=100) as model:
            tokens = model.generate(PROMPT, 20).tokens
        assert tokens == greedy(folder / "model.onnx", PROMPT, 20)[: len(tokens)]
    _check(counts, shape)


@pytest.mark.parametrize(("plain", "family"), [(False, "llama"), (True, "qwen2")])
def test_dispatches_of_a_layer_of_half_floats(plain: bool, family: str, tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    make, name = (tiny.optimum_folder, "onnx/model.onnx") if plain else (
        tiny.genai_folder, "model.onnx")  # fmt: skip
    counts = []
    for layers in (1, 3):
        shape = replace(tiny.FAMILIES[family], layers=layers)
        folder = make(tmp_path / f"{layers}", shape)
        wide = tmp_path / f"{layers}.onnx"
        onnx.save(tiny.rounded(onnx.load(str(folder / name))), str(wide))
        onnx.save(tiny.half_floats(onnx.load(str(folder / name))), str(folder / name))
        counts.append(_commands(folder, 6))
    with vkmnn.llm.load(folder, capacity=100) as model:
        tokens = model.generate(PROMPT, 20).tokens
    assert tokens == greedy(wide, PROMPT, 20)[: len(tokens)]
    _check(counts, shape)


@pytest.mark.parametrize(
    ("family", "style"),
    [
        ("llama", ""),
        ("qwen2", "indexed"),
        ("phi", "triangle"),
        ("gemma", "pairs"),
        ("gemma", "indexed"),
    ],
)
def test_dispatches_of_a_layer_of_plain_operators(family: str, style: str, tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    base = tiny.FAMILIES[family]
    counts = []
    for layers in (1, 3):
        shape = replace(base, layers=layers, style=style)
        folder = tiny.optimum_folder(tmp_path / f"{layers}", shape)
        counts.append(_commands(folder, 6))
    with vkmnn.llm.load(folder, capacity=100) as model:
        tokens = model.generate(PROMPT, 30).tokens
    assert tokens == greedy(folder / "onnx" / "model.onnx", PROMPT, 30)[: len(tokens)]
    _check(counts, shape)


@pytest.mark.parametrize(("codes", "most"), [(True, MOST), (False, 8)])
def test_dispatches_of_a_layer_of_few_rows(codes: bool, most: int, tmp_path: Path) -> None:
    """A run that checks guesses: one dispatch appends to its caches and attends to them as well."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    counts = []
    for layers in (1, 3):
        folder = _folder(tmp_path / f"{layers}", replace(tiny.LLAMA, layers=layers), codes)
        with vkmnn.llm.load(folder, capacity=100) as model:
            text = Sequence(model._decoder)
            alone = [text.extend([token])[-1] for token in PROMPT[:4]][-1]
            for _ in range(2):  # the first time, it is planned
                text.truncate(0)
                text.extend(PROMPT[:1])
                for name in model._decoder.caches:
                    memory = text._state.memory(name)
                    array = memory.numpy()
                    array[:, :, 1:] = np.nan
                    memory.copy_from(array)
                before = model.counters()
                logits = text.extend(PROMPT[1:4], 3)
                after = model.counters()
            counts.append(after["commands"] - before["commands"])
            for name in ("plans", "recordings", "allocations"):
                assert after[name] == before[name], name
            np.testing.assert_allclose(logits[-1], alone, rtol=1e-3, atol=1e-4)
            text.close()
    assert (counts[1] - counts[0]) / 2 <= most


@pytest.mark.parametrize("how", [{"top_k": 40}, {"top_p": 0.9, "min_p": 0.1}], ids=str)
def test_dispatches_of_a_sampled_step(how: dict[str, Any], tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    folder = _folder(tmp_path, replace(tiny.LLAMA, layers=1), codes=True)
    with vkmnn.llm.load(folder, capacity=100) as model:
        after = []
        for tokens in (12, 6, 12):  # the first records steps
            made = model.generate(PROMPT, tokens, temperature=0.8, seed=1, **how)
            assert len(made.tokens) == tokens
            after.append(model.counters()["commands"])
    assert (after[2] - 2 * after[1] + after[0]) / 6 <= MOST + SAMPLED


def test_what_is_before_a_window_is_not_read(tmp_path: Path) -> None:
    """A window needs no mask either: steps read none from the host, however long sequences are."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    folder = tiny.genai_folder(tmp_path, replace(tiny.GPT_OSS, layers=1))
    with vkmnn.llm.load(folder, capacity=400) as model:
        made = []
        for poison in (0, 41 - tiny.GPT_OSS.window):
            session = model.session()
            session.generate([7] * 40, 1)
            for name in model._decoder.caches:
                memory = session._sequence._state.memory(name)
                array = memory.numpy()
                array[:, :, :poison] = np.nan
                memory.copy_from(array)
            made.append(session.generate([9], 10).tokens)
        assert made[0] == made[1]
        assert len(made[0]) == 10
