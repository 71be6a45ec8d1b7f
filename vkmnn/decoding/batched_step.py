"""Batches the decode step of one sequence over several.

In the step of one sequence, the first axis of everything that is computed from it has one element;
in the batched step, it has one for each sequence. Ops either keep the elements of this axis apart,
and then take more of them unchanged, or the step cannot be batched: products over the axis, sums
along it, and all ops without a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np

from vkmnn.decoding.fuse_cached_attention import fused
from vkmnn.decoding.padded_graph import TOTAL, CannotGrowError, live
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import SoftmaxAttrs, TransposeAttrs
from vkmnn.records import dataclass
from vkmnn.shape import compute_shapes

_Places = tuple[int, ...]


def batched_step(graph: Graph, size: int) -> Graph:
    """Return the step of several sequences.

    Args:
        graph: that of one, with appends and attention apart: all inputs belong to the sequence,
            and their first axis has one element.
        size: how many sequences.

    Raises:
        CannotGrowError: an op mixes sequences, or is not known to keep them apart.
    """
    return _Joiner(graph, size).result()


@dataclass(slots=True)
class _Joiner:
    graph: Graph
    texts: int
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    own: dict[str, TensorInfo] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    ops: list[Op[Any]] = field(default_factory=list)

    def result(self) -> Graph:
        """Join the ops one after the other."""
        graph = self.graph
        self.constants.update(graph.constants)
        for name, array in graph.constants.items():
            self.infos[name] = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        for info in graph.inputs:
            self._note(info, "an input")
        for op in graph.ops:
            self._join(op)
        outputs = [info.name for info in graph.outputs]
        ops = fused(self.ops, {**self.infos, **self.own}, TOTAL, set(outputs))
        for op in ops:
            if op.type in ("Append", "Attention"):
                raise CannotGrowError(f"{op.type} '{op.name}' does not become a CachedAttention")
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
        """Return the sizes in the step of one text."""
        return self.infos[name].dims

    def _note(self, info: TensorInfo, what: str) -> None:
        """Note something that belongs to a text."""
        if not info.dims or info.dims[0] != 1:
            raise CannotGrowError(f"'{info.name}', {what}, has no axis for texts: {info.dims}")
        self.infos[info.name] = info
        self.own[info.name] = replace(info, shape=(self.texts, *info.dims[1:]))

    def _join(self, op: Op[Any]) -> None:
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
        rule = _RULES.get(op.type)
        if rule is None:
            raise CannotGrowError(f"{op.type} '{op.name}' may mix texts")
        made = rule(self, op, places)
        if made is None:
            raise CannotGrowError(f"{op.type} '{op.name}' mixes texts")
        self.ops.append(made)

    def whole(self, op: Op[Any]) -> str:
        """Return a constant with the sizes of a result."""
        name = f"{op.outputs[0]}:joined"
        self.constants[name] = np.array(self.own[op.outputs[0]].dims, np.int64)
        return name

    def axes(self, op: Op[Any], place: int, rank: int) -> set[int]:
        """Return the axes that a constant operand names; all where there is none."""
        name = op.inputs[place] if len(op.inputs) > place else ""
        if not name:
            return set(range(rank))
        given = self.constants.get(name)
        return {0} if given is None else {int(axis) % rank for axis in given.reshape(-1)}


# --- rules: the op of several texts, or None where it mixes them ---------------------------------

_Rule = Callable[[_Joiner, Op[Any], _Places], "Op[Any] | None"]


def _each(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Element by element: operands of a text have as many axes as the result."""
    rank = len(joiner.dims(op.outputs[0]))
    return op if all(len(joiner.dims(op.inputs[place])) == rank for place in places) else None


def _product(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """By a constant matrix: a row of the result follows from a row of the first operand."""
    rank = len(joiner.dims(op.inputs[1]))
    if 0 not in places or 1 in places or getattr(op.attrs, "transpose_a", False):
        return None
    if op.type != "MatMulNBits" and rank != 2:
        return None
    return _each(joiner, op, places) if len(joiner.dims(op.inputs[0])) > 1 else None


def _along_axis(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Along an axis that is an attribute, all operands of a text."""
    rank = len(joiner.dims(op.inputs[0]))
    flat = isinstance(op.attrs, SoftmaxAttrs) and op.attrs.flatten
    return op if op.attrs.axis % rank and 0 in places and not flat else None


def _all_along_axis(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    return _along_axis(joiner, op, places) if len(places) == len(op.inputs) else None


def _along_axes(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Along axes that the second operand names, numbered as those of the first."""
    rank = len(joiner.dims(op.inputs[0]))
    if getattr(op.attrs, "noop_with_empty_axes", False):
        return None
    return op if places == (0,) and 0 not in joiner.axes(op, 1, rank) else None


def _more_axes(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Unsqueeze: the first axis of the result is that of the operand."""
    rank = len(joiner.dims(op.outputs[0]))
    return op if places == (0,) and 0 not in joiner.axes(op, 1, rank) else None


def _sized(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Reshape and Expand: elements stay in order, with one more factor before them."""
    return replace(op, inputs=[op.inputs[0], joiner.whole(op)]) if places == (0,) else None


def _transpose(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    assert isinstance(op.attrs, TransposeAttrs)
    return op if op.attrs.perm[:1] == (0,) else None


def _gather(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Rows of a constant by the numbers of a text, or the same places of every text."""
    axis = op.attrs.axis % len(joiner.dims(op.inputs[0]))
    return op if places == ((1,) if axis == 0 else (0,)) else None


def _coded_gather(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Rows of a constant in codes."""
    (place,) = places if len(places) == 1 else (0,)
    indices, result = joiner.dims(op.inputs[place]), joiner.dims(op.outputs[0])
    return op if place and indices == result[:-1] else None


def _slice(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    rank = len(joiner.dims(op.inputs[0]))
    return op if places == (0,) and 0 not in joiner.axes(op, 3, rank) else None


def _attended(joiner: _Joiner, op: Op[Any], places: _Places) -> Op[Any] | None:
    """Append and Attention, which become one op that knows how many rows each text has."""
    tensors = [name for name in op.inputs[:4] if name in joiner.own]
    masks = [name for name in op.inputs[3:4] if name in joiner.own]
    apart = all(len(joiner.dims(name)) == 4 for name in masks)
    return op if {0, 1, 2} <= set(places) and tensors and apart else None


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("UnaryOp", "BinaryOp", "Select", "Cast", "Identity", "Elementwise", "Rotary"), _each
    ),
    **dict.fromkeys(("MatMul", "NormedMatMul", "MatMulNBits"), _product),
    **dict.fromkeys(("Softmax", "LayerNorm", "ArgMax", "ArgMin", "TopK", "Split"), _along_axis),
    **dict.fromkeys(("Concat", "GatherElements"), _all_along_axis),
    **dict.fromkeys(("Reduction", "CumSum", "Squeeze"), _along_axes),
    "Unsqueeze": _more_axes,
    **dict.fromkeys(("Reshape", "Expand"), _sized),
    "Transpose": _transpose,
    "Gather": _gather,
    "GatherNBits": _coded_gather,
    "Slice": _slice,
    **dict.fromkeys(("Append", "Attention"), _attended),
}
