"""Merges quantised products of one input for attention: one product and a Split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.converter.passes.code_offset import AGAIN, TABLE
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.merged_products import MergedProducts, put_together
from vkmnn.ir import Array
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import QuantizedMatMulAttrs

_Product = Op[QuantizedMatMulAttrs]
_BIAS, _FACTOR = 2, 4


class MergeCodeProducts(MergedProducts[QuantizedMatMulAttrs]):
    """Merges queries, keys and values by constant bytes from one input: bytes side by side.

    Each keeps its own bounds: those of the second rounding are per column.
    """

    name = "merge_code_products"
    roots = frozenset({"QuantizedMatMul"})

    def is_part(self, op: Op[Any], index: GraphIndex) -> bool:
        attrs = op.attrs
        if not isinstance(attrs, QuantizedMatMulAttrs) or attrs.transpose_a or op.inputs[3]:
            return False
        if attrs.scale != 1.0 or any(op.inputs[TABLE : TABLE + 1]):
            return False
        weights, rank = index.constant(op.inputs[1]), index.rank(op.outputs[0])
        known = weights is not None and weights.dtype == np.int8 and weights.ndim == 2
        return known and rank is not None and rank >= 2

    def are_alike(self, op: _Product, other: _Product, index: GraphIndex) -> bool:
        return op.attrs.transpose_b == other.attrs.transpose_b

    def rewrite(self, op: _Product, match: list[_Product], index: GraphIndex) -> None:
        axis = 0 if op.attrs.transpose_b else 1
        sizes = [index.constants[one.inputs[1]].shape[axis] for one in match]
        low, high = (
            float(bound([getattr(one.attrs, name) for one in match]))
            for bound, name in ((min, "low"), (max, "high"))
        )
        named: dict[str, Array] = {
            "weights": np.concatenate([index.constants[one.inputs[1]] for one in match], axis),
            "factors": joined_columns(match, _FACTOR, sizes, index, np.ones(1, np.float32)),
            "again": np.concatenate(
                [_again(one, size, index) for one, size in zip(match, sizes, strict=True)], 1
            ),
        }
        if any(one.inputs[_BIAS] for one in match):
            named["bias"] = joined_columns(match, _BIAS, sizes, index, np.zeros(1, np.float32))
        names = {
            what: index.add_constant(f"{op.name}_{what}", array) for what, array in named.items()
        }
        inputs = [op.inputs[0], names["weights"], names.get("bias", ""), "", names["factors"]]
        inputs += ["", names["again"], *op.inputs[AGAIN + 1 :]]
        put_together(match, inputs, replace(op.attrs, low=low, high=high), sizes, index)


def joined_columns(
    ops: Sequence[Op], place: int, sizes: Sequence[int], index: GraphIndex, other: Array
) -> Array:
    """Return an operand of all products, one number per column; `other` if absent."""
    arrays = [index.constants[one.inputs[place]] if one.inputs[place] else other for one in ops]
    broadcast = [
        np.broadcast_to(array.reshape(-1), (size,))
        for array, size in zip(arrays, sizes, strict=True)
    ]
    return np.concatenate(broadcast)


def _again(op: _Product, columns: int, index: GraphIndex) -> Array:
    """Return the second requantisation, the identity without one."""
    if any(op.inputs[AGAIN : AGAIN + 1]):
        return index.constants[op.inputs[AGAIN]]
    low, high = op.attrs.low, op.attrs.high
    rows = np.array([low, high, 1.0, 0.0, 1.0, low, high], np.float32)
    return np.repeat(rows[:, None], columns, 1)
