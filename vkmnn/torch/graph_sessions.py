"""Sessions of a graph of torch.compile's, by its weights and the shapes of arguments."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from vkmnn.converter.torch import Program
from vkmnn.errors import ConversionError, HostError, ModelError, ShapeError
from vkmnn.inference_session import InferenceSession
from vkmnn.torch.graph_programs import export_graph
from vkmnn.torch.graphs import Refusal, Signature, set_weights
from vkmnn.torch.tensors import as_array

REFUSED = (ConversionError, HostError, ModelError, ShapeError)
"""Errors that say that a graph is not for sessions."""

_MAX_SHAPES = 256
"""How many shapes of arguments are remembered for each set of weights."""

_version = attrgetter("_version")


@dataclass(frozen=True, slots=True)
class Settings:
    """How graphs of torch.compile's run.

    Attributes:
        session: options of their sessions.
        tuned: whether kernels are measured before the first run.
        sessions: how many sessions a graph has at most.
        fall_back: is told about each graph that PyTorch runs; may raise.
    """

    session: Mapping[str, Any]
    tuned: bool
    sessions: int
    fall_back: Callable[[Refusal], None]


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A session, and the arguments that it takes.

    Attributes:
        session: it.
        feeds: names of its inputs, and the arguments' places.
        fixed: numbers that it was made for, by the arguments' places.
    """

    session: InferenceSession
    feeds: tuple[tuple[str, int], ...]
    fixed: Mapping[int, Any]

    def takes(self, args: Sequence[Any]) -> bool:
        """Return whether the arguments have the sizes and numbers of the session."""
        if any(args[place] != value for place, value in self.fixed.items()):
            return False
        infos = self.session.get_inputs()
        for info, (_, place) in zip(infos, self.feeds, strict=True):
            for declared, size in zip(
                info.shape or (), getattr(args[place], "shape", ()), strict=True
            ):
                if isinstance(declared, int) and declared != size:
                    return False
        return True


@dataclass(slots=True, eq=False)
class WeightSet:
    """Sessions with the same weights.

    Attributes:
        ids: of the tensors; the set is forgotten with the first that dies.
        versions: PyTorch's counters of what was written to each; None where it does not count.
        pointers: where their elements lie.
        bounds: sessions by the shapes of arguments.
        references: to the tensors, weak ones.
    """

    ids: list[int]
    versions: list[int] | None
    pointers: list[int]
    bounds: dict[tuple[Any, ...], Bound] = field(default_factory=dict)
    references: list[Any] = field(default_factory=list)


class GraphSessions:
    """Sessions of one graph, at most as many as the settings say; safe to use from threads.

    Args:
        torch: the package.
        module: the rewritten graph.
        signature: what it takes.
        settings: how it runs.
    """

    def __init__(self, torch: Any, module: Any, signature: Signature, settings: Settings) -> None:
        self._torch = torch
        self._module = module
        self._signature = signature
        self._settings = settings
        self._weights = tuple(signature.weights)
        self._fed = tuple(signature.fed)
        self._pointer = torch.Tensor.data_ptr
        self._lock = threading.Lock()
        self._sets: list[WeightSet] = []
        self._opened: list[tuple[WeightSet, Bound]] = []

    def find(self, args: Sequence[Any], fixed: bool = False) -> Bound:
        """Return the session for the weights and shapes among the arguments.

        Args:
            args: of the graph.
            fixed: return a new session, for these shapes alone.

        Raises:
            Refusal: the graph is not for sessions.
        """
        weights = [args[place] for place in self._weights]
        shapes = tuple([getattr(args[place], "shape", args[place]) for place in self._fed])
        ids, pointers = list(map(id, weights)), list(map(self._pointer, weights))
        versions = _versions(weights)
        if not fixed:
            for one in self._sets:
                if one.ids == ids and one.versions == versions and one.pointers == pointers:
                    bound = one.bounds.get(shapes)
                    if bound is not None:
                        return bound
                    break
        with self._lock:
            held = self._held(weights, WeightSet(ids, versions, pointers))
            found = None
            if not fixed:
                found = next((one for one in held.bounds.values() if one.takes(args)), None)
            if found is None:
                found = self._open(args, fixed)
                self._keep(held, found)
            if len(held.bounds) >= _MAX_SHAPES:
                held.bounds.clear()
            held.bounds[shapes] = found
            return found

    def _held(self, weights: Sequence[Any], new: WeightSet) -> WeightSet:
        """Return the set of these weights, a new one if they have changed."""
        for one in self._sets:
            if one.ids == new.ids:
                if one.versions == new.versions and one.pointers == new.pointers:
                    return one
                self._forget(one)
        kept = weakref.ref(self)

        def died(_: Any) -> None:
            if (sessions := kept()) is not None:
                sessions._forget(new)

        new.references = [weakref.ref(weight, died) for weight in weights]
        self._sets = [new, *self._sets]
        return new

    def _forget(self, old: WeightSet) -> None:
        """Let go of a set; called in any thread, whenever a tensor dies."""
        self._sets = [one for one in self._sets if one is not old]
        self._opened = [one for one in self._opened if one[0] is not old]

    def _keep(self, held: WeightSet, bound: Bound) -> None:
        """Note a new session, and let go of the oldest beyond the limit."""
        self._opened = [*self._opened, (held, bound)]
        while len(self._opened) > self._settings.sessions:
            (owner, oldest), *self._opened = self._opened
            owner.bounds = {key: one for key, one in owner.bounds.items() if one is not oldest}

    def _open(self, args: Sequence[Any], fixed: bool) -> Bound:
        torch, signature = self._torch, self._signature
        try:
            set_weights(torch, self._module, {place: args[place] for place in self._weights})
            program = export_graph(torch, self._module, signature, args, fixed)
            source: Any = Program(program, "torch.compile")
            session = InferenceSession(source, **self._settings.session)
        except REFUSED as error:
            raise Refusal(error.message, error.hint or "") from error
        finally:  # the graph outlives the weights
            set_weights(torch, self._module, dict.fromkeys(self._weights, torch.empty(0)))
        specs = [
            one for one in program.graph_signature.input_specs if one.kind.name == "USER_INPUT"
        ]
        held = {
            place: one.arg.value
            for one, place in zip(specs, self._fed, strict=True)
            if hasattr(one.arg, "value")
        }
        names = [info.name for info in session.get_inputs()]
        places = [place for place in self._fed if place not in held]
        bound = Bound(session, tuple(zip(names, places, strict=True)), held)
        if self._settings.tuned:
            session.tune({name: as_array(torch, args[place]) for name, place in bound.feeds})
        return bound


def _versions(weights: Sequence[Any]) -> list[int] | None:
    try:
        return list(map(_version, weights))
    except RuntimeError:  # of a tensor that was made in the mode inference
        return None
