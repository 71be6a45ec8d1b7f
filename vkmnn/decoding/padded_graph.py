"""Rewrite a network with growing caches for caches of fixed size.

Where a network joins a cache with new rows, the rewritten one appends the rows to a tensor of the
cache's full size, in place. What follows has a *tail* then: beyond the number of rows that are
there, its elements mean nothing. They stay apart until an op would mix them in: attention is told
how many keys there are, and softmax, sums and products get them replaced by what changes nothing.

What the network computes from shapes, and so from the length, is computed by the host before each
run, from the true shapes, and fed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from vkmnn.budget import Meter
from vkmnn.decoding.fuse_cached_attention import ROW_AXIS, fused
from vkmnn.folding import Evaluator, Folder, keep
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AppendAttrs,
    AttentionAttrs,
    AxisAttrs,
    LayerNormAttrs,
    MatMulAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
    SplitAttrs,
    TransposeAttrs,
)
from vkmnn.records import dataclass
from vkmnn.shape import compute_shapes

PAST, TOTAL, THERE = "vkmnn:past", "vkmnn:total", "vkmnn:there"
"""Inputs of the rewritten network: rows before and after the run, and which rows are there."""


class CannotGrowError(Exception):
    """The network cannot be rewritten; the text says why."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What grows.

    Attributes:
        caches: inputs that are caches, with the outputs that become them, and the axis.
        tails: other inputs with an axis as long as the caches after the run, and that axis.
        capacity: rows that the caches have room for.
        apart: whether rotary embedding, appends and attention stay ops of their own.
    """

    caches: Mapping[str, tuple[str, int]]
    tails: Mapping[str, int]
    capacity: int
    apart: bool = False


@dataclass(slots=True)
class Grown:
    """A rewritten network.

    Attributes:
        graph: the network; every shape is static.
        tails: axes of its outputs that have a tail.
        made: for each input that the host makes: the name of its value.
        steps: the ops that make them, with the known operands, and the shapes that they ask for.
        capacity: rows that the caches have room for.
    """

    graph: Graph
    tails: dict[str, int]
    made: dict[str, str]
    steps: list[tuple[Op, dict[str, Array], tuple[int, ...], int | None]]
    capacity: int

    def feeds(self, past: int, total: int, evaluate: Evaluator) -> dict[str, Array]:
        """Return what the host feeds in addition to the network's own inputs.

        Args:
            past: rows in the caches before the run.
            total: rows after it.
            evaluate: computes one op.
        """
        values = _replayed(self.steps, total - self.capacity, evaluate)
        infos = {info.name: info for info in self.graph.inputs}
        there = np.zeros(self.capacity, np.bool_)
        there[:total] = True
        feeds: dict[str, Array] = {
            PAST: np.array([past], np.int64),
            TOTAL: np.array([total], np.int64),
            THERE: there,
        }
        for name, value in self.made.items():
            feeds[name] = padded(values[value], infos[name].dims)
        return {name: array for name, array in feeds.items() if name in infos}


def padded(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the array padded with zeros at the end of each axis, up to a shape."""
    if array.shape == shape:
        return array
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(size) for size in array.shape)] = array
    return result


def _replayed(
    steps: Sequence[tuple[Op, dict[str, Array], tuple[int, ...], int | None]],
    more: int,
    evaluate: Evaluator,
) -> dict[str, Array]:
    """Compute what shapes decide where the axes with a tail are longer by `more`."""
    values: dict[str, Array] = {}
    for op, known, shape, axis in steps:
        inputs: list[Array | None] = [
            known[name] if name in known else values.get(name) for name in op.inputs
        ]
        if OP_TYPES[op.type].shape_only and inputs[0] is None:
            sizes = list(shape)
            if axis is not None:
                sizes[axis] += more
            inputs[0] = np.broadcast_to(np.zeros((), np.bool_), sizes)
        with np.errstate(all="ignore"):
            keep(op, evaluate(op, inputs), values)
    return values


