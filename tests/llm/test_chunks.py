"""Chunks of prompts: which sizes a device gets, and the same tokens by all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from vkmnn.errors import OutOfDeviceMemoryError
from vkmnn.llm.chunks import CHUNKS, LARGE_CHUNKS, ChunkWork, chunk_sizes, next_chunk, work_of
from vkmnn.llm.decoder import texts_at_once
from vkmnn.llm.networks import decoder_graph
from vkmnn.llm.sequence import Sequence
from vkmnn.llm.wanted_rows import ROWS
from vkmnn.runtime.device import enumerate_devices, open_profile
from vkmnn.runtime.device_info import DeviceType

pytest.importorskip("tokenizers")
pytest.importorskip("huggingface_hub")

GPU = "nvidia-h200"
PROMPT = np.random.default_rng(7).integers(0, 300, 600).tolist()

needs_device = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = replace(tiny.LLAMA, positions=4096)
    return tiny.genai_folder(tmp_path_factory.mktemp("chunks"), shape)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which each run of several tokens appends their number."""
    sizes: list[int] = []
    run = Sequence._run

    def counted(self: Sequence, tokens: list[int], past: int, rows: list[int]) -> Any:
        if len(tokens) > 1:
            sizes.append(len(tokens))
        return run(self, tokens, past, rows)

    monkeypatch.setattr(Sequence, "_run", counted)
    return sizes


@needs_device
@pytest.mark.parametrize("kind", ["f32", "i8"])
@pytest.mark.parametrize("make", [tiny.genai_folder, tiny.optimum_folder])
def test_a_plan_is_made_when_it_is_needed(make: Any, kind: Any, tmp_path: Path) -> None:
    """The first token takes one, of its chunk; the second one of a step; later texts take none."""
    with vkmnn.llm.load(make(tmp_path, tiny.LLAMA), capacity=64, kv_cache_dtype=kind) as model:
        plans = []
        for tokens in (1, 3, 3):
            model.generate(PROMPT[:3], tokens)
            plans.append(model.counters()["plans"])
        assert plans == [1, 2, 2]


