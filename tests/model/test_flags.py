"""Networks whose dispatches wait for each other by flags: the results are those with barriers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny
from tests.model.networks import NETWORKS, make_feeds
from tests.model.test_plan import planned_product
from tests.session.test_loops import X, counted
from vkmnn.errors import LateFlagError, VkmnnError
from vkmnn.ir import Array
from vkmnn.opening import load_network
from vkmnn.opening.planned import plan_for
from vkmnn.runtime import open_device
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.drivers.vulkan import instance
from vkmnn.runtime.flag_line import FlagLine
from vkmnn.runtime.recorder import CommandRecorder
from vkmnn.vulkan.cost.devices import class_of


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    monkeypatch.delenv("VKMNN_FLAGS", raising=False)
    device = open_device("auto", validation=False)
    yield
    device.trusts_flags = True


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of barriers that flags replace, of each command buffer recorded with them."""
    seen: list[int] = []
    end = CommandRecorder._end_flags

    def spy(self: CommandRecorder, line: FlagLine) -> None:
        seen.append(line.count)
        end(self, line)

    monkeypatch.setattr(CommandRecorder, "_end_flags", spy)
    return seen


@pytest.fixture
def in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No counter ever reaches its full value."""
    target = FlagLine._target
    monkeypatch.setattr(FlagLine, "_target", lambda self, number: target(self, number) + 1)


def opened(model: Any, **options: Any) -> vkmnn.InferenceSession:
    return vkmnn.InferenceSession(model, validation=False, **options)


def results(model: Any, feeds: list[dict[str, Array]], **options: Any) -> list[list[Array]]:
    """Each input run twice in a row, all by one session."""
    with opened(model, **options) as session:
        return [session.run(None, each) for each in feeds for _ in range(2)]


def assert_equal(got: list[list[Array]], want: list[list[Array]]) -> None:
    for some, others in zip(got, want, strict=True):
        for one, other in zip(some, others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("waves", [False, True])
@pytest.mark.parametrize("name", ["detector", "gpt2"])
def test_results_are_those_with_barriers(
    name: str, waves: bool, flags: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches, residuals and several outputs, also in the order for GPUs: levels of several."""
    if waves:
        monkeypatch.setattr("vkmnn.vulkan.backend.is_gpu", lambda info: True)
    network = NETWORKS[name]
    model = network.build()
    usual, other, *_ = network.sizes
    feeds = [make_feeds(model, size, seed) for seed, size in enumerate((usual, other, usual))]
    want = results(model, feeds)
    assert not flags
    monkeypatch.setenv("VKMNN_FLAGS", "force")
    got = results(model, feeds)
    assert_equal(got, want)
    assert flags
    assert min(flags) > 10


def test_bodies_of_loops(flags: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = counted()
    feeds = [{"a": X, "m": np.array(m)} for m in (5, 3)]
    want = results(model, feeds)
    monkeypatch.setenv("VKMNN_FLAGS", "force")
    assert_equal(results(model, feeds), want)
    assert sum(flags) > 0


@pytest.mark.usefixtures("in_vain")
def test_a_run_whose_wait_was_in_vain_is_repeated_with_barriers(
    flags: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = NETWORKS["gpt2"].build()
    feeds = [make_feeds(model, (1, 16)), make_feeds(model, (1, 13))]
    want = results(model, feeds)
    monkeypatch.setenv("VKMNN_FLAGS", "force")
    with caplog.at_level(logging.WARNING, "vkmnn"):
        got = results(model, feeds)
    assert_equal(got, want)
    assert len(flags) == 1  # the second shape was planned with barriers at once
    assert caplog.text.count("barriers order them from now on") == 1
    with opened(model) as session:
        assert_equal([session.run(None, feeds[0])], want[:1])
        assert session.counters()["late_flags"] >= 1
    assert len(flags) == 1  # nor does another session on the device try again


@pytest.mark.usefixtures("in_vain")
def test_a_session_that_forgot_its_weights_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VKMNN_FLAGS", "force")
    model = NETWORKS["gpt2"].build()
    feeds = make_feeds(model, (1, 16))
    with opened(model) as session:
        session._session.core.resize({n: a.shape for n, a in feeds.items()}, feeds)
        session._session.core.forget_model()
        with pytest.raises(LateFlagError, match="waited in vain"):
            session.run(None, feeds)


def test_steps_of_a_language_model(
    tmp_path: Path, flags: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued steps that feed each other; then waits in vain, found while others are under way."""
    folder = tiny.genai_folder(tmp_path)

    def generated() -> list[int]:
        with vkmnn.llm.load(folder, capacity=64) as model:
            return model.generate([5, 100, 7], 24).tokens

    want = generated()
    monkeypatch.setenv("VKMNN_FLAGS", "force")
    assert generated() == want
    assert len(flags) > 1
    target = FlagLine._target
    monkeypatch.setattr(FlagLine, "_target", lambda self, number: target(self, number) + 1)
    assert generated() == want


@pytest.mark.parametrize(
    ("mode", "profile", "saves"),
    [
        ("off", "nvidia-h200", False),
        ("on", "nvidia-h200", True),
        ("on", "radeon-rx-7900-xtx", True),
        ("on", "intel-arc-a770", False),
    ],
)
def test_what_flags_are_predicted_to_save(
    mode: str, profile: str, saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = NETWORKS["gpt2"].build()
    network, feeds = load_network(model), make_feeds(model, (1, 16))
    barriers = plan_for(network, profile, "high", feeds, places=False).forecast
    monkeypatch.setenv("VKMNN_FLAGS", mode)
    forecast = plan_for(network, profile, "high", feeds, places=False).forecast
    waiting = {step.level for step in forecast.steps if step.waits}
    assert bool(waiting) == saves
    assert 0 not in waiting
    assert not saves or len(waiting) > 0.9 * (forecast.levels - 1)
    saved = barriers.predicted_us - forecast.predicted_us
    assert saved == pytest.approx(class_of(forecast.info).flag_us * len(waiting))
    assert ("flags" in forecast.terms()) == saves


@pytest.mark.parametrize(("rows", "early"), [(1, True), (200, False)])
def test_weights_of_a_token_are_asked_for_before_the_wait(rows: int, early: bool) -> None:
    steps = planned_product(rows, 2048).forecast.steps
    (product,) = (step for step in steps if step.kernel.startswith("matmul"))
    assert product.kernel.startswith("matmul_codes_dot") == early
    assert (product.ahead > 0) == early


@pytest.mark.parametrize("precision", ["high", "normal"])
def test_the_validation_layer_misses_nothing_but_the_barriers(
    precision: Any, flags: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being forced, devices in validation mode keep their barriers."""
    model = NETWORKS["gpt2"].build()
    feeds = make_feeds(model, (1, 16))
    try:
        device = open_device("auto", validation=True)
    except VkmnnError:
        pytest.skip("no validation layer")
    if device.info.driver != "vulkan":
        pytest.skip("receives the messages of the driver 'vulkan'")
    hazards = {f"SYNC-HAZARD-{a}-AFTER-{b}" for a in ("READ", "WRITE") for b in ("READ", "WRITE")}
    monkeypatch.setattr(instance, "KNOWN_FALSE", {*instance.KNOWN_FALSE, *hazards})
    monkeypatch.setattr("vkmnn.opening.device._proved_flags", lambda _: True)
    for mode, count in (("on", 0), ("force", 1)):
        monkeypatch.setenv("VKMNN_FLAGS", mode)
        with vkmnn.InferenceSession(model, validation=True, precision=precision) as session:
            session.run(None, feeds)
        assert len(flags) == count