def grow(
    graph: Graph,
    inputs: Mapping[str, TensorInfo],
    growth: Growth,
    evaluate: Evaluator,
    meter: Meter,
) -> Grown:
    """Rewrite a network.

    Args:
        graph: the network.
        inputs: its inputs as they are when the run fills the caches: the caches have room for as
            many rows as there are before it.
        growth: what grows.
        evaluate: computes one op on arrays.
        meter: what the rewriting may take.

    Raises:
        CannotGrowError: an op mixes rows in a way that is not known to be safe.
        ShapeError: shapes do not fit.
    """
    return _Rewriter(graph, inputs, growth, evaluate, meter).result()


@dataclass(slots=True)
class _Rewriter:
    graph: Graph
    inputs: Mapping[str, TensorInfo]
    growth: Growth
    evaluate: Evaluator
    meter: Meter
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    shorter: dict[str, Array] = field(default_factory=dict)
    tails: dict[str, int] = field(default_factory=dict)
    steps: list[tuple[Op, dict[str, Array], tuple[int, ...], int | None]] = field(
        default_factory=list
    )
    made: dict[str, str] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    extra: dict[str, TensorInfo] = field(default_factory=dict)
    appended: set[str] = field(default_factory=set)
    same: dict[str, str] = field(default_factory=dict)
    several: set[str] = field(default_factory=set)

    def result(self) -> Grown:
        """Rewrite the network, op by op."""
        self.values.update(self.graph.constants)
        self.infos.update(self.inputs)
        for name, array in self.values.items():
            self.infos[name] = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        self.tails.update({name: axis for name, (_, axis) in self.growth.caches.items()})
        self.tails.update(self.growth.tails)
        folder = Folder(self.evaluate, self.meter)
        for op in self.graph.ops:
            self.meter.check_time(op.type, op.name)
            if not self.same.keys().isdisjoint(op.inputs):
                op = replace(op, inputs=[self.same.get(name, name) for name in op.inputs])
            if not self._known(op, folder):
                self._rewrite(op)
        return self._finish()

    # --- values known before the run -------------------------------------------------------------

    def _known(self, op: Op, folder: Folder) -> bool:
        """Compute an op that needs no run; note the ops that depend on the length."""
        shape_only = OP_TYPES[op.type].shape_only
        operands = [self.values.get(name) if name else None for name in op.inputs]
        shape: tuple[int, ...] = ()
        tail = None
        if shape_only:
            info = self.infos[op.inputs[0]]
            shape, tail = info.dims, self.tails.get(op.inputs[0])
            operands[0] = np.broadcast_to(np.zeros((), info.dtype.numpy), shape)
        if any(name and value is None for name, value in zip(op.inputs, operands, strict=True)):
            return False
        arrays = folder.compute(op, operands)
        keep(op, arrays, self.values)
        for name, array in zip(op.outputs, arrays, strict=True):
            if name:
                self.infos[name] = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        if tail is not None or any(name in self.shorter for name in op.inputs):
            known = {n: self.values[n] for n in op.inputs if n in self.values}
            known = {n: value for n, value in known.items() if n not in self.shorter}
            step = (op, known, shape, tail)
            self.steps.append(step)
            self.shorter.update(_replayed_one(step, self.shorter, self.evaluate))
        return True

    def _fed(self, name: str) -> str:
        """Return the input by which the host feeds what depends on the length."""
        fed = f"{name}:now"
        if fed not in self.made:
            value, shorter = self.values[name], self.shorter[name]
            differing = [
                axis
                for axis, sizes in enumerate(zip(value.shape, shorter.shape, strict=True))
                if sizes[0] != sizes[1]
            ]
            if len(differing) > 1 or any(
                value.shape[axis] != self.growth.capacity
                or shorter.shape[axis] != self.growth.capacity - 1
                for axis in differing
            ):
                raise CannotGrowError(f"'{name}' grows in another way than the caches")
            self.made[fed] = name
            self.infos[fed] = self.extra[fed] = replace(self.infos[name], name=fed)
            if differing:
                self.tails[fed] = differing[0]
        return fed

    # --- what runs -------------------------------------------------------------------------------

    def _rewrite(self, op: Op) -> None:
        cached = self._append(op)
        if cached is not None:
            self.ops.append(cached)
            return
        content = OP_TYPES[op.type].content
        names = list(op.inputs)
        for place, name in enumerate(names):
            if name in self.growth.caches:
                raise CannotGrowError(
                    f"{op.type} '{op.name}' reads the cache '{name}' before it grows"
                )
            if name in self.shorter:
                if place not in content:
                    names[place] = self._fed(name)
                elif op.type not in _SIZED:
                    raise CannotGrowError(f"the length decides what {op.type} '{op.name}' does")
        op = replace(op, inputs=names)
        infos = [self.infos[name] if name else None for name in names]
        values = [self.values.get(name) if name else None for name in names]
        for info in compute_shapes(op, infos, values):
            if info.name:
                self.infos[info.name] = info
        decided = [name for name in names if name in self.shorter]
        if decided and op.inputs[0] not in self.tails:
            self._sized(op, infos)
        elif any(name in self.tails for name in names if name):
            rule = _RULES.get(op.type)
            if rule is None:
                raise CannotGrowError(f"{op.type} '{op.name}' may mix rows of the caches")
            op = rule(self, op)
        self.ops.append(op)

    def _sized(self, op: Op, infos: Sequence[TensorInfo | None]) -> None:
        """Note the tail of a result that gets one from the shape it is given."""
        if op.type != "Expand":
            raise CannotGrowError(f"the length decides what {op.type} '{op.name}' does")
        values = [self.shorter.get(name, self.values.get(name)) for name in op.inputs]
        (shorter,) = compute_shapes(op, infos, values)
        out = self.infos[op.outputs[0]].dims
        differing = [axis for axis, size in enumerate(out) if shorter.dims[axis] != size]
        if len(differing) != 1 or out[differing[0]] != self.growth.capacity:
            raise CannotGrowError(f"Expand '{op.name}' grows in another way than the caches")
        self.tails[op.outputs[0]] = differing[0]

    def _append(self, op: Op) -> Op | None:
        """Return an appending op if this one joins a cache with new rows."""
        cache = op.inputs[0] if op.inputs else ""
        if op.type not in ("Concat", "JoinPast") or cache not in self.growth.caches:
            return None
        output, axis = self.growth.caches[cache]
        info = self.infos[cache]
        if isinstance(op.attrs, AxisAttrs):
            new, along = op.inputs[1] if len(op.inputs) == 2 else "", op.attrs.axis
        else:
            new, along = op.inputs[1] if self._is_total(op.inputs[3]) else "", ROW_AXIS
        if (
            not new
            or along % len(info.dims) != axis
            or op.outputs[0] != output
            or new in self.tails
            or cache in self.appended
        ):
            raise CannotGrowError(f"{op.type} '{op.name}' joins the cache '{cache}' in another way")
        self.appended.add(cache)
        self.same.update({seen: output for seen in op.outputs[1:] if seen})
        sizes = list(info.dims)
        sizes[axis] = self.growth.capacity
        self.infos[output] = replace(info, name=output, shape=tuple(sizes))
        self.tails[output] = axis
        if new in self.shorter:
            new = self._fed(new)
        past = PAST
        if op.type == "JoinPast" and info.dims[0] > 1:
            past = self._pasts(op)
        else:
            self.extra[PAST] = TensorInfo(PAST, DType.INT64, (1,))
        return Op("Append", op.name, [cache, new, past], [output], AppendAttrs(axis), op.source)

    def _pasts(self, op: Op) -> str:
        """Return how many rows each text of a batch has before the run."""
        before = op.inputs[2]
        if before in self.shorter:
            before = self._fed(before)
        result = f"{before}:texts"
        if result not in self.infos:
            texts = self.infos[before].dims[:1]
            self.infos[result] = replace(self.infos[before], name=result, shape=texts)
            shape = self._constant(f"{result}:shape", np.array(texts, np.int64))
            self.ops.append(Op("Reshape", result, [before, shape], [result], ReshapeAttrs()))
            self.several.add(result)
        return result

    def _is_total(self, name: str) -> bool:
        """Tell whether a tensor is known to be the number of rows after every run."""
        values = [table.get(name) for table in (self.values, self.shorter)]
        rows = [None if value is None or value.size != 1 else int(value.item()) for value in values]
        return rows == [self.growth.capacity, self.growth.capacity - 1]

    def total(self) -> str:
        """Return the input that holds the number of rows."""
        self.extra[TOTAL] = TensorInfo(TOTAL, DType.INT64, (1,))
        return TOTAL

    def without_tail(self, name: str, fill: float, op: Op) -> str:
        """Return the tensor with its tail replaced by `fill`."""
        info, axis = self.infos[name], self.tails[name]
        self.extra[THERE] = TensorInfo(THERE, DType.BOOL, (self.growth.capacity,))
        after = len(info.dims) - 1 - axis
        there = THERE
        if after:
            there = f"{THERE}:{after}"
            if there not in self.infos:
                shape = (self.growth.capacity, *([1] * after))
                self._constant(f"{there}:shape", np.array(shape, np.int64))
                self.infos[there] = TensorInfo(there, DType.BOOL, shape)
                inputs = [THERE, f"{there}:shape"]
                self.ops.append(Op("Reshape", there, inputs, [there], ReshapeAttrs()))
        value = np.array(fill).astype(info.dtype.numpy)
        filler = self._constant(f"vkmnn:{fill}:{info.dtype.value}", value)
        result = f"{name}:{op.name}:there"
        self.infos[result] = replace(info, name=result)
        inputs = [there, name, filler]
        self.ops.append(Op("Select", result, inputs, [result], OpAttrs(), op.source))
        return result

    def _constant(self, name: str, array: Array) -> str:
        self.constants[name] = array
        return name

    def tail_from_end(self, op: Op, names: Sequence[str]) -> int:
        """Return the tail's axis, counted from the last, in operands that broadcast."""
        ends = {len(self.infos[n].dims) - self.tails[n] for n in names if n in self.tails}
        if len(ends) != 1:
            raise CannotGrowError(f"{op.type} '{op.name}' combines rows with rows")
        (end,) = ends
        for name in names:
            dims = self.infos[name].dims
            if name not in self.tails and len(dims) >= end and dims[-end] != 1:
                raise CannotGrowError(
                    f"{op.type} '{op.name}' combines the cache with what has no length"
                )
        return end

    def is_every_row(self, name: str) -> bool:
        """Tell whether a tensor holds 0, 1, … up to the number of rows, in this order."""
        made = self.made.get(name)
        if made is None or name not in self.tails:
            return False
        return all(
            np.array_equal(value.reshape(-1), np.arange(value.shape[self.tails[name]]))
            for value in (self.values[made], self.shorter[made])
        )

    def _finish(self) -> Grown:
        if self.appended != self.growth.caches.keys():
            missing = sorted(self.growth.caches.keys() - self.appended)
            raise CannotGrowError(f"nothing is joined with the cache '{missing[0]}'")
        grown = {output for output, _ in self.growth.caches.values()}
        outputs = [info.name for info in self.graph.outputs if info.name not in grown]
        for name in outputs:
            if name in self.shorter:
                raise CannotGrowError(f"the output '{name}' is a number of rows")
        wanted = {*outputs, *grown}
        ops = live(self.ops, wanted)
        if not self.growth.apart:
            ops = fused(ops, self.infos, TOTAL, set(outputs))
            ops = live(ops, wanted)  # what cut queries, keys and values apart
        for op in ops:
            if op.type == "Append" and op.inputs[2] in self.several:
                raise CannotGrowError(f"'{op.name}' appends to texts of different lengths")
        read = {name for op in ops for name in op.inputs} | set(outputs)
        constants = {name: self.values[name] for name in read if name in self.values}
        constants.update({name: self.constants[name] for name in read if name in self.constants})
        inputs = []
        for name, info in {**self.inputs, **self.extra}.items():
            if name in self.growth.caches:
                info = replace(info, shape=self.infos[self.growth.caches[name][0]].shape)
            if name in read or name in self.inputs:
                inputs.append(info)
        graph = replace(
            self.graph,
            inputs=inputs,
            outputs=[self.infos[name] for name in outputs],
            ops=ops,
            constants=constants,
            infos={},
        )
        made = {name: value for name, value in self.made.items() if name in read}
        steps = _needed(self.steps, set(made.values()))
        tails = {name: self.tails[name] for name in outputs if name in self.tails}
        return Grown(graph, tails, made, steps, self.growth.capacity)


