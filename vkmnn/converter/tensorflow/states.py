"""Variables: constants of a SavedModel's files or, where the signature assigns them, states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vkmnn.converter.nodes import Scope
from vkmnn.converter.nodes.scope import element_type
from vkmnn.ir import Array

SCATTERS = {"Add": "add", "Sub": "add", "Mul": "mul", "Min": "min", "Max": "max", "Update": "none"}
ASSIGNING = frozenset(
    {
        *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
        *("Assign", "AssignAdd", "AssignSub"),
        *(f"{resource}Scatter{kind}" for resource in ("", "Resource") for kind in SCATTERS),
        *(f"ResourceScatterNd{kind}" for kind in SCATTERS if kind != "Mul"),
    }
)
"""Operators that assign the variable that is their first input."""


@dataclass
class Plan:
    """What a first reading found out.

    Attributes:
        states: variables that are assigned.
        writes: those that are assigned in the bodies of an operator, by its name.
    """

    states: set[str] = field(default_factory=set)
    writes: dict[str, set[str]] = field(default_factory=dict)

    def covers(self, other: Plan) -> bool:
        """Return whether another reading found out nothing more."""
        known = all(keys <= self.writes.get(name, set()) for name, keys in other.writes.items())
        return known and other.states <= self.states

    def joined(self, other: Plan) -> Plan:
        """Return what both found out."""
        writes = {name: set(keys) for name, keys in self.writes.items()}
        for name, keys in other.writes.items():
            writes.setdefault(name, set()).update(keys)
        return Plan(self.states | other.states, writes)


@dataclass(frozen=True)
class State:
    """A variable that sessions keep.

    Attributes:
        name: the input that has its value before a run.
        initial: its value before the first run.
    """

    name: str
    initial: Array


class Variables:
    """The variables of a model that is read.

    Args:
        load: returns the value of a variable in the model's files.
        scopes: the scopes that are written, the main one first.
        plan: what an earlier reading found out.
        found: what this one finds out.

    Attributes:
        values: the tensor that has a variable's present value, by the variable's key.
        states: variables that the model assigns, as far as they have been met.
        written: variables that have been assigned in the present body.
    """

    def __init__(
        self, load: Callable[[str], Array], scopes: list[Scope], plan: Plan, found: Plan
    ) -> None:
        self.load, self.scopes, self.plan, self.found = load, scopes, plan, found
        self.values: dict[str, str] = {}
        self.states: dict[str, State] = {}
        self.written: set[str] = set()
        self._initial: dict[str, Array] = {}

    def value(self, key: str) -> str:
        """Return the tensor that has a variable's present value."""
        name = self.values.get(key)
        if name is None:
            name = self.values[key] = self._declared(key)
        return name

    def _declared(self, key: str) -> str:
        scopes, array = self.scopes, self._initial.get(key)
        if array is None:
            array = self._initial[key] = self.load(key)
        name = f"state/{key}" if key in self.plan.states else f"variable/{key}"
        if key in self.states:
            name = self.states[key].name
        while key not in self.states and name in scopes[0].taken:
            name += "_"
        for scope in scopes:
            if key in self.plan.states:
                scope.reserve([name])
                scope.types[name], scope.shapes[name] = element_type(array.dtype), array.shape
                self.states[key] = State(name, array)
            else:
                scope.set_constant(name, array)
        return name

    def assign(self, key: str, name: str) -> None:
        """Give a variable another value."""
        self.value(key)  # which makes it a state
        self.written.add(key)
        self.found.states.add(key)
        self.values[key] = name

    def finish(self, scope: Scope) -> dict[str, str]:
        """Return the outputs that have the last values of states, by key."""
        found = {}
        for key, state in self.states.items():
            found[key] = scope.fresh(f"{state.name}/next")
            scope.copy(self.values.get(key, state.name), found[key])
        return found


def variable_key(op: str, name: str, shared: str, container: str) -> str:
    """Return what identifies a variable in a model."""
    if op != "VarHandleOp":
        return name
    return f"{container}/{shared or name}".strip("/")
