"""Control flow of TensorFlow 1 as functions: loops become While nodes, conditionals If nodes.

A loop is a frame: Enter nodes bring values in, Merge joins them with those of NextIteration, Switch
sends them into the body or to Exit. A conditional has a Switch for each tensor that its branches
read, and a Merge for each result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from vkmnn.base.budget import Meter
from vkmnn.converter.tensorflow.functions import Function, Node, Tensor
from vkmnn.converter.tensorflow.schema import message_class
from vkmnn.errors import UnsupportedNode, UnsupportedOpError

_SWITCHES = ("Switch", "_SwitchN")
_MOST = 2000
"""Frames, and conditionals, of a graph."""


class _UnclearError(Exception):
    """Control flow of another form than TensorFlow writes; its argument is the node."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


def functional(nodes: dict[str, Node], name: str, meter: Meter) -> dict[str, Function]:
    """Replace control flow among the nodes of a graph; return the functions of the new nodes.

    Args:
        nodes: the nodes; those of control flow are replaced.
        name: begins the names of the functions.
        meter: limits the time.

    Raises:
        UnsupportedOpError: control flow that cannot be read.
        BudgetError: it takes too long.
    """
    kinds = {node.op for node in nodes.values()}
    functions: dict[str, Function] = {}
    try:
        if kinds & {"Enter", "LoopCond", "NextIteration", "Exit"}:
            _Loops(nodes, name, functions, meter).replace()
        if "Merge" in kinds:
            _Conditionals(nodes, name, functions, meter).replace()
    except _UnclearError as error:
        node = error.node
        found = UnsupportedNode(node.op, "TensorFlow", 1, node.name, error.reason)
        raise UnsupportedOpError([found]) from error
    return functions


def _function_node(
    nodes: dict[str, Node],
    base: str,
    op: str,
    inputs: list[Tensor],
    parts: dict[str, Function],
    branches: Sequence[Function] = (),
) -> Node:
    """Add a node that refers to functions, by attributes or as a list of branches."""
    name = base
    while name in nodes:
        name += "_"
    attrs = {}
    for key, function in parts.items():
        attrs[key] = message_class("AttrValue")()
        attrs[key].func.name = function.name
    for function in branches:
        listed = attrs.setdefault("branches", message_class("AttrValue")())
        listed.list.func.add(name=function.name)
    nodes[name] = Node(name, op, attrs, inputs)
    return nodes[name]


# --- loops ---------------------------------------------------------------------------------------


@dataclass
class _Variable:
    """What a loop carries, by the names of nodes."""

    enter: str
    merge: str
    next: str
    switch: str = ""
    exits: list[str] = field(default_factory=list)


@dataclass
class _Frame:
    variables: list[_Variable] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    condition: str = ""


