"""Matrix products of one input that feed attention: one product and a Split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.base.lazy_array import derived
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.merged_products import MergedProducts, put_together
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import MatMulAttrs

_Product = Op[MatMulAttrs]


class MergeMatMul(MergedProducts[MatMulAttrs]):
    """Merges products of one input by constant matrices, perhaps with a bias for each column."""

    name = "merge_matmul"
    roots = frozenset({"MatMul"})

    def is_part(self, op: Op[Any], index: GraphIndex) -> bool:
        attrs = op.attrs
        if not isinstance(attrs, MatMulAttrs) or any(op.inputs[3:]):
            return False
        if attrs.activation.kind != "NONE" or attrs.transpose_a:
            return False
        weights = index.constant(op.inputs[1])
        rank = index.rank(op.outputs[0])
        if weights is None or weights.ndim != 2 or rank is None or rank < 2:
            return False
        if not any(op.inputs[2:]):
            return True
        bias = index.constant(op.inputs[2])
        return bias is not None and bias.shape == (weights.shape[0 if attrs.transpose_b else 1],)

    def are_alike(self, op: _Product, other: _Product, index: GraphIndex) -> bool:
        one, two = index.constants[op.inputs[1]], index.constants[other.inputs[1]]
        return op.attrs == other.attrs and one.dtype == two.dtype

    def waits_for(self, others: Sequence[Op], index: GraphIndex) -> bool:
        return any(_ends_in_attention(one.outputs[0], index) for one in others)

    def rewrite(self, op: _Product, match: list[_Product], index: GraphIndex) -> None:
        axis = 0 if op.attrs.transpose_b else 1
        weights = [index.constants[one.inputs[1]] for one in match]
        sizes = [array.shape[axis] for array in weights]
        inputs = [
            op.inputs[0],
            index.add_constant(
                f"{op.name}_weights",
                derived(lambda *parts: np.concatenate(parts, axis), *weights),
            ),
        ]
        if any(any(one.inputs[2:]) for one in match):
            biases = [
                index.constants[one.inputs[2]]
                if any(one.inputs[2:])
                else np.zeros(size, array.dtype)
                for one, size, array in zip(match, sizes, weights, strict=True)
            ]
            inputs.append(index.add_constant(f"{op.name}_bias", np.concatenate(biases)))
        put_together(match, inputs, op.attrs, sizes, index)


def _ends_in_attention(name: str, index: GraphIndex, steps: int = 8) -> bool:
    """True if attention follows within a few steps."""
    return steps > 0 and any(
        reader.type == "Attention"
        or any(_ends_in_attention(result, index, steps - 1) for result in reader.outputs)
        for reader in index.readers(name)
        if reader.type not in ("MatMul", "Shape")
    )
