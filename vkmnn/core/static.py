"""Networks of fixed shapes: what follows from the shapes is computed once, for all plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from vkmnn.core.resolve import Resolved
from vkmnn.ir import Graph, TensorInfo


class StaticShapes:
    """What plans of one network share where no shape can change (MNN's static models).

    Shapes, folded constants and lowered data movement are the same for every session, and when a
    plan is made again: after its memory was released, for a profile, on a device that is reopened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], Resolved] = {}

    def resolved(
        self,
        graph: Graph,
        inputs: Mapping[str, TensorInfo],
        lowered: bool,
        compute: Callable[[], Resolved],
    ) -> Resolved:
        """Return what is known of a part of the network, computing it the first time.

        Args:
            graph: the part; what it reads and produces says which one it is.
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
