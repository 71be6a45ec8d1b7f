"""Caffe's networks match OpenCV's results, and layers match Caffe's rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkmnn
from tests.model.caffe_layers import LAYERS
from tests.model.caffe_models import by_opencv, saved
from tests.model.caffe_networks import NETWORKS, Network
from vkmnn.cli.app import run_cli


def close(found: np.ndarray, expected: np.ndarray, limit: float = 1e-4) -> None:
    expected = np.asarray(expected, np.float32)
    assert found.shape == expected.shape
    allowed = limit * max(float(np.ptp(expected)), float(np.abs(expected).max()), 1e-6)
    np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, tmp_path: Path) -> None:
    """By Caffe's rules, and by OpenCV if it implements them."""
    case = LAYERS[name]
    path = saved(tmp_path, case.text(), {"layer": case.weights} if case.weights else {})
    feeds = case.feeds(3)
    expected = case.rule(*feeds.values(), *case.weights)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    with vkmnn.InferenceSession(path, "cpu") as session:
        names = [arg.name for arg in session.get_outputs()]
        assert names == [f"y{number}" for number in range(case.outputs)]
        for found, right in zip(session.run(None, feeds), expected, strict=True):
            close(found, right)


@pytest.mark.parametrize("name", [name for name, case in LAYERS.items() if case.opencv])
def test_layer_by_opencv(name: str, tmp_path: Path) -> None:
    """The rules in numpy also match OpenCV."""
    case = LAYERS[name]
    path = saved(tmp_path, case.text(), {"layer": case.weights} if case.weights else {})
    feeds = case.feeds(4)
    expected = case.rule(*feeds.values(), *case.weights)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    found = by_opencv(path, feeds)[: case.outputs]  # pooling has places for a second
    for one, right in zip(found, expected, strict=True):
        close(one, right)


def expected_of(network: Network, path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    if network.rule is not None:
        return list(network.rule(*feeds.values(), network.weights))
    return by_opencv(path, feeds, network.layers)


def agrees(
    network: Network,
    path: Path,
    session: vkmnn.InferenceSession,
    seed: int,
    batch: int | None = None,
) -> None:
    feeds = network.feeds(seed, batch)
    expected = expected_of(network, path, feeds)
    for found, right in zip(session.run(None, feeds), expected, strict=True):
        if "detections" in network.layers:  # OpenCV does not group them by labels
            assert len(set(found[0, 0, :, 1])) > 1
            found, right = (one[0, 0, np.lexsort(one[0, 0].T[2::-1])] for one in (found, right))
        close(found, right)


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, tmp_path: Path) -> None:
    """On the device, for several inputs in a session."""
    network = NETWORKS[name]()
    path = saved(tmp_path, network.text, network.weights, network.form)
    with vkmnn.InferenceSession(path, require_device=True) as session:
        agrees(network, path, session, 1)
        agrees(network, path, session, 2)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_of_another_batch(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    path = saved(tmp_path, network.text, network.weights, network.form)
    shape = (3, *network.shapes["data"][1:])
    with vkmnn.InferenceSession(path, "cpu", input_shapes={"data": shape}) as session:
        assert session.get_inputs()[0].shape == list(shape)
        agrees(network, path, session, 3, 3)
    if name == "ssd":
        return  # which needs to know how many images there are
    with vkmnn.InferenceSession(path, "cpu", input_shapes={"data": ("N", *shape[1:])}) as session:
        agrees(network, path, session, 4, 2)
        agrees(network, path, session, 5, 3)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_as_vkmnn(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    path = saved(tmp_path, network.text, network.weights, network.form)
    assert run_cli(["convert", str(path), str(tmp_path / "net.vkmnn")]) == 0
    with vkmnn.InferenceSession(tmp_path / "net.vkmnn", "cpu") as session:
        agrees(network, path, session, 6)
