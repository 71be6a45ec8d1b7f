"""Batches the decode step of one sequence over several.

In the step of one sequence, the first axis of everything computed from it has one element; in the
batched step, it has one per sequence. An op whose loop over this axis is parallel takes more steps;
with any other op, the step cannot be batched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.decoding.fuse_cached_attention import fuse_cached_attention
from vkmnn.decoding.padded_graph import TOTAL, CannotRewriteError, live
from vkmnn.errors import ShapeError
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.shape import compute_shapes
from vkmnn.shape.axes import Kind, Known, common_loop, loops_of, with_sizes


def batched_step(graph: Graph, size: int) -> Graph:
    """Return the step of several sequences.

    Args:
        graph: the step of one sequence, with appends and attention separate: all inputs belong
            to the sequence, and their first axis has one element.
        size: number of sequences.

    Raises:
        CannotRewriteError: an op mixes sequences, or is not known to keep them apart.
    """
    return _Batcher(graph, size).result()


@dataclass(slots=True)
class _Batcher:
    graph: Graph
    size: int
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    own: dict[str, TensorInfo] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    ops: list[Op[Any]] = field(default_factory=list)

    def result(self) -> Graph:
        """Batch the ops one after the other."""
        graph = self.graph
        self.constants.update(graph.constants)
        for name, array in graph.constants.items():
            self.infos[name] = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        for info in graph.inputs:
            self._note(info, "an input")
        for op in graph.ops:
            self._batch(op)
        outputs = [info.name for info in graph.outputs]
        ops = fuse_cached_attention(self.ops, {**self.infos, **self.own}, TOTAL, set(outputs))
        for op in ops:
            if op.type in _COUNTS:
                raise CannotRewriteError(f"{op.type} '{op.name}' does not become a CachedAttention")
        return replace(
            graph,
            inputs=[self.own[info.name] for info in graph.inputs],
            outputs=[self.own[name] for name in outputs],
            ops=live(ops, {*outputs, *self._caches()}),
            constants=self.constants,
        )

    def _caches(self) -> set[str]:
        return {op.outputs[0] for op in self.ops if op.type == "Append"}

    def dims(self, name: str) -> tuple[int, ...]:
        """Return the sizes in the step of one sequence."""
        return self.infos[name].dims

    def _note(self, info: TensorInfo, what: str) -> None:
        """Record a tensor that belongs to a sequence."""
        if not info.dims or info.dims[0] != 1:
            raise CannotRewriteError(f"'{info.name}', {what}, has no batch axis: {info.dims}")
        self.infos[info.name] = info
        self.own[info.name] = replace(info, shape=(self.size, *info.dims[1:]))

    def _batch(self, op: Op[Any]) -> None:
        places = tuple(place for place, name in enumerate(op.inputs) if name in self.own)
        infos = [self.infos[name] if name else None for name in op.inputs]
        values = [self.constants.get(name) if name else None for name in op.inputs]
        results = [info for info in compute_shapes(op, infos, values) if info.name]
        if not places:
            self.infos.update({info.name: info for info in results})
            self.ops.append(op)
            return
        for info in results:
            self._note(info, f"of {op.type} '{op.name}'")
        self.ops.append(self._batched(op, places, infos, values))

    def _batched(
        self,
        op: Op[Any],
        places: tuple[int, ...],
        infos: Sequence[TensorInfo | None],
        values: Sequence[Array | None],
    ) -> Op[Any]:
        """Return the op of several sequences: its loop over the first axis gets more steps.

        Args:
            op: that of one sequence.
            places: inputs that belong to the sequence.
            infos: shapes of its inputs.
            values: its constants.
        """
        shapes = [None if info is None else info.dims for info in infos]
        results = [self.infos[name].dims if name else None for name in op.outputs]
        alone = {place: 0 for place in places if place != _COUNTS.get(op.type)}
        loop = common_loop(loops_of(op, Known(shapes, results, values)), alone, shapes)
        writes = () if loop is None else zip(op.outputs, loop.writes, strict=True)
        if loop is None or loop.kind is not Kind.PARALLEL:
            raise CannotRewriteError(f"{op.type} '{op.name}' may mix sequences")
        if any(axis != 0 for name, axis in writes if name):
            raise CannotRewriteError(f"{op.type} '{op.name}' moves the batch axis")
        return op if op.type in _COUNTS else self._sized(op, values)

    def _sized(self, op: Op[Any], values: Sequence[Array | None]) -> Op[Any]:
        """Return an op with explicit sizes, which are those of several sequences."""
        names, result = list(op.inputs), next(filter(None, op.outputs))
        for place, content in with_sizes(op, values, self.own[result].dims).items():
            names[place] = f"{result}:batched"
            self.constants[names[place]] = content
            self.infos[names[place]] = replace(
                self.infos[op.inputs[place]], name=names[place], shape=content.shape
            )
        made = replace(op, inputs=names)
        infos = [self.own.get(name, self.infos[name]) if name else None for name in names]
        values = [self.constants.get(name) if name else None for name in names]
        try:
            results = compute_shapes(made, infos, values)
        except ShapeError as error:
            raise CannotRewriteError(f"{op.type} '{op.name}' cannot be batched: {error}") from error
        if any(info.name and info.dims != self.own[info.name].dims for info in results):
            raise CannotRewriteError(f"{op.type} '{op.name}' depends on the size of one sequence")
        return made


_COUNTS = {"Append": 2, "UnpackRows": 1, "Attention": 4}
"""Row counts among the inputs: one per sequence if both belong to one CachedAttention."""
