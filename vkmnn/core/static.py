"""State shared by all plans of a network: layers, constants, values derived from static shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from vkmnn.core.layers import Layers, find_layers
from vkmnn.core.resolve import Resolved
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo

MAX_PARTS = 32
"""Parts of a network whose layers are remembered."""


class StaticShapes:
    """State shared by a network's plans (MNN's static models).

    Shapes, folded constants and lowered data movement are the same for every session, and for a
    plan that is made again: after its memory was released, for a profile, on a reopened device.
    Repeated layers do not depend on shapes, nor do the network's own constants.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], Resolved] = {}
        # The ops are kept alive, so that their identities in the key stay unique.
        self._layers: dict[tuple[object, ...], tuple[list[Op], Layers | None]] = {}
        self._constants: dict[str, Tensor] = {}

    def layers(self, graph: Graph) -> Layers | None:
        """Return the repeated layers of a part of the network, detected on first use."""
        key = _part(graph)
        found = self._layers.get(key)
        if found is None:
            if len(self._layers) >= MAX_PARTS:
                self._layers.clear()
            found = self._layers[key] = list(graph.ops), find_layers(graph)
        return found[1]

    def forget_layers(self, graph: Graph) -> None:
        """Resolve all layers from now on: they turned out to differ."""
        self._layers[_part(graph)] = list(graph.ops), None

    def constants(self, graph: Graph) -> Mapping[str, Tensor]:
        """Return the constants of a part of the network, collected on first use.

        Users compare the value, since another part may have a constant of the same name.
        """
        known = self._constants
        if not known.keys() >= graph.constants.keys():
            for name, array in graph.constants.items():
                known.setdefault(name, constant(name, array))
        return known

    def resolved(
        self,
        graph: Graph,
        inputs: Mapping[str, TensorInfo],
        lowered: bool,
        compute: Callable[[], Resolved],
    ) -> Resolved:
        """Return the resolved facts about a part of the network, computed on first use.

        Args:
            graph: the part; its inputs and outputs identify it.
            inputs: its inputs with the shapes of the plan.
            lowered: whether data movement is lowered.
            compute: computes it.
        """
        if not all(info.is_static for info in graph.inputs):
            return compute()
        given = tuple((name, info.shape) for name, info in sorted(inputs.items()))
        key = (given, tuple(info.name for info in graph.outputs), lowered)
        with self._lock:
            found = self._known.get(key)
        if found is None:
            found = compute()
            with self._lock:
                found = self._known.setdefault(key, found)
        return found


def constant(name: str, array: Array) -> Tensor:
    """Return a tensor with a constant value."""
    info = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
    return Tensor(info, Usage.CONSTANT, value=array)


def _part(graph: Graph) -> tuple[object, ...]:
    return (tuple(info.name for info in graph.outputs), *map(id, graph.ops))