class _Loops:
    def __init__(
        self, nodes: dict[str, Node], name: str, functions: dict[str, Function], meter: Meter
    ) -> None:
        self.nodes, self.name, self.functions, self.meter = nodes, name, functions, meter
        self.readers: dict[str, list[str]] = defaultdict(list)
        for name, node in nodes.items():
            for one, _ in node.inputs:
                self.readers[one].append(name)

    def replace(self) -> None:
        """Replace all frames, inner ones first."""
        frames = self._frames()
        if len(frames) > _MOST:
            raise _UnclearError(next(iter(self.nodes.values())), f"{len(frames)} loops")
        while frames:
            self.meter.check_time()
            ready = [name for name, frame in frames.items() if not self._has_inner(frame)]
            if not ready:
                frame = next(iter(frames.values()))
                raise _UnclearError(self.nodes[frame.condition], "loops that contain each other")
            for name in ready:
                self._replace(frames.pop(name))

    def _frames(self) -> dict[str, _Frame]:
        frames: dict[str, _Frame] = defaultdict(_Frame)
        for name, node in self.nodes.items():
            if node.op != "Enter":
                continue
            if len(node.inputs) != 1 or "frame_name" not in node.attrs:
                raise _UnclearError(node, "a loop without a name")
            frame = frames[node.attrs["frame_name"].s.decode("utf-8", "replace")]
            variable = self._variable(name)
            if variable is None:
                frame.constants.append(name)
                continue
            frame.variables.append(variable)
            for one in self.readers[variable.merge]:
                reader = self.nodes[one]
                if reader.op == "Switch" and len(reader.inputs) == 2:
                    variable.switch, frame.condition = one, reader.inputs[1][0]
            exits = self.readers[variable.switch] if variable.switch else []
            variable.exits = [one for one in exits if self.nodes[one].op == "Exit"]
        for frame in frames.values():
            if not frame.condition or self.nodes[frame.condition].op != "LoopCond":
                where = [*(one.enter for one in frame.variables), *frame.constants][0]
                raise _UnclearError(self.nodes[where], "a loop without a condition")
        return dict(frames)

    def _variable(self, enter: str) -> _Variable | None:
        for merge in self.readers[enter]:
            node = self.nodes[merge]
            others = [one for one, _ in node.inputs if one != enter]
            if node.op == "Merge" and len(others) == 1:
                following = self.nodes[others[0]]
                if following.op == "NextIteration" and len(following.inputs) == 1:
                    return _Variable(enter, merge, others[0])
        return None

    def _starts(self, frame: _Frame) -> tuple[list[Tensor], list[Tensor]]:
        """Return what the condition and the body are given."""
        constants = [(one, 0) for one in frame.constants]
        merges = [(one.merge, 0) for one in frame.variables]
        begins = [(one.switch, 1) if one.switch else (one.merge, 0) for one in frame.variables]
        return merges + constants, begins + constants

    def _has_inner(self, frame: _Frame) -> bool:
        given, starts = self._starts(frame)
        stop = set(given) | set(starts)
        work = [self.nodes[one.next].inputs[0] for one in frame.variables]
        work += self.nodes[frame.condition].inputs
        seen: set[Tensor] = set()
        while work:
            tensor = work.pop()
            if tensor in stop or tensor in seen or tensor[0] not in self.nodes:
                continue
            seen.add(tensor)
            node = self.nodes[tensor[0]]
            if node.op == "Exit":
                return True
            work += node.inputs
        return False

    def _replace(self, frame: _Frame) -> None:
        test = self.nodes[frame.condition]
        if len(test.inputs) != 1:
            raise _UnclearError(test, "a condition of several values")
        given, starts = self._starts(frame)
        base = f"{test.name}/While"
        results = [self.nodes[one.next].inputs[0] for one in frame.variables]
        results += [(one, 0) for one in frame.constants]
        parts = {
            "cond": Function(f"{self.name}{base}/cond", self.nodes, given, list(test.inputs)),
            "body": Function(f"{self.name}{base}/body", self.nodes, starts, results),
        }
        self.functions.update({one.name: one for one in parts.values()})
        enters = [*(one.enter for one in frame.variables), *frame.constants]
        inputs = [self.nodes[one].inputs[0] for one in enters]
        made = _function_node(self.nodes, base, "While", inputs, parts)
        for place, variable in enumerate(frame.variables):
            for one in variable.exits:
                self.nodes[one] = Node(one, "Identity", {}, [(made.name, place)])
            for one in (variable.enter, variable.merge, variable.switch, variable.next):
                if one:
                    self.nodes[one] = Node(one, "LoopVariable", {})
        for one in (*frame.constants, frame.condition):
            self.nodes[one] = Node(one, "LoopVariable", {})


# --- conditionals --------------------------------------------------------------------------------


@dataclass
class _Side:
    """What leads to one input of a Merge: Switch nodes by predicate and output."""

    switches: dict[Tensor, set[int]] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)


@dataclass
class _Group:
    """Merges that join the same conditional.

    `picks` says which input of a merge each branch gives; `switches` are those that the branches
    read.
    """

    merges: list[str] = field(default_factory=list)
    picks: list[list[int]] = field(default_factory=list)
    switches: dict[str, None] = field(default_factory=dict)


