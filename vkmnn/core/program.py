"""A network as a sequence of steps: parts planned for the device, and host steps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.base.lazy_array import whole
from vkmnn.base.records import dataclass
from vkmnn.core.backend import Backend, MemoryUse, Tuning
from vkmnn.core.bound import Begun, Bound, CopyingRun
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.core.host_part import HostPart as HostPart
from vkmnn.core.host_part import NestedPart, NestedProgram
from vkmnn.core.host_part import Value as Value
from vkmnn.core.placement import PlacedOp, Placement
from vkmnn.core.plan import Plan, separate
from vkmnn.core.plans import Planner, Plans, Progress, Shapes, without_constants
from vkmnn.core.profile import Profile, joined, measure, measure_host
from vkmnn.core.stages import Stage
from vkmnn.core.static import StaticShapes
from vkmnn.core.watched import Callback, Decision, OpCall, decided
from vkmnn.errors import (
    HostError,
    IntegerRangeError,
    InvalidInputError,
    PlacementError,
    UnsupportedNode,
    UnsupportedOpError,
    plural,
)
from vkmnn.ir import Array, DType, Graph, HostGraphAttrs, Op, TensorInfo
from vkmnn.shape import flops

_log = logging.getLogger(__name__)

OpenHost = Callable[[Sequence[Op], Mapping[str, Array], Collection[str]], Sequence[HostPart]]
"""Opens HostGraph ops from the ops, constants, and required results."""

NestNetworks = Callable[[OpenHost, Planner, Meter], OpenHost]
"""Wraps an opener: networks inside If, Loop and Scan run on the planner, if they can."""


def no_host(
    ops: Sequence[Op], constants: Mapping[str, Array], wanted: Collection[str]
) -> Sequence[HostPart]:
    """Refuse to open host ops: nothing here can run them."""
    raise UnsupportedOpError([_refused(op, "there is no evaluator") for op in ops])


def refuse_host_ops(program: Program) -> None:
    """Refuse a network with ops that only the host runs.

    Raises:
        PlacementError: lists them.
    """
    away = program.host_ops()
    if away:
        listed = "\n".join(f"  {kind_of(op)} '{op.name}': {_reason(op)}" for op in away)
        raise PlacementError(
            f"{plural(len(away), 'op')} would run off the device:\n{listed}",
            hint="create the session without require_device to let them run on the host",
        )


@dataclass(slots=True)
class _Step:
    """A stage with its plans or host parts."""

    stage: Stage
    plans: Plans | None
    parts: Sequence[HostPart]
    dead: tuple[str, ...] = ()


class Program:
    """The steps of one network.

    Args:
        graph: the network.
        stages: the stages it is cut into.
        planner: creates the plans.
        meter: the limit for folding constants.
        open_host: opens the parts that the host runs.
        static: state shared by plans of a network of fixed shapes.
    """

    def __init__(
        self,
        graph: Graph,
        stages: Sequence[Stage],
        planner: Planner,
        meter: Meter,
        open_host: OpenHost,
        static: StaticShapes | None = None,
    ) -> None:
        self._outputs = [info.name for info in graph.outputs]
        self._planner = planner
        self._steps = [
            _Step(stage, Plans(stage.graph, planner, meter, static), ())
            if stage.graph is not None
            else _Step(stage, None, open_host(stage.ops, graph.constants, stage.outputs))
            for stage in stages
        ]
        whole = self._steps[0].plans if _is_whole(graph, stages) else None
        self.graph = whole.graph if whole else graph
        self._whole = whole
        self._mark_dead()
        self._bytes = 0

    def _mark_dead(self) -> None:
        """Note the last step that needs each value."""
        seen = set(self._outputs)
        for step in reversed(self._steps):
            names = {*step.stage.inputs, *step.stage.outputs}
            step.dead = tuple(names - seen)
            seen |= names

    @property
    def whole(self) -> Plans | None:
        """The plans of the network, if it is a single stage."""
        return self._whole

    @property
    def outputs(self) -> Sequence[str]:
        """The network's outputs."""
        return self._outputs

    @property
    def backend(self) -> Backend:
        """The backend that is offered ops first."""
        return self._planner.main

    # --- plans -----------------------------------------------------------------------------------

    @property
    def content(self) -> frozenset[str]:
        """The network's inputs whose content determines a shape."""
        names = {info.name for info in self.graph.inputs}
        return frozenset(name for plans in self._plans() for name in plans.content if name in names)

    @property
    def plan_count(self) -> int:
        """Number of plans kept."""
        return sum(len(plans) for plans in self._plans())

    @property
    def planned(self) -> bool:
        """Whether a placement is available."""
        all_plans = list(self._plans())
        return not all_plans or any(plans.current is not None for plans in all_plans)

    @property
    def current(self) -> Plan | None:
        """The most recently used plan of the last stage that has one."""
        found = self.plans_in_use
        return found[-1] if found else None

    @property
    def plans_in_use(self) -> list[Plan]:
        """The most recently used plan of every stage that has one."""
        return [plans.current for plans in self._plans() if plans.current is not None]

    def is_planned(self, shapes: Shapes) -> bool:
        """Whether a run at these shapes would find its plan, or a plan of each stage."""
        if self._whole is None:
            return all(plans.current is not None for plans in self._plans())
        return self._whole.has(shapes)

    def _plans(self) -> Iterator[Plans]:
        return (step.plans for step in self._steps if step.plans is not None)

    def _parts(self) -> Iterator[HostPart]:
        return (part for step in self._steps for part in step.parts)

    def host_ops(self) -> list[Op]:
        """Return the ops that only the host runs, those of nested networks included."""
        away: list[Op] = []
        for part in self._parts():
            if isinstance(part, NestedPart):
                away += [op for program in part.programs for op in program.host_ops()]
            else:
                away += part.ops
        return away

    def engines(self) -> set[str]:
        """Return the engines of host ops, including those of nested networks."""
        own = {part.engine for part in self._parts() if not isinstance(part, NestedPart)}
        return own.union(*(program.engines() for program in self._nested()))

    def tell(self) -> None:
        """Warn about ops that only the host runs, if there are any."""
        ops = self.host_ops()
        if not ops:
            return
        nested = sum(len(program.host_ops()) for program in self._nested())
        kinds = Counter(map(kind_of, ops))
        named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))
        if len(ops) == nested:
            what = f"{plural(nested, 'op')} inside branches and loops"
        else:
            what = plural(len(ops) - nested, "op")
            what += f" ({nested} more inside branches and loops)" if nested else ""
        _log.warning(
            "%s %s on the host, in %s; placement() gives the reasons: %s%s",
            what,
            "runs" if len(ops) == 1 else "run",
            " and ".join(sorted(self.engines())),
            named,
            " …" if len(kinds) > 6 else "",
        )

    def use(self, planner: Planner) -> None:
        """Use another planner from now on."""
        self._planner = planner
        for plans in self._plans():
            plans.planner = planner
        for part in self._parts():
            if isinstance(part, NestedPart):
                part.use(planner)

    @property
    def plans_made(self) -> int:
        """Number of plans created, including those of nested networks."""
        nested = sum(program.plans_made for program in self._nested())
        return nested + sum(plans.made for plans in self._plans())

    def _nested(self) -> Iterator[NestedProgram]:
        for part in self._parts():
            if isinstance(part, NestedPart):
                yield from part.programs

    def trim(self) -> None:
        """Close all plans except the most recently used."""
        for plans in self._plans():
            plans.trim()
        for program in self._nested():
            program.trim()

    @property
    def forgotten(self) -> bool:
        """Whether no plan can be created any more: the network's constants are released."""
        return any(plans.forgotten for plans in self._plans())

    def forget_arrays(self) -> None:
        """Release constants in host memory that only future plans would read."""
        for step in self._steps:
            if step.plans is not None:
                step.plans.forget_arrays()
                step.stage = replace(step.stage, graph=without_constants(step.plans.graph))
        self.graph = without_constants(self.graph)

    def drop(self) -> None:
        """Close all plans."""
        for plans in self._plans():
            plans.drop()
        for part in self._parts():
            if isinstance(part, NestedPart):
                part.drop()

    def resize(self, shapes: Shapes, feeds: Mapping[str, Value]) -> dict[str, TensorInfo]:
        """Plan as much as possible; return the outputs whose shapes are then known."""
        found: dict[str, TensorInfo] = {}
        for plans in self._plans():
            names = [info.name for info in plans.graph.inputs]
            ready = all(name in shapes for name in names) and plans.content <= feeds.keys()
            if ready or plans is self._whole:
                infos = plans.resize({name: shapes[name] for name in names}, feeds).infos
                found.update((name, infos[name]) for name in self._outputs if name in infos)
        return found

    # --- runs ------------------------------------------------------------------------------------

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """Run all steps; return the network's outputs."""
        if self._whole is not None:
            return self._whole.execute(feeds)
        feeds = {name: as_array(feed) for name, feed in feeds.items()}
        values = dict(feeds)
        self._bytes = 0
        for step in self._steps:
            values.update(self._run_step(step, values))
            for name in step.dead:
                values.pop(name, None)
        return separate({name: self._owned(name, values, feeds) for name in self._outputs})

    def begin(self, feeds: Mapping[str, Value]) -> Begun | None:
        """Start a non-exclusive run, or return None if that is impossible."""
        if self._whole is None or any(value is None for value in feeds.values()):
            return None
        return self._whole.resize(_shapes(feeds), feeds).begin(feeds)

    def run_on_device(self, feeds: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
        """Run once; if the whole network is one device plan, its outputs stay on the device."""
        if self._whole is not None:
            plan = self._whole.resize(_shapes(feeds), feeds)
            with suppress(IntegerRangeError):  # `run` handles this case
                kept = plan.run_on_device(feeds, names)
                if kept is not None:
                    return dict(kept)
        results = self.run(feeds)
        return {name: results[name] for name in names}

    def bind(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor | None]
    ) -> Bound:
        """Return a run on these tensors; outputs without one get a new tensor.

        Args:
            inputs: a tensor for each input.
            outputs: the requested outputs, each with a tensor or None.

        Raises:
            InvalidInputError: an output has another shape or element type, or lies where an input
                does.
        """
        new = self._planner.main.new_tensor
        whole = self._whole
        if whole is not None and not whole.content:
            shapes = _shapes(inputs)
            plan = whole.resize(shapes, {})
            infos = {name: plan.infos[name] for name in self._outputs}
            places = {
                name: _checked(info, outputs.get(name)) or new(info.dims, info.dtype)
                for name, info in infos.items()
            }
            _refuse_shared(inputs, places)
            bound = plan.bound(inputs, places)
            if bound is not None:
                bound.outputs = {name: places[name] for name in outputs}
                bound.again = lambda: whole.resize(shapes, {}).bound(inputs, places)
                return bound
        _refuse_shared(inputs, outputs)
        results = self.run(inputs)
        for name in outputs:
            if not isinstance(results[name], np.ndarray):
                raise InvalidInputError(
                    f"output '{name}' is not a tensor that a device can hold",
                    hint="ask for it by run",
                )
        made = {name: _info(name, results[name]) for name in outputs}
        return CopyingRun(
            self.run,
            inputs,
            {
                name: _checked(info, outputs[name]) or new(info.dims, info.dtype)
                for name, info in made.items()
            },
        )

    def _run_step(self, step: _Step, values: Mapping[str, Value]) -> dict[str, Value]:
        plans = step.plans
        if plans is None:
            made: dict[str, Value] = {}
            for part in step.parts:
                made.update(part({**values, **made}))
            made = {name: made[name] for name in step.stage.outputs}
            self._count(made)
            return made
        arrays = _arrays(plans.graph.inputs, values, step)
        results = plans.execute(arrays)
        self._count(results)
        return results

    def _count(self, made: Mapping[str, Value]) -> None:
        """Count the bytes that a step passes on."""
        handed = (value for name, value in made.items() if name not in self._outputs)
        self._bytes += sum(value.nbytes for value in handed if isinstance(value, np.ndarray))

    def _owned(self, name: str, values: Mapping[str, Value], feeds: Mapping[str, Value]) -> Value:
        """Return an output that shares no memory with inputs and constants."""
        value = values[name] if name in values else whole(self.graph.constants[name])
        if not isinstance(value, np.ndarray):
            return value
        fed = (feed for feed in feeds.values() if isinstance(feed, np.ndarray))
        shared = not value.flags.writeable or any(np.may_share_memory(value, feed) for feed in fed)
        return value.copy() if shared else value

    def _watched(self, feeds: Mapping[str, Value]) -> Iterator[tuple[_Step, dict[str, Value]]]:
        """Run once; yield each step and its inputs after it has run."""
        values = {name: as_array(feed) for name, feed in feeds.items()}
        for step in self._steps:
            values.update(self._run_step(step, values))
            yield step, {name: values[name] for name in step.stage.inputs}

    def run_watched(
        self, feeds: Mapping[str, Value], before: Callback, after: Callback
    ) -> dict[str, Value]:
        """Run with a call before and after every op; return the computed values.

        Raises:
            InvalidInputError: an op that only the host runs was to be skipped.
        """
        feeds = {name: as_array(feed) for name, feed in feeds.items()}
        values = dict(feeds)
        for step in self._steps:
            given = {name: values[name] for name in step.stage.inputs}
            call = _op_call(step, given)
            decision = decided(before(call, given), Decision.SKIP)
            if decision is Decision.STOP:
                break
            skipped = decision is Decision.SKIP
            made = self._skip_step(step, given) if skipped else self._run_step(step, values)
            values.update(made)
            if not skipped and decided(after(call, made), Decision.STOP) is Decision.STOP:
                break
        there = {*values, *self.graph.constants}
        found = {n: self._owned(n, values, feeds) for n in self._outputs if n in there}
        return separate(found)

    def _skip_step(self, step: _Step, given: Mapping[str, Value]) -> dict[str, Value]:
        plans = step.plans
        if plans is None:
            raise InvalidInputError(
                f"op '{step.stage.ops[0].name}' cannot be skipped: its results have no known shape",
                hint="ops that only the host runs can be stopped at, but not skipped",
            )
        arrays = _arrays(plans.graph.inputs, given, step)
        infos = plans.resize(_shapes(arrays), arrays).infos
        return {n: np.zeros(infos[n].dims, infos[n].dtype.numpy) for n in step.stage.outputs}

    def profile(self, feeds: Mapping[str, Value], runs: int) -> Profile:
        """Measure every step separately."""
        timed = self._planner.main.timed()
        profiles = []
        for step, given in self._watched(feeds):
            if step.plans is None:
                made = dict(given)
                for part in step.parts:
                    profiles.append(measure_host(part, made, runs, self._planner.main.type))
                    made.update(part(made))
                continue
            arrays = _arrays(step.plans.graph.inputs, given, step)
            plan = step.plans.resize(_shapes(arrays), arrays)
            second = step.plans.make(_shapes(arrays), arrays, timed)
            try:
                profiles.append(measure(plan, second, arrays, runs))
            finally:
                second.close()
        return joined(profiles, self._planner.main.type, runs)

    def tune(self, feeds: Mapping[str, Value], runs: int, progress: Progress) -> Tuning:
        """Tune every step separately."""
        settled = []
        if self._whole is not None:
            shapes = _shapes(feeds)
            settled.append(self._whole.tune(shapes, feeds, runs, progress))
            self._whole.drop()
            self._whole.resize(shapes, feeds)
            return settled[0]
        for step, given in self._watched(feeds):
            if step.plans is not None:
                arrays = _arrays(step.plans.graph.inputs, given, step)
                settled.append(step.plans.tune(_shapes(arrays), arrays, runs, progress))
                step.plans.drop()
                step.plans.resize(_shapes(arrays), arrays)
        return Tuning(
            tuple(choice for one in settled for choice in one.choices),
            sum(one.before_us for one in settled),
            sum(one.after_us for one in settled),
            all(one.kept for one in settled),
        )

    # --- placement -------------------------------------------------------------------------------

    def memory(self) -> MemoryUse:
        """Return the device memory of the plans that are in use."""
        uses = [plans.current.memory() for plans in self._plans() if plans.current is not None]
        return MemoryUse(
            sum(use.activations for use in uses),
            sum(use.lower_bound for use in uses),
            sum(use.constants for use in uses),
            sum(use.io for use in uses),
        )

    def placement(self) -> Placement:
        """Return where each op of the latest run, or plan, runs."""
        if self._whole is not None:
            assert self._whole.current is not None
            return self._placed(self._whole.current)
        ops: list[PlacedOp] = []
        copies = 0
        inputs = {info.name for info in self.graph.inputs}
        for step in self._steps:
            copies += sum(name not in inputs for name in step.stage.inputs)
            if step.plans is None:
                for part in step.parts:
                    if isinstance(part, NestedPart):
                        ops += part.placed()
                        continue
                    ops += [
                        PlacedOp(op.name, kind_of(op), op.source, part.engine, _reason(op))
                        for op in part.ops
                    ]
            elif step.plans.current is not None:
                placed = self._placed(step.plans.current)
                ops += placed.ops
                copies += placed.copies
        return Placement(tuple(ops), self._planner.main.type, copies, self._bytes)

    def _placed(self, plan: Plan) -> Placement:
        """Return the placement of a plan, which may run entirely on the backup."""
        placed, main = plan.placement(), self._planner.main.type
        if placed.main == main:
            return placed
        return replace(placed, main=main, ops=tuple(replace(op, reason=_EXACT) for op in placed))


