"""Producers and readers of a graph's tensors, kept up to date while a pass edits the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from vkmnn.base.budget import Meter, unlimited
from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Array, Dim, Graph, Op, TensorInfo

_FLOAT_OPS = frozenset(
    {"Convolution", "Deconvolution", "Scale", "GroupNorm", "LayerNorm", "Softmax", "Attention"}
)
"""Ops that give floating-point tensors only."""

_FEW_INPUTS = 16
"""Ops with more inputs, such as a Concat of thousands, remember where they read which tensor."""


class GraphIndex:
    """Producers, readers, constants and shapes of a graph, and the edits of passes.

    Every edit costs time in proportion to what it touches. `commit` brings the graph's op list up
    to date; its constants and infos are edited in place.

    Args:
        graph: the graph to look at and to edit; ops in topological order.
        meter: asked for time at every op; None has no limits.

    Attributes:
        current: the op that `ops` gave last.
    """

    def __init__(self, graph: Graph, meter: Meter | None = None) -> None:
        self.graph = graph
        self.meter = meter or unlimited()
        self.current: Op | None = None
        self.constants = graph.constants
        self.output_names = graph.output_names()
        self._infos = {info.name: info for info in (*graph.outputs, *graph.inputs)}
        self._inputs = {info.name for info in graph.inputs}
        # One slot per op of the original list: ops that replace an op share its slot, so that the
        # order stays topological and edits stay local.
        self._slots: list[list[Op]] = []
        self._slot_of: dict[int, int] = {}
        self._producers: dict[str, Op] = {}
        self._readers: dict[str, dict[int, Op]] = {}
        self._places: dict[int, dict[str, list[int]]] = {}
        self._names: set[str] | None = None
        self._counts: dict[str, int] = {}
        self._types: set[str] = set()  # of ops that are in the graph, or were
        for op in graph.ops:
            self._slots.append([op])
            self._link(op, len(self._slots) - 1)

    # --- questions -----------------------------------------------------------------------------

    def ops(self, types: Collection[str] | None = None) -> Iterator[Op[Any]]:
        """Yield the ops in topological order; edits at or before the current op are allowed.

        An op that an edit inserts at the current position is not visited.

        Args:
            types: those of the ops to visit; None for all.
        """
        if types is not None and self._types.isdisjoint(types):
            return
        for slot in self._slots:
            for op in tuple(slot):
                if (types is None or op.type in types) and id(op) in self._slot_of:
                    self.meter.check_time(op.type, op.name)
                    self.current = op
                    yield op

    def producer(self, name: str) -> Op[Any] | None:
        """Return the op that produces a tensor; None for graph inputs, constants and ""."""
        return self._producers.get(name)

    def producer_of_type(self, name: str, *types: str) -> Op[Any] | None:
        """Return the op that produces a tensor if it is of one of these types, else None."""
        op = self._producers.get(name)
        return op if op is not None and op.type in types else None

    def readers(self, name: str) -> list[Op[Any]]:
        """Return the ops that read a tensor, each once, in no particular order."""
        return list(self._readers.get(name, {}).values())

    def is_output(self, name: str) -> bool:
        """True for the graph's outputs."""
        return name in self.output_names

    def is_input(self, name: str) -> bool:
        """True for the graph's inputs."""
        return name in self._inputs

    def read_once(self, name: str) -> bool:
        """True when one input of one op reads the tensor, and the graph does not return it."""
        readers = self._readers.get(name)
        if name in self.output_names or readers is None or len(readers) != 1:
            return False
        (reader,) = readers.values()
        return reader.inputs.count(name) == 1

    def read_only_by(self, name: str, ops: Iterable[Op]) -> bool:
        """True when nothing but these ops reads the tensor and the graph does not return it."""
        inside = {id(op) for op in ops}
        return name not in self.output_names and self._readers.get(name, {}).keys() <= inside

    def is_later(self, first: Op, second: Op) -> bool:
        """True if `first` comes after `second` in the graph's order."""
        one, other = self._slot_of[id(first)], self._slot_of[id(second)]
        if one != other:
            return one > other
        slot = [id(op) for op in self._slots[one]]
        return slot.index(id(first)) > slot.index(id(second))

    def constant(self, name: str) -> Array | None:
        """Return the value of a constant tensor, None for all others."""
        return self.constants.get(name)

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant float tensor with one element, None for all others."""
        array = self.constants.get(name)
        if array is None or array.size != 1 or array.dtype.kind != "f":
            return None
        return float(array.reshape(-1)[0])

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Return the values of a constant integer scalar or vector, None for all other tensors."""
        array = self.constants.get(name)
        if array is None or array.dtype.kind not in "iu" or array.ndim > 1:
            return None
        return tuple(int(value) for value in array.reshape(-1))

    def info(self, name: str) -> TensorInfo | None:
        """Return the info of a tensor, None if it is unknown."""
        array = self.constants.get(name)
        if array is not None:
            return TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        return self.graph.infos.get(name) or self._infos.get(name)

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        """Return the shape as far as it is known, None if even the rank is unknown."""
        info = self.info(name)
        return None if info is None else info.shape

    def rank(self, name: str) -> int | None:
        """Return the rank, None when it is unknown."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def static_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape if every dimension is a known int, else None."""
        info = self.info(name)
        return info.dims if info is not None and info.is_static else None

    def dtype(self, name: str) -> DType | None:
        """Return the dtype, None when it is unknown."""
        info = self.info(name)
        return None if info is None else info.dtype

    def is_float(self, name: str) -> bool:
        """True if the tensor is known to be of a floating-point type."""
        dtype = self.dtype(name)
        if dtype is not None:
            return dtype.is_float
        producer = self._producers.get(name)
        if producer is None:
            return False
        return producer.type in _FLOAT_OPS or (
            producer.type == "MatMul" and any(self._is_float_constant(n) for n in producer.inputs)
        )

    def _is_float_constant(self, name: str) -> bool:
        array = self.constants.get(name)
        return array is not None and array.dtype.kind == "f"

    def same_shape(self, first: str, second: str) -> bool:
        """True when both shapes are provably equal: the same int or symbol on every axis."""
        one, other = self.shape(first), self.shape(second)
        return one is not None and one == other and all(dim is not None for dim in one)

    # --- edits ---------------------------------------------------------------------------------

    def replace(self, root: Op, *ops: Op) -> None:
        """Replace `root` by `ops`, and drop ops without readers.

        The new ops may read whatever is produced before `root`; the outputs of `root` that are
        still read have to be among theirs.
        """
        number = self._unlink(root)
        slot = self._slots[number]
        at = next(place for place, op in enumerate(slot) if op is root)
        slot[at : at + 1] = ops
        for op in ops:
            self._link(op, number)
        self._sweep(root.inputs)

    def can_forward(self, op: Op, value: str) -> bool:
        """True when `forward` can remove the op.

        It cannot if the result is a graph output whose name cannot be given to `value`, because
        that is a graph input, a constant or another graph output.
        """
        return op.outputs[0] not in self.output_names or (
            value in self._producers and value not in self.output_names
        )

    def forward(self, op: Op, value: str) -> None:
        """Remove an op whose one result equals the tensor `value`; see `can_forward`."""
        (result,) = op.outputs
        gone, kept = (value, result) if result in self.output_names else (result, value)
        known = self.info(gone)
        if known is not None and self.info(kept) is None:
            self.add_info(kept, known.dtype, known.shape)
        self._remove(op)
        if gone == value:  # the producer takes over the output's name
            source = self._producers.pop(value)
            source.outputs[source.outputs.index(value)] = result
            self._producers[result] = source
        self._redirect(gone, kept)
        self._sweep((*op.inputs, kept))

    def can_merge(self, op: Op, twin: Op) -> bool:
        """True when `merge` can remove an op: no result is an output or missing in the twin."""
        return all(
            not name or (bool(other) and name not in self.output_names)
            for name, other in zip(op.outputs, twin.outputs, strict=True)
        )

    def merge(self, op: Op, twin: Op) -> None:
        """Remove an op whose results equal those of `twin`, an op before it; see `can_merge`."""
        for name, other in zip(op.outputs, twin.outputs, strict=True):
            if name:
                self._redirect(name, other)
        self._remove(op)
        self._sweep(op.inputs)

    def make_constant(self, op: Op, arrays: Iterable[Array]) -> None:
        """Remove an op and turn its outputs into constants."""
        self._remove(op)
        self.constants.update(
            (name, array) for name, array in zip(op.outputs, arrays, strict=True) if name
        )
        self._sweep(op.inputs)

    def add_constant(self, base: str, array: Array) -> str:
        """Add a constant under a name derived from `base`; return the name."""
        name = self.unique_name(base)
        self.constants[name] = array
        return name

    def add_info(self, name: str, dtype: DType, shape: tuple[Dim, ...] | None) -> None:
        """Record the dtype and shape of a new tensor."""
        self.graph.infos[name] = TensorInfo(name, dtype, shape)

    def unique_name(self, base: str) -> str:
        """Return `base`, or `base_1`, `base_2`, … if a tensor or op of that name exists."""
        if self._names is None:
            self._names = {*self.constants, *self._inputs, *self._producers}
            self._names.update(op.name for op in self.graph.ops)
        name, count = base, self._counts.get(base, 0)
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._counts[base] = count
        self._names.add(name)
        return name

    def commit(self) -> None:
        """Write the edited op list back to the graph."""
        self.graph.ops = [op for slot in self._slots for op in slot]

    # --- bookkeeping ---------------------------------------------------------------------------

    def _link(self, op: Op, number: int) -> None:
        self._slot_of[id(op)] = number
        self._types.add(op.type)
        for name in op.inputs:
            if name:
                self._readers.setdefault(name, {})[id(op)] = op
        for name in op.outputs:
            if name:
                self._producers[name] = op

    def _unlink(self, op: Op) -> int:
        self._places.pop(id(op), None)
        for name in op.inputs:
            if name:
                self._readers[name].pop(id(op), None)
        for name in op.outputs:
            self._producers.pop(name, None)
        return self._slot_of.pop(id(op))

    def _remove(self, op: Op) -> None:
        slot = self._slots[self._unlink(op)]
        slot[:] = [other for other in slot if other is not op]

    def _redirect(self, old: str, new: str) -> None:
        """Make every reader of `old` read `new`."""
        readers = self._readers.pop(old, {})
        for op in readers.values():
            if len(op.inputs) <= _FEW_INPUTS:
                op.inputs[:] = [new if name == old else name for name in op.inputs]
                continue
            places = self._places_of(op)
            moved = places.pop(old)
            for place in moved:
                op.inputs[place] = new
            places.setdefault(new, []).extend(moved)
        if readers:
            self._readers.setdefault(new, {}).update(readers)

    def _places_of(self, op: Op) -> dict[str, list[int]]:
        """Return where an op of many inputs reads each tensor: all of them may be redirected."""
        places = self._places.get(id(op))
        if places is None:
            places = self._places[id(op)] = {}
            for place, name in enumerate(op.inputs):
                places.setdefault(name, []).append(place)
        return places

    def _sweep(self, names: Iterable[str]) -> None:
        """Remove the producers of tensors without readers, and theirs in turn."""
        pending = list(names)
        while pending:
            op = self._producers.get(pending.pop())
            if op is None or any(
                name in self.output_names or self._readers.get(name) for name in op.outputs
            ):
                continue
            self._remove(op)
            pending.extend(op.inputs)
