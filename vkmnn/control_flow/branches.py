"""If on the device: each branch is a network, planned when it is first taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.base.records import dataclass
from vkmnn.control_flow.loops import Body, LoopPart
from vkmnn.core.host_part import HostPart, NestedPart, Value
from vkmnn.core.placement import PlacedOp
from vkmnn.core.plans import Planner
from vkmnn.core.program import OpenHost, Program
from vkmnn.core.stages import cut
from vkmnn.errors import HostError
from vkmnn.ir import Array, DType, Graph, HostGraphAttrs, Op


@dataclass(frozen=True, slots=True)
class Branches:
    """The branches of an If as networks, keyed by the condition.

    `names` are their names for the op's inputs, in order; their outputs are the op's.
    """

    graphs: Mapping[bool, Graph]
    names: tuple[str, ...]


OpenBranches = Callable[[Op, Mapping[str, Array], bool], "Branches | Body | str"]
"""Returns the networks in a HostGraph op, or why the host should run it ("": the op's reason).

The last argument is true if the host is not to, whether that pays or not.
"""


class BranchPart(NestedPart):
    """An If: the host reads the condition, and the selected branch runs like any network."""

    def __init__(
        self,
        op: Op,
        branches: Branches,
        constants: Mapping[str, Array],
        programs: Mapping[bool, Program],
        main: str,
    ) -> None:
        self.ops: tuple[Op, ...] = (op,)
        self.inputs = tuple(name for name in dict.fromkeys(op.inputs) if name not in constants)
        self.outputs = tuple(name for name in op.outputs if name)
        self.engine = main
        self.busy_us = self.start_us = 0.0
        self._names = dict(zip(branches.names, op.inputs, strict=True))
        self._constants = constants
        self._programs = programs
        self._taken: list[bool] = []

    @property
    def programs(self) -> Sequence[Program]:
        """The networks of the branches."""
        return tuple(self._programs.values())

    def __call__(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the outputs of the branch that the condition selects.

        Raises:
            HostError: a value contradicts the model.
        """
        (op,) = self.ops
        self.start_us = time.perf_counter_ns() / 1000
        given = {**self._constants, **{name: values[name] for name in self.inputs}}
        condition = np.asarray(given[op.inputs[0]]).reshape(-1)
        if condition.size != 1:
            raise self._wrong(f"its condition has {condition.size} elements, not one")
        taken = bool(condition[0])
        program = self._programs[taken]
        feeds = {
            info.name: self._fed(given[self._names[info.name]], info.dtype, info.name)
            for info in program.graph.inputs
        }
        results = program.run(feeds)
        if taken not in self._taken:
            self._taken.append(taken)
        self.busy_us = time.perf_counter_ns() / 1000 - self.start_us
        made = (results[info.name] for info in program.graph.outputs)
        return {name: one for name, one in zip(op.outputs, made, strict=True) if name}

    def _fed(self, value: Value, dtype: DType, name: str) -> Value:
        if dtype is DType.OBJECT:
            return value
        if not isinstance(value, np.ndarray | np.generic) or value.dtype != dtype.numpy:
            raise self._wrong(f"'{name}' is not {dtype.value}, the type that the model declares")
        return np.asarray(value, order="C")

    def _wrong(self, text: str) -> HostError:
        (op,) = self.ops
        return HostError(text, op="If", node=op.source or op.name)

    def use(self, planner: Planner) -> None:
        """Use another planner from now on."""
        for program in self._programs.values():
            program.use(planner)

    def drop(self) -> None:
        """Close all plans."""
        for program in self._programs.values():
            program.drop()

    def placed(self) -> list[PlacedOp]:
        """Return the placement of the branches taken so far."""
        (op,) = self.ops
        return [
            replace(one, name=f"{op.name}/{'then' if taken else 'else'}/{one.name}")
            for taken in self._taken
            if self._programs[taken].planned
            for one in self._programs[taken].placement()
        ]


def with_branches(
    open_branches: OpenBranches, open_host: OpenHost, planner: Planner, meter: Meter
) -> OpenHost:
    """Return an opener that uses `open_branches` if it can, else `open_host`.

    Without a device, it only handles loops whose iterations carry nothing, which threads share, if
    there are threads.
    """
    loops_only = planner.main.type == planner.backup.type
    if loops_only and planner.main.threads < 2:
        return open_host

    def program(graph: Graph) -> Program:
        return Program(graph, cut(graph), planner, meter, opened)

    def opened(
        ops: Sequence[Op], constants: Mapping[str, Array], wanted: Collection[str]
    ) -> Sequence[HostPart]:
        parts: list[HostPart] = []
        waiting: list[Op] = []

        def flush(later: Sequence[Op]) -> None:
            if waiting:
                read = {name for op in later for name in op.inputs}
                parts.extend(open_host(tuple(waiting), constants, {*wanted, *read}))
                waiting.clear()

        for place, op in enumerate(ops):
            found = open_branches(op, constants, planner.require_main or loops_only)
            if loops_only and not (isinstance(found, Body) and found.independent):
                waiting.append(op)
                continue
            if isinstance(found, str):
                waiting.append(_with_reason(op, found))
                continue
            flush(ops[place:])
            given = {name: constants[name] for name in op.inputs if name in constants}
            main = planner.main.type
            if isinstance(found, Body):
                parts.append(LoopPart(op, found, given, program, main))
            else:
                programs = {taken: program(graph) for taken, graph in found.graphs.items()}
                parts.append(BranchPart(op, found, given, programs, main))
        flush(())
        return parts

    return opened


def _with_reason(op: Op, reason: str) -> Op:
    """Return an op of the host with the reason for its placement."""
    if not reason or not isinstance(op.attrs, HostGraphAttrs):
        return op
    return replace(op, attrs=replace(op.attrs, reason=reason))
