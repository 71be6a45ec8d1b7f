"""A Plan is a network prepared for one set of input shapes, ready to be replayed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from vkmnn.base.budget import Meter, unlimited
from vkmnn.base.lazy_array import whole
from vkmnn.core.backend import Backend, MemoryUse, OpsRejectedError, Segment, Timing
from vkmnn.core.bound import Begun, BoundPlan, Lane
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.host_memory import check_host_memory
from vkmnn.core.layer_copies import resolve_layers
from vkmnn.core.placement import PlacedOp, Placement
from vkmnn.core.resolve import Resolved, lower, resolve
from vkmnn.core.static import StaticShapes
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.errors import DeviceError, UnsupportedNode, UnsupportedOpError, unexpected_error
from vkmnn.ir import Array, Graph, Op, TensorInfo
from vkmnn.shape.folding import Evaluator

_log = logging.getLogger(__name__)

_BACKEND = attrgetter("backend")


class Plan:
    """Plan and run one network at fixed input shapes (MNN Pipeline: encode, allocate, execute).

    Args:
        graph: the network.
        inputs: static description of the graph's inputs.
        known: content of the inputs that shapes depend on.
        main: the backend that is offered every op first.
        backup: runs ops that `main` rejects; folds constants.
        evaluate: runs one op on arrays.
        meter: limits of the plan; None for no limits.
        static: state shared by plans of a network; None to compute it.

    Raises:
        BudgetError: the plan would take more memory, pieces or time than the meter allows.
        ShapeError: the shapes do not match the network.
        UnsupportedOpError: neither backend can run some op.
        DeviceError: a tensor cannot be moved from one backend to the other.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, TensorInfo],
        known: Mapping[str, Array],
        main: Backend,
        backup: Backend,
        evaluate: Evaluator,
        meter: Meter | None = None,
        static: StaticShapes | None = None,
    ) -> None:
        meter = meter or unlimited()
        self.main = main.type
        self.backup = backup.type
        self._backends = {main.type: main}
        self._backends.setdefault(backup.type, backup)
        self._outputs = [info.name for info in graph.outputs]

        def compute() -> Resolved:
            lowered = main.uses_geometry
            layered = None if known else static
            return _resolve(graph, inputs, known, evaluate, meter, layered, lowered=lowered)

        if static is None or known:
            resolved = compute()
        else:
            resolved = static.resolved(graph, inputs, main.uses_geometry, compute)
        self.infos = resolved.infos
        self._constants = resolved.constants
        described = static.constants(graph) if static is not None else {}
        self.commands: list[Command] = []
        refused: dict[str, str] = {}
        built = None
        while built is None:
            self.commands = main.on_resize_begin(
                _create_commands(
                    resolved,
                    _Tensors(resolved, inputs, set(self._outputs), described),
                    *(main, backup, refused, meter),
                )
            )
            _settle(self.commands)
            check_host_memory(self.commands, backup.type, set(self._outputs), meter)
            try:
                built = self._build(inputs)
            except OpsRejectedError as error:
                if error.reasons.keys() <= refused.keys():
                    raise DeviceError(
                        f"cannot run the plan's auxiliary dispatches: {error.message}",
                        hint='run this network with device="cpu"',
                    ) from error
                refused |= error.reasons
        self._segments, self._copies = built
        self._takes_device_tensors = all(s.takes_device_tensors for s in self._segments)
        self._main_backend = main
        self._told = [one for one in self._backends.values() if not one.records and _is_told(one)]
        self._users = 1
        self._lanes: list[Lane] = []
        self._keeper: tuple[Segment, dict[str, DeviceTensor]] | None = None

    def _build(self, inputs: Mapping[str, TensorInfo]) -> tuple[list[Segment], int]:
        """Split the commands into segments and let the backends prepare them."""
        runs = [(key, list(group)) for key, group in groupby(self.commands, _BACKEND)]
        kept, provided, copies = _crossings(self.commands, set(self._outputs), set(inputs))
        prepared = {
            key: iter(
                backend.on_resize_end(
                    [commands for owner, commands in runs if owner == key],
                    kept.get(key, {}),
                    provided.get(key, {}),
                )
            )
            for key, backend in self._backends.items()
        }
        return [next(prepared[key]) for key, _ in runs], copies

    def execute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the network once.

        Args:
            feeds: one array, or DeviceTensor, per graph input, of exactly the planned shape and
                dtype.

        Returns:
            One new array per graph output; none shares memory with another.
        """
        if not self._takes_device_tensors:
            feeds = {name: as_array(feed) for name, feed in feeds.items()}
        host = dict(feeds)
        if self._told:
            self._run_told(host)
        else:
            for segment in self._segments:
                segment.run(host)
        return separate({name: self._output(name, host, feeds) for name in self._outputs})

    def _run_told(self, host: dict[str, Array]) -> None:
        """Run the segments between the backends' execute callbacks."""
        with ExitStack() as stack:
            for backend in self._told:
                backend.on_execute_begin()
                stack.callback(backend.on_execute_end)
            for segment in self._segments:
                segment.run(host)

    def _output(self, name: str, host: Mapping[str, Array], feeds: Mapping[str, Array]) -> Array:
        if name in self._constants:
            constant: Array = np.array(whole(self._constants[name]))
            return constant
        found: Any = host[name]
        shared = isinstance(found, DeviceTensor)
        array = found if type(found) is np.ndarray else np.asarray(found)  # or a numpy scalar
        # An op that only renames may return its input; the caller must own the result.
        for feed in feeds.values():
            given: Any = feed
            if given is array or (array.base is not None and isinstance(given, np.ndarray)):
                shared = shared or np.may_share_memory(array, given)
        return array.copy() if shared else array

    # --- runs on tensors at fixed places ---------------------------------------------------------

    def bound(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> BoundPlan | None:
        """Return the plan re-recorded on these tensors, or None if that is impossible.

        Args:
            inputs: a tensor for each input of the network.
            outputs: one for each output.
        """
        segment = self.bound_segment(inputs, outputs)
        if segment is None:
            return None
        for name, constant in self._constant_outputs().items():
            outputs[name].copy_from(constant)
        return BoundPlan(self, segment, inputs, outputs)

    def bound_segment(
        self,
        inputs: Mapping[str, DeviceTensor],
        outputs: Mapping[str, DeviceTensor],
        resident: Collection[str] = (),
    ) -> Segment | None:
        """Return the plan's only segment on these tensors; see `Segment.bound`."""
        made = {out.name for command in self.commands for out in command.outputs}
        if len(self._segments) != 1 or not made | self._constants.keys() >= set(self._outputs):
            return None
        if not self._holds((*inputs, *outputs)):
            return None
        return self._segments[0].bound(inputs, outputs, resident)

    def _holds(self, names: Iterable[str]) -> bool:
        """Return whether the device can hold all of these tensors."""
        return all(self._main_backend.holds(self.infos[name].dtype) for name in names)

    def _constant_outputs(self) -> dict[str, Array]:
        known = self._constants
        return {name: whole(known[name]) for name in self._outputs if name in known}

    def begin(self, feeds: Mapping[str, Array]) -> Begun | None:
        """Start a non-exclusive run without waiting; None if it would have to wait."""
        lane = self._lanes.pop() if self._lanes else self._new_lane(feeds.keys())
        if lane is None:
            return None
        try:
            lane.begin(feeds)
        except BaseException:
            lane.close()
            raise
        return Begun(self, lane, self._main_backend)

    def _new_lane(self, inputs: Iterable[str]) -> Lane | None:
        if not self._holds((*inputs, *self._outputs)):
            return None
        new, infos = self._main_backend.new_tensor, self.infos
        segment = self.bound_segment(
            {name: new(infos[name].dims, infos[name].dtype, "upload") for name in inputs},
            {name: new(infos[name].dims, infos[name].dtype, "readback") for name in self._outputs},
        )
        if segment is None:
            return None
        return Lane(segment, self._constant_outputs(), tuple(self._outputs))

    def run_on_device(
        self, feeds: Mapping[str, Array], names: Sequence[str]
    ) -> dict[str, DeviceTensor] | None:
        """Run once; return outputs in device memory, or None if the plan produces arrays.

        The plan writes to its own tensors, and their content is copied on the device.
        """
        if self._keeper is None:
            self._keeper = self._new_keeper(feeds.keys())
        if self._keeper is None:
            return None
        segment, places = self._keeper
        segment.begin(dict(feeds))
        segment.end(None)
        results = {}
        for name in names:
            place = places[name]
            tensor = self._main_backend.new_tensor(place.shape, self.infos[name].dtype)
            tensor.copy_from(place)
            results[name] = tensor
        return results

    def _new_keeper(self, inputs: Iterable[str]) -> tuple[Segment, dict[str, DeviceTensor]] | None:
        if not self._holds((*inputs, *self._outputs)):
            return None
        new, infos = self._main_backend.new_tensor, self.infos
        places = {name: new(infos[name].dims, infos[name].dtype) for name in self._outputs}
        segment = self.bound_segment(
            {name: new(infos[name].dims, infos[name].dtype, "upload") for name in inputs}, places
        )
        for name, constant in self._constant_outputs().items():
            places[name].copy_from(constant)
        return (segment, places) if segment is not None else None

    def give_back(self, lane: Lane) -> None:
        """Return a lane for the next run."""
        self._lanes.append(lane)

    def retain(self) -> None:
        """Keep the plan open until `close` has been called one more time."""
        self._users += 1

    def forget_arrays(self) -> None:
        """Forget constants in the host's memory that runs do not read."""
        forgotten = [segment.forget_arrays() for segment in self._segments]
        if all(forgotten):
            self.commands = [_without_values(command) for command in self.commands]
        self._constants = self._constant_outputs()

    def placement(self) -> Placement:
        """Return where each op runs, and why."""
        ops = tuple(
            PlacedOp(
                *(c.op.name, c.op.type, c.op.source, c.backend, c.reason),
                *(c.execution.provider, c.execution.passed_over, c.flops),
            )
            for c in self.commands
        )
        return Placement(ops, self.main, self._copies)

    def memory(self) -> MemoryUse:
        """Return the device memory of the plan in bytes."""
        uses = {segment.memory() for segment in self._segments}  # one per backend
        return MemoryUse(
            sum(use.activations for use in uses),
            sum(use.lower_bound for use in uses),
            sum(use.constants for use in uses),
            sum(use.io for use in uses),
        )

    def timings(self) -> list[tuple[str, Timing]]:
        """Return (backend, timing) of every step of the last run; see `Backend.timed`."""
        return [
            (owner, timing)
            for owner, segment in self.owned_segments
            for timing in segment.timings()
        ]

    @property
    def output_names(self) -> Sequence[str]:
        """The outputs of the network."""
        return self._outputs

    @property
    def segments(self) -> Sequence[Segment]:
        """The prepared segments in running order."""
        return self._segments

    @property
    def owned_segments(self) -> list[tuple[str, Segment]]:
        """The segments with the types of their backends, in running order."""
        owners = [key for key, _ in groupby(self.commands, _BACKEND)]
        return list(zip(owners, self._segments, strict=True))

    def close(self) -> None:
        """Release the plan's memory and command buffers once it is no longer in use."""
        self._users -= 1
        if self._users:
            return
        while self._lanes:
            self._lanes.pop().close()
        if self._keeper is not None:
            self._keeper[0].close()
            self._keeper = None
        for segment in self._segments:
            segment.close()


def _resolve(
    graph: Graph,
    inputs: Mapping[str, TensorInfo],
    known: Mapping[str, Array],
    evaluate: Evaluator,
    meter: Meter,
    static: StaticShapes | None,
    *,
    lowered: bool,
) -> Resolved:
    """Resolve a network and, if `lowered`, its data movement; repeated layers once."""

    def made_of(part: Graph) -> Resolved:
        found = resolve(part, inputs, known, evaluate, meter, described)
        return lower(found, graph.output_names(), evaluate, meter) if lowered else found

    described = static.constants(graph) if static is not None else {}
    layers = static.layers(graph) if static is not None else None
    if static is not None and layers is not None:
        found = resolve_layers(graph, layers, inputs, made_of, meter)
        if found is not None:
            return found
        static.forget_layers(graph)
    return made_of(graph)


def _without_values(command: Command) -> Command:
    """Return a descriptive command whose constants have no content."""

    def described(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        kept = tensor.element, tensor.codes
        return Tensor(tensor.info, tensor.usage, tensor.layout, None, *kept)

    inputs = [described(tensor) for tensor in command.inputs]
    execution: Execution[Any] = Execution(command.op, inputs, command.outputs)
    execution.provider = command.execution.provider
    execution.passed_over = command.execution.passed_over
    return replace(command, inputs=inputs, execution=execution)


def _is_told(backend: Backend) -> bool:
    kind = type(backend)
    return (
        kind.on_execute_begin is not Backend.on_execute_begin
        or kind.on_execute_end is not Backend.on_execute_end
    )


def _settle(commands: Sequence[Command]) -> None:
    """Make the forms of all tensors final; see `Tensor`."""
    for tensor in {t for command in commands for t in (*command.inputs, *command.outputs)}:
        if tensor is not None:
            tensor.settle()


class _Tensors(dict[str, Tensor]):
    """The tensors of a plan by name, each created on first use.

    Constants shared by plans of the network, `described`, are not created again.
    """

    def __init__(
        self,
        resolved: Resolved,
        inputs: Collection[str],
        outputs: Collection[str],
        described: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self._resolved = resolved
        self._inputs = inputs
        self._outputs = outputs
        self._described = described

    def __missing__(self, name: str) -> Tensor:
        constants, described = self._resolved.constants, self._described
        value, usage = None, Usage.NORMAL
        if name in constants:
            value, usage = constants[name], Usage.CONSTANT
            if name in described and described[name].value is value:
                shared = self[name] = described[name]
                return shared
        elif name in self._inputs:
            usage = Usage.INPUT
        elif name in self._outputs:
            usage = Usage.OUTPUT
        made = self[name] = Tensor(self._resolved.infos[name], usage, value=value)
        return made


def _create_commands(
    resolved: Resolved,
    tensors: _Tensors,
    main: Backend,
    backup: Backend,
    refused: Mapping[str, str],
    meter: Meter,
) -> list[Command]:
    """Ask the main backend, then the backup, for an execution of every op.

    Ops named in `refused` go straight to the backup, for the reason given there.
    """
    commands: list[Command] = []
    unsupported: list[UnsupportedNode] = []
    for op in resolved.ops:
        meter.check_time(op.type, op.source or op.name)
        ins = [tensors[name] if name else None for name in op.inputs]
        outs = [tensors[name] for name in op.outputs if name]
        reason = refused.get(op.name)
        try:
            execution = Rejection(reason) if reason else main.on_create(op, ins, outs)
        except Exception as error:
            raise unexpected_error(
                error, "planning it", op=op.type, node=op.source or op.name
            ) from error
        if not isinstance(execution, Rejection):
            commands.append(Command(op, ins, outs, execution, main.type))
            continue
        reason = execution.reason
        second = backup.on_create(op, ins, outs)
        if isinstance(second, Rejection):
            unsupported.append(_unsupported(op, f"{reason}; {second.reason}"))
            continue
        _log.info("%s '%s' runs on %s: %s", op.type, op.name, backup.type, reason)
        commands.append(Command(op, ins, outs, second, backup.type, reason))
    if unsupported:
        raise UnsupportedOpError(unsupported)
    return commands


def separate(outputs: dict[str, Any]) -> dict[str, Any]:
    """Copy arrays that share memory with others: the caller may write to any of them."""
    owners: dict[int, list[Array]] = {}
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            continue
        owner: Any = value
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        others = owners.setdefault(id(owner), [])
        if any(np.may_share_memory(value, other) for other in others):
            outputs[name] = value.copy()
        else:
            others.append(value)
    return outputs


def _unsupported(op: Op, reason: str) -> UnsupportedNode:
    return UnsupportedNode(op.type, "vkmnn", 1, op.source or op.name, reason)


def _crossings(
    commands: Sequence[Command], outputs: set[str], inputs: set[str]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, Tensor]], int]:
    """Find the transfers between host and backends, and count the copies."""
    owner = {out.name: command.backend for command in commands for out in command.outputs}
    kept: dict[str, dict[str, Tensor]] = {}
    provided: dict[str, dict[str, Tensor]] = {}
    copies: set[tuple[str, str]] = set()
    for command in commands:
        for out in command.outputs:
            if out.name in outputs:
                kept.setdefault(command.backend, {})[out.name] = out
        for source in command.inputs:
            if source is None or source.value is not None:
                continue
            producer = owner.get(source.name)
            if producer == command.backend:
                continue
            provided.setdefault(command.backend, {})[source.name] = source
            if producer is not None:
                kept.setdefault(producer, {})[source.name] = source
                copies.add((source.name, command.backend))
    return kept, provided, len(copies)
