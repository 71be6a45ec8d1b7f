"""Sizes that the inputs of a network share by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.ir import DType, Graph, TensorInfo


class SharedSizes:
    """Sizes of a network's inputs that must be equal.

    Args:
        inputs: the inputs of the network.
    """

    def __init__(self, inputs: Iterable[TensorInfo]) -> None:
        places: dict[str, list[tuple[str, int]]] = {}
        for info in inputs:
            if info.dtype is DType.OBJECT:
                continue
            for axis, dim in enumerate(info.shape or ()):
                if isinstance(dim, str):
                    places.setdefault(dim, []).append((info.name, axis))
        self._places = {name: found for name, found in places.items() if len(found) > 1}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._places)

    def refuse(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Reject shapes that give one name two sizes; inputs without a shape are skipped.

        Raises:
            InvalidInputError: names the dimension and both inputs.
        """
        for name, ((other, first), *more) in self._places.items():
            if other not in shapes:
                continue
            size = shapes[other][first]
            for source, axis in more:
                if source in shapes and shapes[source][axis] != size:
                    raise InvalidInputError(
                        f"dimension '{name}' is {size} in input '{other}' "
                        f"but {shapes[source][axis]} in input '{source}'",
                        hint="inputs that share a symbolic dimension must agree on it",
                    )

    def told_apart(self, graph: Graph) -> Graph:
        """Return a graph without the shared names: those sizes may be anything."""

        def own(info: TensorInfo) -> TensorInfo:
            shape = tuple(None if dim in self._places else dim for dim in info.shape or ())
            return info if info.shape is None else replace(info, shape=shape)

        def fixed(info: TensorInfo) -> TensorInfo:
            # Sizes of intermediate tensors are written in terms of names: "past + new".
            shape = tuple(dim if isinstance(dim, int) else None for dim in info.shape or ())
            return info if info.shape is None else replace(info, shape=shape)

        return replace(
            graph,
            inputs=[own(info) for info in graph.inputs],
            outputs=[fixed(info) for info in graph.outputs],
            infos={name: fixed(info) for name, info in graph.infos.items()},
            planned_sizes={},
        )


def shapes_of(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the feeds that have one."""
    return {name: feed.shape for name, feed in feeds.items() if hasattr(feed, "shape")}