def _replayed_one(
    step: tuple[Op, dict[str, Array], tuple[int, ...], int | None],
    shorter: Mapping[str, Array],
    evaluate: Evaluator,
) -> dict[str, Array]:
    op, known, shape, axis = step
    operands = known | {name: shorter[name] for name in op.inputs if name in shorter}
    return _replayed([(op, operands, shape, axis)], -1, evaluate)


def live(ops: Sequence[Op], wanted: set[str]) -> list[Op]:
    """Return the ops that what is wanted follows from, in order."""
    needed, kept = set(wanted), []
    for op in reversed(ops):
        if any(name in needed for name in op.outputs if name):
            needed.update(op.inputs)
            kept.append(op)
    return kept[::-1]


def _needed(
    steps: Sequence[tuple[Op, dict[str, Array], tuple[int, ...], int | None]], wanted: set[str]
) -> list[tuple[Op, dict[str, Array], tuple[int, ...], int | None]]:
    kept = {id(op) for op in live([op for op, *_ in steps], wanted)}
    return [step for step in steps if id(step[0]) in kept]


# --- rules: where the tail of a result is, and what has to happen first -------------------------

_Rule = Callable[[_Rewriter, Op], Op]
_SIZED = frozenset({"Reshape", "Expand", "Slice"})
_NEUTRAL = {"SUM": 0.0, "L1": 0.0, "L2": 0.0, "SUM_SQUARE": 0.0, "PROD": 1.0,
            "LOG_SUM_EXP": -np.inf}  # fmt: skip