_EXACT = "integers beyond the 32 bits that the device computes with"


def kind_of(op: Op) -> str:
    """Return the operator of a HostGraph op."""
    return op.attrs.kind if isinstance(op.attrs, HostGraphAttrs) else op.type


def _reason(op: Op) -> str:
    return op.attrs.reason if isinstance(op.attrs, HostGraphAttrs) else ""


def _refused(op: Op, why: str) -> UnsupportedNode:
    domain, _, kind = kind_of(op).rpartition("::")
    return UnsupportedNode(kind, domain, 1, op.source or op.name, f"{_reason(op)}; {why}")


def _info(name: str, array: Array) -> TensorInfo:
    return TensorInfo(name, DType.from_numpy(array.dtype), array.shape)


def _checked(info: TensorInfo, tensor: DeviceTensor | None) -> DeviceTensor | None:
    """Refuse a tensor that does not match the output."""
    if tensor is not None and (tensor.shape, tensor.dtype) != (info.dims, info.dtype.numpy):
        raise InvalidInputError(
            f"output '{info.name}' is {info.dtype.value} {list(info.dims)}, the tensor for it "
            f"{tensor.dtype} {list(tensor.shape)}",
            hint="bind it by name, to get a new tensor",
        )
    return tensor


def _refuse_shared(
    inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor | None]
) -> None:
    """Refuse outputs that would be written while they are read."""
    read = {id(tensor.storage): name for name, tensor in inputs.items()}
    written: dict[int, str] = {}
    for name, tensor in outputs.items():
        key = id(tensor.storage) if tensor is not None else 0
        other = read.get(key) or written.get(key)
        if tensor is not None and other is not None:
            raise InvalidInputError(
                f"output '{name}' cannot share the memory of '{other}'",
                hint="give it a separate tensor",
            )
        written[key] = name


