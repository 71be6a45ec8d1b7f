"""Moves transposes around ops that work in any order of axes.

Exporters that compute with channels last (Keras, TensorFlow) wrap every convolution in two
Transposes, with biases, normalisations, activations and residuals between them.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkmnn.converter.passes.base import IndexedPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.renumbered import Moved, data_of, inverse, renumbered
from vkmnn.converter.passes.transpose import Perm, compose, permutation
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import TransposeAttrs


class _Region:
    """Ops between transposes that can all be moved, collected from one Transpose before them."""

    def __init__(self, seed: Op, perm: Perm, index: GraphIndex) -> None:
        self.perm = perm
        self.ops: dict[int, tuple[Op, Moved]] = {}
        self._index = index
        self.seen: set[int] = set()
        pending = index.readers(seed.outputs[0])
        while pending:
            op = pending.pop()
            if id(op) in self.seen:
                continue
            self.seen.add(id(op))
            moved = self._moved(op)
            if moved is not None:
                self.ops[id(op)] = (op, moved)
                pending.extend(self._neighbours(op, moved))

    def _moved(self, op: Op) -> Moved | None:
        if any(self._rank(name) != len(self.perm) for name in data_of(op, self._index)):
            return None
        return renumbered(op, self.perm, self._index)

    def _rank(self, name: str) -> int | None:
        producer = self._index.producer_of_type(name, "Transpose")
        return (
            len(producer.attrs.perm) if producer and producer.attrs.perm else self._index.rank(name)
        )

    def is_moved(self, name: str) -> bool:
        """True for a result of an op of the region that has the new order."""
        producer = self._index.producer(name)
        found = self.ops.get(id(producer)) if producer is not None else None
        return found is not None and not found[1].stays

    def _neighbours(self, op: Op, moved: Moved) -> Iterator[Op]:
        if not moved.stays:
            for name in op.outputs:
                yield from self._index.readers(name)
        for name in data_of(op, self._index):
            producer = self._index.producer(name)
            if producer is not None and producer.type != "Transpose":
                yield producer
            elif self.source(name) is not None:
                yield from self._index.readers(name)

    def source(self, name: str) -> str | None:
        """Return the source of a tensor that a Transpose like the seed produces."""
        producer = self._index.producer_of_type(name, "Transpose")
        if producer is None or permutation(producer, self._index) != self.perm:
            return None
        return producer.inputs[0]

    def needs_result(self, name: str) -> bool:
        """True when something outside reads a result of the region, or the graph returns it."""
        readers = self._index.readers(name)
        return self._index.is_output(name) or any(id(op) not in self.ops for op in readers)

    def gain(self) -> int:
        """Return how many transposes fewer there are when the region is moved."""
        taken = {name for op, _ in self.ops.values() for name in data_of(op, self._index)}
        total = sum(self._gain_before(name) for name in taken if not self.is_moved(name))
        for op, moved in self.ops.values():
            if not moved.stays:
                total += sum(self._gain_after(name) for name in op.outputs if name)
        return total

    def _gain_before(self, name: str) -> int:
        inside = self._index.read_only_by(name, (op for op, _ in self.ops.values()))
        if self.source(name) is not None:
            return int(inside)
        merges = self._index.producer_of_type(name, "Transpose") is not None
        return 0 if merges and inside else -1

    def _gain_after(self, name: str) -> int:
        outside = [op for op in self._index.readers(name) if id(op) not in self.ops]
        transposes = [op for op in outside if op.type == "Transpose"]
        cancelled = sum(
            (after := permutation(op, self._index)) is not None
            and len(after) == len(self.perm)
            and compose(self.perm, after) == tuple(range(len(after)))
            for op in transposes
        )
        stays = self._index.is_output(name) or len(transposes) < len(outside)
        return cancelled - stays


class MoveTransposes(IndexedPass):
    """Moves transposes around ops that work in any order of axes to where most of them cancel.

    The ops in between compute in the order of the axes before the first Transpose. This is done if
    fewer transposes remain.
    """

    name = "move_transposes"

    def apply(self, index: GraphIndex) -> int:
        """Move every region that has fewer transposes then; return how many."""
        order = {id(op): (number, op) for number, op in enumerate(index.ops())}
        tried: set[tuple[int, Perm]] = set()
        rewrites = 0
        for _, seed in list(order.values()):
            if seed.type != "Transpose" or index.producer(seed.outputs[0]) is not seed:
                continue
            perm = permutation(seed, index)
            readers = index.readers(seed.outputs[0])
            if perm is None or all((id(op), perm) in tried for op in readers):
                continue
            region = _Region(seed, perm, index)
            tried.update((number, perm) for number in region.seen)
            if region.ops and region.gain() > 0:
                _move(region, index, order)
                rewrites += 1
        return rewrites


def _move(region: _Region, index: GraphIndex, order: dict[int, tuple[int, Op]]) -> None:
    """Put the ops of a region into the other order, with transposes at its edges."""
    edges = {
        name
        for op, moved in region.ops.values()
        for name in op.outputs
        if name and not moved.stays and region.needs_result(name)
    }
    names: dict[str, str] = {}
    for op, moved in sorted(region.ops.values(), key=lambda found: order[id(found[0])][0]):
        before: list[Op] = []
        inputs = list(op.inputs)
        for place, name in enumerate(op.inputs):
            if place in moved.constants:
                if moved.constants[place] is not index.constant(name):
                    inputs[place] = index.add_constant(f"{op.name}_moved", moved.constants[place])
            elif name:
                inputs[place] = _inner(name, op, region, index, names, before)
        outputs = [
            name if moved.stays else _renamed(name, region.perm, index, names)
            for name in op.outputs
        ]
        after = [
            _transpose(op, names[name], name, region.perm, index)
            for name in op.outputs
            if name in edges
        ]
        done = Op(op.type, op.name, inputs, outputs, moved.attrs, op.source)
        new = (*before, done, *after)
        order.update((id(one), (order[id(op)][0], one)) for one in new)
        index.replace(op, *new)


def _inner(
    name: str, op: Op, region: _Region, index: GraphIndex, names: dict[str, str], before: list[Op]
) -> str:
    """Return a tensor in the new order: from before a Transpose, or by one more."""
    if name not in names:
        source = region.source(name)
        if source is None:
            new = _renamed(name, region.perm, index, names)
            before.append(_transpose(op, name, new, inverse(region.perm), index))
        else:
            names[name] = source
    return names[name]


def _renamed(name: str, perm: Perm, index: GraphIndex, names: dict[str, str]) -> str:
    """Name a tensor in the new order."""
    if not name:
        return ""
    new = names[name] = index.unique_name(f"{name}_moved")
    known = index.info(name)
    if known is not None:
        shape = known.shape
        index.add_info(new, known.dtype, shape and tuple(shape[axis] for axis in inverse(perm)))
    return new


def _transpose(op: Op, value: str, result: str, perm: Perm, index: GraphIndex) -> Op:
    name = index.unique_name(f"{op.name}_transpose")
    return Op("Transpose", name, [value], [result], TransposeAttrs(perm), merged_source((op,)))