def _broadcast(rewriter: _Rewriter, op: Op) -> Op:
    end = rewriter.tail_from_end(op, [name for name in op.inputs if name])
    rewriter.tails[op.outputs[0]] = len(rewriter.infos[op.outputs[0]].dims) - end
    return op


def _rotary(rewriter: _Rewriter, op: Op) -> Op:
    if any(rewriter.tails.get(name) == 3 for name in op.inputs):
        raise CannotGrowError(f"Rotary '{op.name}' turns the rows")
    return _broadcast(rewriter, op)


def _expand(rewriter: _Rewriter, op: Op) -> Op:
    name, out = op.inputs[0], rewriter.infos[op.outputs[0]].dims
    end = len(rewriter.infos[name].dims) - rewriter.tails[name]
    rewriter.tails[op.outputs[0]] = len(out) - end
    return op


def _reshape(rewriter: _Rewriter, op: Op) -> Op:
    before, axis = rewriter.infos[op.inputs[0]].dims, rewriter.tails[op.inputs[0]]
    after = rewriter.infos[op.outputs[0]].dims
    for place, size in enumerate(after):
        if size == before[axis] and prod(after[:place]) == prod(before[:axis]):
            rewriter.tails[op.outputs[0]] = place
            return op
    raise CannotGrowError(f"{op.type} '{op.name}' joins the rows with another axis")