class _Conditionals:
    def __init__(
        self, nodes: dict[str, Node], name: str, functions: dict[str, Function], meter: Meter
    ) -> None:
        self.nodes, self.name, self.functions, self.meter = nodes, name, functions, meter
        self.indexes = {one[0] for node in nodes.values() for one in node.inputs if one[1] == 1}

    def replace(self) -> None:
        """Replace all conditionals, inner ones first."""
        levels: dict[str, int] = {}
        merges: dict[int, list[str]] = defaultdict(list)
        for name in self._order():
            node = self.nodes[name]
            before = [one for one, _ in node.inputs]
            levels[name] = max((levels.get(one, 0) for one in before), default=0)
            if node.op == "Merge":
                levels[name] += 1
                merges[levels[name]].append(name)
        if sum(map(len, merges.values())) > _MOST:
            raise _UnclearError(next(iter(self.nodes.values())), "more than 2,000 conditionals")
        for level in sorted(merges):
            groups: dict[Tensor, _Group] = defaultdict(_Group)
            for name in merges[level]:
                self._add(self.nodes[name], groups)
            for predicate, group in groups.items():
                self._replace(predicate, group)

    def _order(self) -> list[str]:
        whole = Function("", self.nodes, [], [(name, 0) for name in self.nodes])
        return [node.name for node in whole.order(lambda _: False)]

    def _resolved(self, tensor: Tensor) -> Tensor:
        seen = set()
        while tensor not in seen:
            seen.add(tensor)
            node = self.nodes.get(tensor[0])
            if node is not None and node.op == "Identity" and node.inputs:
                tensor = node.inputs[0]
        return tensor

    def _side(self, tensor: Tensor) -> _Side:
        found, seen = _Side(), set[Tensor]()
        work = [tensor]
        while work:
            one = work.pop()
            if one in seen or one[0] not in self.nodes:
                continue
            seen.add(one)
            node = self.nodes[one[0]]
            if node.op in _SWITCHES and len(node.inputs) == 2:
                predicate = self._resolved(node.inputs[1])
                found.switches.setdefault(predicate, set()).add(one[1])
                found.nodes.append(node.name)
                continue
            work += node.inputs
            if not node.inputs:
                work += [(name, 0) for name in node.controls if name in self.nodes]
        return found

    def _add(self, merge: Node, groups: dict[Tensor, _Group]) -> None:
        self.meter.check_time()
        sides = [self._side(one) for one in merge.inputs]
        fitting = []
        for predicate in {key: None for side in sides for key in side.switches}:
            taken = [side.switches.get(predicate, set()) for side in sides]
            picks = _picks(taken)
            if picks is not None:
                fitting.append((predicate, picks))
        if len(fitting) != 1:
            raise _UnclearError(merge, "branches of several conditions, or of none")
        predicate, picks = fitting[0]
        group = groups[predicate]
        if group.picks and len(group.picks[0]) != len(picks):
            raise _UnclearError(merge, "branches of another number than of its condition")
        group.merges.append(merge.name)
        group.picks.append(picks)
        group.switches.update(
            dict.fromkeys(
                name
                for side in sides
                for name in side.nodes
                if self._resolved(self.nodes[name].inputs[1]) == predicate
            )
        )

    def _replace(self, predicate: Tensor, group: _Group) -> None:
        indexed = [one for one in group.merges if one in self.indexes]
        base = f"{group.merges[0]}/If"
        data = [self.nodes[one].inputs[0] for one in group.switches]
        numbered = any(self.nodes[one].op == "_SwitchN" for one in group.switches)
        branches = []
        for number in range(len(group.picks[0])):
            results = []
            for one, picks in zip(group.merges, group.picks, strict=True):
                results.append(self.nodes[one].inputs[picks[number]])
            for one in indexed:
                picked = group.picks[group.merges.index(one)][number]
                results.append((self._constant(f"{one}/index{number}", picked), 0))
            arguments = [(one, number) for one in group.switches]
            name = f"{self.name}{base}/{number}"
            branches.append(Function(name, self.nodes, arguments, results))
        self.functions.update({one.name: one for one in branches})
        if numbered:
            made = _function_node(self.nodes, base, "Case", [predicate, *data], {}, branches)
        elif len(branches) == 2:
            parts = {"then_branch": branches[1], "else_branch": branches[0]}
            made = _function_node(self.nodes, base, "If", [predicate, *data], parts)
        else:
            raise _UnclearError(self.nodes[group.merges[0]], f"a choice of {len(branches)} values")
        for place, one in enumerate(group.merges):
            self.nodes[one] = Node(one, "Identity", {}, [(made.name, place)])
        for place, one in enumerate(indexed, len(group.merges)):
            for node in self.nodes.values():
                node.inputs = [(made.name, place) if t == (one, 1) else t for t in node.inputs]

    def _constant(self, base: str, value: int) -> str:
        while base in self.nodes:
            base += "_"
        attr = message_class("AttrValue")()
        attr.tensor.dtype = 3
        attr.tensor.int_val.append(value)
        self.nodes[base] = Node(base, "Const", {"value": attr})
        return base


def _picks(taken: list[set[int]]) -> list[int] | None:
    """Return which input of a Merge each branch gives; None where that is not clear.

    Args:
        taken: the outputs of Switch nodes that lead to each input; none for one input where that
            does not depend on any.
    """
    if any(len(one) > 1 for one in taken) or sum(not one for one in taken) > 1:
        return None
    rest = set(range(len(taken))) - {number for one in taken for number in one}
    numbers = [next(iter(one)) if one else rest.pop() if rest else -1 for one in taken]
    if sorted(numbers) != list(range(len(taken))) or len(numbers) < 2:
        return None
    return [numbers.index(number) for number in range(len(numbers))]
