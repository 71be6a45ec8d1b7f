"""Matrix products of one input that feed attention: one product and a Split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.codes import leads_to_attention
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import MatMulAttrs, OpAttrs, SplitAttrs

MAX_BYTES = 64 << 20
"""Larger weights are not merged: they fill a device alone, and joining copies them."""


class MergeMatMul(PatternPass["list[Op]"]):
    """Merges queries, keys and values by constant weights from one input: weights side by side.

    Only if attention reads the results, through reshapes and transposes, rotary embeddings and
    joins with caches, which read parts of a tensor as well as whole ones.
    """

    name = "merge_matmul"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> list[Op] | NoMatch:
        if not _is_part(op, index):
            return NoMatch("not a plain product by constant weights")
        if not leads_to_attention(op.outputs[0], index):
            return NoMatch("the result is not for attention")
        alike = [
            other
            for other in index.readers(op.inputs[0])
            if other.inputs[0] == op.inputs[0] and _is_part(other, index)
            if _same_kind(op, other, index)
        ]
        group = [other for other in alike if leads_to_attention(other.outputs[0], index)]
        if any(
            _ends_in_attention(other.outputs[0], index) for other in alike if other not in group
        ):
            return NoMatch("another product of the group still does more than move to attention")
        if len(group) == 1:
            return NoMatch("no other product of the same input")
        if any(index.is_later(op, other) for other in group if other is not op):
            return NoMatch("not the first of its group")  # which has been refused before
        if sum(index.constants[one.inputs[1]].nbytes for one in group) > MAX_BYTES:
            return NoMatch("the weights are too large")
        return sorted(group, key=lambda one: one is not op)

    def rewrite(self, op: Op[MatMulAttrs], match: list[Op], index: GraphIndex) -> None:
        axis = 0 if op.attrs.transpose_b else 1
        weights = [index.constants[one.inputs[1]] for one in match]
        sizes = [array.shape[axis] for array in weights]
        inputs = [
            op.inputs[0],
            index.add_constant(f"{op.name}_weights", np.concatenate(weights, axis)),
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


def put_together(
    ops: Sequence[Op], inputs: list[str], attrs: OpAttrs, sizes: Sequence[int], index: GraphIndex
) -> None:
    """Replace products by one product of all columns, and a Split.

    Args:
        ops: the products, the first of the graph first.
        inputs: of the product of all.
        attrs: the same.
        sizes: the columns of each.
        index: the graph.
    """
    first, results, source = ops[0], [one.outputs[0] for one in ops], merged_source(ops)
    whole, info = index.unique_name(f"{first.name}_merged"), index.info(results[0])
    if info is not None:
        shape = None if info.shape is None else (*info.shape[:-1], sum(sizes))
        index.add_info(whole, info.dtype, shape)
    rank = index.rank(results[0])
    assert rank is not None
    parts = index.add_constant(f"{first.name}_sizes", np.array(sizes, np.int64))
    split, ending = index.unique_name(f"{first.name}_split"), SplitAttrs(rank - 1)
    for other in ops[1:]:
        index.replace(other)
    index.replace(
        first,
        Op(first.type, first.name, inputs, [whole], attrs, source),
        Op("Split", split, [whole, parts], results, ending, source),
    )


def _is_part(op: Op, index: GraphIndex) -> bool:
    """True for a product of rows by a constant matrix, perhaps with a bias per column."""
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


def _same_kind(first: Op, second: Op, index: GraphIndex) -> bool:
    one, other = index.constants[first.inputs[1]], index.constants[second.inputs[1]]
    return first.attrs == second.attrs and one.dtype == other.dtype


def _ends_in_attention(name: str, index: GraphIndex, steps: int = 8) -> bool:
    """True if attention follows within a few steps."""
    return steps > 0 and any(
        reader.type == "Attention"
        or any(_ends_in_attention(result, index, steps - 1) for result in reader.outputs)
        for reader in index.readers(name)
        if reader.type not in ("MatMul", "Shape")
    )
