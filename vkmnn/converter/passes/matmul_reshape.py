"""Matrix products of flattened operands."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass, merged_source
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import reshape_target
from vkmnn.ir.graph import Dim, Op
from vkmnn.ir.ops import ReshapeAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    product: Op
    inner: Op
    shape: tuple[Dim, ...]
    target: tuple[int, ...] | None


class UnwrapMatMul(PatternPass[_Match]):
    """Reshape to a matrix, MatMul, Reshape of the rows: MatMul of all rows as they are.

    The first Reshape stays if it does more than flatten, and gives the rows their final shape. Ops
    after the product (residual, activation) then see the product.
    """

    name = "unwrap_matmul"
    roots = frozenset({"Reshape"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        product = index.producer_of_type(op.inputs[0], "MatMul")
        inner = product and index.producer_of_type(product.inputs[0], "Reshape", "Flatten")
        if product is None or inner is None:
            return NoMatch("no preceding product of a reshaped operand")
        if not index.read_once(op.inputs[0]):
            return NoMatch("the product is used elsewhere")
        if product.attrs.transpose_a or any(product.inputs[3:]):
            return NoMatch("the operand is transposed, or there is a residual")
        if index.rank(product.inputs[1]) != 2:
            return NoMatch("the right operand is not a matrix")
        before, flat = index.shape(inner.inputs[0]), index.shape(product.inputs[0])
        result, after = index.shape(op.inputs[0]), index.shape(op.outputs[0])
        if before is None or not flat or not result or after is None or len(after) < 2:
            return NoMatch("the shapes are not known")
        if after[-1] is None or after[-1] != result[-1]:
            return NoMatch("the second reshape changes the columns")
        shape = (*after[:-1], flat[-1])
        if before == shape and None not in shape:
            return _Match(product, inner, shape, None)
        target = reshape_target(before, shape)
        if target is None:
            return NoMatch("more than one dimension is unknown")
        return _Match(product, inner, shape, target)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        product, inner = match.product, match.inner
        new: list[Op] = []
        value = inner.inputs[0]
        if match.target is not None:
            target = index.add_constant(f"{inner.name}_shape", np.array(match.target, np.int64))
            name = index.unique_name(inner.name)
            rows = index.unique_name(inner.outputs[0])
            new.append(Op("Reshape", name, [value, target], [rows], ReshapeAttrs(), inner.source))
            known = index.info(value)
            if known is not None:
                index.add_info(rows, known.dtype, match.shape)
            value = rows
        inputs, source = [value, *product.inputs[1:]], merged_source((inner, product, op))
        outputs = list(op.outputs)
        new.append(Op("MatMul", product.name, inputs, outputs, product.attrs, source))
        index.replace(op, *new)
