"""A self-feeding decode step: sampled on the device, fed to the next step.

A network rewritten for caches of a fixed size (`padded_graph`) reads one token and values that
depend on the number of rows in the caches: positions, masks, the length itself. Here that number is
on the device, and each step increments it; dependent values are computed from it; and the likeliest
token, or a sampled one, is written where the next step reads it. So a step needs nothing from the
host, and steps can be queued.

The dependence of tensors on the number of rows is determined by computing them for some numbers.
Most are the number itself, or grow by one element of an axis with every row: the network's own
computation is then dropped. Masks that hide only rows past the length are left out; those that show
a fixed number of the last rows become the attention's window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.decoding.padded_graph import PAST, TOTAL, CannotRewriteError, PaddedGraph
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    ArgReduceAttrs,
    AxisAttrs,
    BinaryAttrs,
    CachedAttentionAttrs,
    CastAttrs,
    ReshapeAttrs,
    SampleTokenAttrs,
)

LENGTH, NEXT_LENGTH, NEXT_TOKEN = PAST, TOTAL, "vkmnn:next_token"
"""Rows before and after the step; the chosen token."""

UNIFORMS, SAMPLING = "vkmnn:uniforms", "vkmnn:sampling"
"""Inputs of sampling steps: random numbers indexed by row; and `DeviceSampling.settings`."""

UNIFORM, LENGTH_STEP = "vkmnn:uniform", "vkmnn:length_step"
"""Inputs of batched steps: the random number of this step; 1, or 0 for a sequence that sits out."""

_VALID = "vkmnn:valid"
_PROBES = 48
MAX_PROBED = 1 << 16
"""Maximum elements of a tensor whose dependence on the length is probed."""

MAX_TABLE = 1 << 21
"""Maximum elements of a table of host-fed values."""

VERY_NEGATIVE = -1e30
"""Added to a score, it hides a key in the presence of visible keys."""

_MASK_PLACES = {"CachedAttention": 8, "Attention": 3}
"""Index of the mask among the inputs of ops with a number of keys."""


@dataclass(frozen=True, slots=True)
class DecoderIO:
    """The token input and output of a decoder.

    Attributes:
        token: the input for the token, [1, 1].
        logits: the output whose last axis has a number for every token.
        feeds: the values of the other inputs, by the number of rows in the caches.
        vocabulary: number of tokens; 0 if unknown, and the device cannot sample.
    """

    token: str
    logits: str
    feeds: Callable[[int], Mapping[str, Array]]
    vocabulary: int = 0


Evaluator = Callable[[Op[Any], "list[Array | None]"], "list[Array]"]


def decode_step(
    padded: PaddedGraph,
    io: DecoderIO,
    feeds: Callable[[int], Mapping[str, Array]],
    evaluate: Evaluator,
    sampled: bool = False,
    batched: bool = False,
) -> Graph:
    """Return a step that reads a token and `LENGTH`, and writes `NEXT_TOKEN` and `NEXT_LENGTH`.

    Args:
        padded: the network as rewritten for one row a step.
        io: its inputs and outputs for tokens and logits.
        feeds: the host's other feeds, by the number of rows.
        evaluate: computes one op on arrays.
        sampled: whether the step samples; otherwise it is greedy.
        batched: whether the step is to be batched with those of other sequences. It reads
            `LENGTH_STEP`, which is added to `LENGTH`, and `UNIFORM` instead of a table of numbers,
            and returns the logits, too.

    Raises:
        CannotRewriteError: an input depends on the number of rows in an unknown way.
    """
    return _DecodeStep(padded, io, evaluate, sampled, batched).result(feeds)


@dataclass(slots=True)
class _DecodeStep:
    padded: PaddedGraph
    io: DecoderIO
    evaluate: Evaluator
    sampled: bool
    batched: bool = False
    feeds: Callable[[int], Mapping[str, Array]] | None = None
    ops: list[Op[Any]] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    probed: dict[str, dict[int, Array]] = field(default_factory=dict)
    tables: list[Mapping[str, Array]] | None = None
    producers: dict[str, Op[Any]] = field(default_factory=dict)
    emitted: set[str] = field(default_factory=set)

    def result(self, feeds: Callable[[int], Mapping[str, Array]]) -> Graph:
        """Build the network."""
        padded, io, graph = self.padded, self.io, self.padded.graph
        infos = {info.name: info for info in graph.inputs}
        token, logits = infos[io.token], self._logits()
        if token.dims != (1, 1) or logits.dims[:-1] not in ((1, 1), (1,)):
            raise CannotRewriteError("a step has more than one token")
        more = LENGTH_STEP if self.batched else self._constant("one", [1])
        self._op("BinaryOp", [LENGTH, more], NEXT_LENGTH, BinaryAttrs("ADD"))
        self.feeds = feeds
        fed_by_length = {past: feeds(past) for past in _probes(padded.capacity)}
        fed = set(fed_by_length[0]) | {LENGTH, NEXT_LENGTH}
        for name in fed & infos.keys():
            self.probed[name] = {past: made[name] for past, made in fed_by_length.items()}
        self.emitted = {LENGTH, NEXT_LENGTH}
        for op in graph.ops:
            if not self._probe(op):
                self._emit(op)
        chosen = NEXT_TOKEN if token.dtype is DType.INT64 else f"{NEXT_TOKEN}:index"
        if self.sampled:
            self._sampled(logits, chosen)
        else:  # [1, 1], as the token is read
            most = ArgReduceAttrs(-1, keepdims=len(logits.dims) == 2)
            self._op("ArgMax", [logits.name], chosen, most)
        if token.dtype is not DType.INT64:
            self._op("Cast", [chosen], NEXT_TOKEN, CastAttrs(token.dtype))
        return replace(
            graph,
            inputs=[*(info for info in graph.inputs if info.name not in fed), *self._settings()],
            outputs=[
                TensorInfo(NEXT_LENGTH, DType.INT64, (1,)),
                TensorInfo(NEXT_TOKEN, token.dtype, (1, 1)),
                *([logits] if self.batched else []),
            ],
            ops=self.ops,
            constants={**graph.constants, **self.constants},
            infos={},
        )

    def _settings(self) -> list[TensorInfo]:
        """Return the inputs other than the token and the caches."""
        made = [TensorInfo(LENGTH, DType.INT64, (1,))]
        if self.batched:
            made.append(TensorInfo(LENGTH_STEP, DType.INT64, (1,)))
        if self.sampled:
            made.append(TensorInfo(SAMPLING, DType.FLOAT32, (1, 4)))
            if self.batched:
                made.append(TensorInfo(UNIFORM, DType.FLOAT32, (1, 1)))
            else:
                made.append(TensorInfo(UNIFORMS, DType.FLOAT32, (self.padded.capacity, 1)))
        return made

    def _logits(self) -> TensorInfo:
        return next(i for i in self.padded.graph.outputs if i.name == self.io.logits)

    def _sampled(self, logits: TensorInfo, chosen: str) -> None:
        """Sample one of the likeliest tokens."""
        at = f"{NEXT_TOKEN}:"
        flat = self._reshaped(logits.name, (1, logits.dims[-1]), at + "logits")
        number = UNIFORM
        if not self.batched:
            number = self._op("Gather", [UNIFORMS, LENGTH], at + "uniform", AxisAttrs(0))
        self._op("SampleToken", [flat, SAMPLING, number], chosen, SampleTokenAttrs())

    # --- tensors that depend on the length --------------------------------------------------------

    def _probe(self, op: Op[Any]) -> bool:
        """Compute an op for some lengths, if its operands depend only on the length."""
        names = [name for name in op.inputs if name]
        constants = self.padded.graph.constants
        if not any(name in self.probed for name in names) or not all(
            name in self.probed or name in constants for name in names
        ):
            return False
        results: dict[str, dict[int, Array]] = {name: {} for name in op.outputs if name}
        for past in next(self.probed[name] for name in names if name in self.probed):
            operands = [
                None if not name else self.probed[name][past] if name in self.probed
                else constants[name] for name in op.inputs
            ]  # fmt: skip
            try:
                with np.errstate(all="ignore"):
                    arrays = self.evaluate(op, operands)
            except VkmnnError:  # a table may be shorter than the caches
                return False
            if any(array.size > MAX_PROBED for array in arrays):
                return False
            for name, array in zip(op.outputs, arrays, strict=True):
                if name:
                    results[name][past] = array
        self.probed |= results
        self.producers |= dict.fromkeys(results, op)
        return True

    def _emit(self, op: Op[Any]) -> None:
        """Add an op that runs, after the tensors that it reads."""
        place = _MASK_PLACES.get(op.type)
        mask = op.inputs[place] if place is not None and len(op.inputs) > place else ""
        window = self._window(mask) if mask else None
        if place is not None and window is not None and not (window and op.attrs.window):
            op = replace(op, inputs=[*op.inputs[:place], "", *op.inputs[place + 1 :]])
            if window:
                op = replace(op, attrs=replace(op.attrs, window=window))
            while op.inputs and not op.inputs[-1]:
                op.inputs.pop()
        if isinstance(op.attrs, CachedAttentionAttrs) and op.attrs.width:
            tables = [self._position_table(name) for name in op.inputs[3:5]]
            if tables[0] and tables[1]:
                op = replace(op, inputs=[*op.inputs[:3], *tables, *op.inputs[5:]])
                op = replace(op, attrs=replace(op.attrs, positions=True))
        for name in op.inputs:
            self._derive(name)
        self.ops.append(op)

    def _position_table(self, name: str) -> str:
        """Return a constant with a row of a rotary table for every length, [1, 1, capacity, …].

        "" if the rows do not depend on the length, or cannot be computed at once.
        """
        values, room = self.probed.get(name), self.padded.capacity
        if values is None or values[0].size * room > MAX_TABLE:
            return ""
        table = f"vkmnn:step:{name}:positions"
        if table not in self.constants:
            rows = self._for_all_lengths(name)
            if rows is None or rows.shape != (room, *values[0].shape[1:]):
                return ""
            if any(not np.array_equal(rows[past], value[0]) for past, value in values.items()):
                return ""
            self.constants[table] = rows.reshape(1, 1, room, -1)
        return table

    def _for_all_lengths(self, name: str) -> Array | None:
        """Compute a tensor for all lengths along its first axis; None if that is not known."""
        values, room = self.probed.get(name), self.padded.capacity
        if values is None:
            return self.padded.graph.constants.get(name)
        first = values[0]
        if all(np.array_equal(value, first) for value in values.values()):
            return first
        if first.size == 1 and first.ndim and _counts_rows(values):
            rows = np.arange(room, dtype=first.dtype) + first.reshape(-1)
            return np.asarray(rows.reshape(room, *first.shape[1:]))
        producer = self.producers.get(name)
        if producer is None:
            return self._fed_rows(name) if first.ndim and len(first) == 1 else None
        operands = [self._for_all_lengths(one) if one else None for one in producer.inputs]
        if any(one and x is None for one, x in zip(producer.inputs, operands, strict=True)):
            return None
        try:
            made = self.evaluate(producer, operands)
        except VkmnnError:  # sizes of a single row, for example
            return None
        return made[producer.outputs.index(name)]

    def _window(self, mask: str) -> int | None:
        """Return how many of the last keys a mask shows, 0 for all; None for other masks.

        Entries past the valid keys are ignored.
        """
        values, room = self.probed.get(mask), self.padded.capacity
        if values is None or any(
            x.ndim == 0 or x.shape[-1] != room or x.dtype.kind != "f" for x in values.values()
        ):
            return None
        seen = {past: x[..., : past + 1] for past, x in values.items()}
        if not any(x.any() for x in seen.values()):
            return 0
        past, last = max(seen.items())
        window = int((last.reshape(-1, past + 1)[0] == 0).sum())
        same = all(_shows(x, window) for x in seen.values())
        return window if window and same else None

    def _derive(self, name: str) -> None:
        """Add ops that compute a tensor from the length, if it depends only on that."""
        if name in self.emitted or name not in self.probed:
            return
        self.emitted.add(name)
        values = self.probed[name]
        first = values[0]
        if all(np.array_equal(value, first) for value in values.values()):
            self.constants[name] = first
        elif not (self._derive_count(name, values) or self._derive_window(name, values)):
            producer = self.producers.get(name)
            if producer is None:
                self._tabulate(name, first)
                return
            self.emitted.update(producer.outputs)
            for source in producer.inputs:
                self._derive(source)
            self.ops.append(producer)

    def _tabulate(self, name: str, first: Array) -> None:
        """Look up a tensor in a table with a row for every length."""
        room = self.padded.capacity
        if self.feeds is None or first.size * room > MAX_TABLE:
            raise CannotRewriteError(f"'{name}' does not depend on the number of rows alone")
        table = self._fed_rows(name).reshape(room, -1)
        row = [self._constant(f"{name}:table", table, table.dtype), LENGTH]
        self._reshaped(self._op("Gather", row, f"{name}:row", AxisAttrs(0)), first.shape, name)

    def _fed_rows(self, name: str) -> Array:
        """Return a host-fed tensor for all lengths, stacked along its first axis."""
        assert self.feeds is not None
        if self.tables is None:
            self.tables = [self.feeds(past) for past in range(self.padded.capacity)]
        return np.concatenate([np.atleast_1d(made[name]) for made in self.tables])

    def _derive_count(self, name: str, values: Mapping[int, Array]) -> bool:
        """Compute a tensor if it is the length plus a constant; return whether it is."""
        first = values[0]
        if not _counts_rows(values):
            return False
        if not first.any() and first.size != 1:
            return False
        rows = LENGTH
        if first.dtype != np.int64:
            rows = f"{name}:rows"
            self._op("Cast", [LENGTH], rows, CastAttrs(DType.from_numpy(first.dtype)))
        if first.any():
            start = self._constant(f"{name}:start", first.reshape(-1), first.dtype)
            rows = self._op("BinaryOp", [rows, start], f"{name}:flat", BinaryAttrs("ADD"))
        self._reshaped(rows, first.shape, name)
        return True

    def _derive_window(self, name: str, values: Mapping[int, Array]) -> bool:
        """Compute a tensor that grows by one element of an axis with every row."""
        room = self.padded.capacity
        whole, hidden = values[room - 1], values[0].reshape(-1)[-1:]
        for axis in [axis for axis, size in enumerate(whole.shape) if size == room]:
            if all(
                np.array_equal(value, _shown(whole, axis, past + 1, hidden))
                for past, value in values.items()
            ):
                shape = tuple(room if n == axis else 1 for n in range(whole.ndim))
                if whole.dtype == np.bool_ and whole.all() and whole.size == room:
                    self._reshaped(self._valid(), whole.shape, name)
                    return True
                here = self._reshaped(self._valid(), shape, f"{name}:here")
                shown = self._constant(f"{name}:whole", whole, whole.dtype)
                none = self._constant(f"{name}:none", hidden.reshape(()), whole.dtype)
                self._op("Select", [here, shown, none], name, OpAttrs())
                return True
        return False

    def _valid(self) -> str:
        """Return a mask of the rows that are valid after the step, bool [1, capacity]."""
        if _VALID not in self.emitted:
            self.emitted.add(_VALID)
            columns = self._constant("columns", np.arange(self.padded.capacity)[None])
            rows = self._reshaped(LENGTH, (1, 1), f"{_VALID}:rows")
            self._op("BinaryOp", [columns, rows], _VALID, BinaryAttrs("LESS_EQUAL"))
        return _VALID

    def _reshaped(self, source: str, shape: tuple[int, ...], name: str) -> str:
        sizes = self._constant(f"{name}:shape", np.array(shape, np.int64))
        return self._op("Reshape", [source, sizes], name, ReshapeAttrs())

    def _op(self, kind: str, inputs: list[str], output: str, attrs: OpAttrs) -> str:
        self.ops.append(Op(kind, output, inputs, [output], attrs))
        return output

    def _constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        name = f"vkmnn:step:{name}"
        self.constants[name] = np.asarray(value, dtype)
        return name


def _counts_rows(values: Mapping[int, Array]) -> bool:
    """Return whether values are integers that grow by one with every row."""
    first = values[0]
    return first.dtype.kind in "iu" and all(
        np.array_equal(value, first + past) for past, value in values.items()
    )


def _shows(mask: Array, window: int) -> bool:
    """Return whether a mask hides all but the last keys."""
    begin = max(0, mask.shape[-1] - window)
    hides = -6e4 if mask.dtype == np.float16 else VERY_NEGATIVE
    return not mask[..., begin:].any() and bool(
        (mask.astype(np.float32)[..., :begin] <= hides).all()
    )


def _shown(whole: Array, axis: int, count: int, hidden: Array) -> Array:
    """Return the array with `hidden` from `count` on, along an axis."""
    made: Array = np.broadcast_to(hidden, whole.shape).copy()
    part = (*[slice(None)] * axis, slice(count))
    made[part] = whole[part]
    return made


def _probes(room: int) -> list[int]:
    """Return lengths to probe: the first, the last, those around powers of two, and others."""
    powers = [(1 << n) + more for n in range(room.bit_length()) for more in (-1, 0, 1)]
    evenly = np.linspace(0, room - 1, _PROBES).astype(int).tolist()
    return sorted({past for past in [*range(4), *powers, *evenly, room - 1] if past < room})