def _is_whole(graph: Graph, stages: Sequence[Stage]) -> bool:
    """Return whether one stage has all inputs and outputs."""
    if len(stages) != 1:
        return False
    inputs = {info.name for info in graph.inputs}
    outputs = {info.name for info in graph.outputs}
    return inputs.issubset(stages[0].inputs) and outputs.issubset(stages[0].outputs)


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _op_call(step: _Step, given: Mapping[str, Value]) -> OpCall:
    """Return the description of a step of one op for callbacks."""
    (op,) = step.stage.ops
    kind, count = kind_of(op), 0
    if step.plans is not None:
        arrays = _arrays(step.plans.graph.inputs, given, step)
        infos = step.plans.resize(_shapes(arrays), arrays).infos
        known = [infos.get(name) for name in op.inputs]
        results = [infos[name] for name in op.outputs if name in infos]
        if len(results) == len(op.outputs) and all(known):
            count = flops(op, known, results)
    return OpCall(op.name, kind, op.source, count)


def _arrays(
    infos: Sequence[TensorInfo], values: Mapping[str, Value], step: _Step
) -> dict[str, Array]:
    """Return the inputs of a planned step in the form that the plan expects.

    Raises:
        HostError: the host produced something else.
    """
    arrays = {}
    for info in infos:
        value = values[info.name]
        if not isinstance(value, np.ndarray | np.generic) or value.dtype != info.dtype.numpy:
            got = getattr(value, "dtype", type(value).__name__)
            raise HostError(
                f"tensor '{info.name}' is declared as {info.dtype.value}, but is {got}",
                op=step.stage.ops[0].type,
                node=step.stage.ops[0].source or step.stage.ops[0].name,
                hint="the model is not valid, or the evaluator on the host is wrong",
            )
        arrays[info.name] = np.asarray(value, order="C")
    return arrays
