"""Joint steps of several sequences: each chooses the same tokens as it would alone."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.llm import tiny
from tests.llm.oracle import greedy
from vkmnn.decoding import state_tensors
from vkmnn.decoding.cache_pool import CachePool
from vkmnn.llm.decoder import Decoder
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.recorder import CommandBuffer

PROMPTS = [[*[5, 100, 7, 3, 250, 9][start:], number] for number, start in
           enumerate((0, 1, 2, 3, 0, 4, 5, 1, 2, 3))]  # fmt: skip
MOST = 5


def _in_codes(path: Path) -> Path:
    tiny.genai_folder(path)
    proto = tiny.four_bits(onnx.load(str(path / "model.onnx")))
    onnx.save(proto, str(path / "model.onnx"))
    return path


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "genai": tiny.genai_folder,
    "codes": _in_codes,
    "windows": lambda path: tiny.genai_folder(path, tiny.GPT_OSS),
    "soft caps": lambda path: tiny.genai_folder(path, tiny.GEMMA2),
    "phi": lambda path: tiny.optimum_folder(path, tiny.PHI),
    "triangle": lambda path: tiny.optimum_folder(
        path, replace(tiny.FAMILIES["qwen2"], style="triangle")
    ),
}


def _folder(name: str, path: Path) -> Path:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    return FOLDERS[name](path)


@pytest.fixture(scope="module", autouse=True)
def _batches_on_every_device() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "_batches", lambda _: True)
        yield


@pytest.fixture(scope="module", params=FOLDERS)
def every_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = _folder(request.param, tmp_path_factory.mktemp(request.param))
    with vkmnn.llm.load(folder, capacity=330) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = _folder("genai", tmp_path_factory.mktemp("model"))
    with vkmnn.llm.load(folder, capacity=330) as made:
        yield made


def _used(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after}


def _in_turns(model: Any, options: list[dict[str, Any]], tokens: int) -> list[list[int]]:
    """Return the tokens of sequences that alternate, each with its own options."""
    pairs = zip(PROMPTS, options, strict=False)
    streams = [model.pieces(prompt, tokens, **how) for prompt, how in pairs]
    ends = [next(stream)[0] for stream in streams]
    while sum(next(stream, None) is not None for stream in streams):
        pass
    return [end.tokens for end in ends]


def test_a_batch_gives_what_each_text_gives(every_model: Any) -> None:
    """More sequences than rows: those that end make room for others."""
    made = every_model.generate(PROMPTS, 20)
    for prompt, one in zip(PROMPTS, made, strict=True):
        expected = greedy(every_model.layout.decoder, prompt, 20)
        assert one.tokens == expected[: len(one.tokens)]
        assert len(one.tokens) == 20 or one.finish_reason == "stop"


def test_after_warm_up_steps_are_submitted_and_nothing_else(every_model: Any) -> None:
    prompts = [prompt[:1] * 3 for prompt in PROMPTS[:8]]
    for _ in range(2):
        every_model.generate(prompts, 30)
    before = every_model.counters()
    made = every_model.generate(prompts, 30)
    used = _used(before, every_model.counters())
    for name in ("plans", "recordings", "allocations"):
        assert used[name] == 0, name
    rows = sum(len(one.tokens) for one in made)
    longest = max(len(one.tokens) for one in made)
    assert longest <= used["submits"] <= longest + len(prompts) + 10 < rows


@pytest.mark.parametrize("codes", [True, False])
def test_dispatches_of_a_layer(codes: bool, tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    counts = []
    for layers in (1, 3):
        folder = tiny.genai_folder(tmp_path / f"{layers}", replace(tiny.LLAMA, layers=layers))
        if codes:
            proto = tiny.four_bits(onnx.load(str(folder / "model.onnx")))
            onnx.save(proto, str(folder / "model.onnx"))
        with vkmnn.llm.load(folder, capacity=100) as model:
            streams = [model.pieces(prompt, 60) for prompt in PROMPTS[:4]]
            for _ in range(12):
                for stream in streams:
                    next(stream, None)
            before = model.counters()
            for _ in range(8):
                for stream in streams:
                    next(stream, None)
            used = _used(before, model.counters())
            for stream in streams:
                stream.close()
        assert 4 <= used["submits"] <= 9  # some tokens were made before
        counts.append(used["commands"] / used["submits"])
    assert (counts[1] - counts[0]) / 2 <= (MOST if codes else 8)


def test_caches_double_while_texts_go_on(model: Any) -> None:
    lengths = (300, 40, 260, 300)
    alone = [model.generate(p, n).tokens for p, n in zip(PROMPTS, lengths, strict=False)]
    streams = [model.pieces(p, n) for p, n in zip(PROMPTS, lengths, strict=False)]
    ends = [next(stream)[0] for stream in streams]
    while sum(next(stream, None) is not None for stream in streams):
        pass
    assert [end.tokens for end in ends] == alone


def test_a_full_text_ends_and_others_go_on(model: Any) -> None:
    long = [3] * (model.capacity - 5)
    alone = [model.generate(p, n).tokens for p, n in ((long, None), (PROMPTS[0], 20))]
    streams = [model.pieces(long), model.pieces(PROMPTS[0], 20)]
    ends = [next(stream)[0] for stream in streams]
    while sum(next(stream, None) is not None for stream in streams):
        pass
    assert [end.tokens for end in ends] == alone


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.5, "top_k": 5, "seed": 4},
    {"temperature": 1.2, "top_p": 0.7, "min_p": 0.02, "seed": 5},
    {"repetition_penalty": 1.3},
    {"temperature": 0.9, "repetition_penalty": 1.1, "seed": 6},
    {"speculate": 4},
    {},
]


@pytest.mark.parametrize("part", [slice(0, 4), slice(0, 8), slice(4, 6)], ids=str)
def test_each_text_is_chosen_in_its_own_way(model: Any, part: slice) -> None:
    options = OPTIONS[part]
    pairs = list(zip(PROMPTS, options, strict=False))
    alone = [model.generate(prompt, 12, **how).tokens for prompt, how in pairs]
    assert _in_turns(model, options, 12) == alone


def test_texts_of_threads_take_steps_at_once(model: Any) -> None:
    alone = [model.generate(prompt, 25).tokens for prompt in PROMPTS]
    made: dict[int, list[int]] = {}

    def write(number: int) -> None:
        made[number] = model.generate(PROMPTS[number], 25).tokens

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [made.get(number) for number in range(len(PROMPTS))] == alone


def test_texts_begin_and_are_dropped_between_steps(model: Any) -> None:
    alone = [model.generate(prompt, 15).tokens for prompt in PROMPTS[:3]]
    first = model.pieces(PROMPTS[0], 15)
    end = next(first)[0]
    dropped = model.pieces(PROMPTS[1], 15)
    for _ in range(3):
        next(first)
        next(dropped)
    second = model.pieces(PROMPTS[2], 15)
    later = next(second)[0]
    next(first)
    dropped.close()
    again = model.pieces(PROMPTS[1], 15)  # in the caches of the one that was dropped
    last = next(again)[0]
    streams = [first, second, again]
    while sum(next(stream, None) is not None for stream in streams):
        pass
    assert [end.tokens, last.tokens, later.tokens] == alone


def test_nothing_past_the_lengths_is_read(model: Any) -> None:
    alone = [model.generate(prompt, 12).tokens for prompt in PROMPTS[:3]]
    with model.sequence(PROMPTS[3]):  # takes no part
        streams = [model.pieces(prompt, 12) for prompt in PROMPTS[:3]]
        ends = [next(stream)[0] for stream in streams]
        pool = model._decoder._pool
        while sum(next(stream, None) is not None for stream in streams):
            pool._finish_all()
            for seat in pool._taken():
                valid = max(seat.rows if seat.active else 0, seat.tensors.length)
                for tensor, _ in seat.tensors.rows().values():
                    array = tensor.numpy()
                    array[:, :, valid:] = np.nan
                    tensor.copy_from(array)
    assert [end.tokens for end in ends] == alone


@pytest.mark.parametrize("where", ["wait", "submit"])
def test_an_interrupted_step_is_run_again(
    model: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [{}, {"temperature": 1.0, "seed": 3}, {}]
    pairs = zip(PROMPTS, options, strict=False)
    alone = [model.generate(prompt, 16, **how).tokens for prompt, how in pairs]
    call = getattr(CommandBuffer, where)

    def interrupted(command: CommandBuffer) -> None:
        if where == "submit":
            call(command)
        raise KeyboardInterrupt

    texts = [model.sequence(prompt) for prompt in PROMPTS[:3]]
    sequences = [text.__enter__() for text in texts]
    sampler = vkmnn.llm.generation.Sampler(vkmnn.llm.sampling.Sampling(temperature=1.0, seed=3))
    made = []
    for sequence, prompt in zip(sequences, PROMPTS, strict=False):
        sequence.truncate(0)
        made.append([sampler.sample(sequence.extend(prompt)[-1], []) if len(made) == 1
                     else int(sequence.extend(prompt)[-1].argmax())])  # fmt: skip
    for sequence in sequences:
        sequence.begin()
    sampling = sampler.on_device(len(PROMPTS[1]), 330)
    for step in range(15):
        for number, sequence in enumerate(sequences):
            how = sampling if number == 1 else None
            if step in (3, 4, 9) and number == step % 3:
                with monkeypatch.context() as patch:
                    patch.setattr(CommandBuffer, where, interrupted)
                    try:
                        token = sequence.step(made[number][-1], 9, how)
                    except KeyboardInterrupt:
                        token = sequence.step(made[number][-1], 9, how)
            else:
                token = sequence.step(made[number][-1], 9, how)
            assert token is not None
            made[number].append(token)
    for text in texts:
        text.__exit__(None, None, None)
    for one, expected in zip(made, alone, strict=True):
        assert one[: len(expected)] == expected


def test_texts_that_lose_their_place_go_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches that have to grow do not fit the shared memory any more, while steps are batched."""
    monkeypatch.setattr(state_tensors, "MIN_ROWS", 16)
    folder = _folder("genai", tmp_path / "model")
    with vkmnn.llm.load(folder, capacity=100) as model:
        alone = [model.generate(prompt, 30).tokens for prompt in PROMPTS[:3]]
    with vkmnn.llm.load(folder, capacity=100) as model:
        streams = [model.pieces(prompt, 30) for prompt in PROMPTS[:3]]
        ends = [next(stream)[0] for stream in streams]
        for _ in range(3):
            for stream in streams:
                next(stream)
        monkeypatch.setattr(CachePool, "place", lambda *_: False)
        while sum(next(stream, None) is not None for stream in streams):
            pass
        assert not list(model._decoder._pool._taken())
    assert [end.tokens for end in ends] == alone


def test_nothing_waits_for_the_garbage_collector(tmp_path: Path) -> None:
    """Loops, their slots and their recordings end with the sequences, so that devices can close."""
    folder = _folder("genai", tmp_path / "model")
    gc.collect()
    gc.disable()
    try:
        model = vkmnn.llm.load(folder, capacity=100)
        model.generate(PROMPTS[:3], 5)
        loops = [sequence._loop for sequence in model._free]
        refs = [weakref.ref(loop._tensors) for loop in loops]
        model.close()
        assert not any(loop._ring._segments for loop in loops if loop._ring is not None)
        loops.clear()
        model._free.clear()
        assert [ref() for ref in refs if ref() is not None] == []
    finally:
        gc.enable()


def test_what_cannot_be_joined_takes_turns(tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    folder = tiny.genai_folder(tmp_path / "windows", tiny.GPT_OSS)
    with vkmnn.llm.load(folder, capacity=100) as model:
        made = model.generate(PROMPTS[:3], 10)
        for prompt, one in zip(PROMPTS, made, strict=False):
            expected = greedy(model.layout.decoder, prompt, 10)
            assert one.tokens == expected[: len(one.tokens)]
