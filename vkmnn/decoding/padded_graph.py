"""Rewrite a network with growing caches for caches of fixed size.

Where a network joins a cache with new rows, the rewritten one appends the rows to a tensor of the
cache's full size, in place. What follows has a *tail* then: beyond the number of rows that are
there, its elements mean nothing. They stay apart until an op would mix them in: attention is told
how many keys there are, and softmax, sums and products get them replaced by what changes nothing.

What the network computes from shapes, and so from the length, is computed by the host before each
run, from the true shapes, and fed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from vkmnn.budget import Meter
from vkmnn.decoding.fuse_cached_attention import ROW_AXIS, fused
from vkmnn.errors import ShapeError
from vkmnn.folding import Evaluator, Folder, keep
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AppendAttrs,
    AxisAttrs,
    ReshapeAttrs,
)
from vkmnn.records import dataclass
from vkmnn.shape import compute_shapes
from vkmnn.shape.axes import (
    NEUTRAL,
    Kind,
    Known,
    Loop,
    Numbering,
    common_loop,
    loops_of,
    numbering_of,
)

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
                elif not _may_follow(op, place):
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
            op = self._carry(op, bool(decided))
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

    def _carry(self, op: Op, decided: bool) -> Op:
        """Note the tails of an op's results; return the op, told what is not there.

        Args:
            op: one that reads something with a tail.
            decided: whether contents depend on the length.
        """
        if op.type == "Gather" and self._picks_every_row(op):
            return op
        tails = {place: self.tails[n] for place, n in enumerate(op.inputs) if n in self.tails}
        known = self._known_of(op)
        loops = loops_of(op, known)
        loop = common_loop(loops, tails, known.inputs)
        if loop is None or loop.kind not in (Kind.PARALLEL, Kind.REDUCTION):
            raise CannotGrowError(f"{op.type} '{op.name}' may mix rows of the caches")
        if decided and not self._is_like_shorter(op, loops, loop):
            raise CannotGrowError(f"the length decides what {op.type} '{op.name}' does")
        sizes = [self.infos[op.inputs[place]].dims[axis] for place, axis in tails.items()]
        for name, axis in zip(op.outputs, loop.writes, strict=True):
            if name and axis is not None:
                sizes.append(self.infos[name].dims[axis])
                self.tails[name] = axis
            elif name and loop.kind is Kind.PARALLEL:
                raise CannotGrowError(f"{op.type} '{op.name}' may mix rows of the caches")
        if any(size != loop.size for size in sizes):
            raise CannotGrowError(f"{op.type} '{op.name}' joins the rows with another axis")
        return op if loop.kind is Kind.PARALLEL else self._hidden(op, loop, tails)

    def _hidden(self, op: Op, loop: Loop, tails: Mapping[int, int]) -> Op:
        """Return an op that combines rows, without the tail among them."""
        names = list(op.inputs)
        if loop.count_input is not None:
            names += [""] * (loop.count_input + 1 - len(names))
            names[loop.count_input] = self.total()
            return replace(op, inputs=names)
        fill = NEUTRAL.get(loop.reduces)
        for place in tails:
            is_float = self.infos[names[place]].dtype.is_float
            if fill is None or (np.isinf(fill) and not is_float):
                raise CannotGrowError(f"{op.type} '{op.name}' counts the rows")
            names[place] = self.without_tail(names[place], fill, op)
        return replace(op, inputs=names)

    def _known_of(self, op: Op) -> Known:
        """Return what is known of an op when the caches are full."""
        shapes = [self.infos[name].dims if name else None for name in op.inputs]
        results = [self.infos[name].dims if name else None for name in op.outputs]
        return Known(shapes, results, [self.values.get(name) for name in op.inputs])

    def _is_like_shorter(self, op: Op, loops: Sequence[Loop], loop: Loop) -> bool:
        """Tell whether the loops are the same where the caches lack one row, and all parallel."""
        infos: list[TensorInfo | None] = []
        for name in op.inputs:
            info = self.infos[name] if name else None
            if info is not None and name in self.tails:
                axis, dims = self.tails[name], info.dims
                info = replace(info, shape=(*dims[:axis], dims[axis] - 1, *dims[axis + 1 :]))
            infos.append(info)
        values = [self.shorter.get(name, self.values.get(name)) for name in op.inputs]
        try:
            results = [info.dims for info in compute_shapes(op, infos, values)]
        except ShapeError:
            return False
        shapes = [None if info is None else info.dims for info in infos]
        others = loops_of(op, Known(shapes, results, values))
        return all(one.kind is Kind.PARALLEL for one in (*loops, *others)) and any(
            (one.reads, one.writes) == (loop.reads, loop.writes) for one in others
        )

    def _picks_every_row(self, op: Op) -> bool:
        """Note the tail of a Gather that picks all rows in order; tell whether it does."""
        data, indices = op.inputs
        rank = len(self.infos[data].dims)
        axis = getattr(op.attrs, "axis", 0) % rank
        if self.tails.get(data) != axis or not self._is_every_row(indices):
            return False
        self.tails[op.outputs[0]] = axis + self.tails[indices]
        return True

    def _is_every_row(self, name: str) -> bool:
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


def _may_follow(op: Op, place: int) -> bool:
    """Tell whether the length may decide a content: one that has an entry for each axis."""
    how = (numbering_of(op) or {}).get(place, Numbering.KEPT)
    return how is not Numbering.KEPT
