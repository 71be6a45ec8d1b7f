"""Equal layers are resolved once, and every network becomes the same as without that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import planning
from tests.model.networks import Net
from vkmnn.base.budget import unlimited
from vkmnn.base.memo import Memo
from vkmnn.core.alike_layers import Layers, find_layers
from vkmnn.core.layer_copies import resolve_layers
from vkmnn.core.plan import Plan
from vkmnn.core.resolve import Resolved, fold_constants, lower, resolve
from vkmnn.core.static import StaticShapes
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Graph, TensorInfo
from vkmnn.opening import load_network
from vkmnn.runtime.device import open_device
from vkmnn.vulkan.backend import VulkanBackend

DEEP = [name for name in planning.NETWORKS if name.endswith("12 layers")]


@pytest.mark.parametrize("name", DEEP)
def test_networks_become_the_same(name: str) -> None:
    build, sizes = planning.NETWORKS[name]
    graph = _graph(build())
    layers = find_layers(graph)
    assert layers is not None
    assert len(layers.left_out) >= 8
    for size in sizes:
        inputs = {info.name: planning.sized(info, size) for info in graph.inputs}
        _compare(graph, layers, inputs)


@pytest.mark.parametrize("name", planning.NETWORKS)
def test_all_that_is_found_becomes_the_same(name: str) -> None:
    build, sizes = planning.NETWORKS[name]
    graph = _graph(build())
    layers = find_layers(graph)
    if layers is not None:
        inputs = {info.name: planning.sized(info, sizes[0]) for info in graph.inputs}
        _compare(graph, layers, inputs)


def test_layers_with_inputs_and_outputs_of_their_own() -> None:
    """As in a decoder with caches: for each layer, one is an input and one an output."""
    net = Net("caches")
    x = net.input("x", ("N", 8))
    outputs: dict[str, Sequence[int | str]] = {}
    for number in range(6):
        past = net.input(f"past{number}", ("P", 8))
        present = net.op("Concat", past, x, axis=0)
        outputs[present] = ("M", 8)
        turned = net.op("Reshape", net.op("Transpose", present, perm=[1, 0]), net.ints(-1))
        x = net.op("Add", x, net.op("ReduceMean", turned, keepdims=1))
    outputs[x] = ("N", 8)
    graph = _graph(net.finish(outputs))
    layers = find_layers(graph)
    assert layers is not None
    assert layers.inputs
    inputs = {"x": TensorInfo("x", graph.inputs[0].dtype, (2, 8))}
    for number in range(6):
        inputs[f"past{number}"] = TensorInfo(f"past{number}", graph.inputs[0].dtype, (3, 8))
    _compare(graph, layers, inputs)
    inputs["past3"] = replace(inputs["past3"], shape=(4, 8))
    assert _by_layers(graph, layers, inputs) is None


def test_contents_that_decide_what_becomes_of_an_op_are_compared() -> None:
    """Four layers reshape alike, the others do not."""
    for shapes, alike in (([(8, -1)] * 6, True), ([(8, -1), (4, -1)] * 3, False)):
        net = Net("shapes")
        x = net.input("x", ("N", 8))
        for shape in shapes:
            moved = net.op("Transpose", net.op("Reshape", x, net.ints(*shape)), perm=[1, 0])
            back = net.op("Reshape", net.op("Tanh", moved), net.ints(-1, 8))
            x = net.op("Add", net.op("Sigmoid", x), back)
        graph = _graph(net.finish({x: ("N", 8)}))
        layers = find_layers(graph)
        assert (layers is not None) is alike
        if layers is not None:
            inputs = {"x": TensorInfo("x", graph.inputs[0].dtype, (4, 8))}
            _compare(graph, layers, inputs)


def test_layers_that_grow_are_not_alike() -> None:
    """Every layer reads twice as many rows as the one before."""
    net = Net("growing")
    x = net.input("x", ("N", 8))
    for _ in range(6):
        x = net.op("Tanh", net.op("Concat", x, net.op("Sigmoid", x), axis=0))
    graph = _graph(net.finish({x: ("M", 8)}))
    layers = find_layers(graph)
    assert layers is not None
    inputs = {"x": TensorInfo("x", graph.inputs[0].dtype, (4, 8))}
    assert _by_layers(graph, layers, inputs) is None


def test_what_is_read_further_away_makes_no_layers() -> None:
    """The third layer is also read at the end."""
    net = Net("skips")
    x = net.input("x", ("N", 8))
    kept = x
    for number in range(8):
        x = net.op("Add", net.op("Tanh", x), net.op("Sigmoid", x))
        kept = x if number == 3 else kept
    graph = _graph(net.finish({net.op("Mul", x, kept): ("N", 8)}))
    layers = find_layers(graph)
    if layers is not None:  # those after it
        assert len(layers.left_out) <= 1
        _compare(graph, layers, {"x": TensorInfo("x", graph.inputs[0].dtype, (4, 8))})


@pytest.mark.parametrize(("name", "most"), [("BERT, 12 layers", 90), ("ResNet-50", 140)])
def test_what_a_third_size_computes(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, lowerings, executions, kernels and dispatches: once for equal ops."""
    build, sizes = planning.NETWORKS[name]
    graph, static, keep, made = _graph(build()), StaticShapes(), Memo.keep, 0

    def counted(memo: Memo[Any, Any], key: Any, value: Any) -> Any:
        nonlocal made
        made += 1
        return keep(memo, key, value)

    backend, plans = VulkanBackend(open_device("auto")), []
    for number, size in enumerate(sizes[:3]):
        inputs = {info.name: planning.sized(info, size) for info in graph.inputs}
        if number == 2:
            monkeypatch.setattr(Memo, "keep", counted)
        plans.append(Plan(graph, inputs, {}, backend, CpuBackend(), run_op, static=static))
    for plan in plans:
        plan.close()
    assert 0 < made <= most


def test_layers_are_looked_for_once() -> None:
    build, _ = planning.NETWORKS["GPT-2, 12 layers"]
    graph = _graph(build())
    static = StaticShapes()
    assert static.layers(graph) is static.layers(graph)
    static.forget_layers(graph)
    assert static.layers(graph) is None


def _graph(model: onnx.ModelProto) -> Graph:
    return fold_constants(load_network(model).graph, run_op, unlimited())


def _resolved(graph: Graph, whole: Graph, inputs: dict[str, TensorInfo]) -> Resolved:
    found = resolve(graph, inputs, {}, run_op)
    return lower(found, whole.output_names(), run_op)


def _by_layers(graph: Graph, layers: Layers, inputs: dict[str, TensorInfo]) -> Resolved | None:
    return resolve_layers(
        graph, layers, inputs, lambda part: _resolved(part, graph, inputs), unlimited()
    )


def _compare(graph: Graph, layers: Layers, inputs: dict[str, TensorInfo]) -> None:
    """Compare a network that is resolved by its layers with the same as a whole."""
    plain, found = _resolved(graph, graph, inputs), _by_layers(graph, layers, inputs)
    assert found is not None
    assert found.ops == plain.ops
    assert all(type(op.source) is str for op in found.ops)
    read = {name for op in plain.ops for name in (*op.inputs, *op.outputs) if name}
    for name in read | graph.output_names():
        assert found.infos[name] == plain.infos[name]
        assert (name in found.constants) == (name in plain.constants)
        if name in plain.constants:
            np.testing.assert_array_equal(found.constants[name], plain.constants[name])
