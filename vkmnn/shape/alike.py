"""Shapes of equal ops, computed once in a plan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from vkmnn.base.memo import Memo
from vkmnn.ir import OP_TYPES, Array, DType, Op, TensorInfo
from vkmnn.ir.alike import MAX_ALIKE, attrs_text, content_key, is_comparable
from vkmnn.shape.registry import COMPUTERS, compute_shapes

_OWN = frozenset(COMPUTERS) - {"Custom"}
"""Op types whose computers read no contents but those that `OP_TYPES` names."""


def reads_declared_contents(op_type: str) -> bool:
    """Whether shapes depend on no contents but those that `OP_TYPES` declares."""
    return op_type in _OWN


class AlikeShapes:
    """Computes the shapes of one plan."""

    def __init__(self) -> None:
        self._known: Memo[Hashable, list[tuple[DType, tuple[int, ...]]]] = Memo(MAX_ALIKE)

    def compute(
        self, op: Op, inputs: Sequence[TensorInfo | None], values: Sequence[Array | None]
    ) -> list[TensorInfo]:
        """Compute shapes as `compute_shapes` does; same arguments and errors."""
        if op.type not in _OWN:
            return compute_shapes(op, inputs, values)
        told: list[Array | None] = [None] * len(inputs)
        content: list[object] = []
        for index in OP_TYPES[op.type].content:
            value = values[index] if index < len(values) else None
            if value is not None:
                if not is_comparable(value):
                    return compute_shapes(op, inputs, values)
                told[index] = value
                content.append((index, content_key(value)))
        key = (
            op.type,
            attrs_text(op.attrs),
            len(op.outputs),
            *content,
            *[info and (info.dtype, info.shape) for info in inputs],
        )
        known = self._known.get(key)
        if known is None:
            made = compute_shapes(op, inputs, told)
            self._known.keep(key, [(info.dtype, info.dims) for info in made])
            return made
        return [
            TensorInfo(name, dtype, shape)
            for name, (dtype, shape) in zip(op.outputs, known, strict=True)
        ]
