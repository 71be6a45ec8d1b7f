"""Rewrites a network for KV caches of a fixed size.

Where the network joins a cache with new rows, the rewritten one appends the rows in place, to a
tensor of the cache's full size. Tensors computed from it have a padded axis: elements in the tail,
past the valid rows, are undefined. Ops whose loop over the axis is parallel pass it on. An op that
would mix the tail into its results either receives the number of valid rows (attention), or has the
tail replaced by neutral values first (softmax, sums and products).

Values that depend only on shapes, and so on the length, are computed by the host before each run,
from the true shapes, and fed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np

from vkmnn.base.budget import Meter
from vkmnn.base.packed_rows import Packing, packed_words
from vkmnn.base.records import dataclass
from vkmnn.decoding.fuse_cached_attention import ROW_AXIS, fuse_cached_attention
from vkmnn.errors import ShapeError
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AppendAttrs,
    AxisAttrs,
    ReshapeAttrs,
    UnpackRowsAttrs,
)
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
from vkmnn.shape.folding import Evaluator, Folder, keep

PAST, TOTAL, VALID_MASK = "vkmnn:past", "vkmnn:total", "vkmnn:valid_mask"
"""Inputs of the rewritten network: rows before and after the run, and a mask of valid rows."""


class CannotRewriteError(Exception):
    """The network cannot be rewritten; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The caches of a network.

    Attributes:
        caches: cache inputs with their outputs and the axis of rows.
        padded_inputs: other inputs with an axis as long as the caches after the run, and that axis.
        capacity: rows that the caches have room for.
        fuse: whether rotary embedding, appends and attention become one op where they can.
        packing: how the rows of the caches are packed.
    """

    caches: Mapping[str, tuple[str, int]]
    padded_inputs: Mapping[str, int]
    capacity: int
    fuse: bool = True
    packing: Packing = ""


class _HostOp(NamedTuple):
    """An op that the host computes before each run.

    Attributes:
        op: the op.
        constants: operands that do not depend on the length.
        shape: shape of the operand that contributes only its shape, if any.
        axis: the padded axis of this shape.
    """

    op: Op
    constants: dict[str, Array]
    shape: tuple[int, ...]
    axis: int | None


@dataclass(slots=True)
class PaddedGraph:
    """A network rewritten for caches of a fixed size.

    Attributes:
        graph: the network; every shape is static.
        padded_axes: the padded axes of its outputs.
        host_inputs: inputs that the host computes, and the names of their values.
        host_ops: the ops that compute these values.
        capacity: rows that the caches have room for.
    """

    graph: Graph
    padded_axes: dict[str, int]
    host_inputs: dict[str, str]
    host_ops: list[_HostOp]
    capacity: int

    def feeds(self, past: int, total: int, evaluate: Evaluator) -> dict[str, Array]:
        """Return the host-fed values besides the network's own inputs.

        Args:
            past: rows in the caches before the run.
            total: rows after it.
            evaluate: computes one op.
        """
        values = _replay(self.host_ops, total - self.capacity, evaluate)
        infos = {info.name: info for info in self.graph.inputs}
        valid = np.zeros(self.capacity, np.bool_)
        valid[:total] = True
        feeds: dict[str, Array] = {
            PAST: np.array([past], np.int64),
            TOTAL: np.array([total], np.int64),
            VALID_MASK: valid,
        }
        for name, value in self.host_inputs.items():
            feeds[name] = zero_padded(values[value], infos[name].dims)
        return {name: array for name, array in feeds.items() if name in infos}


def zero_padded(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the array padded with zeros at the end of each axis, up to a shape."""
    if array.shape == shape:
        return array
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(size) for size in array.shape)] = array
    return result


def _replay(
    steps: Sequence[_HostOp],
    more: int,
    evaluate: Evaluator,
) -> dict[str, Array]:
    """Compute the host's ops, with padded axes longer by `more`."""
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


def pad_caches(
    graph: Graph,
    inputs: Mapping[str, TensorInfo],
    spec: CacheSpec,
    evaluate: Evaluator,
    meter: Meter,
) -> PaddedGraph:
    """Rewrite a network for caches of a fixed size.

    Args:
        graph: the network.
        inputs: its inputs in a run that fills the caches; caches have the size before the run.
        spec: the caches.
        evaluate: computes one op on arrays.
        meter: limits the rewriting.

    Raises:
        CannotRewriteError: an op may mix rows.
        ShapeError: shapes do not fit.
    """
    return _Rewriter(graph, inputs, spec, evaluate, meter).result()


