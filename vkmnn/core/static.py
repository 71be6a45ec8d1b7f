"""State shared by all plans of a network: layers, constants, values derived from static shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vkmnn.base.memo import Memo
from vkmnn.core.alike_layers import Layers, find_layers
from vkmnn.core.resolve import Resolved
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo

MAX_PARTS = 32
"""Parts of a network whose layers, and whose resolved facts, are kept."""


class StaticShapes:
    """State shared by a network's plans (MNN's static models).

    Shapes, folded constants and lowered data movement are the same for every session, and for a
    plan that is made again: after its memory was released, for a profile, on a reopened device.
    Repeated layers do not depend on shapes, nor do the network's own constants.
    """

    def __init__(self) -> None:
        self._known: Memo[tuple[object, ...], Resolved] = Memo(2 * MAX_PARTS)  # lowered, or not
        # The ops are kept, so that their identities in the key stay theirs.
        self._layers: Memo[tuple[object, ...], tuple[list[Op], Layers | None]] = Memo(MAX_PARTS)
        self._constants: dict[str, Tensor] = {}

    def layers(self, graph: Graph) -> Layers | None:
        """Return the repeated layers of a part of the network, detected on first use."""
        return self._layers.once(_part(graph), lambda: (list(graph.ops), find_layers(graph)))[1]

    def forget_layers(self, graph: Graph) -> None:
        """Have all layers resolved from now on: they have not become alike."""
        self._layers.replace(_part(graph), (list(graph.ops), None))

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
        return self._known.once(key, compute)


def constant(name: str, array: Array) -> Tensor:
    """Return a tensor with a constant value."""
    info = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
    return Tensor(info, Usage.CONSTANT, value=array)


def _part(graph: Graph) -> tuple[object, ...]:
    return (tuple(info.name for info in graph.outputs), *map(id, graph.ops))
