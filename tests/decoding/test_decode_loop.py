"""Steps on tokens that the device chooses: their cost, and the chosen tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from tests.llm.oracle import greedy
from tests.vulkan_calls import count_vulkan
from vkmnn.decoding import decode_step
from vkmnn.decoding.decode_step import DecoderIO
from vkmnn.decoding.step_ring import RING_SIZE, StepRing
from vkmnn.llm.sequence import Sequence
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.recorder import CommandBuffer

PROMPT = [5, 100, 7, 3, 250, 9]
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "genai": tiny.genai_folder,
    "windows": lambda path: tiny.genai_folder(path, tiny.GPT_OSS),
    "optimum": tiny.optimum_folder,
    "phi": lambda path: tiny.optimum_folder(path, tiny.PHI),
}


@pytest.fixture(scope="module", params=FOLDERS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    folder = FOLDERS[request.param](tmp_path_factory.mktemp(request.param))
    with vkmnn.llm.load(folder, capacity=330) as made:
        yield made


@pytest.fixture
def text(model: Any) -> Iterator[Sequence]:
    sequence = Sequence(model._decoder)
    yield sequence
    sequence.close()


def _oracle(model: Any, tokens: int) -> list[int]:
    path = model.layout.decoder
    return greedy(path, PROMPT, tokens)


def _likeliest(text: Sequence, token: int) -> int:
    return int(text.extend([token])[-1].argmax())


def test_a_token_is_one_submission_and_nothing_else(model: Any, text: Sequence) -> None:
    text.extend(PROMPT)
    token = text.step(7, 0)
    before = model.counters()
    for _ in range(20):
        assert token is not None
        token = text.step(token, 0)
    after = model.counters()
    used = {name: after[name] - before[name] for name in after}
    assert used["submits"] == 20
    for name in ("plans", "recordings", "allocations"):
        assert used[name] == 0, name
    assert used["host_copies"] == 20  # each token, 4 bytes


def test_what_the_host_calls_for_a_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of Vulkan, the difference of a longer and a shorter text."""
    if model.device.driver != "vulkan":
        pytest.skip("counts the calls of the driver 'vulkan'")
    used: list[Counter[str]] = []
    lengths: list[int] = []
    for tokens in (5, 25):
        calls: Counter[str] = Counter()
        count_vulkan(calls, monkeypatch)

        for _ in range(2):  # the first time, steps are recorded
            calls.clear()
            made = model.generate(PROMPT, tokens)
        used.append(calls)
        lengths.append(len(made.tokens))
        monkeypatch.undo()
    more = used[1] - used[0]
    tokens, submissions = lengths[1] - lengths[0], more["vkQueueSubmit"]
    assert tokens >= 5  # some models end their texts by themselves
    assert tokens <= submissions < tokens + 5  # some are under way when a text ends
    for name in ("vkWaitForFences", "vkGetFenceStatus"):  # the number depends on the time
        more.pop(name, None)
    assert more == {"vkResetFences": submissions, "vkQueueSubmit": submissions}


def test_tokens_are_those_of_onnxruntime_while_the_caches_double(model: Any) -> None:
    expected = _oracle(model, 300)
    made = model.generate(PROMPT, 300)
    assert made.tokens == expected[: len(made.tokens)]
    assert len(made.tokens) == 300 or made.finish_reason == "stop"


@pytest.mark.parametrize("ahead", [1, 50])
def test_steps_ahead_change_nothing(model: Any, text: Sequence, ahead: int) -> None:
    token = int(text.extend(PROMPT)[-1].argmax())
    made = [token]
    while len(made) < 12:
        chosen = text.step(made[-1], ahead)
        assert chosen is not None
        made.append(chosen)
    text.truncate(0)
    again = [int(text.extend(PROMPT)[-1].argmax())]
    while len(again) < 12:
        again.append(_likeliest(text, again[-1]))
    assert made == again


