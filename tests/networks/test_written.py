"""Networks as exporters write them, by default on the device, agree with onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import vkmnn
from tests.networks import page
from tests.networks.decoders import decoder
from tests.networks.page import WRITTEN
from tests.networks.recurrent import voice, voice_rates
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime.device import enumerate_devices

pytest.importorskip("onnxruntime")

LIMIT = 1e-4


@pytest.fixture(autouse=True)
def vulkan() -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")


def assert_close(got: list[Any], want: list[Any], what: str) -> None:
    """Integers must be equal, floats may differ by `LIMIT` of the largest."""
    assert len(got) == len(want)
    for number, (result, expected) in enumerate(zip(got, want, strict=True)):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape), what
        if expected.dtype.kind == "f" and expected.size:
            np.testing.assert_allclose(
                result,
                expected,
                rtol=0,
                atol=LIMIT * max(1e-3, float(np.abs(expected).max())),
                err_msg=f"{what}, output {number}",
            )
        else:
            np.testing.assert_array_equal(result, expected, f"{what}, output {number}")


@pytest.mark.parametrize("name", WRITTEN)
def test_network(name: str) -> None:
    network = WRITTEN[name]
    reference = open_oracle((network.twin or network.make)())
    sizes = set()
    with vkmnn.InferenceSession(network.make()) as session:
        for number, feeds in enumerate(network.feeds(np.random.default_rng(0))):
            want = reference.run(None, feeds)
            sizes.add(max(np.size(value) for value in want))
            assert_close(list(session.run(None, feeds)), want, f"{name}, run {number}")
            if number == 0:
                placed = page.row(name, session)
    assert max(sizes) > 1
    assert placed == page.recorded().get(name), "run `python -m tests.networks.page`"


def test_the_page_has_all_networks_and_no_others() -> None:
    assert list(page.recorded()) == list(WRITTEN)


def _sound(chunks: int, size: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(1)
    for _ in range(chunks):
        yield random.standard_normal((1, size), dtype=np.float32)


@pytest.mark.parametrize("rates", [False, True])
def test_voice_keeps_its_state(rates: bool) -> None:
    proto = voice_rates() if rates else voice()
    more = {"rate": np.array(16000)} if rates else {}
    reference = open_oracle(proto)
    with vkmnn.InferenceSession(proto) as session:
        state = session.state({"state": "state_n"})
        kept = np.zeros((2, 1, 24), np.float32)
        for chunk in _sound(6, 512):
            chance, kept = reference.run(None, {"sound": chunk, "state": kept, **more})
            (got,) = state.run(["chance"], {"sound": chunk, **more})
            assert_close([got], [chance], "chance")
        assert_close([state.value("state").numpy()], [kept], "state")


def test_sixty_four_tokens_are_those_of_onnxruntime() -> None:
    proto = decoder(seed=4)
    reference = open_oracle(onnx.load_model_from_string(proto))
    caches = {
        entry.name: np.zeros((1, 4, 0, 8), np.float32)
        for entry in reference.get_inputs()
        if entry.name.startswith("past")
    }
    with vkmnn.InferenceSession(proto) as session:
        state = session.state({"past.*": "present.*"}, capacity=128)
        ids = np.array([[3, 1, 4, 1, 5]])
        written: tuple[list[int], list[int]] = ([], [])
        both = (ids, ids)
        counters = {}
        for step in range(64):
            total = 4 + step + 1
            feeds = [{"input_ids": x, "attention_mask": np.ones((1, total), int)} for x in both]
            logits, *presents = reference.run(None, {**feeds[0], **caches})
            caches = dict(zip(caches, presents, strict=True))
            (got,) = state.run(["logits"], feeds[1])
            both = (logits[:, -1:].argmax(-1), got[:, -1:].argmax(-1))
            for tokens, token in zip(written, both, strict=True):
                tokens.append(int(token[0, 0]))
            if step == 2:
                counters = session.counters()
        after = session.counters()
    assert written[0] == written[1]
    assert len(set(written[0])) > 1
    for name in ("plans", "recordings", "allocations", "pipelines"):
        assert after[name] == counters[name], name