def _transpose(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, TransposeAttrs)
    rank = len(rewriter.infos[op.inputs[0]].dims)
    perm = op.attrs.perm or tuple(reversed(range(rank)))
    rewriter.tails[op.outputs[0]] = perm.index(rewriter.tails[op.inputs[0]])
    return op


def _softmax(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, SoftmaxAttrs)
    name = op.inputs[0]
    axis = op.attrs.axis % len(rewriter.infos[name].dims)
    tail = rewriter.tails[name]
    if op.attrs.flatten and tail != axis and tail > axis:
        raise CannotGrowError(f"Softmax '{op.name}' runs over the rows and other axes")
    rewriter.tails[op.outputs[0]] = tail
    if tail == axis:
        op = replace(op, inputs=[rewriter.without_tail(name, -np.inf, op)])
    return op


def _reduction(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, ReductionAttrs)
    name = op.inputs[0]
    rank, tail = len(rewriter.infos[name].dims), rewriter.tails[name]
    given = rewriter.values.get(op.inputs[1]) if len(op.inputs) > 1 and op.inputs[1] else None
    axes = {int(axis) % rank for axis in given.reshape(-1)} if given is not None else set()
    if not axes and op.attrs.noop_with_empty_axes:
        rewriter.tails[op.outputs[0]] = tail
        return op
    axes = axes or set(range(rank))
    if tail not in axes:
        before = sum(axis < tail for axis in axes)
        rewriter.tails[op.outputs[0]] = tail if op.attrs.keepdims else tail - before
        return op
    fill = _NEUTRAL.get(op.attrs.kind)
    if op.attrs.kind in ("MAX", "MIN") and rewriter.infos[name].dtype.is_float:
        fill = -np.inf if op.attrs.kind == "MAX" else np.inf
    if fill is None:
        raise CannotGrowError(f"the {op.attrs.kind} of '{op.name}' counts the rows")
    return replace(op, inputs=[rewriter.without_tail(name, fill, op), *op.inputs[1:]])