@dataclass(slots=True)
class _Rewriter:
    graph: Graph
    inputs: Mapping[str, TensorInfo]
    spec: CacheSpec
    evaluate: Evaluator
    meter: Meter
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    shorter: dict[str, Array] = field(default_factory=dict)
    padded_axes: dict[str, int] = field(default_factory=dict)
    host_ops: list[_HostOp] = field(default_factory=list)
    host_inputs: dict[str, str] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    extra: dict[str, TensorInfo] = field(default_factory=dict)
    appended: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    lengths: set[str] = field(default_factory=set)

    def result(self) -> PaddedGraph:
        """Rewrite the network, op by op."""
        self.values.update(self.graph.constants)
        self.infos.update(self.inputs)
        for name, array in self.values.items():
            self.infos[name] = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        self.padded_axes.update({name: axis for name, (_, axis) in self.spec.caches.items()})
        self.padded_axes.update(self.spec.padded_inputs)
        folder = Folder(self.evaluate, self.meter)
        for op in self.graph.ops:
            self.meter.check_time(op.type, op.name)
            if not self.renamed.keys().isdisjoint(op.inputs):
                op = replace(op, inputs=[self.renamed.get(name, name) for name in op.inputs])
            if not self._compute(op, folder):
                self._rewrite(op)
        return self._finish()

    # --- values known before the run -------------------------------------------------------------

    def _compute(self, op: Op, folder: Folder) -> bool:
        """Compute an op that needs no run; record ops that depend on the length."""
        shape_only = OP_TYPES[op.type].shape_only
        operands = [self.values.get(name) if name else None for name in op.inputs]
        shape: tuple[int, ...] = ()
        tail = None
        if shape_only:
            info = self.infos[op.inputs[0]]
            shape, tail = info.dims, self.padded_axes.get(op.inputs[0])
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
            step = _HostOp(op, known, shape, tail)
            self.host_ops.append(step)
            self.shorter.update(_replay_one(step, self.shorter, self.evaluate))
        return True

    def _host_input(self, name: str) -> str:
        """Return the input for a value that depends on the length."""
        fed = f"{name}:now"
        if fed not in self.host_inputs:
            value, shorter = self.values[name], self.shorter[name]
            differing = [
                axis
                for axis, sizes in enumerate(zip(value.shape, shorter.shape, strict=True))
                if sizes[0] != sizes[1]
            ]
            if len(differing) > 1 or any(
                value.shape[axis] != self.spec.capacity
                or shorter.shape[axis] != self.spec.capacity - 1
                for axis in differing
            ):
                raise CannotRewriteError(f"'{name}' does not grow like the caches")
            self.host_inputs[fed] = name
            self.infos[fed] = self.extra[fed] = replace(self.infos[name], name=fed)
            if differing:
                self.padded_axes[fed] = differing[0]
        return fed

    # --- ops that run ----------------------------------------------------------------------------

    def _rewrite(self, op: Op) -> None:
        cached = self._append(op)
        if cached is not None:
            self.ops += [cached, *self._unpacked(cached)]
            return
        content = OP_TYPES[op.type].content
        names = list(op.inputs)
        for place, name in enumerate(names):
            if name in self.spec.caches:
                raise CannotRewriteError(
                    f"{op.type} '{op.name}' reads the cache '{name}' before it grows"
                )
            if name in self.shorter:
                if place not in content:
                    names[place] = self._host_input(name)
                elif not _may_follow(op, place):
                    raise CannotRewriteError(f"the length decides what {op.type} '{op.name}' does")
        op = replace(op, inputs=names)
        infos = [self.infos[name] if name else None for name in names]
        values = [self.values.get(name) if name else None for name in names]
        for info in compute_shapes(op, infos, values):
            if info.name:
                self.infos[info.name] = info
        decided = [name for name in names if name in self.shorter]
        if decided and op.inputs[0] not in self.padded_axes:
            self._sized(op, infos)
        elif any(name in self.padded_axes for name in names if name):
            op = self._propagate(op, bool(decided))
        self.ops.append(op)

    def _sized(self, op: Op, infos: Sequence[TensorInfo | None]) -> None:
        """Record the padded axis of a result whose size depends on the length."""
        if op.type != "Expand":
            raise CannotRewriteError(f"the length decides what {op.type} '{op.name}' does")
        values = [self.shorter.get(name, self.values.get(name)) for name in op.inputs]
        (shorter,) = compute_shapes(op, infos, values)
        out = self.infos[op.outputs[0]].dims
        differing = [axis for axis, size in enumerate(out) if shorter.dims[axis] != size]
        if len(differing) != 1 or out[differing[0]] != self.spec.capacity:
            raise CannotRewriteError(f"Expand '{op.name}' does not grow like the caches")
        self.padded_axes[op.outputs[0]] = differing[0]

    def _append(self, op: Op) -> Op | None:
        """Return an Append if the op joins a cache with new rows."""
        cache = op.inputs[0] if op.inputs else ""
        if op.type not in ("Concat", "JoinPast") or cache not in self.spec.caches:
            return None
        output, axis = self.spec.caches[cache]
        info = self.infos[cache]
        if isinstance(op.attrs, AxisAttrs):
            new, along = op.inputs[1] if len(op.inputs) == 2 else "", op.attrs.axis
        else:
            new, along = op.inputs[1] if self._is_total(op.inputs[3]) else "", ROW_AXIS
        if (
            not new
            or along % len(info.dims) != axis
            or op.outputs[0] != output
            or new in self.padded_axes
            or cache in self.appended
        ):
            raise CannotRewriteError(
                f"{op.type} '{op.name}' joins the cache '{cache}' in another way"
            )
        self.appended.add(cache)
        self.renamed.update({seen: output for seen in op.outputs[1:] if seen})
        sizes = list(info.dims)
        sizes[axis] = self.spec.capacity
        self.infos[output] = replace(info, name=output, shape=tuple(sizes))
        self.padded_axes[output] = axis
        if new in self.shorter:
            new = self._host_input(new)
        past = PAST
        if op.type == "JoinPast" and info.dims[0] > 1:
            past = self._lengths_before(op)
        else:
            self.extra[PAST] = TensorInfo(PAST, DType.INT64, (1,))
        return Op(
            "Append",
            op.name,
            [cache, new, past],
            [output],
            AppendAttrs(axis, self.spec.packing),
            op.source,
        )

    def _unpacked(self, append: Op) -> list[Op]:
        """Return the op by which others read a cache of packed rows; nothing for other caches."""
        (output,), attrs, packing = append.outputs, append.attrs, self.spec.packing
        if not packing:
            return []
        assert isinstance(attrs, AppendAttrs)
        axis = attrs.axis
        info = self.infos[output]
        *sizes, depth = info.dims
        if not info.dtype.is_float or axis >= len(sizes):
            raise CannotRewriteError(
                f"rows of the cache '{append.inputs[0]}', {info.dtype.value} {list(info.dims)} "
                f"along axis {axis}, cannot be packed"
            )
        floats, words = f"{output}:floats", (*sizes, packed_words(packing, depth))
        self.infos |= {
            floats: replace(info, name=floats),
            output: TensorInfo(output, DType.INT32, words),
        }
        self.padded_axes[floats] = axis
        readers = [name for name, made in self.renamed.items() if made == output]
        self.renamed |= dict.fromkeys([output, *readers], floats)
        unpack = UnpackRowsAttrs(axis, packing, depth, info.dtype)
        return [Op("UnpackRows", append.name, [output, self.total()], [floats], unpack)]

    def _lengths_before(self, op: Op) -> str:
        """Return the tensor with the length of each sequence of a batch, before the run."""
        before = op.inputs[2]
        if before in self.shorter:
            before = self._host_input(before)
        result = f"{before}:lengths"
        if result not in self.infos:
            texts = self.infos[before].dims[:1]
            self.infos[result] = replace(self.infos[before], name=result, shape=texts)
            shape = self._constant(f"{result}:shape", np.array(texts, np.int64))
            self.ops.append(Op("Reshape", result, [before, shape], [result], ReshapeAttrs()))
            self.lengths.add(result)
        return result

    def _is_total(self, name: str) -> bool:
        """Return whether a tensor is the number of rows after every run."""
        values = [table.get(name) for table in (self.values, self.shorter)]
        rows = [None if value is None or value.size != 1 else int(value.item()) for value in values]
        return rows == [self.spec.capacity, self.spec.capacity - 1]

    def total(self) -> str:
        """Return the input that holds the number of rows."""
        self.extra[TOTAL] = TensorInfo(TOTAL, DType.INT64, (1,))
        return TOTAL

    def with_neutral_tail(self, name: str, fill: float, op: Op) -> str:
        """Return the tensor with its tail replaced by `fill`."""
        info, axis = self.infos[name], self.padded_axes[name]
        self.extra[VALID_MASK] = TensorInfo(VALID_MASK, DType.BOOL, (self.spec.capacity,))
        after = len(info.dims) - 1 - axis
        valid = VALID_MASK
        if after:
            valid = f"{VALID_MASK}:{after}"
            if valid not in self.infos:
                shape = (self.spec.capacity, *([1] * after))
                self._constant(f"{valid}:shape", np.array(shape, np.int64))
                self.infos[valid] = TensorInfo(valid, DType.BOOL, shape)
                inputs = [VALID_MASK, f"{valid}:shape"]
                self.ops.append(Op("Reshape", valid, inputs, [valid], ReshapeAttrs()))
        value = np.array(fill).astype(info.dtype.numpy)
        filler = self._constant(f"vkmnn:{fill}:{info.dtype.value}", value)
        result = f"{name}:{op.name}:valid"
        self.infos[result] = replace(info, name=result)
        inputs = [valid, name, filler]
        self.ops.append(Op("Select", result, inputs, [result], OpAttrs(), op.source))
        return result

    def _constant(self, name: str, array: Array) -> str:
        self.constants[name] = array
        return name

    def _propagate(self, op: Op, decided: bool) -> Op:
        """Record the padded axes of an op's results; return the op, adapted to the padding.

        Args:
            op: one that reads a tensor with a padded axis.
            decided: whether contents depend on the length.
        """
        if op.type == "Gather" and self._picks_every_row(op):
            return op
        tails = {
            place: self.padded_axes[n] for place, n in enumerate(op.inputs) if n in self.padded_axes
        }
        known = self._known_of(op)
        loops = loops_of(op, known)
        loop = common_loop(loops, tails, known.inputs)
        if loop is None or loop.kind not in (Kind.PARALLEL, Kind.REDUCTION):
            raise CannotRewriteError(f"{op.type} '{op.name}' may mix rows of the caches")
        if decided and not self._is_like_shorter(op, loops, loop):
            raise CannotRewriteError(f"the length decides what {op.type} '{op.name}' does")
        sizes = [self.infos[op.inputs[place]].dims[axis] for place, axis in tails.items()]
        for name, axis in zip(op.outputs, loop.writes, strict=True):
            if name and axis is not None:
                sizes.append(self.infos[name].dims[axis])
                self.padded_axes[name] = axis
            elif name and loop.kind is Kind.PARALLEL:
                raise CannotRewriteError(f"{op.type} '{op.name}' may mix rows of the caches")
        if any(size != loop.size for size in sizes):
            raise CannotRewriteError(f"{op.type} '{op.name}' joins the rows with another axis")
        return op if loop.kind is Kind.PARALLEL else self._with_neutral_tails(op, loop, tails)

    def _with_neutral_tails(self, op: Op, loop: Loop, tails: Mapping[int, int]) -> Op:
        """Return a reduction over rows that leaves the tail out."""
        names = list(op.inputs)
        if loop.count_input is not None:
            names += [""] * (loop.count_input + 1 - len(names))
            names[loop.count_input] = self.total()
            return replace(op, inputs=names)
        fill = NEUTRAL.get(loop.reduces)
        for place in tails:
            is_float = self.infos[names[place]].dtype.is_float
            if fill is None or (np.isinf(fill) and not is_float):
                raise CannotRewriteError(f"{op.type} '{op.name}' counts the rows")
            names[place] = self.with_neutral_tail(names[place], fill, op)
        return replace(op, inputs=names)

    def _known_of(self, op: Op) -> Known:
        """Return the shapes and constants of an op when the caches are full."""
        shapes = [self.infos[name].dims if name else None for name in op.inputs]
        results = [self.infos[name].dims if name else None for name in op.outputs]
        return Known(shapes, results, [self.values.get(name) for name in op.inputs])

    def _is_like_shorter(self, op: Op, loops: Sequence[Loop], loop: Loop) -> bool:
        """Return whether all loops are parallel, and equal with one row less in the caches."""
        infos: list[TensorInfo | None] = []
        for name in op.inputs:
            info = self.infos[name] if name else None
            if info is not None and name in self.padded_axes:
                axis, dims = self.padded_axes[name], info.dims
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
        """Return whether a Gather selects all rows in order; if so, record its padded axis."""
        data, indices = op.inputs
        rank = len(self.infos[data].dims)
        axis = getattr(op.attrs, "axis", 0) % rank
        if self.padded_axes.get(data) != axis or not self._is_every_row(indices):
            return False
        self.padded_axes[op.outputs[0]] = axis + self.padded_axes[indices]
        return True

    def _is_every_row(self, name: str) -> bool:
        """Return whether a tensor contains 0, 1, … up to the number of rows, in this order."""
        made = self.host_inputs.get(name)
        if made is None or name not in self.padded_axes:
            return False
        return all(
            np.array_equal(value.reshape(-1), np.arange(value.shape[self.padded_axes[name]]))
            for value in (self.values[made], self.shorter[made])
        )

    def _finish(self) -> PaddedGraph:
        if self.appended != self.spec.caches.keys():
            missing = sorted(self.spec.caches.keys() - self.appended)
            raise CannotRewriteError(f"nothing is joined with the cache '{missing[0]}'")
        caches = {output for output, _ in self.spec.caches.values()}
        outputs = [info.name for info in self.graph.outputs if info.name not in caches]
        for name in outputs:
            if name in self.shorter:
                raise CannotRewriteError(f"the output '{name}' is a number of rows")
        wanted = {*outputs, *caches}
        ops = live(self.ops, wanted)
        if self.spec.fuse:
            ops = fuse_cached_attention(ops, self.infos, TOTAL, set(outputs))
            ops = live(ops, wanted)  # the split of queries, keys and values
        for op in ops:
            if op.type == "Append" and op.inputs[2] in self.lengths:
                raise CannotRewriteError(f"'{op.name}' appends to sequences of different lengths")
        read = {name for op in ops for name in op.inputs} | set(outputs)
        constants = {name: self.values[name] for name in read if name in self.values}
        constants.update({name: self.constants[name] for name in read if name in self.constants})
        inputs = []
        for name, info in {**self.inputs, **self.extra}.items():
            if name in self.spec.caches:
                info = replace(self.infos[self.spec.caches[name][0]], name=name)
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
        axes = {name: self.padded_axes[name] for name in outputs if name in self.padded_axes}
        host_inputs = {name: value for name, value in self.host_inputs.items() if name in read}
        host_ops = _needed(self.host_ops, set(host_inputs.values()))
        return PaddedGraph(graph, axes, host_inputs, host_ops, self.spec.capacity)


def _replay_one(
    step: _HostOp,
    shorter: Mapping[str, Array],
    evaluate: Evaluator,
) -> dict[str, Array]:
    op, known, shape, axis = step
    operands = known | {name: shorter[name] for name in op.inputs if name in shorter}
    return _replay([_HostOp(op, operands, shape, axis)], -1, evaluate)


def live(ops: Sequence[Op], wanted: set[str]) -> list[Op]:
    """Return the ops that the requested tensors depend on, in order."""
    needed, kept = set(wanted), []
    for op in reversed(ops):
        if any(name in needed for name in op.outputs if name):
            needed.update(op.inputs)
            kept.append(op)
    return kept[::-1]


def _needed(steps: Sequence[_HostOp], wanted: set[str]) -> list[_HostOp]:
    kept = {id(op) for op in live([op for op, *_ in steps], wanted)}
    return [step for step in steps if id(step[0]) in kept]


def _may_follow(op: Op, place: int) -> bool:
    """Return whether a content may depend on the length: it has an entry for each axis."""
    how = (numbering_of(op) or {}).get(place, Numbering.KEPT)
    return how is not Numbering.KEPT
