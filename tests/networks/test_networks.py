"""Real networks, as both of PyTorch's exporters write them, agree with onnxruntime on the device.

The first run exports (minutes); later ones reuse the files in the folder for temporary files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import vkmnn
from tests.model.oracle import assert_agree
from tests.networks.cases import CASES, Case
from tests.onnxruntime_oracle import open_oracle
from vkmnn.interpreter import Interpreter
from vkmnn.ir import Graph
from vkmnn.runtime.device import enumerate_devices

pytestmark = [pytest.mark.torch, pytest.mark.slow]

EXPORTERS = ("trace", "dynamo")

# The ops that passes must produce; no other ops of these kinds may remain.
TRANSFORMERS = {
    "vit_tiny": {"Attention": 12, "LayerNorm": 25, "GELU": 12},
    "vit_b16": {"Attention": 12, "LayerNorm": 25, "GELU": 12},
    "bert_base": {"Attention": 12, "LayerNorm": 25, "GELU": 12},
    "gpt2": {"Attention": 12, "LayerNorm": 25, "GELU_TANH": 12},
    "bert_fused": {"Attention": 2, "LayerNorm": 5, "GELU": 2},
    "gpt2_plain": {"Attention": 2, "LayerNorm": 5, "GELU_TANH": 2},
}
TAKEN_APART = {"Softmax", "Reduction", "ERF", "TANH", "POW"}


def export(name: str, exporter: str, *, dynamic: bool) -> Path:
    """Return the exported file; skip without torch."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from tests.networks.export import exported

    return exported(name, CASES[name], exporter, dynamic=dynamic)


def runs(case: Case) -> Iterator[int]:
    """Yield the numbers of the sizes to run: each, and the first one again after each other."""
    yield 0
    for number in range(1, len(case.sizes)):
        yield number
        yield 0


def functions(graph: Graph) -> Counter[str]:
    """Count the ops by type, unary and binary ones by kind, and the activations of others."""
    found: Counter[str] = Counter()
    for op in graph.ops:
        if getattr(op.attrs, "norm", "NONE") != "NONE":  # a product that normalises its rows
            found["LayerNorm"] += 1
        found[getattr(op.attrs, "kind", op.type)] += 1
        activation = getattr(op.attrs, "activation", None)
        if activation is not None:
            found[activation.kind] += 1
    return found


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_network(name: str, exporter: str):
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    case, path = CASES[name], export(name, exporter, dynamic=True)
    oracle = open_oracle(str(path))
    expected = {}
    with vkmnn.InferenceSession(path, require_device=True) as session:
        for number in runs(case):
            feeds = case.feeds(case.sizes[number])
            if number not in expected:
                expected[number] = oracle.run(None, feeds)
            what = f"{name} {dict(case.sizes[number])}"
            assert_agree(session.run(None, feeds), expected[number], what=what)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_network_of_fixed_size(name: str, exporter: str):
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    case, path = CASES[name], export(name, exporter, dynamic=False)
    feeds = case.feeds(case.sizes[0])
    with vkmnn.InferenceSession(path, require_device=True) as session:
        results = session.run(None, feeds)
    assert_agree(results, open_oracle(str(path)).run(None, feeds), what=name)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_fusions(name: str, exporter: str, dynamic: bool):
    path = export(name, exporter, dynamic=dynamic)
    found = functions(Interpreter.from_model(path).graph)
    want = TRANSFORMERS[name]
    assert {kind: found[kind] for kind in want} == want
    # BERT's pooler ends with a tanh of its own.
    left = TAKEN_APART & found.keys() - ({"TANH"} if name.startswith("bert") else set())
    assert not left, dict(found)