def test_steps_waited_for_together_change_nothing(
    text: Sequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for two, or for all queued ones; other tokens and cuts come in between."""
    token = int(text.extend(PROMPT)[-1].argmax())
    expected = [token]
    while len(expected) < 12:
        expected.append(text.step(expected[-1], 0) or 0)
    for together in (2, RING_SIZE, RING_SIZE + 1):
        monkeypatch.setattr(text.waits, "together", together)
        text.truncate(len(PROMPT))
        made = [token]
        while len(made) < 12:
            made.append(text.step(made[-1], 11 - len(made)) or 0)
        assert made == expected
        text.truncate(len(PROMPT) + 3)
        assert text.step(expected[3], 5) == expected[4]
        other = text.step((expected[4] + 1) % 320, 5)
        text.truncate(len(PROMPT) + 4)
        assert text.step((expected[4] + 1) % 320, 0) == other


def test_a_text_that_nobody_reads_along_is_waited_for_in_threes(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    step = StepRing.step

    def stepped(self: StepRing, *arguments: Any) -> int:
        begun.append(self.ended)
        return step(self, *arguments)

    monkeypatch.setattr(StepRing, "step", stepped)
    alone = "".join(model.stream(PROMPT, 30))
    assert not any(begun)
    begun.clear()
    made = model.generate(PROMPT, 30)
    assert made.text == alone
    if len(made.tokens) > 12:
        assert begun[:9] == [0] * 9
        for more in (1, 2):
            assert begun[9:].count(more) >= (len(made.tokens) - 12) // 3


def test_what_was_queued_is_forgotten(text: Sequence) -> None:
    """A token other than the expected one, cuts and runs by the host, with steps in flight."""
    text.extend(PROMPT)
    first = text.step(7, RING_SIZE)
    assert first is not None
    other = (first + 1) % 320
    after_other = text.step(other, RING_SIZE)
    assert text.tokens == [*PROMPT, 7, other]
    text.truncate(len(PROMPT) + 1)
    assert _likeliest(text, other) == after_other
    last = text.step(11, RING_SIZE)
    text.truncate(0)
    text.extend([*PROMPT, 7, other])
    assert _likeliest(text, 11) == last


@pytest.mark.parametrize("where", ["wait", "submit"])
def test_an_interrupted_step_is_run_again(
    text: Sequence, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the wait for a step, or between its submission and the note of it."""
    token = int(text.extend(PROMPT)[-1].argmax())
    expected = [token]
    for _ in range(6):
        expected.append(text.step(expected[-1], 0) or 0)
    text.truncate(len(PROMPT))
    made, wait, submit = [token], CommandBuffer.wait, CommandBuffer.submit

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def submitted(command: CommandBuffer) -> None:
        submit(command)
        raise KeyboardInterrupt

    for _ in range(3):
        made.append(text.step(made[-1], 1) or 0)
        if where == "wait":
            monkeypatch.setattr(CommandBuffer, "wait", interrupted)
        else:
            monkeypatch.setattr(CommandBuffer, "submit", submitted)
        with pytest.raises(KeyboardInterrupt):
            text.step(made[-1], 2)
        monkeypatch.setattr(CommandBuffer, "wait", wait)
        monkeypatch.setattr(CommandBuffer, "submit", submit)
        made.append(text.step(made[-1], 0) or 0)
    assert made == expected


def test_nothing_past_the_length_is_read(model: Any, text: Sequence) -> None:
    expected = _oracle(model, 25)
    token = int(text.extend(PROMPT)[-1].argmax())
    made = [token]
    for _ in range(24):
        for name in model._decoder.caches:
            memory = text._state.memory(name)
            array = memory.numpy()
            array[:, :, len(text.tokens) :] = np.nan
            memory.copy_from(array)
        chosen = text.step(made[-1], 0)
        assert chosen is not None
        made.append(chosen)
    assert made == expected


def test_a_full_text_ends(model: Any, text: Sequence) -> None:
    text.extend([3] * (model.capacity - 2))
    token = text.step(1, 10)
    assert token is not None
    assert text.step(token, 10) is not None
    assert text.step(5, 10) is None
    assert len(text.tokens) == model.capacity


def _odd(usual: DecoderIO) -> DecoderIO:
    """Return a mask that hides the first key from every third token."""

    def feeds(past: int) -> dict[str, Any]:
        made = dict(usual.feeds(past))
        made["attention_mask"][:, 0] = past % 3 != 1
        return made

    return DecoderIO(usual.token, usual.logits, feeds)


@pytest.mark.parametrize("rows", [0, 1 << 20])
def test_other_functions_of_the_length(
    model: Any, text: Sequence, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked up in a table; if it would be too large, the host continues to feed them."""
    monkeypatch.setattr(decode_step, "MAX_TABLE", rows)
    decoder = model._decoder
    text.extend(PROMPT)
    text._state._state.tensors.close_recordings()
    monkeypatch.setattr(text._loop, "io", _odd(decoder.io))
    chosen = text.step(7, 0)
    assert (chosen is None) == (rows == 0)
    assert text.tokens == ([*PROMPT, 7] if rows else PROMPT)
    if not rows:
        assert text.extend([7]).shape == (1, 320)
        return
    io = text._loop.io
    for token in (chosen, 3, 5):
        past = len(text.tokens)
        found = text.step(token, 0)
        text.truncate(past)
        given = {**io.feeds(past), io.token: np.array([[token]])}
        (logits,) = text._state.run([io.logits], given)
        text.tokens.append(token)
        assert found == int(logits.reshape(-1).argmax())


def test_the_host_time_of_a_token_is_told(model: Any) -> None:
    made = model.generate(PROMPT, 10)
    assert 0 < made.host_seconds < made.decode_seconds


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.7, "top_k": 40},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 1000},
        {"temperature": 2.0, "top_k": 12, "top_p": 0.6},
    ],
    ids=str,
)
def test_draws_are_those_of_the_host(
    model: Any, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [model.generate(PROMPT, 12, seed=seed, **how).tokens for seed in (1, 2)]
    before = model.counters()
    again = model.generate(PROMPT, 12, seed=2, **how).tokens
    after = model.counters()
    assert again == drawn[1]
    for name in ("plans", "recordings", "allocations"):
        assert after[name] == before[name], name
    assert after["host_copies"] - before["host_copies"] < 30  # 4 bytes a token, beside the prompt
    monkeypatch.setattr(Sequence, "step", lambda *_: None)
    assert [model.generate(PROMPT, 12, seed=seed, **how).tokens for seed in (1, 2)] == drawn


def test_texts_that_draw_and_others_take_turns(model: Any) -> None:
    prompts = [PROMPT, PROMPT[:3], PROMPT[2:]]
    options = [{"temperature": 1.0, "seed": 3}, {}, {"temperature": 0.5, "top_k": 5, "seed": 4}]
    alone = [model.generate(p, 10, **how).tokens for p, how in zip(prompts, options, strict=True)]
    streams = [model.pieces(p, 10, **how) for p, how in zip(prompts, options, strict=True)]
    ends = [next(stream)[0] for stream in streams]
    while sum(next(stream, None) is not None for stream in streams):
        pass
    assert [end.tokens for end in ends] == alone
