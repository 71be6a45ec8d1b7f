"""Groups of nodes in an evaluator, ready to run again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from vkmnn.base.budget import size_text
from vkmnn.errors import BudgetError, HostError, UnsupportedNode, UnsupportedOpError
from vkmnn.host.effort import BY_VALUES, MEASURED, effort_of
from vkmnn.host.engines import (
    ENGINES,
    EngineError,
    EngineMemoryError,
    EngineTimeoutError,
    HostEngine,
    Value,
)
from vkmnn.host.merge import merge, opset_key
from vkmnn.ir import Array, HostGraphAttrs, Op

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)


class HostFunction:
    """Some nodes of a network in one evaluator.

    If the evaluator fails in a run, the next one is tried, and kept if it succeeds. Work that
    exceeds `seconds` or `room` bytes is interrupted, or not started.

    Attributes:
        ops: the nodes.
        inputs: the names that it reads.
        outputs: the names that it computes.
        engine: name of the evaluator.
        is_first: whether that is the one preferred.
        busy_us: how long the last run took.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        constants: Mapping[str, Array],
        wanted: Collection[str],
        engines: Sequence[str],
        seconds: float,
        room: int | None = None,
    ) -> None:
        self.ops = tuple(ops)
        self._room = room
        self._seconds = seconds
        self._model, self._fed = merge(ops, constants, wanted)
        graph = self._model.graph
        self.inputs = tuple(value.name for value in graph.input if value.name not in self._fed)
        self.outputs = tuple(value.name for value in graph.output)
        self.busy_us = 0.0
        self.start_us = 0.0
        self._held, self._measured = _measured(self._model)
        self._names = [name for name in engines if ENGINES[name].installed()]
        found = len(self._names)
        self._engine = self._open(ops)
        self.is_first = len(self._names) == found - 1

    @property
    def engine(self) -> str:
        """Name of the evaluator."""
        return self._engine.name

    def _open(self, ops: Sequence[Op]) -> HostEngine:
        """Return the first evaluator that accepts the model."""
        reasons = []
        while self._names:
            name = self._names.pop(0)
            try:
                return ENGINES[name](self._model, self._room)
            except EngineError as error:
                reasons.append(f"{name}: {error}")
                _log.debug("%s does not take %s: %s", name, ops[0].name, error)
        raise UnsupportedOpError([_refused(op, "; ".join(reasons)) for op in ops])

    def __call__(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the outputs by name.

        Raises:
            BudgetError: the values take more memory than there is room for.
            HostError: no evaluator succeeds, or a loop takes too long.
        """
        feeds = {**self._fed, **{name: values[name] for name in self.inputs}}
        self.start_us = time.perf_counter_ns() / 1000
        results = self._run(feeds)
        self.busy_us = time.perf_counter_ns() / 1000 - self.start_us
        return dict(zip(self.outputs, results, strict=True))

    def _run(self, feeds: Mapping[str, Value]) -> list[Value]:
        try:
            return self._begin(self._engine, feeds)
        except EngineTimeoutError as error:
            raise self._too_long(error) from error
        except EngineMemoryError as error:
            raise self._too_large(error) from error
        except EngineError as error:
            first = error
        failed = self._engine.name
        reasons = [f"{failed}: {first}"]
        for name in list(self._names):
            try:
                engine = ENGINES[name](self._model, self._room)
                results = self._begin(engine, feeds)
            except EngineTimeoutError as error:
                raise self._too_long(error) from error
            except EngineMemoryError as error:
                raise self._too_large(error) from error
            except EngineError as error:
                reasons.append(f"{name}: {error}")
                continue
            _log.info("%s runs %s, as %s", name, self.ops[0].name, "; ".join(reasons))
            self._engine = engine
            self._names.remove(name)
            return results
        raise HostError(
            f"its inputs cannot be computed with: {'; '.join(reasons)}",
            op=self._kinds(),
            node=self.ops[0].source or self.ops[0].name,
            hint="check the shapes and values that reach this node",
        ) from first

    def _begin(self, engine: HostEngine, feeds: Mapping[str, Value]) -> list[Value]:
        """Run, unless an estimate exceeds the time or memory limit.

        Raises:
            EngineError: as `HostEngine.run`.
        """
        for node, inputs in self._measured:
            effort = effort_of(node, [feeds.get(name, self._held.get(name)) for name in inputs])
            seconds = effort.steps / engine.steps_per_second
            if seconds > self._seconds:
                raise EngineTimeoutError(
                    f"{node.op_type} would take {effort.steps:.1e} steps, about {seconds:.1e} s "
                    f"of {self._seconds:g} s"
                )
            if self._room is not None and effort.nbytes > self._room:
                raise EngineMemoryError(
                    f"{node.op_type} would hold {size_text(int(effort.nbytes))} in between, of "
                    f"{size_text(self._room)}"
                )
        return engine.run(self.outputs, feeds, self._seconds)

    def _too_long(self, error: EngineTimeoutError) -> HostError:
        return HostError(
            str(error),
            op=self._kinds(),
            node=self.ops[0].source or self.ops[0].name,
            hint="check the values and attributes that say how much work it is; set VKMNN_TIMEOUT "
            "to more seconds, if it terminates",
        )

    def _too_large(self, error: EngineMemoryError) -> BudgetError:
        return BudgetError(
            f"on the host: {error}",
            op=self._kinds(),
            node=self.ops[0].source or self.ops[0].name,
            hint="give smaller inputs; set VKMNN_MAX_BYTES higher if the model is trusted and the "
            "machine has the memory",
        )

    def _kinds(self) -> str:
        return "+".join(dict.fromkeys(_attrs(op).kind for op in self.ops))


def open_on_host(
    ops: Sequence[Op],
    constants: Mapping[str, Array],
    wanted: Collection[str],
    engines: Sequence[str],
    seconds: float,
    room: int | None = None,
) -> list[HostFunction]:
    """Return functions that together run some HostGraph ops, as few as possible.

    Args:
        ops: the ops in running order.
        constants: values of tensors.
        wanted: those of their results that others read.
        engines: the evaluators that may be used, in the order of preference.
        seconds: maximum time of a run.
        room: maximum bytes of the values of each function, None for any number.

    Raises:
        UnsupportedOpError: no evaluator supports some op.
    """
    functions: list[HostFunction] = []
    runs = [list(run) for _, run in groupby(ops, key=opset_key)]
    for number, run in enumerate(runs):
        later = [op for other in runs[number + 1 :] for op in other]
        functions += _open_run(run, constants, {*wanted, *_read(later)}, engines, (seconds, room))
    return functions


def _open_run(
    ops: Sequence[Op],
    constants: Mapping[str, Array],
    wanted: Collection[str],
    engines: Sequence[str],
    bounds: tuple[float, int | None],
) -> list[HostFunction]:
    """Return one function if the first evaluator accepts all ops, else one for each accepted part.

    So a node that it rejects does not affect the others.
    """
    alone = [list(part) for _, part in groupby(ops, key=_goes_alone)]
    if len(alone) > 1:
        functions: list[HostFunction] = []
        for number, part in enumerate(alone):
            read = {*wanted, *_read([op for other in alone[number + 1 :] for op in other])}
            functions += _open_run(part, constants, read, engines, bounds)
        return functions
    whole: HostFunction | None = None
    try:
        whole = HostFunction(ops, constants, wanted, engines, *bounds)
    except UnsupportedOpError:
        if len(ops) == 1:
            raise
    if whole is not None and (len(ops) == 1 or whole.is_first):
        return [whole]
    try:
        each = [
            HostFunction([op], constants, {*wanted, *_read(ops[place:])}, engines, *bounds)
            for place, op in enumerate(ops, 1)
        ]
    except UnsupportedOpError:
        if whole is None:
            raise
        return [whole]
    names = {function.engine for function in each}
    if len(names) == 1:  # nothing to distinguish
        return each if whole is None else [whole]
    functions = []
    for name, same in groupby(each, key=lambda function: function.engine):
        part = [op for function in same for op in function.ops]
        ops = ops[len(part) :]
        preferred = (name, *(other for other in engines if other != name))
        functions += _open_run(part, constants, {*wanted, *_read(ops)}, preferred, bounds)
    return functions


def _read(ops: Sequence[Op]) -> set[str]:
    return {name for op in ops for name in op.inputs}


def _goes_alone(op: Op) -> str:
    """Return a key that differs between ops that must not share a model."""
    return op.name if _attrs(op).kind.rpartition("::")[2] in BY_VALUES else ""


def _measured(
    model: onnx.ModelProto,
) -> tuple[dict[str, Array], list[tuple[onnx.NodeProto, list[str]]]]:
    """Return the constants that they read, and the nodes whose effort depends on their inputs."""
    from onnx import numpy_helper

    known = {value.name for value in model.graph.input}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    known |= {"", *tensors}
    nodes = [
        (node, list(node.input))
        for node in model.graph.node
        if node.op_type in MEASURED and known.issuperset(node.input)
    ]
    read = {name for _, names in nodes for name in names} & tensors.keys()
    return {name: numpy_helper.to_array(tensors[name]) for name in read}, nodes


def _attrs(op: Op) -> HostGraphAttrs:
    assert isinstance(op.attrs, HostGraphAttrs)
    return op.attrs


def _refused(op: Op, reason: str) -> UnsupportedNode:
    domain, _, kind = _attrs(op).kind.rpartition("::")
    return UnsupportedNode(kind, domain, 1, op.source or op.name, f"{_attrs(op).reason}; {reason}")
