"""Lowerings of equal ops, computed once in a plan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from vkmnn.base.budget import Meter
from vkmnn.base.memo import Memo
from vkmnn.geometry.registry import COMPUTERS, Lowering, lower
from vkmnn.ir import Array, Op, TensorInfo
from vkmnn.ir.alike import MAX_ALIKE, attrs_text, content_key, is_comparable

_OWN = frozenset(COMPUTERS)
"""Op types whose computers depend only on attributes, shapes, types and contents."""


def is_lowered_by_kind(op_type: str) -> bool:
    """Whether the lowering of ops depends on attributes, shapes, types and contents alone."""
    return op_type in _OWN or op_type not in COMPUTERS


class AlikeLowerings:
    """Lowers the ops of a plan; equal ops share the attributes of their lowerings."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._known: Memo[Hashable, tuple[Op, Lowering | None]] = Memo(MAX_ALIKE)

    def lower(
        self,
        op: Op,
        inputs: Sequence[TensorInfo | None],
        outputs: Sequence[TensorInfo],
        values: Sequence[Array | None],
    ) -> Lowering | None:
        """Lower an op as `registry.lower` does; same arguments and errors."""
        key = _key(op, inputs, outputs, values)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            like, made = known
            return made and _renamed(made, like, op)
        made = lower(op, inputs, outputs, values, self._meter)
        if key is not None and (made is None or not made.constants):
            self._known.keep(key, (op, made))
        return made


def _key(
    op: Op,
    inputs: Sequence[TensorInfo | None],
    outputs: Sequence[TensorInfo],
    values: Sequence[Array | None],
) -> Hashable:
    """Return a key that equal ops share; None if equality is unknown."""
    if op.type not in _OWN:
        return None
    if not all(value is None or is_comparable(value) for value in values):
        return None
    names = op.inputs
    same = tuple([names.index(name) for name in names]) if len(names) > 1 else None
    return (
        op.type,
        attrs_text(op.attrs),
        same,
        *map(content_key, values),
        *[info and (info.dtype, info.shape) for info in inputs],
        *[(info.name != "", info.dtype, info.shape) for info in outputs],
    )


def _renamed(lowering: Lowering, like: Op, op: Op) -> Lowering:
    """Return the lowering of `like`, renamed for an equal op."""
    names = dict(zip((*like.inputs, *like.outputs), (*op.inputs, *op.outputs), strict=True))
    names[""] = ""
    length, own = len(like.name), op.name

    def renamed(name: str) -> str:
        known = names.get(name)
        if known is None:  # a tensor or an op that lowering has named after the op
            known = names[name] = own + name[length:]
        return known

    made = Lowering()
    for one in lowering.ops:
        made.ops.append(
            Op(
                one.type,
                own + one.name[length:],
                [renamed(name) for name in one.inputs],
                [renamed(name) for name in one.outputs],
                one.attrs,
                op.source,
            )
        )
    for name, info in lowering.infos.items():
        new = renamed(name)
        made.infos[new] = TensorInfo(new, info.dtype, info.shape)
    return made
