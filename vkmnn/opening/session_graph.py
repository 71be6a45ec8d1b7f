"""The graph of a session: tensors that it saves, indices that it skips, sizes told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vkmnn.core.shared_sizes import SharedSizes
from vkmnn.core.static import StaticShapes
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Graph, TensorInfo
from vkmnn.opening.network import Network


def skipping(network: Network) -> Network:
    """Return the network with gathers and scatters that leave out indices beyond their axes."""
    from vkmnn.converter.out_of_range import skip_out_of_range

    network = replace(network, origin=None)  # onnxruntime would refuse such an index
    source = skip_out_of_range(network.source)
    if network.optimise is None:
        return replace(network, source=source, graph=source, static=StaticShapes())
    made = network.optimise(source, network.meter.renewed())
    return replace(network, source=source, graph=made, static=StaticShapes())


def saving(network: Network, names: Sequence[str]) -> Graph:
    """Return the network's graph with saved tensors as additional outputs.

    Where passes have fused one away, they run again on a network that has it for an output.
    """
    fused = set(names) - network.graph.producers().keys()
    if network.optimise is None or not fused:
        return _with_outputs(network.graph, names)
    source = _with_outputs(network.source, names)
    return network.optimise(source, network.meter.renewed())


def told_apart(network: Network, outputs: Sequence[str], shared: SharedSizes) -> Graph:
    """Return the network's graph, optimised without using dimension names that inputs share."""
    assert network.optimise is not None
    source = shared.told_apart(network.source)
    apart = replace(network, source=source, graph=network.optimise(source, network.meter.renewed()))
    return saving(apart, outputs)


def _with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with additional outputs."""
    if not names:
        return graph
    produced = graph.producers()
    missing = [name for name in names if name not in produced]
    if missing:
        raise InvalidInputError(
            f"the network has no tensor '{missing[0]}'",
            hint="`vkmnn info --tensors` lists those that there are",
        )
    known = graph.output_names()
    infos = [
        graph.infos.get(name) or TensorInfo(name, graph.inputs[0].dtype, None)
        for name in names
        if name not in known
    ]
    return replace(graph, outputs=[*graph.outputs, *infos])
