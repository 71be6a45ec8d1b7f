"""A network in sessions, reloaded when an input gets a shape that its file excludes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkmnn.arguments import fits
from vkmnn.errors import ConversionError, InvalidInputError, UnsupportedOpError
from vkmnn.ir import Dim, Graph, TensorInfo
from vkmnn.opening.network import Network
from vkmnn.opening.paths import OpenPaths, open_paths
from vkmnn.schedule_config import ScheduleConfig

MAX_OPENINGS = 4
"""Sessions of one network that stay open, each for shapes that the others exclude."""


class Openings:
    """A network at any input shapes that its operators allow.

    The network starts as its file declares it. A shape that contradicts the file reloads it in a
    further session, with the differing sizes left open; its weights are those already on the
    device. Sessions with a plan for a shape come first.

    Args:
        network: the network to run.
        configs: how; several for several parts.
        first: the session of the network as it is, if it is open already.

    Attributes:
        current: the session in use.
    """

    def __init__(
        self,
        network: Network,
        configs: Sequence[ScheduleConfig],
        first: OpenPaths | None = None,
    ) -> None:
        self._network: Network | None = network
        self._configs = tuple(configs)
        self.current = open_paths(network, self._configs) if first is None else first
        self._all = [self.current]
        self._lock = threading.Lock()

    def fit(self, shapes: Mapping[str, tuple[int, ...]]) -> OpenPaths:
        """Return the session for these shapes, and make it current.

        Raises:
            InvalidInputError: nothing open takes the shapes, and the model has been released.
            ConversionError: the network cannot be read with an input of such a shape.
        """
        with self._lock:
            fitting = [one for one in self._all if _fit(one.core.graph.inputs, shapes)]
            planned = [one for one in fitting if one.core.is_planned(shapes)]
            for one in (*planned, *reversed(fitting)):
                self.current = one
                return one
            opened = self._opened(shapes)
            self.current = opened
            self._all.append(opened)
            if len(self._all) > MAX_OPENINGS:
                self._all.pop(1).core.close()
            return opened

    def _opened(self, shapes: Mapping[str, tuple[int, ...]]) -> OpenPaths:
        if self._network is None:
            raise InvalidInputError(
                "the session has released its model, and has no plan for these inputs",
                hint="plan what is needed before the model is released",
            )
        network = self._network
        own = {info.name: info for info in network.source.inputs}
        latest = [info for info in self._all[-1].core.graph.inputs if info.name in own]
        if not _fit(latest, shapes):  # otherwise it is a tensor inside the network
            try:
                network = network.with_shapes(_opened_up(latest, shapes))
            except (ConversionError, UnsupportedOpError):  # a converter needs to know a size
                fixed = {name: shape for name, shape in shapes.items() if name in own}
                network = network.with_shapes(fixed)
            _share_constants(network.graph, self._network.graph)
        return open_paths(network, self._configs, shapes)

    def another(self) -> Openings:
        """Return further sessions of the network.

        Raises:
            InvalidInputError: the model has been released.
        """
        if self._network is None:
            raise InvalidInputError(
                "the session has released its model: it cannot open another one"
            )
        return Openings(self._network, self._configs)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self.current.core.closed

    def release_model(self) -> None:
        """Free the model; plans that exist continue to run."""
        self._network = None
        for one in self._all:
            one.core.forget_model()

    def release_plans(self) -> None:
        """Free the memory of all plans."""
        for one in self._all:
            one.core.release()

    def close(self) -> None:
        """Close all sessions."""
        for one in self._all:
            one.core.close()


def fitting(infos: Sequence[TensorInfo], arrays: Mapping[str, Any]) -> bool:
    """Return whether a network's inputs allow the shapes of arrays."""
    return all(fits(info.shape, arrays[info.name].shape) for info in infos)


def _fit(infos: Sequence[TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(fits(info.shape, shapes[info.name]) for info in infos if info.name in shapes)


def _opened_up(
    infos: Sequence[TensorInfo], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes of all inputs, with sizes open that differ from the requested ones."""
    found: dict[str, tuple[Dim, ...]] = {}
    for info in infos:
        wanted = shapes.get(info.name)
        if info.shape is None or wanted is None:
            continue
        if len(wanted) != len(info.shape):
            found[info.name] = (None,) * len(wanted)
        else:
            found[info.name] = tuple(
                dim if fits((dim,), (size,)) else None
                for dim, size in zip(info.shape, wanted, strict=True)
            )
    return found


def _share_constants(graph: Graph, known: Graph) -> None:
    """Reuse arrays of an open graph for equal constants: devices hold each array once."""
    for name, array in graph.constants.items():
        same = known.constants.get(name)
        if same is not None and same.dtype == array.dtype and np.array_equal(same, array):
            graph.constants[name] = same
