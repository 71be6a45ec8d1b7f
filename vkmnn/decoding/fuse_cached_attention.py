"""Steps of a few rows on a cache as one op: rotary embedding, append and attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vkmnn.ir import Op, TensorInfo
from vkmnn.ir.ops import (
    AppendAttrs,
    AttentionAttrs,
    CachedAttentionAttrs,
    RotaryAttrs,
    SplitAttrs,
    TransposeAttrs,
)
from vkmnn.records import dataclass

ROW_AXIS = 2
MAX_DEPTH = 256
"""Elements of a row of a cache: kernels keep one row at hand."""
MAX_ROWS = 8
"""Rows of a step: each reads the caches by itself, so with more, tiles of queries are faster."""

_HEADS_FIRST = TransposeAttrs((0, 2, 1, 3))


def fuse_cached_attention(
    ops: Sequence[Op], infos: Mapping[str, TensorInfo], total: str, outputs: set[str]
) -> list[Op]:
    """Return the ops with CachedAttention in place of what it does, where there are few rows.

    Args:
        ops: in order.
        infos: static shapes of all tensors.
        total: the input that says how many keys there are after the run.
        outputs: tensors that are read from outside; caches need not be among them.
    """
    found = _Finder(ops, infos, total, outputs)
    replaced: dict[int, Op | None] = {}
    for op in ops:
        step = found.step(op)
        if step is not None:
            replaced |= {id(one): None for one in step.gone} | {id(op): step.op}
    return [one for op in ops if (one := replaced.get(id(op), op)) is not None]


@dataclass(frozen=True, slots=True)
class _Step:
    op: Op
    gone: tuple[Op, ...]


class _Finder:
    def __init__(
        self, ops: Sequence[Op], infos: Mapping[str, TensorInfo], total: str, outputs: set[str]
    ) -> None:
        self._makers: dict[str, Op[Any]] = {name: op for op in ops for name in op.outputs if name}
        self._readers = Counter(name for op in ops for name in op.inputs if name)
        self._readers.update(outputs)
        self._next = {name: op for op in ops for name in op.inputs if name}
        self._infos, self._total = infos, total

    def step(self, op: Op[Any]) -> _Step | None:
        """Return what takes the place of an attention and of what makes its operands."""
        if op.type != "Attention" or op.inputs[4:5] != [self._total]:
            return None
        attrs, mask, sinks = op.attrs, op.inputs[3], op.inputs[5:]
        assert isinstance(attrs, AttentionAttrs)
        query = self._dims(op.inputs[0])
        few = len(query) == 4 and 1 <= query[2] <= MAX_ROWS
        if not few or attrs.causal or not self._fits_mask(mask, op):
            return None
        if any(self._dims(sink) != (query[1], 1, 1) for sink in sinks):
            return None
        keys, values = (self._appended(name, query) for name in op.inputs[1:3])
        if keys is None or values is None or keys[0].inputs[2] != values[0].inputs[2]:
            return None
        (append_k, *repeats_k), (append_v, *repeats_v) = keys, values
        turn_q, turn_k = self._turn(op.inputs[0]), self._turn(append_k.inputs[1])
        if (turn_q is None) != (turn_k is None):
            return None
        q, k, v = op.inputs[0], append_k.inputs[1], append_v.inputs[1]
        gone = [append_k, append_v, *repeats_k, *repeats_v]
        lowered = CachedAttentionAttrs(
            attrs.scale,
            zero_fully_masked=attrs.zero_fully_masked,
            softcap=attrs.softcap,
            window=attrs.window,
        )
        tables = ["", ""]
        if turn_q is not None and turn_k is not None:
            if turn_q.attrs != turn_k.attrs or turn_q.inputs[1:] != turn_k.inputs[1:]:
                return None
            q, k, tables = turn_q.inputs[0], turn_k.inputs[0], turn_q.inputs[1:]
            turns = turn_q.attrs
            lowered = replace(lowered, width=turns.width, interleaved=turns.interleaved)
            gone += [turn_q, turn_k]
        if any(size % 4 or not 0 < size <= MAX_DEPTH for size in self._widths(k, v)):
            return None
        caches = [append_k.inputs[0], append_v.inputs[0]]
        y = op.outputs[0]
        if query[0] * query[2] > 1:  # of one row, transposes and cuts copy nothing
            layout, (q, k, v), y, more = self._layout(q, k, v, y)
            lowered, gone = replace(lowered, layout=layout), [*gone, *more]
        more_inputs = [mask, *sinks] if mask or sinks else []
        inputs = [q, k, v, *tables, *caches, append_k.inputs[2], *more_inputs]
        results = [y, append_k.outputs[0], append_v.outputs[0]]
        made = Op("CachedAttention", op.name, inputs, results, lowered, op.source)
        return _Step(made, tuple(gone))

    def _layout(
        self, q: str, k: str, v: str, y: str
    ) -> tuple[str, tuple[str, str, str], str, list[Op[Any]]]:
        """Return the layout that does without copies, operands and result in it, and what goes."""
        turned = [self._transposed(name) for name in (q, k, v)]
        after = self._next.get(y)
        if after is None or not self._turns_heads(after) or not self._once(y) or None in turned:
            return "", (q, k, v), y, []
        gone = [after, *(one for one in turned if one is not None)]
        rows = tuple(one.inputs[0] for one in turned if one is not None)
        cuts = [self._makers.get(name) for name in rows]
        split = self._makers.get(cuts[0].inputs[0]) if cuts[0] is not None else None
        if split is not None and self._packs(split, cuts):
            return "packed", (split.inputs[0], "", ""), after.outputs[0], gone
        return "rows", (rows[0], rows[1], rows[2]), after.outputs[0], gone

    def _transposed(self, name: str) -> Op[Any] | None:
        op = self._makers.get(name)
        return op if op is not None and self._turns_heads(op) and self._once(name) else None

    def _turns_heads(self, op: Op[Any]) -> bool:
        return op.type == "Transpose" and op.attrs == _HEADS_FIRST

    def _packs(self, split: Op[Any], cuts: list[Op[Any] | None]) -> bool:
        """Tell whether reshaped parts of a Split are its queries, keys and values, in order."""
        if split.type != "Split" or len(self._dims(split.inputs[0])) != 3:
            return False
        assert isinstance(split.attrs, SplitAttrs)
        parts = [
            cut.inputs[0]
            for cut in cuts
            if cut is not None
            and cut.type == "Reshape"
            and self._dims(cut.outputs[0])[:2] == self._dims(split.inputs[0])[:2]
        ]
        return split.attrs.axis in (-1, 2) and parts == list(split.outputs)

    def _dims(self, name: str) -> tuple[int, ...]:
        return self._infos[name].dims

    def _widths(self, *names: str) -> list[int]:
        return [self._dims(name)[-1] for name in names]

    def _fits_mask(self, mask: str, op: Op) -> bool:
        """Tell whether there is no mask, or one of numbers with a column for every key."""
        if not mask:
            return True
        info, keys = self._infos[mask], self._dims(op.inputs[1])[-2]
        same = info.dtype is self._infos[op.inputs[0]].dtype
        return same and 0 < len(info.dims) <= 4 and info.dims[-1] == keys

    def _turn(self, name: str) -> Op[RotaryAttrs] | None:
        """Return the Rotary that makes a tensor which nothing else reads."""
        op = self._makers.get(name)
        return op if op is not None and op.type == "Rotary" and self._once(name) else None

    def _once(self, name: str) -> bool:
        return self._readers[name] == 1

    def _appended(self, name: str, query: tuple[int, ...]) -> list[Op[Any]] | None:
        """Return the Append that made keys or values, and what repeats its heads, if no more."""
        op = self._makers.get(name)
        repeats: list[Op[Any]] = []
        dims = self._dims(name)
        if op is not None and op.type == "Reshape":
            expand = self._makers.get(op.inputs[0])
            apart = self._makers.get(expand.inputs[0]) if expand is not None else None
            if expand is None or apart is None:
                return None
            source = self._dims(apart.inputs[0])
            shared = dims[1] // max(source[1], 1) if len(source) == len(dims) == 4 else 0
            between = (*source[:2], shared, *source[2:])
            if (expand.type, apart.type) != ("Expand", "Unsqueeze") or not shared:
                return None
            if self._dims(expand.outputs[0]) != between or self._dims(apart.outputs[0]) != (
                *source[:2], 1, *source[2:]
            ):  # fmt: skip
                return None
            if dims != (source[0], source[1] * shared, *source[2:]):
                return None
            repeats = [op, expand, apart]
            op = self._makers.get(apart.inputs[0])
        if op is None or op.type != "Append" or op.attrs != AppendAttrs(ROW_AXIS):
            return None
        new = self._dims(op.inputs[1])
        if len(dims) != 4 or len(new) != 4 or new[2] != query[2] or dims[:2] != query[:2]:
            return None
        alone = all(self._once(one.outputs[0]) for one in (op, *repeats))
        return [op, *repeats] if alone else None
