"""Steps of LSTM, GRU and RNN: many of them, and as other devices share them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkmnn
from tests.device_infos import LARGE_GPU
from tests.op.vulkan.harness import run_graph
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Activation, Array, Op
from vkmnn.ir.ops import RECURRENT_GATES, RecurrentAttrs
from vkmnn.runtime.device_info import DeviceType
from vkmnn.testing.case import op_case
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, SHUFFLES
from vkmnn.vulkan.recurrence import Problem, Sharing, sharings

DEFAULT = tuple(map(Activation, ("SIGMOID", "TANH", "TANH")))


def random(*shape: int, seed: int = 0) -> Array:
    draws = np.random.default_rng([seed, *shape])
    return draws.uniform(-1, 1, shape).astype(np.float32)


def attrs_of(cell: str, **more: object) -> RecurrentAttrs:
    activations = {"LSTM": DEFAULT, "GRU": DEFAULT[:2], "RNN": DEFAULT[1:2]}[cell]
    return RecurrentAttrs(cell, activations, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", RECURRENT_GATES)
def test_more_steps_than_loops_can_count(cell: str) -> None:
    """A dispatch computes as many steps as its loops allow; the next one continues from there."""
    hidden, batch = 5, 2
    gates = RECURRENT_GATES[cell] * hidden
    attrs = attrs_of(cell)
    steps = 15_000
    inputs = [random(steps, batch, gates), random(1, gates, hidden, seed=1)]
    case = op_case("Recurrent", attrs, inputs, constant={1}, outputs=3 if cell == "LSTM" else 2)
    results = run_graph(case.graph, dict(case.feeds), takes={"whole": True})
    for result, expected in zip(results, case.expected(), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sharing", [Sharing(True, 1, 64, 8), Sharing(False, 4, 128, 8)], ids=str)
@pytest.mark.parametrize("resets", [False, True])
def test_slices_of_gpus(sharing: Sharing, resets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for GPUs compute the same on the available device."""
    ways = "vkmnn.vulkan.executions.recurrent.sharings"
    monkeypatch.setattr(ways, lambda problem, info, *, texel: [sharing])
    cell = "GRU" if resets else "LSTM"
    gates = RECURRENT_GATES[cell] * 19
    attrs = attrs_of(cell, batch_first=True)
    inputs = [random(6, 4, gates), random(1, gates, 19, seed=1)]
    case = op_case("Recurrent", attrs, inputs, constant={1}, outputs=3 if cell == "LSTM" else 2)
    results = run_graph(case.graph, dict(case.feeds))
    for result, expected in zip(results, case.expected(), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [1, 3, 64, 128, 129, 512, 1000, 4000])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("resets", [False, True])
def test_every_way_fits_the_device(hidden: int, gpu: bool, resets: bool) -> None:
    info = LARGE_GPU if gpu else replace(LARGE_GPU, type=DeviceType.CPU, features=SHUFFLES)
    problem = Problem("GRU" if resets else "LSTM", 1000, 9, hidden, 2, resets)
    ways = sharings(problem, info, texel=not gpu)
    assert ways
    for way in ways:
        assert way.shared_bytes(problem) <= info.limits.max_shared_memory
        assert way.local <= info.limits.max_workgroup_invocations
        assert 1 <= way.steps(problem) <= 1000
        assert way.local % way.slices == 0
    assert MAX_LOOP_ROUNDS < 65_535


def test_lengths_beyond_the_steps() -> None:
    gates, weights = random(3, 2, 20), random(1, 20, 5)
    inputs = [gates, weights, None, np.int32([1, 4])]
    names = ["g", "w", "", "n"]
    op = Op("Recurrent", "lstm", names, ["y"], attrs_of("LSTM"))
    with pytest.raises(vkmnn.InvalidInputError, match="outside 0 to 3"):
        run_op(op, inputs)
    good = [gates, weights, None, np.int32([1, 3])]
    case = op_case("Recurrent", attrs_of("LSTM"), good, constant={1}, outputs=3)
    with pytest.raises(vkmnn.InvalidInputError, match="outside 0 to 3"):
        run_graph(case.graph, {**case.feeds, "in3": np.int32([1, 4])})