def _matmul(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, MatMulAttrs)
    tails, infos = rewriter.tails, rewriter.infos
    ends = []
    for name, transposed in zip(
        op.inputs[:2], (op.attrs.transpose_a, op.attrs.transpose_b), strict=True
    ):
        rank = len(infos[name].dims)
        if rank < 2:
            raise CannotGrowError(f"MatMul '{op.name}' has an operand of one axis")
        end = rank - tails[name] if name in tails else 0
        ends.append(3 - end if transposed and end in (1, 2) else end)
    first, second = ends
    if first == 1 and second == 2:  # a sum over the rows
        if any(name in tails for name in op.inputs[2:] if name):
            raise CannotGrowError(f"MatMul '{op.name}' adds rows to a sum over rows")
        names = [rewriter.without_tail(name, 0.0, op) for name in op.inputs[:2]]
        return replace(op, inputs=[*names, *op.inputs[2:]])
    if first == 1 or second == 2 or (first and second and not first == second > 2):
        raise CannotGrowError(f"MatMul '{op.name}' combines rows with rows")
    end = first or second
    place = len(infos[op.outputs[0]].dims) - end
    for name in op.inputs[2:]:
        if name and (tails.get(name, -1) - len(infos[name].dims) != -end) and end == 1:
            raise CannotGrowError(f"MatMul '{op.name}' adds what has no rows to rows")
    tails[op.outputs[0]] = place
    return op


