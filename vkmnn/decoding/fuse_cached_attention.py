"""Fuses steps of a few rows on a cache: rotary embedding, append and attention as one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.ir import Op, TensorInfo
from vkmnn.ir.ops import (
    AttentionAttrs,
    CachedAttentionAttrs,
    LayerNormAttrs,
    RotaryAttrs,
    SplitAttrs,
    TransposeAttrs,
)

ROW_AXIS = 2
MAX_DEPTH = 256
"""Elements of a row of a cache: kernels keep one row in registers."""
MAX_ROWS = 8
"""Rows of a step: each reads the caches separately, so with more, tiles of queries are faster."""

_HEADS_FIRST = TransposeAttrs((0, 2, 1, 3))


def fuse_cached_attention(
    ops: Sequence[Op], infos: Mapping[str, TensorInfo], total: str, outputs: set[str]
) -> list[Op]:
    """Fuse rotary embedding, appends and attention into CachedAttention, for few rows.

    Args:
        ops: in order.
        infos: static shapes of all tensors.
        total: the input with the number of keys after the run.
        outputs: tensors that are read from outside; caches may be left out.
    """
    fuser = _Fuser(ops, infos, total, outputs)
    replaced: dict[int, Op | None] = {}
    for op in ops:
        step = fuser.step(op)
        if step is not None:
            replaced |= {id(one): None for one in step.removed} | {id(op): step.op}
    return [one for op in ops if (one := replaced.get(id(op), op)) is not None]


@dataclass(frozen=True, slots=True)
class _Step:
    op: Op
    removed: tuple[Op, ...]


class _Fuser:
    def __init__(
        self, ops: Sequence[Op], infos: Mapping[str, TensorInfo], total: str, outputs: set[str]
    ) -> None:
        self._producers: dict[str, Op[Any]] = {
            name: op for op in ops for name in op.outputs if name
        }
        self._readers = Counter(name for op in ops for name in op.inputs if name)
        self._readers.update(outputs)
        self._next = {name: op for op in ops for name in op.inputs if name}
        self._infos, self._total = infos, total

    def step(self, op: Op[Any]) -> _Step | None:
        """Return the fused op for an attention, and the ops that it replaces."""
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
        if append_k.attrs != append_v.attrs:
            return None
        rotary_q, rotary_k = self._rotary(op.inputs[0]), self._rotary(append_k.inputs[1])
        if (rotary_q is None) != (rotary_k is None):
            return None
        q, k, v = op.inputs[0], append_k.inputs[1], append_v.inputs[1]
        removed = [append_k, append_v, *repeats_k, *repeats_v]
        lowered = CachedAttentionAttrs(
            attrs.scale,
            zero_fully_masked=attrs.zero_fully_masked,
            softcap=attrs.softcap,
            window=attrs.window,
            packing=append_k.attrs.packing,
        )
        tables = ["", ""]
        if rotary_q is not None and rotary_k is not None:
            if rotary_q.attrs != rotary_k.attrs or rotary_q.inputs[1:] != rotary_k.inputs[1:]:
                return None
            q, k, tables = rotary_q.inputs[0], rotary_k.inputs[0], rotary_q.inputs[1:]
            rotary = rotary_q.attrs
            lowered = replace(lowered, width=rotary.width, interleaved=rotary.interleaved)
            removed += [rotary_q, rotary_k]
        norms = self._norm(q), self._norm(k)
        gains: list[str] = []
        if norms[0] is not None and norms[1] is not None and norms[0].attrs == norms[1].attrs:
            q, k = (one.inputs[0] for one in norms if one is not None)
            gains = [one.inputs[1] for one in norms if one is not None]
            lowered = replace(lowered, epsilon=norms[0].attrs.epsilon)
            removed += [one for one in norms if one is not None]
        if any(size % 4 or not 0 < size <= MAX_DEPTH for size in self._widths(k, v)):
            return None
        caches = [append_k.inputs[0], append_v.inputs[0]]
        y = op.outputs[0]
        if query[0] * query[2] > 1:  # with one row, transposes and slices copy nothing
            layout, (q, k, v), y, more = self._layout(q, k, v, y)
            lowered, removed = replace(lowered, layout=layout), [*removed, *more]
        more_inputs = [mask, *sinks] if mask or sinks else []
        if gains:
            more_inputs = [*more_inputs, "", ""][:2] + gains
        inputs = [q, k, v, *tables, *caches, append_k.inputs[2], *more_inputs]
        results = [y, append_k.outputs[0], append_v.outputs[0]]
        made = Op("CachedAttention", op.name, inputs, results, lowered, op.source)
        return _Step(made, tuple(removed))

    def _layout(
        self, q: str, k: str, v: str, y: str
    ) -> tuple[str, tuple[str, str, str], str, list[Op[Any]]]:
        """Return a layout without copies, operands and result in it, and further replaced ops."""
        transposes = [self._transposed(name) for name in (q, k, v)]
        after = self._next.get(y)
        if (
            after is None
            or not self._transposes_heads(after)
            or not self._read_once(y)
            or None in transposes
        ):
            return "", (q, k, v), y, []
        removed = [after, *(one for one in transposes if one is not None)]
        rows = tuple(one.inputs[0] for one in transposes if one is not None)
        reshapes = [self._producers.get(name) for name in rows]
        split = self._producers.get(reshapes[0].inputs[0]) if reshapes[0] is not None else None
        if split is not None and self._packs(split, reshapes):
            return "packed", (split.inputs[0], "", ""), after.outputs[0], removed
        return "rows", (rows[0], rows[1], rows[2]), after.outputs[0], removed

    def _transposed(self, name: str) -> Op[Any] | None:
        op = self._producers.get(name)
        return (
            op if op is not None and self._transposes_heads(op) and self._read_once(name) else None
        )

    def _transposes_heads(self, op: Op[Any]) -> bool:
        return op.type == "Transpose" and op.attrs == _HEADS_FIRST

    def _packs(self, split: Op[Any], reshapes: list[Op[Any] | None]) -> bool:
        """Return whether reshaped parts of a Split are its queries, keys and values, in order."""
        if split.type != "Split" or len(self._dims(split.inputs[0])) != 3:
            return False
        assert isinstance(split.attrs, SplitAttrs)
        parts = [
            reshape.inputs[0]
            for reshape in reshapes
            if reshape is not None
            and reshape.type == "Reshape"
            and self._dims(reshape.outputs[0])[:2] == self._dims(split.inputs[0])[:2]
        ]
        return split.attrs.axis in (-1, 2) and parts == list(split.outputs)

    def _dims(self, name: str) -> tuple[int, ...]:
        return self._infos[name].dims

    def _widths(self, *names: str) -> list[int]:
        return [self._dims(name)[-1] for name in names]

    def _fits_mask(self, mask: str, op: Op) -> bool:
        """Return whether there is no mask, or one of numbers with a column for every key."""
        if not mask:
            return True
        info, keys = self._infos[mask], self._dims(op.inputs[1])[-2]
        same = info.dtype is self._infos[op.inputs[0]].dtype
        return same and 0 < len(info.dims) <= 4 and info.dims[-1] == keys

    def _rotary(self, name: str) -> Op[RotaryAttrs] | None:
        """Return the Rotary that produces a tensor, if the tensor is read once."""
        op = self._producers.get(name)
        return op if op is not None and op.type == "Rotary" and self._read_once(name) else None

    def _norm(self, name: str) -> Op[LayerNormAttrs] | None:
        """Return the root mean square norm that makes rows of heads, if they are read once."""
        op = self._producers.get(name)
        if op is None or op.type != "LayerNorm" or not self._read_once(name):
            return None
        attrs, gain = op.attrs, op.inputs[1:2]
        assert isinstance(attrs, LayerNormAttrs)
        plain = attrs.rms and attrs.axis in (-1, 3) and not any((*op.inputs[2:], *op.outputs[1:]))
        fits = plain and gain and self._dims(gain[0]) == self._dims(name)[-1:]
        return op if fits else None

    def _read_once(self, name: str) -> bool:
        return self._readers[name] == 1

    def _appended(self, name: str, query: tuple[int, ...]) -> list[Op[Any]] | None:
        """Return the Append that produces keys or values, and the ops that repeat its heads."""
        op = self._producers.get(name)
        repeats: list[Op[Any]] = []
        dims = self._dims(name)
        if op is not None and op.type == "Reshape":
            expand = self._producers.get(op.inputs[0])
            unsqueeze = self._producers.get(expand.inputs[0]) if expand is not None else None
            if expand is None or unsqueeze is None:
                return None
            source = self._dims(unsqueeze.inputs[0])
            shared = dims[1] // max(source[1], 1) if len(source) == len(dims) == 4 else 0
            between = (*source[:2], shared, *source[2:])
            if (expand.type, unsqueeze.type) != ("Expand", "Unsqueeze") or not shared:
                return None
            if self._dims(expand.outputs[0]) != between or self._dims(unsqueeze.outputs[0]) != (
                *source[:2], 1, *source[2:]
            ):  # fmt: skip
                return None
            if dims != (source[0], source[1] * shared, *source[2:]):
                return None
            repeats = [op, expand, unsqueeze]
            op = self._producers.get(unsqueeze.inputs[0])
        if op is not None and op.type == "UnpackRows":
            repeats.append(op)
            op = self._producers.get(op.inputs[0])
        if op is None or op.type != "Append" or op.attrs.axis != ROW_AXIS:
            return None
        if bool(op.attrs.packing) != any(one.type == "UnpackRows" for one in repeats):
            return None
        new = self._dims(op.inputs[1])
        if len(dims) != 4 or len(new) != 4 or new[2] != query[2] or dims[:2] != query[:2]:
            return None
        alone = all(self._read_once(one.outputs[0]) for one in (op, *repeats))
        return [op, *repeats] if alone else None
