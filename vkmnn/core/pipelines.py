"""Sessions in sequence, each for a part of a network on its own backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from vkmnn.core.backend import MemoryUse
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.futures import RunFuture
from vkmnn.core.placement import Placement
from vkmnn.core.plan import Plan
from vkmnn.core.program import Value
from vkmnn.core.session import Session
from vkmnn.core.shared_sizes import SharedSizes
from vkmnn.core.watched import Callback, Decision, OpCall, decided
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, Graph, TensorInfo

T = TypeVar("T")


class Pipelines:
    """Sessions of parts of one network; runs pass tensors from one to the next.

    A failure ends a run: later parts do not run.

    Args:
        parts: the sessions, in running order; closed with this.
        outputs: the outputs of all of them for the caller.
    """

    def __init__(self, parts: Sequence[Session], outputs: Sequence[str]) -> None:
        self._parts = list(parts)
        infos = {info.name: info for part in parts for info in part.graph.outputs}
        inputs: dict[str, TensorInfo] = {}
        for number, part in enumerate(parts):
            made = {info.name for one in parts[:number] for info in one.graph.outputs}
            inputs |= {info.name: info for info in part.graph.inputs if info.name not in made}
        types = {name: kind for part in parts for name, kind in part.graph.types.items()}
        self.graph = Graph(
            parts[0].graph.name,
            list(inputs.values()),
            [infos[name] for name in outputs],
            types=types,
        )
        self._shared = SharedSizes(self.graph.inputs)

    @property
    def parts(self) -> Sequence[Session]:
        """The sessions, in running order."""
        return self._parts

    @property
    def content_inputs(self) -> frozenset[str]:
        """Inputs from outside whose content determines a shape."""
        names = {info.name for info in self.graph.inputs}
        return frozenset(
            name for part in self._parts for name in part.content_inputs if name in names
        )

    @property
    def plans(self) -> list[Plan]:
        """The plans in use."""
        return [plan for part in self._parts for plan in part.plans]

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._parts[0].closed

    def resize(
        self, shapes: Mapping[str, tuple[int, ...]], feeds: Mapping[str, Array]
    ) -> dict[str, TensorInfo]:
        """Plan every part whose input shapes are known; see `Session.resize`."""
        self._shared.refuse(shapes)
        known: dict[str, tuple[int, ...]] = dict(shapes)
        found: dict[str, TensorInfo] = {}
        for part in self._parts:
            names = [info.name for info in part.graph.inputs]
            if all(name in known for name in names) and part.content_inputs <= feeds.keys():
                made = part.resize({name: known[name] for name in names}, feeds)
                known |= {name: info.dims for name, info in made.items()}
                found |= made
        wanted = self.graph.output_names()
        return {name: info for name, info in found.items() if name in wanted}

    def is_planned(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the first part has its plan, and every other part has at least one."""
        first = self._parts[0]
        return first.is_planned(_of(first, shapes)) and all(part.plans for part in self._parts)

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """Run all parts; see `Session.run`."""
        return self._in_order(feeds, lambda part, values: part.run(_of(part, values)))

    def submit(
        self, feeds: Mapping[str, Value], finish: Callable[[dict[str, Value]], T]
    ) -> RunFuture[T]:
        """Request a run of all parts and return immediately; see `Session.submit`."""
        return self.submit_call(lambda: finish(self.run(feeds)))

    def submit_call(self, work: Callable[[], T]) -> RunFuture[T]:
        """Request a call after the runs submitted before it."""
        return self._parts[0].submit_call(work)

    def _in_order(
        self,
        feeds: Mapping[str, Value],
        run: Callable[[Session, Mapping[str, Value]], dict[str, Value] | None],
    ) -> dict[str, Value]:
        values: dict[str, Value] = dict(feeds)
        made: dict[str, Value] = {}
        for part in self._parts:
            results = run(part, values)
            if results is None:
                break
            values |= results
            made |= results
        return {name: made[name] for name in self.graph.output_names() if name in made}

    def run_watched(
        self, feeds: Mapping[str, Value], before: Callback, after: Callback
    ) -> dict[str, Value]:
        """Run all parts op by op; see `Session.run_watched`."""
        stopped = False

        def noting(callback: Callback, no: Decision) -> Callback:
            def call(op: OpCall, values: Mapping[str, Value]) -> Decision:
                nonlocal stopped
                decision = decided(callback(op, values), no)
                stopped = stopped or decision is Decision.STOP
                return decision

            return call

        def run(part: Session, values: Mapping[str, Value]) -> dict[str, Value] | None:
            if stopped:
                return None
            return part.run_watched(
                _of(part, values), noting(before, Decision.SKIP), noting(after, Decision.STOP)
            )

        plain = {
            name: as_array(value) if isinstance(value, DeviceTensor) else value
            for name, value in feeds.items()
        }
        return self._in_order(plain, run)

    def placement(self) -> Placement:
        """Return where each op of every part runs; tensors passed between parts count as copies."""
        placed = [part.placement() for part in self._parts]
        made = {info.name for part in self._parts for info in part.graph.outputs}
        handed = sum(info.name in made for part in self._parts for info in part.graph.inputs)
        return replace(
            placed[0],
            ops=tuple(op for one in placed for op in one.ops),
            copies=sum(one.copies for one in placed) + handed,
            copied_bytes=sum(one.copied_bytes for one in placed),
        )

    def memory(self) -> MemoryUse:
        """Return the device memory of all parts' plans."""
        uses = [part.memory() for part in self._parts]
        return MemoryUse(
            sum(use.activations for use in uses),
            sum(use.lower_bound for use in uses),
            sum(use.constants for use in uses),
            sum(use.io for use in uses),
        )

    def flops(self) -> int:
        """Return the floating-point operations of all parts' plans."""
        return sum(part.flops() for part in self._parts)

    def backend_types(self) -> tuple[str, ...]:
        """Return the types of the backends, each once."""
        return tuple(dict.fromkeys(kind for part in self._parts for kind in part.backend_types()))

    def trim(self) -> None:
        """Free the memory of all plans but the latest."""
        for part in self._parts:
            part.trim()

    def forget_model(self) -> None:
        """Free the network; see `Session.forget_model`."""
        for part in self._parts:
            part.forget_model()

    def release(self) -> None:
        """Free the memory of all plans."""
        for part in self._parts:
            part.release()

    def close(self) -> None:
        """Close all parts."""
        for part in reversed(self._parts):
            part.close()


def _of(part: Session, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the inputs of a part.

    Raises:
        InvalidInputError: a preceding part did not produce it.
    """
    missing = [info.name for info in part.graph.inputs if info.name not in values]
    if missing:
        raise InvalidInputError(f"tensor '{missing[0]}' was not produced by the parts before")
    return {info.name: values[info.name] for info in part.graph.inputs}