@needs_device
@pytest.mark.parametrize(("capacity", "large"), [(2100, [512, 128]), (610, [512, 128])])
def test_a_text_that_is_alone_runs_in_large_chunks(
    capacity: int, large: list[int], folder: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {}
    for profile, want in (("", [128] * 5), (GPU, large)):
        monkeypatch.setenv("VKMNN_DEVICE_PROFILE", profile)
        with vkmnn.llm.load(folder, capacity=capacity) as model:
            tokens[profile] = model.generate(PROMPT, 4).tokens
        fits = want if capacity > 640 else want[:-1]  # the last part runs in smaller ones
        assert runs[: len(fits)] == fits
        runs.clear()
    assert tokens[""] == tokens[GPU]


@needs_device
def test_a_text_among_others_runs_in_small_chunks(
    folder: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", GPU)
    with vkmnn.llm.load(folder, capacity=700) as model:
        other = model.pieces(PROMPT[:5], 40)
        next(other)
        runs.clear()
        pieces = model.pieces(PROMPT, 4)
        made, _ = next(pieces)
        for _ in pieces:
            next(other)
        assert runs == [32] * 19
        other.close()
        assert made.tokens == model.generate(PROMPT, 4).tokens


@needs_device
def test_chunks_that_do_not_fit_memory_are_given_up(
    folder: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", GPU)
    run, most = Sequence._run, 128

    def limited(self: Sequence, tokens: list[int], past: int, rows: list[int]) -> Any:
        if len(tokens) > most:
            raise OutOfDeviceMemoryError("no memory")
        return run(self, tokens, past, rows)

    monkeypatch.setattr(Sequence, "_run", limited)
    with vkmnn.llm.load(folder, capacity=700) as model:
        model.generate(PROMPT, 2)
        assert runs == [128] * 5
        most = 64
        with pytest.raises(OutOfDeviceMemoryError):
            model.generate(PROMPT[::-1], 2)


@pytest.mark.parametrize(
    ("left", "want"),
    [(1, [1]), (9, [32]), (33, [128]), (129, [128, 1]), (256, [128, 128]), (257, [512]),
     (600, [512, 128]), (1024, [512, 512]), (1025, [2048]), (2049, [2048, 1])],
)  # fmt: skip
def test_padding_less_than_doubles_large_chunks(left: int, want: list[int]) -> None:
    sizes = []
    while left > 0:
        sizes.append(next_chunk(left, (*CHUNKS, *LARGE_CHUNKS)))
        left -= sizes[-1]
    assert sizes == want


def test_many_texts_share_a_step_where_matrices_multiply_their_rows() -> None:
    gpu = open_profile(GPU).info
    text = 100 << 20  # bytes of caches
    assert texts_at_once(gpu, "normal", text) == texts_at_once(gpu, "low", text) == 64
    assert texts_at_once(gpu, "high", text) == 8
    assert texts_at_once(replace(gpu, memory_bytes=16 << 30), "normal", text) == 32
    assert texts_at_once(replace(gpu, memory_bytes=1 << 30), "normal", text) == 8
    assert texts_at_once(replace(gpu, cooperative_matrices=()), "normal", text) == 8
    assert texts_at_once(replace(gpu, type=DeviceType.CPU), "normal", text) == 8


def test_large_chunks_are_for_gpus_with_time_and_memory_for_them() -> None:
    small = ChunkWork(weights=10**9, widest=11264, fused=True)
    large = replace(small, weights=7 * 10**9, widest=28672)
    gpu = open_profile(GPU).info
    assert chunk_sizes(gpu, 4096, small) == (*CHUNKS, 512, 2048)
    assert chunk_sizes(gpu, 4096, large) == (*CHUNKS, 512, 2048)
    assert chunk_sizes(gpu, 2000, small) == (*CHUNKS, 512)
    assert chunk_sizes(gpu, 511, small) == CHUNKS
    assert chunk_sizes(gpu, 4096, replace(small, fused=False)) == CHUNKS
    assert chunk_sizes(replace(gpu, type=DeviceType.CPU), 4096, small) == CHUNKS
    assert chunk_sizes(replace(gpu, memory_bytes=8 << 30), 4096, large) == (*CHUNKS, 512)
    assert chunk_sizes(replace(gpu, multiprocessors=26), 4096, large) == (*CHUNKS, 512)
    slow = replace(gpu, multiprocessors=0, type=DeviceType.INTEGRATED)
    assert chunk_sizes(slow, 4096, large) == CHUNKS
    assert chunk_sizes(None, 4096, small) == CHUNKS


@needs_device
def test_the_work_of_a_token_leaves_out_the_vocabulary(folder: Path) -> None:
    with vkmnn.llm.load(folder, capacity=64) as model:
        decoder = model._decoder
        work = work_of(decoder._network.graph, decoder.vocabulary)
    s = tiny.LLAMA
    layer = s.width * (s.heads + 2 * s.kv_heads) * s.depth + s.heads * s.depth * s.width
    assert work.fused
    assert work.weights == s.layers * (layer + 3 * s.width * s.inner)
    assert work.widest == (s.heads + 2 * s.kv_heads) * s.depth


@pytest.mark.parametrize("export", ["genai", "optimum"])
def test_the_last_layer_computes_only_requested_rows(export: str, tmp_path: Path) -> None:
    """Its projection, its feed-forward network and the logits, from two selections on."""
    if export == "genai":
        tiny.genai_folder(tmp_path, replace(tiny.FAMILIES["gpt-oss"], layers=2))
        source = tmp_path / "model.onnx"
    else:
        tiny.optimum_folder(tmp_path)
        source = tmp_path / "onnx" / "model.onnx"
    graph = decoder_graph(source, "logits", None)
    picked = [op.outputs[0] for op in graph.ops if op.type == "Gather" and ROWS in op.inputs]
    assert len(picked) == 2
    begin = max(at for at, op in enumerate(graph.ops) if op.outputs[0] in picked)
    products = [op for op in graph.ops[begin:] if "MatMul" in op.type]
    assert len(products) >= 4
    for op in products:
        assert "vkmnn:wanted" in (graph.infos[op.outputs[0]].shape or ())
