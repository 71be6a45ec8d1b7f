"""Products of one input that feed attention: one product of all columns, and a Split."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic

import numpy as np

from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import AttrsT, Op
from vkmnn.ir.ops import OpAttrs, SplitAttrs

_HEADS = {
    "Attention": slice(3),
    "Concat": slice(-1, None),
    "JoinPast": slice(1, 2),
    "Rotary": slice(1),
}
"""Operands that hold heads of attention."""


class MergedProducts(PatternPass["list[Op[AttrsT]]"], Generic[AttrsT]):
    """Queries, keys and values by constant weights from one input: weights side by side.

    Only where attention reads the results, through reshapes and transposes, rotary embeddings and
    joins with caches: they read parts of a tensor as well as whole ones.
    """

    weights: ClassVar[int] = 1
    """Number of the operand that holds the weights."""
    max_bytes: ClassVar[int] = 64 << 20
    """Larger weights are not merged: they fill a device alone, and joining copies them."""

    @abstractmethod
    def is_part(self, op: Op[Any], index: GraphIndex) -> bool:
        """Return whether an op is a product that can be merged with others of its kind."""

    @abstractmethod
    def are_alike(self, op: Op[AttrsT], other: Op[AttrsT], index: GraphIndex) -> bool:
        """Return whether two such products of one input can be one."""

    def waits_for(self, others: Sequence[Op], index: GraphIndex) -> bool:
        """Return whether other passes may yet let one of these products join the group."""
        return False

    def match(self, op: Op[Any], index: GraphIndex) -> list[Op[AttrsT]] | NoMatch:
        """Return the products to merge, the first of the graph first."""
        if not self.is_part(op, index):
            return NoMatch("not a plain product by constant weights")
        if not leads_to_attention(op.outputs[0], index):
            return NoMatch("the result is not for attention")
        alike = [
            other
            for other in index.readers(op.inputs[0])
            if other.inputs[0] == op.inputs[0] and self.is_part(other, index)
            if self.are_alike(op, other, index)
        ]
        group = [other for other in alike if leads_to_attention(other.outputs[0], index)]
        if self.waits_for([one for one in alike if one not in group], index):
            return NoMatch("another product of the group still does more than move to attention")
        if len(group) == 1:
            return NoMatch("no other product of the same input")
        if any(index.is_later(op, other) for other in group if other is not op):
            return NoMatch("not the first of its group")  # which has been refused before
        if sum(index.constants[one.inputs[self.weights]].nbytes for one in group) > self.max_bytes:
            return NoMatch("the weights are too large")
        return sorted(group, key=lambda one: one is not op)


def put_together(
    ops: Sequence[Op], inputs: list[str], attrs: OpAttrs, sizes: Sequence[int], index: GraphIndex
) -> None:
    """Replace products by one product of all columns, and a Split.

    Args:
        ops: the products, the first of the graph first.
        inputs: inputs of the joint product.
        attrs: its attributes.
        sizes: the columns of each.
        index: the graph.
    """
    first, results, source = ops[0], [one.outputs[0] for one in ops], merged_source(ops)
    whole, info = index.unique_name(f"{first.name}_merged"), index.info(results[0])
    if info is not None:
        shape = None if info.shape is None else (*info.shape[:-1], sum(sizes))
        index.add_info(whole, info.dtype, shape)
    parts = index.add_constant(f"{first.name}_sizes", np.array(sizes, np.int64))
    split, rank = index.unique_name(f"{first.name}_split"), index.rank(results[0])
    columns = SplitAttrs(-1 if rank is None else rank - 1)
    for other in ops[1:]:
        index.replace(other)
    index.replace(
        first,
        Op(first.type, first.name, inputs, [whole], attrs, source),
        Op("Split", split, [whole, parts], results, columns, source),
    )


def leads_to_attention(name: str, index: GraphIndex) -> bool:
    """True if the tensor becomes heads of attention: reshaped, joined with a cache, read."""
    while name and not index.is_output(name):
        readers = [one for one in index.readers(name) if one.type != "Shape"]
        if len(readers) != 1 or readers[0].inputs.count(name) != 1:
            return False
        (reader,) = readers
        places = _HEADS.get(reader.type)
        if places is not None:
            return name in reader.inputs[places]
        if reader.type not in ("Reshape", "Transpose") or reader.inputs[0] != name:
            return False
        name = reader.outputs[0]
    return False
