"""Moves transposes of the rows of a matrix product to the side where they merge with others."""

from __future__ import annotations

from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import NoMatch, PatternPass
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.converter.passes.reshape import RESHAPES
from vkmnn.converter.passes.transpose import Perm, permutation
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import TransposeAttrs


@dataclass(frozen=True, slots=True)
class _Match:
    transpose: Op
    product: Op
    perm: Perm


def _row_permutation(transpose: Op, product: Op[Any], index: GraphIndex) -> Perm | NoMatch:
    """Return the permutation of a Transpose that may change sides with a product."""
    perm = permutation(transpose, index)
    if perm is None or len(perm) < 2 or perm[-1] != len(perm) - 1:
        return NoMatch("the last axis moves")
    if product.attrs.transpose_a or any(product.inputs[3:]):
        return NoMatch("the operand is transposed, or there is a residual")
    if index.rank(product.inputs[1]) != 2:
        return NoMatch("the right operand is not a matrix")
    return perm


def _is_transposed(name: str, index: GraphIndex) -> bool:
    """True for the result of a Transpose, or of reshapes of one."""
    reshape = index.producer_of_type(name, *RESHAPES)
    inner = name if reshape is None else reshape.inputs[0]
    return index.producer_of_type(inner, "Transpose") is not None


def _will_be_transposed(name: str, index: GraphIndex) -> bool:
    """True if only a Transpose reads the tensor, perhaps through a reshape."""
    for _ in range(2):
        if not index.read_once(name):
            return False
        (reader,) = index.readers(name)
        if reader.type == "Transpose":
            return True
        if reader.type not in RESHAPES:
            return False
        name = reader.outputs[0]
    return False


class RaiseTranspose(PatternPass[_Match]):
    """Transpose of a MatMul's rows after it, with another Transpose before it: both before it."""

    name = "raise_transpose"
    roots = frozenset({"Transpose"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        product = index.producer_of_type(op.inputs[0], "MatMul")
        if product is None:
            return NoMatch("no preceding MatMul")
        if not index.read_once(op.inputs[0]):
            return NoMatch("the product is used elsewhere")
        if not _is_transposed(product.inputs[0], index):
            return NoMatch("no Transpose before the product to merge with")
        if _will_be_transposed(op.outputs[0], index):
            return NoMatch("there is a Transpose after it to merge with")
        perm = _row_permutation(op, product, index)
        return perm if isinstance(perm, NoMatch) else _Match(op, product, perm)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        product = match.product
        value = index.unique_name(product.inputs[0])
        known = index.info(product.inputs[0])
        if known is not None and known.shape is not None:
            index.add_info(value, known.dtype, tuple(known.shape[axis] for axis in match.perm))
        inputs, outputs = [value, *product.inputs[1:]], list(op.outputs)
        index.replace(
            op,
            Op("Transpose", op.name, [product.inputs[0]], [value], op.attrs, op.source),
            Op("MatMul", product.name, inputs, outputs, product.attrs, product.source),
        )


class LowerTranspose(PatternPass[_Match]):
    """Transpose of a MatMul's rows before it, with another Transpose after it: both after it."""

    name = "lower_transpose"
    roots = frozenset({"MatMul"})

    def match(self, op: Op, index: GraphIndex) -> _Match | NoMatch:
        transpose = index.producer_of_type(op.inputs[0], "Transpose")
        if transpose is None:
            return NoMatch("no preceding Transpose")
        if not index.read_once(op.inputs[0]):
            return NoMatch("the transposed value is used elsewhere")
        if _is_transposed(transpose.inputs[0], index):
            return NoMatch("there is a Transpose before it to merge with")
        if not _will_be_transposed(op.outputs[0], index):
            return NoMatch("no Transpose after the product to merge with")
        perm = _row_permutation(transpose, op, index)
        return perm if isinstance(perm, NoMatch) else _Match(transpose, op, perm)

    def rewrite(self, op: Op, match: _Match, index: GraphIndex) -> None:
        transpose = match.transpose
        value = index.unique_name(op.outputs[0])
        known = index.info(op.outputs[0])
        if known is not None and known.shape is not None:
            places = [match.perm.index(axis) for axis in range(len(match.perm))]
            index.add_info(value, known.dtype, tuple(known.shape[place] for place in places))
        inputs, outputs = [transpose.inputs[0], *op.inputs[1:]], list(op.outputs)
        attrs = TransposeAttrs(match.perm)
        index.replace(
            op,
            Op("MatMul", op.name, inputs, [value], op.attrs, op.source),
            Op("Transpose", transpose.name, [value], outputs, attrs, transpose.source),
        )
