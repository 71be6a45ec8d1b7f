"""Small networks of every kind agree with onnxruntime, at sizes that change back and forth."""

from __future__ import annotations

from typing import Any

import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.oracle import assert_agree
from tests.onnxruntime_oracle import open_oracle
from vkmnn.core.plan import Plan


@pytest.mark.parametrize("name", NETWORKS)
def test_small_network(name: str, validation: bool, monkeypatch: pytest.MonkeyPatch):
    network = NETWORKS[name]
    model = network.build()
    oracle = open_oracle(model)
    usual, *others = network.sizes
    plans = 0

    def planned(*arguments: Any) -> Plan:
        nonlocal plans
        plans += 1
        return Plan(*arguments)

    monkeypatch.setattr("vkmnn.core.plans.Plan", planned)
    with vkmnn.InferenceSession(model, validation=validation, require_device=True) as session:
        for number, size in enumerate(size for other in others for size in (usual, other, usual)):
            feeds = make_feeds(model, size, seed=number)
            expected = oracle.run(None, feeds)
            assert_agree(session.run(None, feeds), expected, what=f"{name} {size}")
    assert plans == len(network.sizes)


@pytest.mark.parametrize("name", NETWORKS)
def test_small_network_in_halves(name: str, validation: bool):
    """Errors stay within 1e-2 of the range, and activations take half the memory."""
    network = NETWORKS[name]
    model = network.build()
    oracle = open_oracle(model)
    options: dict[str, Any] = {"validation": validation, "require_device": True}
    with (
        vkmnn.InferenceSession(model, **options) as wide,
        vkmnn.InferenceSession(model, precision="normal", **options) as session,
    ):
        if session.precision != "normal":
            pytest.skip("the device has no 16-bit storage")
        for size in network.sizes:
            feeds = make_feeds(model, size)
            expected = oracle.run(None, feeds)
            assert_agree(session.run(None, feeds), expected, limit=1e-2, what=f"{name} {size}")
        wide.run(None, feeds)
        assert session.memory().constants < 0.52 * wide.memory().constants
        assert session.memory().activations < 0.6 * wide.memory().activations


@pytest.mark.parametrize("name", NETWORKS)
def test_small_network_on_the_cpu(name: str):
    network = NETWORKS[name]
    model = network.build()
    oracle = open_oracle(model)
    with vkmnn.InferenceSession(model, device="cpu") as session:
        for size in network.sizes:
            feeds = make_feeds(model, size)
            expected = oracle.run(None, feeds)
            assert_agree(session.run(None, feeds), expected, limit=2e-5, what=f"{name} {size}")
