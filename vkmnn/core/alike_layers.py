"""Repeated layers: a plan resolves two of them and the last.

The results of shapes, folding and lowering for a layer are the same for every layer with equal ops,
provided that the layers before and after it are equal too. The layers in between are left out of
the network that is resolved, and then added under their own names. Anything that could make a layer
differ leads to None, and the plan resolves all ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vkmnn.base.records import dataclass
from vkmnn.geometry import has_geometry, is_lowered_by_kind, may_lower
from vkmnn.ir import OP_TYPES, Array, Graph, Op
from vkmnn.ir.alike import attrs_text, is_comparable
from vkmnn.shape import reads_declared_contents

MIN_LAYERS = 4
"""Two layers that are resolved, one that is not, and the last."""

PERIODS_TRIED = 4
"""Number of layer lengths to try, those that most ops suggest."""

MAX_PERIOD = 256
"""Maximum ops of a layer."""


class Mark(str):
    """Source of a resolved layer's op: the same text, and the op's position."""

    __slots__ = ("layer", "place")

    layer: int
    place: int

    @classmethod
    def of(cls, op: Op, layer: int, place: int) -> Op:
        """Return the op with a mark: number of the layer, 0 or 1, and position in the layer."""
        mark = cls(op.source)
        mark.layer, mark.place = layer, place
        return Op(op.type, op.name, op.inputs, op.outputs, op.attrs, mark)


@dataclass(frozen=True, slots=True)
class Layer:
    """A skipped layer.

    Attributes:
        ops: its ops.
        names: its tensors, by those of the second layer, and inputs that only it reads.
        owners: the names of its ops, by those of the second layer.
    """

    ops: Sequence[Op]
    names: Mapping[str, str]
    owners: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layers:
    """A network with repeated layers.

    Attributes:
        ops: those that are resolved; the first two layers carry a `Mark`.
        model: the second layer, as the network has it.
        left_out: the layers between that one and the last.
        inputs: pairs of inputs of the network whose shapes and types must be equal.
        handed: tensors that the second layer reads from the first, and the third from the second:
            their shapes and types must be equal as well.
    """

    ops: list[Op]
    model: Sequence[Op]
    left_out: Sequence[Layer]
    inputs: Sequence[tuple[str, str]]
    handed: Sequence[tuple[str, str]]


def find_layers(graph: Graph) -> Layers | None:
    """Return the repeated layers of a network, None if there are too few."""
    return _Search(graph).result()


class _Search:
    """Finds the layers of one network."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ops = graph.ops
        self._outputs = graph.output_names()
        self._maker = {
            name: index for index, op in enumerate(graph.ops) for name in op.outputs if name
        }
        self._known = _knowable(graph)
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(self._kind(op), len(kinds)) for op in graph.ops]

    def _kind(self, op: Op) -> object:
        """Return a key that equal ops share, whatever they read.

        Plug-ins may compute anything: their ops equal no others.
        """
        if not reads_declared_contents(op.type) or not is_lowered_by_kind(op.type):
            return op.name
        made = [(name != "", name in self._outputs) for name in op.outputs]
        return op.type, attrs_text(op.attrs), len(op.inputs), tuple(made)

    def result(self) -> Layers | None:
        found = [
            (count - MIN_LAYERS + 1, start, period, count)
            for period in self._periods()
            for start, count in [self._longest(period)]
            if count >= MIN_LAYERS
        ]
        for _, start, period, count in sorted(found, key=lambda one: (-one[0] * one[2], one[2])):
            layers = self._layers(start, period, count)
            if layers is not None:
                return layers
        return None

    def _periods(self) -> list[int]:
        """Return the usual distances between ops of one kind."""
        last: dict[int, int] = {}
        gaps: Counter[int] = Counter()
        for index, kind in enumerate(self._kinds):
            if kind in last:
                gaps[index - last[kind]] += 1
            last[kind] = index
        tried = [gap for gap, _ in gaps.most_common() if gap <= MAX_PERIOD]
        return tried[:PERIODS_TRIED]

    def _longest(self, period: int) -> tuple[int, int]:
        """Return the start of the longest run of layers with the fewest crossing tensors.

        The second result is their number.
        """
        kinds, best, start = self._kinds, (0, 0), 0
        for index in range(len(kinds) - period + 1):
            if index == len(kinds) - period or kinds[index] != kinds[index + period]:
                best = max(best, (index - start, -start))
                start = index + 1
        length, start = best[0], -best[1]
        count = length // period + 1
        if count < MIN_LAYERS:
            return start, count
        end = start + length + period
        begin = min(
            range(start, start + period), key=lambda at: self._crossing(at + period, period)
        )
        return begin, (end - begin) // period

    def _crossing(self, at: int, period: int) -> int:
        """Return the number of a layer's tensors that the next one reads."""
        read = {name for op in self._ops[at : at + period] for name in op.inputs}
        return sum(at - period <= self._maker.get(name, -1) < at for name in read)

    def _layers(self, start: int, period: int, count: int) -> Layers | None:
        """Return the layers, None if they turn out to differ."""
        ops, end = self._ops, start + count * period
        if not self._are_apart(start, period, count) or self._passes_on(start, period):
            return None
        steps: list[dict[str, str]] = []
        for first in range(start, end - period, period):
            before = steps[-1] if steps else None
            step = self._step(first, period, before, range(start, end))
            if step is None or (before is not None and step.keys() != set(before.values())):
                return None
            steps.append(step)
        at = [ops[first : first + period] for first in range(start, end, period)]
        left_out = []
        names = {name: name for name in steps[1]}
        for layer, step in zip(at[2:-1], steps[1:-1], strict=True):
            names = {name: step[own] for name, own in names.items()}
            owners = {one.name: op.name for one, op in zip(at[1], layer, strict=True)}
            left_out.append(Layer(layer, names, owners))
        marked = [
            Mark.of(op, number, place)
            for number, layer in enumerate(at[:2])
            for place, op in enumerate(layer)
        ]
        renamed = {own: name for name, own in names.items() if own in self._maker}
        after = [_reading(op, renamed) for op in ops[end - period :]]
        handed = [
            pair for pair in steps[1].items() if self._maker.get(pair[0], end) < start + period
        ]
        if not self._known.isdisjoint(name for name, _ in handed):
            return None
        return Layers([*ops[:start], *marked, *after], at[1], left_out, self._inputs(steps), handed)

    def _inputs(self, steps: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
        """Return the network inputs that layers read, and the next layer's counterparts."""
        made = self._maker.keys() | self._graph.constants.keys()
        return [(a, b) for step in steps for a, b in step.items() if not {a, b} & made]

    def _step(
        self, first: int, period: int, before: Mapping[str, str] | None, row: range
    ) -> dict[str, str] | None:
        """Return the mapping of names from one layer to the next.

        Args:
            first: the first op of the layer.
            period: how many ops it has.
            before: the step to this layer; None for the first.
            row: the positions of all layers.

        Returns:
            None if the layers differ. Tensors that both read are not among the names.
        """
        names: dict[str, str] = {}
        shared: set[str] = set()
        for index in range(first, first + period):
            op, other = self._ops[index], self._ops[index + period]
            for number, (a, b) in enumerate(zip(op.inputs, other.inputs, strict=True)):
                if a == b:
                    if self._maker.get(a, -1) in row:
                        return None
                    shared.add(a)
                    continue
                named = a and b and names.setdefault(a, b) == b
                if not named or not self._alike(op, number, a, b, first, before):
                    return None
            for a, b in zip(op.outputs, other.outputs, strict=True):
                if a and names.setdefault(a, b) != b:
                    return None
        there = set(names.values())
        if len(there) < len(names) or (shared - {""}) & (names.keys() | there):
            return None
        return names

    def _alike(
        self, op: Op, number: int, a: str, b: str, first: int, before: Mapping[str, str] | None
    ) -> bool:
        """Whether input `number` of an op, `a`, and of its counterpart, `b`, are equivalent."""
        maker, other = self._maker.get(a), self._maker.get(b)
        if other is not None:
            if maker is not None and maker >= first:
                return True  # of the layer itself: its outputs have given it the name
            if before is None:
                return other >= first
            return before.get(a) == b
        constants = self._graph.constants
        if maker is not None or (a in constants) != (b in constants):
            return False
        if a not in constants:
            return True
        one, two = constants[a], constants[b]
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        return not self._goes_by(op, number) or _same_content(one, two)

    def _goes_by(self, op: Op, number: int) -> bool:
        """Return whether the lowering of an op may depend on a constant's content."""
        return (
            number in OP_TYPES[op.type].content
            or self._is_lowered(op)
            or all(not name or name in self._known for name in op.inputs)
        )

    def _is_lowered(self, op: Op) -> bool:
        """Whether geometry may lower an op."""
        infos = self._graph.infos
        typed = bool(op.outputs) and op.outputs[0] in infos
        return op.type == "Interp" or (may_lower(op, infos) if typed else has_geometry(op.type))

    def _are_apart(self, start: int, period: int, count: int) -> bool:
        """Return whether only a layer itself and its successor read it, except for the last."""
        last = start + (count - 1) * period
        for index, op in enumerate(self._ops[start:], start):
            own = (index - start) // period
            for name in op.inputs:
                maker = self._maker.get(name, -1)
                if start <= maker < last and own - (maker - start) // period > 1:
                    return False
        return True

    def _passes_on(self, start: int, period: int) -> bool:
        """Return whether a layer passes an input on, at most moved: copies would reach further."""
        moved = {
            name
            for op in self._ops[start + period : start + 2 * period]
            for name in op.inputs
            if start <= self._maker.get(name, -1) < start + period
        }
        for op in self._ops[start + period : start + 2 * period]:
            if self._is_lowered(op) and not moved.isdisjoint(op.inputs):
                moved.update(op.outputs)
        return any(
            name in moved and self._maker.get(name, -1) >= start + period
            for op in self._ops[start + 2 * period : start + 3 * period]
            for name in op.inputs
        )


def _knowable(graph: Graph) -> set[str]:
    """Return the tensors whose content may be known once shapes are."""
    known = set(graph.constants)
    for op in graph.ops:
        if OP_TYPES[op.type].shape_only or all(not name or name in known for name in op.inputs):
            known.update(op.outputs)
    return known


def _same_content(one: Array, two: Array) -> bool:
    return one is two or (is_comparable(one) and one.tobytes() == two.tobytes())


def _reading(op: Op, names: Mapping[str, str]) -> Op:
    """Return an op that reads other tensors."""
    inputs = [names.get(name, name) for name in op.inputs]
    if inputs == op.inputs:
        return op
    return Op(op.type, op.name, inputs, op.outputs, op.attrs, op.source)