def _attention(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, AttentionAttrs)
    tails, infos = rewriter.tails, rewriter.infos
    query, keys, value = op.inputs[:3]
    mask = op.inputs[3] if len(op.inputs) > 3 else ""
    along = [tails.get(name, -1) - len(infos[name].dims) for name in (keys, value)]
    if query in tails or along != [-2, -2] or op.attrs.causal or any(op.inputs[4:5]):
        raise CannotGrowError(f"Attention '{op.name}' has rows elsewhere than in keys and values")
    if mask:
        dims = infos[mask].dims
        columns = dims[-1] if dims else 1
        if (tails[mask] != len(dims) - 1) if mask in tails else columns != 1:
            raise CannotGrowError(f"the mask of Attention '{op.name}' does not follow the keys")
    return replace(op, inputs=[query, keys, value, mask, rewriter.total(), *op.inputs[5:]])


def _concat(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, AxisAttrs)
    places = {rewriter.tails.get(name) for name in op.inputs}
    (place,) = places if len(places) == 1 else (None,)
    rank = len(rewriter.infos[op.inputs[0]].dims)
    if place is None or place == op.attrs.axis % rank:
        raise CannotGrowError(f"Concat '{op.name}' joins rows with other things")
    rewriter.tails[op.outputs[0]] = place
    return op


def _gather(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, AxisAttrs)
    data, indices = op.inputs
    axis = op.attrs.axis % len(rewriter.infos[data].dims)
    rank, tails = len(rewriter.infos[indices].dims), rewriter.tails
    if tails.get(data) == axis and rewriter.is_every_row(indices):
        tails[op.outputs[0]] = axis + tails[indices]
        return op
    if (data in tails) == (indices in tails) or tails.get(data) == axis:
        raise CannotGrowError(f"Gather '{op.name}' picks among the rows")
    if indices in tails:
        tails[op.outputs[0]] = axis + tails[indices]
    else:
        tails[op.outputs[0]] = tails[data] if tails[data] < axis else tails[data] - 1 + rank
    return op


def _slice(rewriter: _Rewriter, op: Op) -> Op:
    name, out = op.inputs[0], op.outputs[0]
    tail = rewriter.tails[name]
    names = [*op.inputs, "", "", ""][1:5]
    given = [rewriter.values.get(n) if n else None for n in names]
    rank = len(rewriter.infos[name].dims)
    starts = [] if given[0] is None else [int(n) for n in given[0].reshape(-1)]
    axes = range(len(starts)) if given[2] is None else [int(n) % rank for n in given[2].reshape(-1)]
    steps = [1] * len(starts) if given[3] is None else [int(n) for n in given[3].reshape(-1)]
    for axis, start, step in zip(axes, starts, steps, strict=True):
        whole = rewriter.infos[name].dims[axis] == rewriter.infos[out].dims[axis]
        decided = any(n in rewriter.shorter for n in op.inputs[1:])
        if (axis == tail or decided) and not (whole and start == 0 and step == 1):
            raise CannotGrowError(f"Slice '{op.name}' cuts the rows")
    rewriter.tails[out] = tail
    return op


def _split(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, SplitAttrs)
    tail = rewriter.tails.get(op.inputs[0])
    if tail is None or op.attrs.axis % len(rewriter.infos[op.inputs[0]].dims) == tail:
        raise CannotGrowError(f"Split '{op.name}' cuts the rows")
    rewriter.tails.update({name: tail for name in op.outputs if name})
    return op


def _layer_norm(rewriter: _Rewriter, op: Op) -> Op:
    assert isinstance(op.attrs, LayerNormAttrs)
    tail = rewriter.tails.get(op.inputs[0])
    if tail is None or tail >= op.attrs.axis % len(rewriter.infos[op.inputs[0]].dims):
        raise CannotGrowError(f"LayerNorm '{op.name}' runs over the rows")
    rewriter.tails.update({name: tail for name in op.outputs if name})
    return op


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("UnaryOp", "BinaryOp", "Select", "Cast", "Identity", "Elementwise"), _broadcast
    ),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshape),
    "Rotary": _rotary,
    "Expand": _expand,
    "Transpose": _transpose,
    "Softmax": _softmax,
    "Reduction": _reduction,
    "MatMul": _matmul,
    "Attention": _attention,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "LayerNorm": _layer_norm,
}
