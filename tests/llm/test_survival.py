"""Errors, lost devices and full disks: the model continues, and its texts are right."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from vkmnn.errors import (
    DeviceLostError,
    InvalidInputError,
    ModelFileError,
    OutOfDeviceMemoryError,
    VkmnnError,
)
from vkmnn.llm import LanguageModel
from vkmnn.llm.decoder import MAX_BATCH, Decoder
from vkmnn.runtime import Device
from vkmnn.runtime.device import enumerate_devices, open_device
from vkmnn.runtime.recorder import CommandBuffer

pytest.importorskip("tokenizers")
pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")

SMALL = replace(tiny.LLAMA, layers=1, width=16, heads=2, kv_heads=1, depth=8, inner=16, rotary=8)
PROMPTS = [[5 + number, 9, 20, number] for number in range(MAX_BATCH)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.genai_folder(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture
def model(folder: Path) -> Iterator[LanguageModel]:
    with vkmnn.llm.load(folder, capacity=48) as made:
        yield made


@pytest.fixture
def rebuilding(folder: Path) -> Iterator[LanguageModel]:
    open_device().close()  # a lost device is closed when the last who uses it is gone
    with vkmnn.llm.load(folder, capacity=48, on_device_lost="rebuild") as made:
        yield made


def _fail_once(
    patch: pytest.MonkeyPatch, where: type, name: str, at: int, error: Callable[[], BaseException]
) -> list[int]:
    """Let call number `at` of a method fail; return the number of calls so far."""
    real = getattr(where, name)
    calls = [0]

    def call(self: Any, *args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise error()
        return real(self, *args, **named)

    patch.setattr(where, name, call)
    return calls


def _no_memory() -> BaseException:
    return OutOfDeviceMemoryError("for the test")


CALLS = {"allocate": (Device, "allocate"), "submit": (CommandBuffer, "submit"),
         "wait": (CommandBuffer, "wait")}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_text_after_a_failed_call(model: LanguageModel, call: str) -> None:
    """Each call of a warm-up and of a text fails once; the same caches generate the same text."""
    expected = model.generate(PROMPTS[0], 5).tokens
    at, failed = 1, 0
    while True:
        model._free.clear()  # so that the next text warms up
        model._made = 0
        with pytest.MonkeyPatch.context() as patch:
            calls = _fail_once(patch, *CALLS[call], at, _no_memory)
            try:
                assert model.generate(PROMPTS[0], 5).tokens == expected
            except OutOfDeviceMemoryError:
                failed += 1
            if calls[0] < at:
                break
        assert len(model._free) == model._made == 1
        assert model.generate(PROMPTS[0], 5).tokens == expected, at
        at += 7 if call == "allocate" else 1
    assert failed >= 3


@pytest.mark.parametrize("at", [3, 60, 120])
def test_a_batch_after_a_failed_call(model: LanguageModel, at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = _fail_once(patch, Device, "allocate", at, _no_memory)
        with pytest.raises(OutOfDeviceMemoryError):
            model.generate(PROMPTS, 4, temperature=1.0, seed=1)
        assert calls[0] >= at
    made = model.generate(PROMPTS, 4, temperature=1.0, seed=1)
    assert model._made == len(model._free) == MAX_BATCH
    alone = [model.generate(prompt, 4, temperature=1.0, seed=1 + number).tokens
             for number, prompt in enumerate(PROMPTS)]  # fmt: skip
    assert [one.tokens for one in made] == alone


def test_a_draw_of_another_text_is_not_repeated(model: LanguageModel) -> None:
    """A text fails while all logits are read; random numbers are not drawn twice for the others."""
    how = {"temperature": 1.0, "repetition_penalty": 1.2, "seed": 5}
    expected = [one.tokens for one in model.generate(PROMPTS[:3], 8, **how)]
    streams = [model.pieces(p, 8, **{**how, "seed": 5 + n}) for n, p in enumerate(PROMPTS[:3])]
    ends = [next(stream)[0] for stream in streams]
    for stream in streams:
        next(stream)
    with pytest.MonkeyPatch.context() as patch:
        _fail_once(patch, vkmnn.llm.sampling.Sampler, "sample", 2, lambda: MemoryError("a test"))
        with pytest.raises(VkmnnError):
            list(streams[0])
    while sum(next(stream, None) is not None for stream in streams[1:]):
        pass
    assert [end.tokens for end in ends[1:]] == expected[1:]


def test_no_place_is_lost_with_a_text_that_cannot_begin(model: LanguageModel) -> None:
    for _ in range(MAX_BATCH + 1):
        with pytest.MonkeyPatch.context() as patch:
            _fail_once(patch, Decoder, "new_state", 1, _no_memory)
            with pytest.raises(OutOfDeviceMemoryError):
                model.generate(PROMPTS[0], 2)
    assert model._made == 0
    assert len(model.generate(PROMPTS[0], 2).tokens) == 2


def test_a_session_is_as_before_a_failed_call(model: LanguageModel) -> None:
    other = model.session()
    first, expected = other.generate([4, 5, 6], 3).tokens, other.generate([8], 3).tokens
    text = model.session()
    assert text.generate([4, 5, 6], 3).tokens == first
    for at in (1, 2):
        held = text.tokens
        with pytest.MonkeyPatch.context() as patch:
            _fail_once(patch, CommandBuffer, "wait", at, _no_memory)
            with pytest.raises(OutOfDeviceMemoryError):
                text.generate([8], 3)
        assert text.tokens == held
    assert text.generate([8], 3).tokens == expected


# --- lost devices --------------------------------------------------------------------------------


def _lose_at(patch: pytest.MonkeyPatch, at: int, times: int = 1) -> None:
    """Let the device be lost at a wait, and those opened afterwards just as often."""
    real, calls = CommandBuffer.wait, [0]

    def wait(self: CommandBuffer, timeout_s: float | None = None) -> None:
        real(self, timeout_s)
        calls[0] += 1
        if at <= calls[0] < at + times:
            self.device.mark_lost("for the test")
            self.device.raise_unusable()

    patch.setattr(CommandBuffer, "wait", wait)


HOW: dict[str, dict[str, Any]] = {
    "likeliest": {},
    "drawn": {"temperature": 1.0, "seed": 3},
    "by the host": {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3},
    "guessed": {"speculate": 4},
}


@pytest.mark.parametrize("how", HOW)
def test_texts_go_on_when_the_device_is_lost(rebuilding: LanguageModel, how: str) -> None:
    expected = [one.tokens for one in rebuilding.generate(PROMPTS[:3], 8, **HOW[how])]
    for at in (2, 9):
        with pytest.MonkeyPatch.context() as patch:
            _lose_at(patch, at)
            made = rebuilding.generate(PROMPTS[:3], 8, **HOW[how])
        assert [one.tokens for one in made] == expected
        assert not rebuilding.lost


def test_threads_go_on_when_the_device_is_lost(rebuilding: LanguageModel) -> None:
    expected = [one.tokens for one in rebuilding.generate(PROMPTS, 8)]
    made: dict[int, list[int]] = {}

    def one(number: int) -> None:
        made[number] = rebuilding.generate(PROMPTS[number], 8).tokens

    with pytest.MonkeyPatch.context() as patch:
        _lose_at(patch, 20)
        threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [made[number] for number in range(4)] == expected[:4]


def test_a_session_goes_on_when_the_device_is_lost(
    rebuilding: LanguageModel, tmp_path: Path
) -> None:
    text, other = rebuilding.session(), rebuilding.session()
    for one in (text, other):
        one.generate([4, 5, 6], 3)
    open_device().mark_lost("for the test")
    text.save(tmp_path / "text.npz")
    expected = other.generate([8], 3).tokens
    assert text.generate([8], 3).tokens == expected
    assert rebuilding.session(tmp_path / "text.npz").generate([8], 3).tokens == expected


def test_a_second_loss_in_a_row_is_raised(rebuilding: LanguageModel) -> None:
    expected = rebuilding.generate(PROMPTS[0], 6).tokens
    with pytest.MonkeyPatch.context() as patch:
        _lose_at(patch, 2, times=100)
        with pytest.raises(DeviceLostError):
            rebuilding.generate(PROMPTS[0], 6)
    assert rebuilding.generate(PROMPTS[0], 6).tokens == expected
    assert not rebuilding.lost


def test_a_model_says_that_its_device_could_not_be_opened(
    rebuilding: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rebuilding.generate(PROMPTS[0], 6).tokens
    open_device().mark_lost("for the test")
    assert not rebuilding.lost
    _fail_once(monkeypatch, Device, "successor", 1, lambda: DeviceLostError("for the test"))
    with pytest.raises(DeviceLostError):
        rebuilding.generate(PROMPTS[0], 6)
    assert rebuilding.lost
    assert rebuilding.generate(PROMPTS[0], 6).tokens == expected
    assert not rebuilding.lost


def test_a_model_that_is_not_to_be_rebuilt_says_that_it_is_lost(folder: Path) -> None:
    open_device().close()
    with vkmnn.llm.load(folder, capacity=48) as model:
        model.generate(PROMPTS[0], 2)
        assert not model.lost
        open_device().mark_lost("for the test")
        assert model.lost
        with pytest.raises(DeviceLostError):
            model.generate(PROMPTS[0], 2)


def test_every_kind_of_model_takes_what_happens_on_overflows(folder: Path, tmp_path: Path) -> None:
    wrong: Any = "perhaps"
    encoder, pair = tiny.embedding_folder(tmp_path / "e"), tiny.seq2seq_folder(tmp_path / "s")
    for load, where in (
        (vkmnn.llm.load, folder),
        (vkmnn.llm.load_embedding, encoder),
        (vkmnn.llm.load_seq2seq, pair),
    ):
        with pytest.raises(InvalidInputError, match="on_overflow"):
            load(where, on_overflow=wrong)


def test_other_kinds_of_models_are_rebuilt(tmp_path: Path) -> None:
    open_device().close()
    vectors = vkmnn.llm.load_embedding(
        tiny.embedding_folder(tmp_path / "e"), on_device_lost="rebuild"
    )
    pairs = vkmnn.llm.load_seq2seq(tiny.seq2seq_folder(tmp_path / "s"), on_device_lost="rebuild")
    with vectors, pairs:
        vector, text = vectors.embed("a text"), pairs.generate([5, 9, 20], 6)
        for _ in range(2):
            open_device().mark_lost("for the test")
            np.testing.assert_allclose(vectors.embed("a text"), vector, rtol=1e-5)
            assert pairs.generate([5, 9, 20], 6).tokens == text.tokens
            assert not vectors.lost
            assert not pairs.lost


@pytest.mark.parametrize(
    ("prompt", "words"),
    [*((one, "a prompt is a text") for one in (5, None, 2.5)), ([-1], "has the token -1"),
     ([1, 10**9], "has the token 1000000000"), ([{"role": "user"}], "has no content"),
     ([{"role": "user", "content": None}], "has no content")],
)  # fmt: skip
def test_sessions_refuse_what_is_no_prompt(model: LanguageModel, prompt: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        model.session().generate(prompt, 1)


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "text.npz"
    with vkmnn.llm.load(folder, capacity=48) as model:
        text = model.session()
        text.generate([4, 5, 6], 3)
        text.save(path)
    return path


def test_a_full_disk_leaves_the_old_file(
    model: LanguageModel, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept.read_bytes()
    text = model.session(kept)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left on device"):
        text.save(kept)
    assert kept.read_bytes() == before
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    with pytest.raises(InvalidInputError, match="cannot be written"):
        text.save(kept / "below a file")


def _with_about(path: Path, about: Any) -> dict[str, Any]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    data = about if isinstance(about, bytes) else json.dumps(about).encode()
    return arrays | {"vkmnn:about": np.frombuffer(data, np.uint8)}


ABOUTS: dict[str, Any] = {
    "negative": {"tokens": [-5, 1, 2, 3, 4, 5]},
    "huge": {"tokens": [10**30, 1, 2, 3, 4, 5]},
    "past the vocabulary": {"tokens": [320, 1, 2, 3, 4, 5]},
    "floats": {"tokens": [1.0, 1, 2, 3, 4, 5]},
    "texts": {"tokens": ["1"] * 6},
    "bools": {"tokens": [True] * 6},
    "none": {"tokens": None},
    "a number": {"tokens": 7},
    "no tokens": {"tokens": []},
    "too few": {"tokens": [1]},
    "too many": {"tokens": [1] * 40},
    "a list": [1, 2],
    "without": {},
    "nested": b'{"tokens": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no JSON": b"{",
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("about", ABOUTS)
def test_tokens_of_files_are_checked(
    model: LanguageModel, kept: Path, tmp_path: Path, about: str
) -> None:
    path = tmp_path / "text.npz"
    np.savez(path, **_with_about(kept, ABOUTS[about]))
    with pytest.raises(ModelFileError, match="is not a saved session"):
        model.session(path)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"hello",
    "half": lambda data: data[: len(data) // 2],
    "a zip's end": lambda data: data[-30:],
    "a wrong byte": lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:],
    "zeros": lambda data: bytes(len(data)),
    "without its directory": lambda data: data[:-60],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused(
    model: LanguageModel, kept: Path, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "text.npz"
    path.write_bytes(DAMAGED[damage](kept.read_bytes()))
    with pytest.raises(ModelFileError, match="is not a saved session"):
        model.session(path)


def test_other_files_are_refused(model: LanguageModel, kept: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    for path in (tmp_path, tmp_path / "no", tmp_path / "one.npy", tmp_path / "objects.npz", 5):
        with pytest.raises(ModelFileError, match="is not a saved session"):
            model.session(path)  # type: ignore[arg-type]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelFileError, match="is not a saved session"):
            model.session(tmp_path / "pipe")


def test_files_larger_than_they_say_are_refused(
    model: LanguageModel, kept: Path, tmp_path: Path
) -> None:
    path = tmp_path / "text.npz"
    bomb = {"more": np.zeros(1 << 20, np.uint8)}
    np.savez_compressed(path, **_with_about(kept, ABOUTS["none"]), **bomb)
    with pytest.raises(ModelFileError, match="it is compressed"):
        model.session(path)


def test_saving_leaves_the_mask_of_new_files(
    model: LanguageModel, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> int:
        raise AssertionError("other threads make files meanwhile")

    monkeypatch.setattr(os, "umask", refused)
    model.session(kept).save(kept)


def test_caches_of_another_model_are_refused(
    model: LanguageModel, kept: Path, tmp_path: Path
) -> None:
    arrays = _with_about(kept, {"tokens": [1] * 6})
    name = next(name for name in arrays if name.startswith("past"))
    for array in (np.ones(3, np.float32), arrays[name].astype(np.float64), np.array("text")):
        np.savez(tmp_path / "text.npz", **{**arrays, name: array})
        with pytest.raises(InvalidInputError, match="cannot take"):
            model.session(tmp_path / "text.npz")
    del arrays[name]
    np.savez(tmp_path / "text.npz", **arrays)
    with pytest.raises(InvalidInputError, match="rows are needed for"):
        model.session(tmp_path / "text.npz")


@pytest.mark.parametrize("odd", ["x", [1], True, -1, float("nan")], ids=str)
@pytest.mark.parametrize(
    "name", ["max_tokens", "temperature", "top_k", "top_p", "seed", "repetition_penalty",
             "speculate"]
)  # fmt: skip
def test_odd_arguments_are_named(model: LanguageModel, name: str, odd: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"{name} is"):
        model.options(**{name: odd})


@pytest.mark.parametrize("odd", [5, [1], b"x", {"a": 1}], ids=str)
def test_odd_stop_texts_are_refused(model: LanguageModel, odd: Any) -> None:
    with pytest.raises(InvalidInputError, match="stop is"):
        model.options(stop=odd)


@pytest.mark.parametrize("odd", ["8", 1.5, True, 1, -1], ids=str)
def test_odd_capacities_are_refused(folder: Path, odd: Any) -> None:
    with pytest.raises(InvalidInputError, match="the capacity, in tokens, is"):
        vkmnn.llm.load(folder, capacity=odd)
